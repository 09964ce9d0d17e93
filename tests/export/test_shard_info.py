"""`--to shard-info`: which steps a plan becomes, and a bias that is added once."""

import dataclasses
import json

import numpy as np
from safetensors_files import write_safetensors
from small_plans import plan_of

from shardplan.export.shard_info import export_shard_info
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import RP, P, R, S
from shardplan.loading.checkpoint import open_checkpoint
from shardplan.loading.shard_info import ShardInfoLoader, parse_shard_info
from shardplan.plan.types import OperatorDecision


def steps(plan):
    return json.loads(export_shard_info(plan).text)


def test_tvms_own_functions_where_they_do():
    layouts = {
        "up": ((64, 128), Layout.of(S(1))),
        "qkv": ((16, 4), Layout.of(S(0, (8, 4, 4)))),
        "n": ((4,), Layout.of(R)),
    }
    assert steps(plan_of(Mesh.of(tp=2), layouts)) == {
        "up": [["shard_dim_1", [[2, 64, 64], "float32"], 2]],
        "qkv": [
            ["reorganise_dim_0", [[16, 4], "float32"], 2, 8, 4, 4],
            ["shard_dim_0", [[2, 8, 4], "float32"], 2],
        ],
    }


def test_meshes():
    layouts = {
        "both": ((8, 8), Layout.of(S(0), S(1))),
        "one": ((8, 8), Layout.of(R, S(1))),
        "order": ((8,), Layout.of(S(0), S(0), order=(1, 0))),
        "together": ((8,), Layout.of(S(0), S(0))),
    }
    assert steps(plan_of(Mesh.of(dp=2, tp=2), layouts)) == {
        "both": [["shard_mesh", [[4, 4, 4], "float32"], 2, 2, 2, 1, 0, 1, 1]],
        "one": [["shard_mesh", [[4, 8, 4], "float32"], 2, 2, 2, 0, 1, 1]],
        "order": [["shard_mesh", [[4, 2], "float32"], 2, 2, 2, 2, 1, 0]],
        "together": [["shard_dim_0", [[4, 2], "float32"], 4]],
    }


def test_a_bias_before_a_sum_counts_once(tmp_path):
    """Row-parallel linear: the sum over ranks of x_k W_k + b_k is x W + b, bit for bit in whole numbers."""
    layouts = {"w": ((8, 4), Layout.of(S(0))), "b": ((4,), Layout.of(R))}
    gemm = OperatorDecision(
        "gemm", "Gemm", "", "m k, k n, n -> m n", ("k",), (Layout.of(S(1)), Layout.of(S(0)), Layout.of(P())),
        (Layout.of(P()),), 1, ("x", "w.value", "b.value"), ("y",),
    )  # fmt: skip
    plan = plan_of(Mesh.of(tp=4), layouts, operators=(gemm,))
    exported = export_shard_info(plan)
    assert json.loads(exported.text)["b"] == [["once", [[4, 4], "float32"], 4]]
    rng = np.random.default_rng(0)
    x, w, b = (rng.integers(-9, 9, shape).astype(np.float32) for shape in ((2, 8), (8, 4), (4,)))
    checkpoint = open_checkpoint(write_safetensors(tmp_path / "m.safetensors", {"w": w, "b": b}))
    loading = ShardInfoLoader(checkpoint, parse_shard_info(exported.text), 4)
    parts = [
        x[:, 2 * rank : 2 * rank + 2] @ loading.load("w", rank).array + loading.load("b", rank).array
        for rank in range(4)
    ]
    assert np.array_equal(sum(parts), x @ w + b)


def test_a_bias_that_is_replicated_stays_so():
    layouts = {"b": ((4,), Layout.of(R))}
    add = OperatorDecision(
        "a", "Add", "", "n, n -> n", ("-",), (Layout.of(RP),), (Layout.of(RP),), 1, ("b.value",), ("y",)
    )
    assert steps(plan_of(Mesh.of(tp=4), layouts, operators=(add,))) == {}


def test_what_cannot_be_said():
    mixed = plan_of(Mesh.of(a=2, b=2), {"w": ((16,), Layout.of(S(0), S(0, (4, 4, 4, 4))))})
    exported = export_shard_info(mixed)
    assert [str(said) for said in exported.refused] == [
        "error[cannot-say]: shard-info cannot express how 'w' is kept: dim 0 is cut both by segments and across them"
    ]
    packed = plan_of(Mesh.of(a=2), {"w": ((16,), Layout.of(S(0)))})
    packed = dataclasses.replace(packed, tensors=(dataclasses.replace(packed.tensors[0], dtype="int4"),))
    assert "it is of type int4" in str(export_shard_info(packed).refused[0])
