"""Test cases of the onnx package, split in every way their rules allow; `benchmarks/rules.py` runs all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from node_cases import NodeCase, collect, drawn, grown
from rule_mesh import execute, strategies

from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import P, S

SAMPLE = (
    "add", "matmul", "gemm", "einsum", "softmax", "layernormalization", "groupnormalization", "reducesum", "reducel2",
    "argmax", "transpose", "reshape", "slice", "split", "concat", "expand", "gather", "gatherelements", "onehot",
    "cumsum", "topk", "where", "pad", "trilu", "lstm", "gru", "quantizelinear", "negativeloglikelihoodloss",
    "rotaryembedding",
)  # fmt: skip
"""Modules of test cases."""
MESHES = {4: (Mesh.of(x=2), Mesh.of(x=2, y=2)), 6: (Mesh.of(x=3),)}
CASES = {name: case for name, _, case in collect(*SAMPLE) if isinstance(case, NodeCase)}


@pytest.mark.parametrize("name", CASES)
def test_every_strategy_gives_what_the_whole_gives(name):
    for unit, meshes in MESHES.items():
        case = grown(CASES[name], 1, unit)
        for mesh in meshes:
            for strategy in strategies(case, mesh):
                assert execute(case, strategy, mesh) == "", (mesh, [option.label for option in strategy])


def test_the_sample_splits():
    counts = {name: sum(1 for _ in strategies(grown(case, 1, 4), Mesh.of(x=2))) for name, case in CASES.items()}
    assert len(CASES) > 150
    assert sum(counts.values()) > 2.5 * len(CASES)


def test_new_data_is_new_and_as_large():
    case = CASES["test_matmul_2d"]
    first, second = drawn(case, 1), drawn(case, 2)
    assert first.operands[0].shape == case.operands[0].shape
    assert not (first.operands[0] == second.operands[0]).any()


def test_dims_are_stretched_together():
    before, after = CASES["test_matmul_bcast"], grown(CASES["test_matmul_bcast"], 1, 4)
    assert [array.shape for array in before.operands] == [(3, 1, 3, 4), (1, 2, 4, 2)]
    assert [array.shape for array in after.operands] == [(4, 1, 4, 4), (1, 4, 4, 4)], "what broadcasts stays"


def swapped(case: NodeCase, **changes) -> NodeCase:
    """The case with a rule of one option, changed in places."""
    option = next(option for option in case.rule.options if option.factor == "k")
    twin = replace(case)
    twin.__dict__["rule"] = replace(case.rule, options=(replace(option, **changes),))
    return twin


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"results": (S(0),)}, "shape (8, 4), not (4, 4)"),
        ({"operands": (S(0), S(1))}, "shape"),
        ({"results": (P("max"),)}, "its elements differ"),
    ],
)
def test_a_wrong_option_is_caught(changes, problem):
    case = swapped(grown(CASES["test_matmul_2d"], 1, 4), **changes)
    mesh = Mesh.of(x=2)
    (strategy,) = strategies(case, mesh)
    assert problem in execute(case, strategy, mesh)
