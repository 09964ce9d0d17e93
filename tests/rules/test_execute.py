"""Every option of every rule here is carried out on 2 (and 3) devices and gives what the whole operator gives."""

from __future__ import annotations

import numpy as np
import pytest
from rule_execution import Case, prove, prove_linear

RNG = np.random.default_rng(11)


def f(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> np.ndarray:
    return (np.abs(f(*shape)) + 0.5).astype(np.float32)


def i(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def index(limit: int, *shape: int) -> np.ndarray:
    return RNG.integers(0, limit, shape).astype(np.int64)


def b(*shape: int) -> np.ndarray:
    return RNG.random(shape) > 0.4


def softmax_11(x: np.ndarray, axis: int) -> list[np.ndarray]:
    """Before opset 13: over the dim and all after it."""
    axes = tuple(range(axis, x.ndim))
    e = np.exp(x - x.max(axis=axes, keepdims=True))
    return [e / e.sum(axis=axes, keepdims=True)]


def local_response(x: np.ndarray, size: int) -> list[np.ndarray]:
    """The definition; the reference evaluator stops at as many channels as there are samples."""
    before, after = (size - 1) // 2, size // 2 + 1
    total = [np.square(x[:, max(0, c - before) : c + after]).sum(axis=1) for c in range(x.shape[1])]
    return [x / (1 + 1e-4 / size * np.stack(total, axis=1)) ** 0.75]


def grouped_transpose(
    x: np.ndarray, w: np.ndarray, bias: np.ndarray, group: int, strides: list[int]
) -> list[np.ndarray]:
    """Group by group, which the reference evaluator does only for one output channel per group."""
    parts = zip(np.split(x, group, axis=1), np.split(w, group), np.split(bias, group), strict=True)
    return [np.concatenate([Case("ConvTranspose", part, {"strides": strides}).run()[0] for part in parts], axis=1)]


CASES: dict[str, tuple[Case, str]] = {
    # case, factors that must be offered (in any order)
    "MatMul": (Case("MatMul", (f(2, 6, 4), f(4, 12))), "b m k n"),
    "MatMul batched": (Case("MatMul", (f(2, 6, 4), f(4, 2, 4, 12))), "b0 b1 m k n"),
    "MatMul broadcast": (Case("MatMul", (f(1, 6, 4), f(2, 4, 12))), "b m k n"),
    "MatMul matrix vector": (Case("MatMul", (f(2, 6, 4), f(4))), "b m k"),
    "MatMul vector matrix": (Case("MatMul", (f(4), f(2, 4, 6))), "b k n"),
    "MatMul vectors": (Case("MatMul", (f(6), f(6))), "k"),
    "Gemm": (Case("Gemm", (f(6, 4), f(4, 12), f(12))), "m k n"),
    "Gemm transposed": (
        Case("Gemm", (f(4, 6), f(12, 4), f(6, 1)), {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
        "m k n",
    ),
    "Gemm without C": (Case("Gemm", (f(6, 4), f(4, 12))), "m k n"),
    "Gemm full C": (Case("Gemm", (f(6, 4), f(4, 12), f(6, 12))), "m k n"),
    "Einsum dispatch": (Case("Einsum", (f(2, 6, 4, 2), f(2, 6, 8)), {"equation": "gsec,gsh->egch"}), "g s e c h"),
    "Einsum experts": (Case("Einsum", (f(4, 2, 6, 8), f(4, 8, 6)), {"equation": "egch,ehi->egci"}), "e g c h i"),
    "Einsum ellipsis": (Case("Einsum", (f(2, 4, 6), f(6, 8)), {"equation": "...ij,jk->...ik"}), "batch i j k"),
    "Einsum implicit": (Case("Einsum", (f(4, 6), f(6, 8)), {"equation": "ij,jk"}), "i j k"),
    "Einsum diagonal": (Case("Einsum", (f(4, 6, 6),), {"equation": "bii->bi"}), "b"),
    "Einsum sum": (Case("Einsum", (f(4, 6),), {"equation": "ij->i"}), "i j"),
    "Add": (Case("Add", (f(4, 6, 8), f(6, 1))), "x0 x1 x2"),
    "Sub": (Case("Sub", (f(4, 6), f(6))), "x0 x1"),
    "Mul": (Case("Mul", (f(4, 6), f(4, 1))), "x0 x1"),
    "Div": (Case("Div", (f(4, 6), positive(6))), "x0 x1"),
    "Sum": (Case("Sum", (f(4, 6), f(6), f(4, 1))), "x0 x1"),
    "Mean": (Case("Mean", (f(4, 6), f(6), f(4, 6))), "x0 x1"),
    "Max": (Case("Max", (f(4, 6), f(6))), "x0 x1"),
    "Where": (Case("Where", (b(4, 1), f(4, 6), f(6))), "x0 x1"),
    "Neg": (Case("Neg", (f(4, 6),)), "x0 x1"),
    "Gelu": (Case("Gelu", (f(4, 6),)), "x0 x1"),
    "Cast": (Case("Cast", (f(4, 6),), {"to": 11}), "x0 x1"),
    "Clip": (Case("Clip", (f(4, 6), np.float32(-0.5), np.float32(0.5))), "x0 x1"),
    "Pow": (Case("Pow", (positive(4, 6), np.float32(3.0)), constants=(1,)), "x0 x1"),
    "PRelu": (Case("PRelu", (f(2, 4, 6), f(4, 1))), "x0 x1 x2"),
    "Equal": (Case("Equal", (index(3, 4, 6), index(3, 6))), "x0 x1"),
    "Dropout": (Case("Dropout", (f(4, 6),)), "x0 x1"),
    "ReduceSum": (Case("ReduceSum", (f(4, 6, 8), i(1)), {"keepdims": 0}, (1,)), "x0 x1 k"),
    "ReduceSum all": (Case("ReduceSum", (f(4, 6),), {"keepdims": 0}), "k0 k1"),
    "ReduceMean": (Case("ReduceMean", (f(4, 6, 8), i(-1, 0)), {"keepdims": 1}, (1,)), "x k0 k1"),
    "ReduceMax": (Case("ReduceMax", (f(4, 6), i(1)), {"keepdims": 1}, (1,)), "x k"),
    "ReduceMin": (Case("ReduceMin", (f(4, 6), i(1)), {"keepdims": 0}, (1,)), "x k"),
    "ReduceProd": (Case("ReduceProd", (f(4, 6), i(1)), {"keepdims": 0}, (1,)), "x k"),
    "ReduceL1": (Case("ReduceL1", (f(4, 6), i(1)), {"keepdims": 0}, (1,)), "x k"),
    "ReduceL2": (Case("ReduceL2", (f(4, 6), i(1)), {"keepdims": 0}, (1,)), "x k"),
    "ReduceLogSum": (Case("ReduceLogSum", (positive(4, 6), i(1)), {"keepdims": 0}, (1,)), "x k"),
    "ReduceLogSumExp": (Case("ReduceLogSumExp", (f(4, 6), i(1)), {"keepdims": 1}, (1,)), "x k"),
    "ReduceSumSquare": (Case("ReduceSumSquare", (f(4, 6), i(1)), {"keepdims": 1}, (1,)), "x k"),
    "ReduceSum opset 11": (Case("ReduceSum", (f(4, 6),), {"axes": [1]}, opset=11), "x k"),
    "ArgMax": (Case("ArgMax", (f(4, 6, 2),), {"axis": 1, "keepdims": 0}), "x0 x1 k"),
    "ArgMin": (Case("ArgMin", (f(4, 6),), {"axis": 0}), "x k"),
    "GlobalAveragePool": (Case("GlobalAveragePool", (f(2, 4, 6, 8),)), "n c k0 k1"),
    "GlobalMaxPool": (Case("GlobalMaxPool", (f(2, 4, 6, 8),)), "n c k0 k1"),
    "Softmax": (Case("Softmax", (f(4, 6, 8),), {"axis": 1}), "x0 k1 x2"),
    "Softmax opset 11": (Case("Softmax", (f(4, 6, 8),), {"axis": 1}, opset=11, oracle=softmax_11), "x0 k1 k2"),
    "LogSoftmax": (Case("LogSoftmax", (f(4, 6),)), "x0 k1"),
    "LayerNormalization": (Case("LayerNormalization", (f(2, 4, 6), f(6), f(6)), outputs=3), "x0 x1 k"),
    "LayerNormalization wide": (Case("LayerNormalization", (f(2, 4, 6), f(4, 6)), {"axis": 1}), "x k0 k1"),
    "RMSNormalization": (Case("RMSNormalization", (f(2, 4, 6), f(6))), "x0 x1 k"),
    "BatchNormalization": (Case("BatchNormalization", (f(2, 4, 6, 8), f(4), f(4), f(4), positive(4))), "n c y0 y1"),
    "BatchNormalization training": (
        Case("BatchNormalization", (f(4, 4, 6), f(4), f(4), f(4), positive(4)), {"training_mode": 1}, outputs=3),
        "n c y",
    ),
    "GroupNormalization": (
        Case("GroupNormalization", (f(2, 12, 4, 6), f(12), f(12)), {"num_groups": 6}, opset=21),
        "n g y0 y1",
    ),
    "InstanceNormalization": (Case("InstanceNormalization", (f(2, 4, 6), f(4), f(4))), "n c y"),
    "LRN": (Case("LRN", (f(2, 6, 4, 4),), {"size": 3}, oracle=local_response), "n y0 y1"),
    "Reshape merge": (Case("Reshape", (f(4, 6, 8), i(-1, 8)), constants=(1,)), "a b c"),
    "Reshape heads": (Case("Reshape", (f(2, 4, 24), i(2, 4, 6, 4)), constants=(1,)), "a b c d"),
    "Reshape unmatched": (Case("Reshape", (f(6, 4), i(4, 6)), constants=(1,)), "a"),
    "Reshape groups": (Case("Reshape", (f(2, 4, 6, 2, 4), i(2, 24, 2, 4)), constants=(1,)), "a b c d e"),
    "Flatten": (Case("Flatten", (f(4, 6, 2),), {"axis": 1}), "a b c"),
    "Unsqueeze": (Case("Unsqueeze", (f(4, 6), i(1)), constants=(1,)), "a b"),
    "Squeeze": (Case("Squeeze", (f(4, 1, 6), i(1)), constants=(1,)), "a b"),
    "Transpose": (Case("Transpose", (f(2, 4, 6),), {"perm": [2, 0, 1]}), "x0 x1 x2"),
    "Transpose reversed": (Case("Transpose", (f(2, 4, 6),)), "x0 x1 x2"),
    "Expand": (Case("Expand", (f(4, 1, 6), i(2, 4, 2, 1)), constants=(1,)), "x0 x1 x2 x3"),
    "Tile": (Case("Tile", (f(4, 6), i(1, 2)), constants=(1,)), "x0 copies1 x1"),
    "Split": (Case("Split", (f(4, 18),), {"axis": 1, "num_outputs": 3}, outputs=3), "x0 part0|part1|part2;3x6"),
    "Split sizes": (
        Case("Split", (f(18, 4), i(12, 6)), {"axis": 0}, (1,), outputs=2),
        "x1 part0|part1;12,6",
    ),
    "Concat": (Case("Concat", (f(4, 6), f(4, 12)), {"axis": -1}), "x0 part0|part1;6,12"),
    "Slice": (
        Case("Slice", (f(4, 18, 6), i(6), i(12), i(1), i(1)), constants=(1, 2, 3, 4)),
        "x0 beforex1|x1|afterx1;3x6 x2",
    ),
    "Slice all of it": (Case("Slice", (f(4, 6), i(0), i(2**62), i(1)), constants=(1, 2, 3)), "x0 x1"),
    "Slice with a step": (Case("Slice", (f(4, 12), i(1), i(2**62), i(1), i(2)), constants=(1, 2, 3, 4)), "x0 x1"),
    "Slice backwards": (Case("Slice", (f(4, 12), i(-1), i(-(2**62)), i(1), i(-1)), constants=(1, 2, 3, 4)), "x0"),
    "Pad": (Case("Pad", (f(4, 6), i(0, 1, 0, 2)), constants=(1,)), "x0"),
    "DepthToSpace DCR": (Case("DepthToSpace", (f(2, 24, 4, 6),), {"blocksize": 2}), "n c y x"),
    "DepthToSpace CRD": (Case("DepthToSpace", (f(2, 24, 4, 6),), {"blocksize": 2, "mode": "CRD"}), "n c y x"),
    "SpaceToDepth": (Case("SpaceToDepth", (f(2, 6, 4, 12),), {"blocksize": 2}), "n c y x"),
    "Trilu": (Case("Trilu", (f(2, 4, 6, 6),)), "b0 b1"),
    "Gather vocabulary": (Case("Gather", (f(12, 6), index(12, 2, 4))), "v d1 i0 i1"),
    "Gather axis": (Case("Gather", (f(2, 6, 8), np.array([-1, 0, 2, 5])), {"axis": 1}), "d0 v d2 i"),
    "GatherElements": (Case("GatherElements", (f(4, 6), index(6, 4, 2)), {"axis": 1}), "d0 v i"),
    "GatherND": (Case("GatherND", (f(4, 6, 8), index(4, 2, 6, 1)), {}), "i0 i1 d0 d1"),
    "GatherND batched": (Case("GatherND", (f(4, 6, 8), index(6, 4, 2, 1)), {"batch_dims": 1}), "b i d"),
    "OneHot": (Case("OneHot", (index(6, 4, 2), np.int64(6), f(2)), {"axis": 1}), "i0 i1 v"),
    "ScatterElements": (
        Case("ScatterElements", (f(4, 6), index(6, 4, 2), f(4, 2)), {"axis": 1, "reduction": "add"}, opset=18),
        "d0",
    ),
    "ScatterND": (Case("ScatterND", (f(6, 4, 2), i(1, 3).reshape(2, 1), f(2, 4, 2)), opset=18), "d0 d1"),
    "TopK": (Case("TopK", (f(4, 6, 8), i(3)), {"axis": 1}, outputs=2), "x0 x2"),
    "CumSum": (Case("CumSum", (f(4, 6), np.int64(1)), constants=(1,)), "x0"),
    "ReverseSequence": (Case("ReverseSequence", (f(6, 4, 2), i(1, 2, 3, 6)), {}), "x1 x2"),
    "Conv": (
        Case("Conv", (f(2, 4, 8, 12), f(6, 4, 3, 3), f(6)), {"pads": [1, 1, 1, 1], "kernel_shape": [3, 3]}),
        "n c y0 y1 o",
    ),
    "Conv strided": (
        Case("Conv", (f(2, 4, 8, 12), f(6, 4, 3, 3)), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
        "n c y0 y1 o",
    ),
    "Conv dilated": (
        Case("Conv", (f(2, 4, 12), f(6, 4, 3)), {"pads": [2, 2], "dilations": [2]}),
        "n c y o",
    ),
    "Conv by 1": (Case("Conv", (f(2, 4, 8), f(6, 4, 1), f(6))), "n c y o"),
    "Conv no padding": (Case("Conv", (f(2, 4, 8), f(6, 4, 3))), "n c o"),
    "Conv grouped": (
        Case("Conv", (f(2, 12, 8), f(24, 2, 3), f(24)), {"pads": [1, 1], "group": 6}),
        "n g c o y",
    ),
    "Conv depthwise": (Case("Conv", (f(2, 6, 8), f(6, 1, 3), f(6)), {"pads": [1, 1], "group": 6}), "n g y"),
    "ConvTranspose": (
        Case("ConvTranspose", (f(2, 4, 8), f(4, 6, 2), f(6)), {"strides": [2]}),
        "n c o",
    ),
    "ConvTranspose grouped": (
        Case(
            "ConvTranspose", (f(2, 12, 4), f(12, 2, 2), f(12)), {"strides": [2], "group": 6}, oracle=grouped_transpose
        ),
        "n g c o",
    ),
    "MaxPool": (
        Case("MaxPool", (f(2, 4, 8, 12),), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}),
        "n c y0 y1",
    ),
    "MaxPool no overlap": (Case("MaxPool", (f(2, 4, 8),), {"kernel_shape": [2], "strides": [2]}), "n c y"),
    "AveragePool": (Case("AveragePool", (f(2, 4, 12),), {"kernel_shape": [3], "pads": [1, 1]}), "n c y"),
    "Resize": (
        Case(
            "Resize",
            (f(2, 4, 6), None, np.array([1, 1, 2], np.float32)),
            {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
        ),
        "x0 x1 x2",
    ),
    "Resize linear": (Case("Resize", (f(2, 4, 6), None, np.array([1, 1, 2], np.float32)), {"mode": "linear"}), "x0 x1"),
    "Attention": (Case("Attention", (f(2, 6, 4, 8), f(2, 6, 12, 8), f(2, 6, 12, 6))), "b h s t e"),
    "Attention masked": (
        Case("Attention", (f(2, 6, 4, 8), f(2, 6, 12, 8), f(2, 6, 12, 6), b(2, 1, 4, 12))),
        "b h s t e",
    ),
    "Attention grouped": (Case("Attention", (f(2, 12, 4, 8), f(2, 6, 12, 8), f(2, 6, 12, 6))), "b h g s t e"),
    "Attention causal": (
        Case("Attention", (f(2, 6, 4, 8), f(2, 6, 4, 8), f(2, 6, 4, 6)), {"is_causal": 1}),
        "b h e",
    ),
    "Attention packed": (
        Case("Attention", (f(2, 4, 48), f(2, 6, 24), f(2, 6, 36)), {"q_num_heads": 12, "kv_num_heads": 6}),
        "b h g s t e",
    ),
    "Attention cached": (
        Case("Attention", (f(2, 6, 4, 8), f(2, 6, 4, 8), f(2, 6, 4, 6), None, f(2, 6, 2, 8), f(2, 6, 2, 6)), outputs=3),
        "b h s e",
    ),
    "RotaryEmbedding": (Case("RotaryEmbedding", (f(2, 6, 4, 8), f(2, 4, 4), f(2, 4, 4))), "b h s"),
    "RotaryEmbedding packed": (
        Case("RotaryEmbedding", (f(2, 4, 48), f(8, 4), f(8, 4), index(8, 2, 4)), {"num_heads": 6}),
        "b h s",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_options_are_what_they_should_be(name):
    case, factors = CASES[name]
    assert sorted(label.split(";")[0] if "|" not in label else label for label in case.options()) == sorted(
        factors.split()
    )


@pytest.mark.parametrize("name", CASES)
def test_every_option_gives_the_result_of_the_whole(name):
    case, _ = CASES[name]
    for option in case.options().values():
        ran = 0
        for ways in (2, 3):
            if option.size % ways == 0:
                prove(case, option, ways)
                ran += 1
        assert ran, option


@pytest.mark.parametrize("name", CASES)
def test_partial_sums_pass_through(name):
    case, _ = CASES[name]
    for group in case.rule().linear:
        prove_linear(case, group)
