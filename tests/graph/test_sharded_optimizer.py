"""Optimizer state sharded apart from its weight: ZeRO-1, Megatron's distributed optimizer."""

import json
from importlib.resources import files

import jsonschema
import pytest

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.constraints.parse import parse_pin
from shardplan.errors import InfeasibleError
from shardplan.graph.options import PlanOptions
from shardplan.models import transformer
from shardplan.plan.format.decode import loads
from shardplan.plan.format.encode import dumps
from shardplan.planning import Planner, plan_model
from shardplan.planning.recipes import data_parallel, zero_1
from shardplan.study.compare import compare_recipes
from shardplan.study.remedies import find_remedies

GPT = {"style": "gpt", "layers": 1, "hidden": 256, "heads": 8, "vocab": 512, "seq": 128, "batch": 16}
WAYS = 4
SCHEMA = json.loads((files("shardplan.plan") / "schema.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def model():
    return transformer(**GPT)


@pytest.fixture(scope="module")
def cluster():
    return make_cluster(load_profile("h100-dgx"), f"1x{WAYS}")


def planned(model, cluster, recipe=None, **options):
    return Planner(model, cluster, PlanOptions(effort="quick", **options)).plan(recipe)


def test_zero_1_divides_the_state_and_nothing_else(model, cluster):
    """ZeRO, section 3.1: of 2 + 2 + 12 bytes a parameter the 12 are divided by the number of devices."""
    whole = planned(model, cluster, data_parallel, shard_optimizer=True).summary.memory
    apart = planned(model, cluster, zero_1, shard_optimizer=True).summary.memory
    assert (apart.parameters, apart.gradients) == (whole.parameters, whole.gradients)
    assert apart.optimizer * WAYS == whole.optimizer


def test_gradients_are_scattered_and_weights_gathered_once_a_step(model, cluster):
    plan = planned(model, cluster, zero_1, shard_optimizer=True, microbatches=4)
    sharded = {tensor.name for tensor in plan.tensors if tensor.optimizer is not None}
    assert sharded == {tensor.name for tensor in plan.tensors if tensor.trainable}
    moves = [
        (move.phase, [step.collective.kind for step in move.steps], move.count)
        for move in plan.moves
        if move.tensor in sharded and not move.reader
    ]
    assert sorted(moves) == sorted([("backward", ["reduce_scatter"], 1), ("update", ["all_gather"], 1)] * len(sharded))


def test_without_the_option_state_follows_its_weight(model, cluster):
    plan = planned(model, cluster, data_parallel)
    assert all(tensor.optimizer is None for tensor in plan.tensors)
    assert all(move.phase != "update" for move in plan.moves)
    assert planned(model, cluster, data_parallel, shard_optimizer=True).summary.step_ns == plan.summary.step_ns


def test_more_choices_are_never_dearer(model, cluster):
    """Of one linear function: the optimum over more choices."""
    fixed, free = (
        Planner(model, cluster, PlanOptions(effort="quick", shard_optimizer=shard)).solve_at(()).solution.cost
        for shard in (False, True)
    )
    assert free < fixed


def test_inference_has_no_optimizer_to_shard(model, cluster):
    plan = planned(model, cluster, mode="inference", shard_optimizer=True)
    assert all(tensor.optimizer is None for tensor in plan.tensors)


def test_the_plan_file_keeps_it(model, cluster):
    plan = planned(model, cluster, zero_1, shard_optimizer=True)
    text = dumps(plan)
    jsonschema.validate(json.loads(text), SCHEMA)
    again = loads(text)
    assert dumps(again) == text
    assert {t.name: t.optimizer for t in again.tensors} == {t.name: t.optimizer for t in plan.tensors}
    assert again.model["shard_optimizer"] is True


def test_compare_has_a_row_for_it(model, cluster):
    names = [found.name for found in compare_recipes(model, cluster, PlanOptions(effort="quick", shard_optimizer=True))]
    assert names[:2] == ["data parallel", "ZeRO-1"]


def test_it_is_a_remedy_where_state_does_not_fit(cluster):
    model = transformer(**GPT | {"batch": 4, "seq": 16})
    whole = parse_pin("*weight*=replicate")
    limit = planned(model, cluster, zero_1, shard_optimizer=True, constraints=(whole,)).summary.memory.total
    asked = PlanOptions(effort="quick", memory_limit_bytes=limit, constraints=(whole,))
    with pytest.raises(InfeasibleError):
        plan_model(model, cluster, asked)
    assert "--shard-optimizer" in [remedy.change for remedy in find_remedies(model, cluster, asked)]
