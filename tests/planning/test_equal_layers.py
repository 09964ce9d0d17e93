"""Layers that are planned alike: the folded problem against the whole one, and plans that may have no other layers."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from random_problems import optimum, problem_of_maxima, random_problem

import shardplan
from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.constraints.parse import parse_pin
from shardplan.errors import InfeasibleError
from shardplan.folding import pattern
from shardplan.models import described
from shardplan.plan.file import loads
from shardplan.plan.format.encode import dumps
from shardplan.plan.recorded_request import options_of
from shardplan.planning import PlanOptions, plan_model
from shardplan.planning.chain import Question, answer
from shardplan.planning.equal_layers import MergedCopies, first_copies, folded
from shardplan.planning.instance import CostGraphs, instance_of
from shardplan.solve import Start, evaluate, solve
from shardplan.study.derive import NotDerivableError, derived

MODEL = "transformer:hidden=256,layers=3,heads=8,ffn=1024,vocab=1024,batch=8,seq=128"
CLUSTER = make_cluster(load_profile("h100-dgx"), "2x4")
EQUAL = PlanOptions(equal_layers=True)


@pytest.fixture(scope="module")
def model():
    return described(MODEL)


@pytest.fixture(scope="module")
def plan(model):
    return plan_model(model, CLUSTER, EQUAL)


def merged(seed: int, memory: bool):
    """A random problem, some of whose nodes of one size are one."""
    problem = problem_of_maxima(seed, memory) if seed % 2 else random_problem(seed, 6, forbidden=0.1)
    rng, first, places = np.random.default_rng(seed), {}, []
    for cost in problem.costs:
        alone = rng.random() < 0.4
        key = len(first) if alone else f"size {cost.size}"
        places.append(first.setdefault(key, len(first)))
    return problem, tuple(places), len(first)


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_the_folded_problem_costs_and_holds_what_the_whole_one_does(seed, memory):
    problem, places, count = merged(seed, memory)
    small = folded(problem, places)
    assert len(small.costs) == count
    rng = np.random.default_rng(seed)
    for _ in range(10):
        choices = [int(rng.integers(cost.size)) for cost in small.costs]
        theirs, ours = evaluate(problem, [choices[place] for place in places]), evaluate(small, choices)
        assert (ours.cost, ours.peak_bytes, ours.feasible) == (theirs.cost, theirs.peak_bytes, theirs.feasible)


@pytest.mark.parametrize("seed", range(1, 30, 2))
def test_assignments_to_begin_with_never_make_a_bound_wrong(seed):
    """Known assignments lead to multipliers, and are answers where nothing better is met."""
    problem, places, _ = merged(seed, memory=False)
    alike = solve(folded(problem, places), averages=10)
    met = [tuple(found[place] for place in places) for found in alike.candidates]
    begun = solve(problem, averages=10, start=Start(assignments=met))
    assert begun.bound <= optimum(problem) <= begun.cost
    assert not met or begun.cost <= alike.cost


def test_copies_of_a_block_are_one_node():
    model = described(MODEL.replace("layers=3", "layers=6"))
    graphs = CostGraphs(instance_of(model, CLUSTER, PlanOptions(), print))
    whole = answer(graphs, Question(None)).whole
    places = first_copies(whole.built, [cost.size for cost in whole.problem.costs])
    kinds = defaultdict(set)
    for (kind, name), place in zip(whole.built.node_numbers, places, strict=True):
        kinds[kind, pattern(name)].add(place)
    weights = {name: found for (kind, name), found in kinds.items() if kind == "kept" and name.endswith(".weight")}
    assert len(weights) > 8
    assert all(len(found) == 1 for found in weights.values()), weights
    assert len(set(places)) < 0.4 * len(places)


def test_all_layers_of_the_plan_are_alike(model, plan):
    layouts = defaultdict(set)
    for tensor in plan.tensors:
        if tensor.role == "parameter":
            layouts[pattern(tensor.name)].add((tensor.layout, tensor.optimizer))
    for operator in plan.operators:
        layouts[pattern(operator.name)].add(operator.split)
    inside = {pattern(model.operators[index].name) for block in model.blocks for index in block.copies[0]}
    assert inside <= layouts.keys()
    assert all(len(found) == 1 for found in layouts.values())
    assert plan.model["equal_layers"] is True
    assert options_of(plan, "a plan").equal_layers


def test_the_plan_is_no_faster_than_that_of_free_layers(model, plan):
    free = plan_model(model, CLUSTER, PlanOptions())
    assert free.summary.step_ns <= plan.summary.step_ns
    assert plan.summary.bound_ns <= plan.summary.step_ns


def test_under_a_limit_on_memory_too(model, plan):
    """A tighter limit gives no shorter step, but for the gap at which a plan is good enough where memory binds."""
    held = plan.summary.memory.total
    tighter = plan_model(model, CLUSTER, PlanOptions(equal_layers=True, memory_limit_bytes=int(0.8 * held)))
    assert tighter.summary.memory.total <= 0.8 * held
    assert tighter.summary.step_ns >= (1.0 - EQUAL.gap) * plan.summary.step_ns


@pytest.fixture(scope="module")
def pins(model):
    """Of the same weight in two layers, each in a layout of its own."""
    one = next(p.name for p in model.parameters if ".1." in p.name and p.name.endswith("up_proj.weight"))
    layouts = ((one, "[gpu, null]"), (one.replace(".1.", ".2."), "replicate"))
    return tuple([parse_pin(f"{name}={layout}") for name, layout in layouts])


@pytest.fixture(scope="module")
def unlike(model, pins):
    return plan_model(model, CLUSTER, PlanOptions(constraints=pins))


def test_pins_that_make_layers_differ_leave_no_plan(model, pins, unlike):
    assert unlike.summary.step_ns
    with pytest.raises(InfeasibleError, match="satisfies the constraints") as refused:
        plan_model(model, CLUSTER, PlanOptions(equal_layers=True, constraints=pins))
    assert "with --equal-layers these constraints leave none:" in str(refused.value)


def test_a_model_without_repeated_layers_is_planned_as_ever():
    model = described(MODEL.replace("layers=3", "layers=1"))
    free, alike = (plan_model(model, CLUSTER, options) for options in (PlanOptions(), EQUAL))
    assert alike.summary.step_ns == free.summary.step_ns


def test_every_front_door_takes_it(tmp_path):
    plan = shardplan.make_plan(MODEL, mesh="2x2", equal_layers=True, effort="quick")
    assert plan.model["equal_layers"] is True
    shardplan.save(plan, tmp_path / "alike.plan.json")
    assert shardplan.load(tmp_path / "alike.plan.json").model["equal_layers"] is True


def test_a_plan_that_only_says_so_is_refused(model, plan, unlike):
    """Layers that pins make differ; the plan of equal ones is derived again to the byte."""
    assert dumps(derived(loads(dumps(plan)), "p", model)) == dumps(plan)
    forged = replace(unlike, model={**unlike.model, "equal_layers": True})
    with pytest.raises(NotDerivableError, match="are of equal layers and are not laid out alike, as equal_layers says"):
        derived(forged, "p", model)


def test_an_assignment_of_all_copies_is_one_of_one_copy_and_back():
    model = described("transformer:hidden=64,layers=3,heads=4,ffn=128,vocab=128,batch=4,seq=32")
    cluster = make_cluster(load_profile("h100-dgx"), "2x2")
    graphs = CostGraphs(instance_of(model, cluster, PlanOptions(equal_layers=True), lambda _: None))
    found = answer(graphs, Question(None))
    assert found.whole is not None
    copies, choices = MergedCopies.of(found.whole, merges=True), found.solution.choices
    assert copies.unmerged(copies.merged(choices)) == choices
    assert len(copies.merged(choices)) < len(choices)
    costs = copies.functions.costs(np.array([copies.merged(choices)]))
    assert costs == pytest.approx(found.whole.functions.costs(np.array([choices])), rel=1e-12)
    same = MergedCopies.of(found.whole, merges=False)
    assert same.merged(choices) == same.unmerged(choices) == choices
