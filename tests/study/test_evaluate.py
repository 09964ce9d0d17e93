"""A plan, evaluated where it was made, is itself: every decision and every price."""

from dataclasses import replace
from pathlib import Path

import pytest
from peer_bert import bert

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.constraints.parse import parse_pin
from shardplan.errors import ShardplanError
from shardplan.model.read import read_model
from shardplan.planning import PlanOptions, plan_model
from shardplan.study.evaluate import evaluate_plan


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return read_model(bert(Path(tmp_path_factory.mktemp("bert"), "bert.onnx"), 1))


@pytest.mark.parametrize(
    ("mesh", "pins"),
    [
        ("2x4", ()),
        ("1x8", ("layer.0.residual1=[null, gpu]", "layer.0.residual2=[null, gpu]")),
        ("1x8", ("layer.0.q={gpu: n}", "layer.0.dense={gpu: k}", "layer.0.norm1=[null, gpu]")),
        ("1x8", ("x=[null, gpu]", "layer.0.q={gpu: n}", "layer.0.k={gpu: n}", "layer.0.v={gpu: n}")),
        ("2x4", ("layer.0.fc1={gpu: n}", "layer.0.fc2={gpu: n}", "layer.0.gelu=[machine]")),
    ],
)
@pytest.mark.parametrize("mode", ["training", "inference"])
def test_a_plan_is_itself(mesh, pins, mode, model):
    """Also one that is not the best, whose values are gathered for several readers at once."""
    cluster = make_cluster(load_profile("h100-dgx"), mesh)
    options = PlanOptions(effort="quick", mode=mode, constraints=tuple(map(parse_pin, pins)))
    plan = plan_model(model, cluster, options)
    found = evaluate_plan(model, cluster, options, plan, "one.json").plan
    assert found.tensors == plan.tensors
    assert found.operators == plan.operators
    assert found.moves == plan.moves
    assert replace(found.summary, overlap_weight=1.0).step_ns == plan.summary.step_ns
    assert found.summary.memory == plan.summary.memory


def test_a_value_gathered_once_for_all_its_readers(model):
    """The case that the others are about: kept in pieces, served whole."""
    cluster = make_cluster(load_profile("h100-dgx"), "1x8")
    pins = ("x=[null, gpu]", *(f"layer.0.{name}={{gpu: n}}" for name in "qkv"))
    options = PlanOptions(effort="quick", constraints=tuple(map(parse_pin, pins)))
    plan = plan_model(model, cluster, options)
    (gathered,) = (tensor for tensor in plan.tensors if tensor.served != tensor.layout)
    assert gathered.name == "x"
    found = evaluate_plan(model, cluster, PlanOptions(effort="quick"), plan, "one.json").plan
    assert found.tensors == plan.tensors


def test_other_decisions_are_other_prices(model):
    """What is given decides, not what is best: a plan that is dearer stays so."""
    cluster, options = make_cluster(load_profile("h100-dgx"), "1x8"), PlanOptions(effort="quick")
    best = plan_model(model, cluster, options)
    pinned = replace(options, constraints=(parse_pin("layer.0.fc1={gpu: k}"), parse_pin("layer.0.fc2={gpu: n}")))
    worse = plan_model(model, cluster, pinned)
    assert worse.summary.step_ns > best.summary.step_ns
    assert evaluate_plan(model, cluster, options, worse, "worse.json").plan.summary.step_ns == worse.summary.step_ns


def test_a_decision_that_cannot_be_is_named(model):
    cluster, options = make_cluster(load_profile("h100-dgx"), "1x8"), PlanOptions(effort="quick")
    plan = plan_model(model, cluster, options)
    operators = tuple(
        replace(operator, split=("q", "q"), reads=operator.reads[::-1]) if operator.name == "layer.0.fc1" else operator
        for operator in plan.operators
    )
    with pytest.raises(ShardplanError) as caught:
        evaluate_plan(model, cluster, options, replace(plan, operators=operators), "odd.json")
    assert str(caught.value) == (
        "odd.json: error[impossible]: 'layer.0.fc1' cannot be split as the plan says\n"
        "hint: another version of shardplan made it: solve again"
    )
