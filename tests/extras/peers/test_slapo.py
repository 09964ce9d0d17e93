"""Slapo's auto-sharding, with its prices on our graph and our solver.

Source: awslabs/slapo pull request 96 (branch autoshard): an MLP x [8, 1024, 1024] -> 4096 -> 1024 whose costs drop the
leading dim, on p devices; the input and the result are whole everywhere. Slapo's solver visits five of the nine ways to
split the two products; all are priced here, and the optimum is proven.
"""

import time
from pathlib import Path

import pytest
from peer_bert import bert
from peer_mlp import Solved, mlp

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.constraints.parse import parse_pin
from shardplan.cost.named import parse_cost_model
from shardplan.model.read import read_model
from shardplan.planning import PlanOptions, plan_model

COLUMN, CONTRACT, ROW = "n", "k", "m"
"""The three ways to split a product, which Slapo writes RRxRS, RSxSR and SRxRR."""
NINE = [
    (COLUMN, COLUMN, 655360),
    (COLUMN, CONTRACT, 1048576),
    (COLUMN, ROW, 589824),
    (CONTRACT, COLUMN, 4325376),
    (CONTRACT, CONTRACT, 5242880),
    (CONTRACT, ROW, 4325376),
    (ROW, COLUMN, 655360),
    (ROW, CONTRACT, 1507328),
    (ROW, ROW, 131072),
]
WEIGHTS = 2 * 4 * 1024 * 4096
"""Bytes of both weights."""


def test_the_optimum_splits_the_rows():
    """RR -> SR before fc1 is free, SR -> RR after fc2 gathers the result."""
    found = Solved(8, "slapo")
    assert found.cost == 131072
    assert (found.splits()["fc1"], found.splits()["fc2"]) == (ROW, ROW)
    assert (found.kept("x"), found.kept("y")) == ("R", "R")


@pytest.mark.parametrize(("first", "second", "published"), NINE)
def test_the_nine_assignments(first, second, published):
    """Five of them are the iterations that Slapo printed; the others follow from its tables."""
    assert Solved(8, "slapo", f"fc1={{machine: {first}}}", f"fc2={{machine: {second}}}").cost == published


@pytest.mark.parametrize(("devices", "published"), [(2, 524288), (4, 262144), (8, 131072), (16, 65536)])
def test_more_devices(devices, published):
    assert Solved(devices, "slapo").cost == published


@pytest.mark.parametrize(("sequence", "published"), [(512, 524289), (1024, 1048577)])
def test_the_final_version_counts_every_element_and_one_for_the_split(sequence, published):
    """Batch 8, hidden 1024 on 8 devices; rows of all sequences together, as only whole sequences' rows are split."""
    assert Solved(8, "slapo:split=1", model=mlp(rows=8 * sequence)).cost == published


def test_with_room_for_a_quarter_of_the_weights_both_are_split():
    """Slapo has no such limit. At its prices the inner value is gathered between two column splits; where an all-reduce
    costs what a ring's does, the second product is contracted, as Megatron does."""
    assert Solved(8, "slapo", weight_bytes=WEIGHTS).splits()["fc1"] == ROW
    tight = Solved(8, "slapo", weight_bytes=WEIGHTS // 4)
    assert (tight.cost, tight.splits()["fc1"], tight.splits()["fc2"]) == (655360, COLUMN, COLUMN)
    ring = Solved(8, "alpa", "x=replicate", "y=replicate", weight_bytes=WEIGHTS // 4)
    assert (ring.splits()["fc1"], ring.splits()["fc2"]) == (COLUMN, CONTRACT)
    assert ring.cost == pytest.approx(2 * 7 / 8 * 4 * 1024 * 1024, rel=1e-5)


def solve_bert(path: Path, layers: int, *pins: str):
    model = read_model(bert(path / "bert.onnx", layers))
    options = PlanOptions(
        effort="quick",
        mode="inference",
        cost_model=parse_cost_model("slapo:split=1"),
        constraints=tuple(map(parse_pin, pins)),
    )
    return plan_model(model, make_cluster(load_profile("h100-dgx"), "8"), options)


AS_SLAPO_VIEWS = ("*.k={gpu: not n}", "*.v={gpu: not n}")
"""Slapo counts the gather of keys or values that were split by columns twice, at the view and on its edge, so that it
never splits them so."""


@pytest.mark.parametrize("layers", [1, 2, 3, 4, 12, 24])
def test_bert(layers, tmp_path):
    """Keys and values are gathered in every layer, the result once, and the input split four times. Slapo's own solver
    gives up at four layers, with 23592968 after 111 s."""
    plan = solve_bert(tmp_path, layers, *AS_SLAPO_VIEWS)
    assert plan.summary.outcome == "optimal"
    assert plan.summary.step_ns == 1000 * ((2 * layers + 1) * 524288 + 4)


def test_bert_without_counting_twice_saves_two_splits(tmp_path):
    assert solve_bert(tmp_path, 4).summary.step_ns == 1000 * (9 * 524288 + 2)


def test_depth_costs_next_to_nothing(tmp_path):
    """24 layers in less than 5 s is the demand."""
    started = time.process_time()
    solve_bert(tmp_path, 24)
    assert time.process_time() - started < 5
