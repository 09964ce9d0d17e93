"""Operators as older opsets have them: settings in attributes, other defaults, other ways to broadcast, more results.

Each form whose inputs, attributes or meaning differ from the newest one is run whole and split in every way that its
rule offers, and compared with a definition in numpy.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from forced_plans import INFERENCE, TRAINING, forced_plan
from rule_cases import Case, b, f, i, index, positive, u
from small_models import proto_of
from strategies import strategy_plans

from shardplan.layout.mesh import Mesh
from shardplan.model.read import read_model
from shardplan.program.lower import lower_program
from shardplan.program.machine.run import Machine
from shardplan.program.machine.verify import verify_plan
from shardplan.program.reference.evaluate import evaluate


def along(rank, axis, function):
    """A binary operator whose second operand lies along dims from `axis` on."""

    def oracle(left, right, **_):
        return [np.asarray(function(left, right.reshape(*right.shape, *[1] * (rank - axis - right.ndim))))]

    return oracle


def flattened(function):
    """Softmax and its kin over `axis` and all behind it."""

    def oracle(data, axis=1):
        rows = data.reshape(int(np.prod(data.shape[:axis])), -1).astype(np.float64)
        return [function(rows).reshape(data.shape).astype(np.float32)]

    return oracle


def softmax(rows):
    weights = np.exp(rows - rows.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


def normalised(x, scale, bias, mean, var, epsilon=1e-5, **_):
    wide = (slice(None), *[None] * (x.ndim - 2))
    return [(x - mean[wide]) / np.sqrt(var[wide] + epsilon) * scale[wide] + bias[wide]]


def per_activation(x, scale, bias, mean, var, **_):
    return [(x - mean) / np.sqrt(var + 1e-5) * scale + bias]


def in_training(x, scale, bias, mean, var, momentum=0.9, **_):
    dims = (0, *range(2, x.ndim))
    now_mean, now_var = x.mean(dims), x.var(dims)
    made = normalised(x, scale, bias, now_mean, now_var)[0]
    old = [mean * momentum + now_mean * (1 - momentum), var * momentum + now_var * (1 - momentum)]
    return [made, *old, now_mean, now_var]


def top(x, k=None, axis=-1, **attributes):
    k = int(attributes.get("k", 0)) if k is None else int(np.ravel(k)[0])
    order = np.argsort(-x, axis=axis, kind="stable").take(range(k), axis=axis)
    return [np.take_along_axis(x, order, axis), order]


def enlarged(x, *_, **__):
    return [x.repeat(2, axis=2).repeat(2, axis=3)]


def windows(x, function):
    return [function(x.reshape(*x.shape[:2], x.shape[2] // 2, 2), -1)]


def newer(kind, outputs=2):
    """The same layer in the form of opset 14."""

    def oracle(*operands, output_sequence=1, **attributes):
        return Case(kind, operands, attributes, outputs=outputs, opset=14).run()

    return oracle


LEFT, RIGHT = f(4, 6, 8), f(6)
SPACE = (f(4, 4, 2, 2), f(4), f(4), f(4), positive(4))
BLOCKS = f(4, 16, 2, 2)
STATES = {"hidden_size": 4}
CASES = {
    "Add-6": (Case("Add", (LEFT, f(4, 6, 8)), {}, opset=6, oracle=lambda a, b: [a + b]), "x0 x1 x2"),
    "Add-6 along": (
        Case("Add", (LEFT, RIGHT), {"broadcast": 1, "axis": 1}, opset=6, oracle=along(3, 1, np.add)),
        "x0 x1 x2",
    ),
    "Add-1 at the end": (
        Case(
            "Add", (LEFT, f(8)), {"broadcast": 1, "consumed_inputs": [0, 0]}, opset=5, oracle=lambda a, b, **_: [a + b]
        ),
        "x0 x1 x2",
    ),
    "Mul-6 along": (
        Case("Mul", (LEFT, f(4, 6)), {"broadcast": 1, "axis": 0}, opset=6, oracle=along(3, 0, np.multiply)),
        "x0 x1 x2",
    ),
    "Div-6 along": (
        Case("Div", (LEFT, positive(6)), {"broadcast": 1, "axis": 1}, opset=6, oracle=along(3, 1, np.divide)),
        "x0 x1 x2",
    ),
    "Pow-1 along": (
        Case("Pow", (positive(4, 6), f(4)), {"broadcast": 1, "axis": 0}, opset=6, oracle=along(2, 0, np.power)),
        "x0 x1",
    ),
    "And-1 along": (
        Case("And", (b(4, 6), b(4)), {"broadcast": 1, "axis": 0}, opset=6, oracle=along(2, 0, np.logical_and)),
        "x0 x1",
    ),
    "Less-1 along": (
        Case("Less", (f(4, 6), f(4)), {"broadcast": 1, "axis": 0}, opset=6, oracle=along(2, 0, np.less)),
        "x0 x1",
    ),
    "PRelu-6": (
        Case(
            "PRelu",
            (f(4, 6, 2), f(6)),
            {},
            opset=6,
            oracle=lambda x, s: [np.where(x < 0, x * s[:, None], x)],
        ),
        "x0 x1 x2",
    ),
    "Gemm-6": (
        Case(
            "Gemm",
            (f(4, 6), f(6, 8), f(8)),
            {"broadcast": 1, "alpha": 0.5},
            opset=6,
            oracle=lambda x, w, c, **_: [0.5 * (x @ w) + c],
        ),
        "m k n",
    ),
    "Max-6": (Case("Max", (f(4, 6), f(4, 6)), {}, opset=6, oracle=lambda a, b: [np.maximum(a, b)]), "x0 x1"),
    "Mean-6": (Case("Mean", (f(4, 6), f(4, 6)), {}, opset=6, oracle=lambda a, b: [(a + b) / 2]), "x0 x1"),
    "Clip-6": (
        Case("Clip", (f(4, 6),), {"min": -0.5}, opset=6, oracle=lambda x, **given: [x.clip(given["min"])]),
        "x0 x1",
    ),
    "Dropout-6": (
        Case("Dropout", (f(4, 6),), {"is_test": 1}, opset=6, oracle=lambda x, **_: [x]),
        "x0 x1",
    ),
    "Dropout-10": (Case("Dropout", (f(4, 6),), {"ratio": 0.3}, opset=10, oracle=lambda x, **_: [x]), "x0 x1"),
    "Selu-1": (
        Case(
            "Selu",
            (f(4, 6),),
            {},
            opset=5,
            oracle=lambda x: [1.0507009872674 * np.where(x > 0, x, 1.6732 * (np.exp(x) - 1))],
        ),
        "x0 x1",
    ),
    "BatchNormalization-6": (
        Case("BatchNormalization", SPACE, {"is_test": 1}, opset=6, oracle=normalised),
        "n c y0 y1",
    ),
    "BatchNormalization-6 with strange units": (
        Case(
            "BatchNormalization",
            (f(4, 4, 2), f(4, 2), f(4, 2), f(4, 2), positive(4, 2)),
            {"is_test": 1, "spatial": 0},
            opset=6,
            oracle=per_activation,
        ),
        "n c y",
    ),
    "BatchNormalization-7": (Case("BatchNormalization", SPACE, {}, opset=8, oracle=normalised), "n c y0 y1"),
    "BatchNormalization-9": (Case("BatchNormalization", SPACE, {}, opset=9, oracle=normalised), "n c y0 y1"),
    "BatchNormalization-9 in training": (
        Case("BatchNormalization", SPACE, {}, opset=9, outputs=5, oracle=in_training),
        "n c y0 y1",
    ),
    "DepthToSpace-1": (
        Case(
            "DepthToSpace",
            (BLOCKS,),
            {"blocksize": 2},
            opset=9,
            oracle=lambda x, **_: [x.reshape(4, 2, 2, 4, 2, 2).transpose(0, 3, 4, 1, 5, 2).reshape(4, 4, 4, 4)],
        ),
        None,
    ),
    "Reshape-1": (
        Case("Reshape", (f(4, 6),), {"shape": [4, 2, -1]}, opset=4, oracle=lambda x, **_: [x.reshape(4, 2, 3)]),
        "a b c",
    ),
    "Reshape-5": (Case("Reshape", (f(4, 6), i(0, 2, 3)), {}, (1,), opset=5), "a b c"),
    "Pad-1": (
        Case(
            "Pad",
            (f(4, 6),),
            {"paddings": [0, 1, 0, 2], "value": 3.0},
            opset=1,
            oracle=lambda x, **_: [np.pad(x, [(0, 0), (1, 2)], constant_values=3)],
        ),
        "x0",
    ),
    "Pad-2": (
        Case("Pad", (f(4, 6),), {"pads": [0, 1, 0, 2]}, opset=10, oracle=lambda x, **_: [np.pad(x, [(0, 0), (1, 2)])]),
        "x0",
    ),
    "Slice-1": (
        Case("Slice", (f(4, 8),), {"starts": [0, 2], "ends": [100, -2]}, opset=9, oracle=lambda x, **_: [x[:, 2:-2]]),
        "x0 beforex1|x1|afterx1",
    ),
    "Split-1": (
        Case(
            "Split",
            (f(4, 8), np.array([2, 6], np.float32)),
            {"axis": 1},
            (1,),
            outputs=2,
            opset=1,
            oracle=lambda x, *_, **__: [x[:, :2], x[:, 2:]],
        ),
        "x0 part0|part1",
    ),
    "Split-2": (
        Case(
            "Split",
            (f(4, 8),),
            {"axis": 1, "split": [2, 6]},
            outputs=2,
            opset=11,
            oracle=lambda x, **_: [x[:, :2], x[:, 2:]],
        ),
        "x0 part0|part1",
    ),
    "Split-2 evenly": (
        Case("Split", (f(4, 8),), {}, outputs=2, opset=11, oracle=lambda x, **_: [x[:2], x[2:]]),
        "x1 part0|part1",
    ),
    "Squeeze-1": (Case("Squeeze", (f(4, 1, 6),), {"axes": [1]}, opset=11, oracle=lambda x, **_: [x[:, 0]]), "a b"),
    "Unsqueeze-1": (Case("Unsqueeze", (f(4, 6),), {"axes": [0]}, opset=11, oracle=lambda x, **_: [x[None]]), "a b"),
    "Tile-1": (
        Case(
            "Tile",
            (f(4, 6), np.array(2, np.float32), np.array(0, np.float32)),
            {},
            (1, 2),
            opset=5,
            oracle=lambda x, *_: [np.tile(x, (2, 1))],
        ),
        "copies0 x0 x1",
    ),
    "TopK-1": (Case("TopK", (f(4, 6),), {"k": 3}, outputs=2, opset=9, oracle=top), "x0"),
    "TopK-10": (Case("TopK", (f(4, 6), i(3)), {"axis": 0}, (1,), outputs=2, opset=10, oracle=top), "x1"),
    "Upsample-1": (
        Case("Upsample", (f(4, 6, 2, 2),), {"height_scale": 2.0, "width_scale": 2.0}, opset=6, oracle=enlarged),
        "x0 x1 x2 x3",
    ),
    "Upsample-7": (
        Case("Upsample", (f(4, 6, 2, 2),), {"scales": [1.0, 1.0, 2.0, 2.0]}, opset=8, oracle=enlarged),
        "x0 x1 x2 x3",
    ),
    "Upsample-9": (
        Case("Upsample", (f(4, 6, 2, 2), np.array([1, 1, 2, 2], np.float32)), {}, (1,), opset=9, oracle=enlarged),
        "x0 x1 x2 x3",
    ),
    "Resize-10": (
        Case("Resize", (f(4, 6, 2, 2), np.array([1, 1, 2, 2], np.float32)), {}, (1,), opset=10, oracle=enlarged),
        "x0 x1 x2 x3",
    ),
    "Softmax-11": (Case("Softmax", (f(4, 2, 4),), {}, opset=11, oracle=flattened(softmax)), "x0 k1 k2"),
    "LogSoftmax-1": (
        Case("LogSoftmax", (f(4, 2, 4),), {"axis": 2}, opset=1, oracle=flattened(lambda r: np.log(softmax(r)))),
        "x0 x1 k2",
    ),
    "Hardmax-11": (
        Case("Hardmax", (f(4, 6),), {}, opset=11, oracle=flattened(lambda r: np.eye(6)[r.argmax(1)])),
        "x0 k1",
    ),
    "ReduceSum-11": (
        Case("ReduceSum", (f(4, 6),), {"axes": [1]}, opset=11, oracle=lambda x, **_: [x.sum(1, keepdims=True)]),
        "x k",
    ),
    "ReduceMax-13": (
        Case("ReduceMax", (f(4, 6),), {"axes": [-1], "keepdims": 0}, opset=13, oracle=lambda x, **_: [x.max(1)]),
        "x k",
    ),
    "ReduceMean-1 of all": (
        Case("ReduceMean", (f(4, 6),), {"keepdims": 0}, opset=1, oracle=lambda x, **_: [np.asarray(x.mean())]),
        "k0 k1",
    ),
    "ReduceLogSumExp-11": (
        Case(
            "ReduceLogSumExp",
            (f(4, 6),),
            {"axes": [0]},
            opset=11,
            oracle=lambda x, **_: [np.log(np.exp(x).sum(0, keepdims=True))],
        ),
        None,
    ),
    "ArgMax-1": (Case("ArgMax", (f(4, 6),), {"axis": 1}, opset=1, oracle=lambda x, **_: [x.argmax(1)[:, None]]), "x k"),
    "GlobalLpPool-1": (
        Case(
            "GlobalLpPool",
            (f(4, 6, 4),),
            {"p": 2.0},
            opset=1,
            oracle=lambda x, **_: [np.sqrt((x**2).sum(2, keepdims=True))],
        ),
        "n c k",
    ),
    "LpPool-1": (
        Case(
            "LpPool",
            (f(4, 6, 4),),
            {"p": 2.0, "kernel_shape": [2], "strides": [2]},
            opset=1,
            oracle=lambda x, **_: windows(x**2, lambda a, d: np.sqrt(a.sum(d))),
        ),
        "n c y",
    ),
    "AveragePool-1": (
        Case(
            "AveragePool",
            (f(4, 6, 4),),
            {"kernel_shape": [2], "strides": [2]},
            opset=1,
            oracle=lambda x, **_: windows(x, np.mean),
        ),
        "n c y",
    ),
    "MaxPool-1": (
        Case(
            "MaxPool",
            (f(4, 6, 4),),
            {"kernel_shape": [2], "strides": [2]},
            opset=1,
            oracle=lambda x, **_: windows(x, np.max),
        ),
        "n c y",
    ),
    "GatherND-11": (
        Case("GatherND", (f(4, 6), index(4, 2, 1)), {}, opset=11, oracle=lambda x, at: [x[at[:, 0]]]),
        "i d",
    ),
    "Scatter-9": (
        Case(
            "Scatter",
            (f(4, 6), np.zeros((1, 6), np.int64), f(1, 6)),
            {},
            opset=9,
            oracle=lambda x, _, new: [np.concatenate([new, x[1:]])],
        ),
        "d1",
    ),
    "QuantizeLinear-10": (
        Case(
            "QuantizeLinear",
            (f(4, 6), np.array(0.1, np.float32), np.array(3, np.uint8)),
            {},
            opset=10,
            oracle=lambda x, s, z: [np.clip(np.rint(x / s) + z, 0, 255).astype(np.uint8)],
        ),
        "x0 x1",
    ),
    "DequantizeLinear-10": (
        Case(
            "DequantizeLinear",
            (u(4, 6), np.array(0.1, np.float32), np.array(3, np.uint8)),
            {},
            opset=10,
            oracle=lambda x, s, z: [(x.astype(np.float32) - z) * s],
        ),
        "x0 x1",
    ),
    "GroupNormalization-18": (
        Case(
            "GroupNormalization",
            (f(4, 4, 6), f(2), f(2)),
            {"num_groups": 2},
            opset=18,
            oracle=lambda x, s, t, **_: [
                ((g := x.reshape(4, 2, -1)) - g.mean(2, keepdims=True))
                / np.sqrt(g.var(2, keepdims=True) + 1e-5)
                * s[:, None]
                + t[:, None]
            ][0].reshape(1, 4, 4, 6),
        ),
        None,
    ),
    "DFT-17": (
        Case(
            "DFT",
            (f(4, 6, 2),),
            {"axis": 1},
            opset=17,
            oracle=lambda x, **_: [
                np.stack([(t := np.fft.fft(x[..., 0] + 1j * x[..., 1], axis=1)).real, t.imag], -1).astype(np.float32)
            ],
        ),
        "x0",
    ),
    "RNN-1": (
        Case(
            "RNN",
            (f(2, 4, 4), f(1, 4, 4), f(1, 4, 4)),
            {**STATES, "output_sequence": 1},
            outputs=2,
            opset=6,
            oracle=newer("RNN"),
        ),
        "b h",
    ),
    "LSTM-1": (
        Case(
            "LSTM",
            (f(2, 4, 4), f(1, 16, 4), f(1, 16, 4)),
            {**STATES, "output_sequence": 1},
            outputs=2,
            opset=6,
            oracle=newer("LSTM"),
        ),
        "b h",
    ),
    "GRU-3": (
        Case(
            "GRU",
            (f(2, 4, 4), f(1, 12, 4), f(1, 12, 4)),
            {**STATES, "output_sequence": 1},
            outputs=2,
            opset=6,
            oracle=newer("GRU"),
        ),
        "b h",
    ),
}


def values_of(case: Case) -> dict[str, np.ndarray]:
    return {f"i{position}": array for position, array in enumerate(case.operands) if array is not None}


@pytest.mark.parametrize("name", CASES)
def test_the_whole_is_what_the_standard_says(name):
    case, _ = CASES[name]
    operator = case.model().operators[0]
    for found, expected in zip(evaluate(operator, operator.attributes, case.operands), case.whole, strict=True):
        assert found.shape == np.shape(expected)
        np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_the_rule_splits_it(name):
    case, factors = CASES[name]
    labels = [label.split(";")[0] for label in case.options()]
    if factors is not None:
        assert sorted(labels) == sorted(factors.split())
    assert labels


@pytest.mark.parametrize("name", CASES)
def test_every_strategy_gives_the_result_of_the_whole(name):
    case, _ = CASES[name]
    model, rule = case.model(), case.rule()
    found = 0
    for plan in strategy_plans(model, rule, Mesh.of(a=2)):
        report = Machine(lower_program(model, plan, [rule]), values_of(case), 1e-4).run()
        assert report.mismatch is None, (plan.operators[0].split, report.mismatch)
        found += 1
    assert found


OLD_NET = """
old (float[4,4,8,8] x) => (float[4,8] y)
<float[8,4,3,3] w1, float[8] b1, float[8] s, float[8] t, float[8] m, float[8] v, float[128,8] w2, float[8] b2,
 int64[2] flat = {4,-1}> {
  c = Conv <pads = [1,1,1,1], kernel_shape = [3,3]> (x, w1)
  a = Add <broadcast = 1, axis = 1> (c, b1)
  n = BatchNormalization <is_test = 1> (a, s, t, m, v)
  r = Relu (n)
  p = MaxPool <kernel_shape = [2,2], strides = [2,2]> (r)
  d = Dropout <is_test = 1> (p)
  cut = Slice <starts = [0], ends = [4], axes = [2]> (d)
  f = Reshape (cut, flat)
  g = Gemm <broadcast = 1> (f, w2, b2)
  low, high = Split <axis = 1, split = [4,4]> (g)
  both = Concat <axis = 1> (low, high)
  q = Clip <min = -2.0, max = 2.0> (both)
  y = Softmax (q)
}"""


@pytest.mark.parametrize("seed", range(3))
def test_a_model_of_an_old_opset_is_planned_and_carried_out(seed, tmp_path):
    onnx.save(proto_of(OLD_NET, 6), tmp_path / "old.onnx")
    model = read_model(tmp_path / "old.onnx")
    report = verify_plan(model, forced_plan(model, "2x2", TRAINING if seed else INFERENCE, seed=seed))
    assert report.verified, (report.mismatch, report.mispriced)
    assert report.moved_bytes
