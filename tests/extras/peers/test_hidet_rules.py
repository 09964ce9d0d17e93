"""Hidet's rules for splitting single operators, counted as its own tests count them, and its output per rank.

Source: hidet-org/hidet, branch auto-parallel, tests/distributed. Hidet lists, for one mesh axis, replication, one rule
per dim that can be split without talking, and for a dim that is summed over an all-reduce and a reduce-scatter.
"""

from __future__ import annotations

import numpy as np
import pytest
from exported import assert_program_right
from forced_plans import INFERENCE, forced_plan
from onnx import TensorProto, helper
from rule_cases import Case, f, i

from shardplan.layout.collective import FREE
from shardplan.layout.layout import Layout
from shardplan.layout.legal import is_legal
from shardplan.layout.lower import by_bytes, lower
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import P, R, S
from shardplan.model.read import read_model
from shardplan.rules.types import Option

DEVICES = Mesh.of(devices=4)


def hidet_count(case: Case) -> int:
    """Rules as Hidet counts them: options without talk inside; a summed one twice, all-reduced and scattered."""
    shape = case.whole[0].shape
    count = 1
    for option in plain_options(case):
        summed = option.results[0] == P()
        count += 1 + (summed and is_legal(Layout.of(S(0)), DEVICES, shape))
    return count


def plain_options(case: Case) -> list[Option]:
    return [
        option
        for option in case.rule().options
        if not option.inner and not option.ordered and option.size % DEVICES.size == 0
    ]


COUNTS = {
    "matmul": (Case("MatMul", (f(32, 64), f(64, 64))), 5),
    "convolution": (Case("Conv", (f(4, 8, 8, 8), f(8, 8, 3, 3))), 5),
    "reshape splits a dim": (Case("Reshape", (f(32, 4), i(4, 8, 4)), constants=(1,)), 2),
    "transpose": (Case("Transpose", (f(4, 8, 12, 16),), {"perm": [0, 3, 2, 1]}), 5),
    "pad": (Case("Pad", (f(4, 4, 4), i(1, 1, 0, 0, 0, 0)), constants=(1,)), 2),
    "softmax": (Case("Softmax", (f(8, 16, 32),)), 3),
    "sum": (Case("ReduceSum", (f(8, 16, 32), i(2)), {"keepdims": 0}, (1,)), 5),
}
MORE = {"reshape splits a dim": 1}
"""We find what Hidet does not: both the leading dim that a reshape takes apart and the one that stays."""


@pytest.mark.parametrize("name", COUNTS)
def test_rule_counts(name):
    case, published = COUNTS[name]
    assert hidet_count(case) == published + MORE.get(name, 0)


def test_a_reshape_that_merges_dims_keeps_the_leading_one():
    case = Case("Reshape", (f(4, 8, 4), i(32, 4)), constants=(1,))
    assert (S(0), S(0)) in [(option.operands[0], option.results[0]) for option in plain_options(case)]


def test_what_hidet_has_not():
    """A softmax over its own dim, space of a convolution, and a vocabulary whose lookups are summed."""
    assert [o.inner[0].kind for o in Case("Softmax", (f(8, 16, 32),)).rule().options if o.inner] == ["all_reduce"]
    padded = Case("Conv", (f(4, 8, 8, 8), f(8, 8, 3, 3)), {"pads": [1, 1, 1, 1]})
    assert {option.inner[0].kind for option in padded.rule().options if option.ordered} == {"permute"}
    lookup = Case("Gather", (f(64, 8), i(1, 2, 3, 4)))
    assert P() in [option.results[0] for option in lookup.rule().options if option.operands[0] == S(0)]


def test_the_rules_of_a_matrix_product():
    """(R, R) -> R; rows; columns; and over the summed dim, whose sum is all-reduced or scattered over the rows."""
    options = plain_options(COUNTS["matmul"][0])
    found = {(*(p.forward for p in option.operands), option.results[0]) for option in options}
    assert found == {(S(0), R, S(0)), (R, S(1), S(1)), (S(1), S(0), P())}
    price = by_bytes(DEVICES)
    for target, kind in ((R, "all_reduce"), (S(0), "reduce_scatter")):
        (step,) = lower(DEVICES, Layout.of(P()), Layout.of(target), price)
        assert step.collective.kind == kind


@pytest.mark.parametrize(
    ("source", "target", "kind", "hidet_bytes"),
    [(R, R, None, 0), (R, S(0), "slice", 0), (S(0), R, "all_gather", 1), (S(0), S(1), "all_to_all", 1)],
    ids=str,
)
def test_moves_between_operators(source, target, kind, hidet_bytes):
    """Hidet charges a gather with all bytes of the tensor, and changes dims by gathering and slicing."""
    size = 4 * 64 * 64
    steps = lower(DEVICES, Layout.of(source), Layout.of(target), by_bytes(DEVICES))
    assert [step.collective.kind for step in steps] == ([kind] if kind else [])
    sent = sum(step.collective.share * size for step in steps if step.collective.kind not in FREE)
    assert sent <= hidet_bytes * size
    assert (kind != "all_to_all") or sent == size / 4


def test_the_output_per_rank_computes_what_one_device_computes(tmp_path):
    """Sliced weights and a graph with collectives for every rank; equal results to 1e-4 in single precision."""
    value = helper.make_tensor_value_info
    draw = np.random.default_rng(1)
    weights = [
        helper.make_tensor(name, TensorProto.FLOAT, shape, draw.standard_normal(shape).astype(np.float32) / 8)
        for name, shape in (("fc1", (64, 256)), ("fc2", (256, 64)))
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "fc1"], ["h"], "up"),
        helper.make_node("Relu", ["h"], ["a"], "relu"),
        helper.make_node("MatMul", ["a", "fc2"], ["y"], "down"),
    ]
    x, y = (value(name, TensorProto.FLOAT, [8, 64]) for name in "xy")
    proto = helper.make_model(
        helper.make_graph(nodes, "mlp", [x], [y], weights), opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    )
    path = tmp_path / "mlp.onnx"
    path.write_bytes(proto.SerializeToString())
    model = read_model(path)
    plan = forced_plan(model, "1x8", INFERENCE, recipe="Megatron")
    given = {w.name: np.array(w.float_data, np.float32).reshape(tuple(w.dims)) for w in weights}
    programs = assert_program_right(model, plan, tmp_path / "ranks", path, given)
    dims = {entry.name: list(entry.dims) for entry in programs[0].graph.initializer}
    assert [len(programs), *(np.prod(dims[name]) for name in ("fc1", "fc2"))] == [8, 64 * 32, 32 * 64]
    assert [node.op_type for node in programs[0].graph.node if node.domain], "ranks talk"
