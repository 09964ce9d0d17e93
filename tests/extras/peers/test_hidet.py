"""Hidet's automatic parallelisation, with its prices on our graph and our solver.

Source: hidet-org/hidet, RFC 0003 and branch auto-parallel, run with its own solver: an fp32 MLP x [8, 1024, 1024] ->
4096 -> 1024 on 8 devices, with budgets for the weights. Hidet does not charge the gather of a result, and never gathers
a stored shard.
"""

import itertools

import onnx
import pytest
from layout_schemes import from_scheme, to_scheme
from onnx import parser
from peer_mlp import Solved, mlp

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.cost.collectives import CollectiveModel
from shardplan.errors import InfeasibleError, ShardplanError
from shardplan.extras.peers.hidet import HidetCollectives
from shardplan.layout.layout import Layout
from shardplan.layout.legal import is_legal, local_shape
from shardplan.layout.placement import R, S
from shardplan.model.read import read_model
from shardplan.planning import PlanOptions, plan_model

ROWS = 8 * 1024
WEIGHTS = 2 * 4 * 1024 * 4096
"""Bytes of both weights."""


def hidet(budget: float, *pins: str, devices: int = 8) -> Solved:
    """With room for that share of the weights on every device."""
    return Solved(devices, "hidet", *pins, model=mlp(ROWS), weight_bytes=int(budget * WEIGHTS))


def test_every_axis_shards_one_dim_or_none():
    """Hardware levels are axes: on 4 x 4 a matrix has 9 specs, 4 of them on all devices, and never 2 x 8 shards."""
    mesh = make_cluster(load_profile("h100-dgx"), "4x4").mesh
    specs = [Layout.of(*placements) for placements in itertools.product((R, S(0), S(1)), repeat=2)]
    assert all(is_legal(spec, mesh, (64, 64)) for spec in specs)
    texts = [to_scheme(spec, mesh, 2) for spec in specs]
    assert len(set(texts)) == 9
    assert [from_scheme(text, mesh) for text in texts] == specs
    full = [text for spec, text in zip(specs, texts, strict=True) if R not in spec.placements]
    assert sorted(full) == sorted(["S01R", "S0S1", "S1S0", "RS01"])
    shards = {tuple(64 // size for size in local_shape(spec, mesh, (64, 64))) for spec in specs}
    assert shards == {(1, 1), (1, 4), (4, 1), (4, 4), (1, 16), (16, 1)}


def test_with_room_for_all_weights_everything_is_replicated():
    assert hidet(2.0).cost == 0


@pytest.mark.parametrize(("devices", "budget"), [(8, 0.2), (4, 0.5)])
def test_without_room_column_then_contract_and_one_reduce_scatter(devices, budget):
    found = hidet(budget, devices=devices)
    assert found.cost == 33554432
    assert (found.splits()["fc1"], found.splits()["fc2"]) == ("n", "k")
    assert (found.kept("w1"), found.kept("w2"), found.kept("y")) == ("S(1)", "S(0)", "S(0)")


def test_when_the_result_is_charged_too():
    assert hidet(0.2, "y=replicate").cost == 67108864


@pytest.mark.parametrize(("kind", "share"), [("all_reduce", 2), ("reduce_scatter", 1), ("all_gather", 1), ("slice", 0)])
def test_prices(kind, share):
    assert HidetCollectives(8).seconds(kind, (0,), 1000.0) == 1000.0 * share
    assert HidetCollectives(1).seconds(kind, (0,), 1000.0) == 0.0


def test_a_change_of_dims_is_dearer_there_than_an_all_to_all_of_ours():
    """Hidet gathers everything and slices it: 8 times what one device sends in an all-to-all."""
    prices, shard = HidetCollectives(8), 1000.0 / 8
    assert prices.seconds("all_to_all", (0,), shard) == 1000.0
    cluster = make_cluster(load_profile("h100-dgx"), "8")
    ours, size = CollectiveModel(cluster), float(64 << 20)
    assert ours.seconds("all_to_all", (0,), size / 8) < ours.seconds("all_gather", (0,), size)


def test_a_budget_below_what_is_possible_names_the_least_that_is():
    """Hidet stops at an assertion. An eighth of the weights is the least that each of eight devices can hold."""
    tight = hidet(0.12)
    assert (tight.outcome, tight.shortfall_bytes) == ("infeasible", WEIGHTS // 8 - int(0.12 * WEIGHTS))
    options = PlanOptions(effort="quick", mode="inference", memory_limit_bytes=int(0.12 * WEIGHTS))
    with pytest.raises(InfeasibleError) as caught:
        plan_model(mlp(ROWS), make_cluster(load_profile("generic"), "8"), options)
    assert "no plan fits in memory: every device is at least" in str(caught.value)
    assert "needs at least" in str(caught.value)


def test_a_size_that_is_not_given_is_asked_for(tmp_path):
    """Hidet cannot read dynamic shapes; here they are bound by name."""
    text = '<ir_version: 10, opset_import: ["" : 21]> add (float[batch,4] a) => (float[batch,4] y) { y = Relu (a) }'
    onnx.save(parser.parse_model(text), tmp_path / "add.onnx")
    with pytest.raises(ShardplanError) as caught:
        read_model(tmp_path / "add.onnx")
    assert "--dim batch=" in str(caught.value)
