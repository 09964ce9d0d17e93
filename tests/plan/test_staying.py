"""Gathered weights that stay from forward to backward, as many as fit."""

import pytest
from step_problems import base_problem

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.errors import InfeasibleError
from shardplan.graph.build import build_cost_graph
from shardplan.graph.memory import Memory
from shardplan.graph.options import UNLIMITED_BYTES
from shardplan.models import transformer
from shardplan.plan.assemble import price
from shardplan.plan.file import dumps, loads
from shardplan.plan.staying import copies
from shardplan.plan.timeline import step_schedule
from shardplan.planning import Planner, PlanOptions
from shardplan.planning.recipes import RECIPES
from shardplan.planning.reduction import restrict
from shardplan.rules import model_rules
from shardplan.solve import solve

LAYERS = 3
SIZES = {"layers": LAYERS, "hidden": 1024, "heads": 8, "vocab": 1024, "seq": 128, "batch": 8}


@pytest.fixture(scope="module")
def model():
    return transformer(**SIZES)


@pytest.fixture(scope="module")
def cluster():
    return make_cluster(load_profile("generic"), "1x4")


@pytest.fixture(scope="module")
def planned(model, cluster):
    """Plans of sharded weights under ever tighter limits, the first one without."""

    def plan(limit_bytes):
        options = PlanOptions(effort="quick", memory_limit_bytes=limit_bytes)
        return Planner(model, cluster, options).plan(RECIPES["ZeRO-3"])

    plans = [plan(UNLIMITED_BYTES)]
    while len(plans) < 7:
        try:
            plans.append(plan(int(0.92 * plans[-1].summary.memory.total)))
        except InfeasibleError:
            break
    return plans


def gathered(plan):
    """The weights that are gathered for use, and those of them that are gathered again."""
    moves = [move for move in plan.moves if move.kind == "prefetched"]
    return {move.tensor for move in moves if move.phase == "forward"}, {move.tensor for move in moves if move.regather}


def test_all_stay_where_there_is_room(planned):
    there, again = gathered(planned[0])
    assert there
    assert not again


def test_ever_fewer_stay_in_ever_less_memory(planned):
    numbers = [len(gathered(plan)[1]) for plan in planned]
    assert numbers == sorted(numbers)
    some = [plan for plan, number in zip(planned, numbers, strict=True) if 0 < number < max(numbers)]
    assert some
    for plan in some:
        there, again = gathered(plan)
        layer = [int(name.split(".")[2]) for name in there - again if "layers" in name]
        first = [int(name.split(".")[2]) for name in again if "layers" in name]
        assert max(first) <= min(layer)  # the last layers' weights stay


def test_to_stay_saves_time(planned):
    assert planned[-1].summary.step_ns > 1.1 * planned[0].summary.step_ns


def test_no_plan_is_shorter_than_its_bound_or_larger_than_its_limit(planned):
    for plan in planned:
        assert plan.summary.bound_ns <= plan.summary.step_ns
        assert plan.summary.memory.total <= plan.summary.memory_limit_bytes


def test_the_file_alone_says_which(planned):
    for plan in planned:
        read = loads(dumps(plan))
        assert gathered(read) == gathered(plan)
        assert step_schedule(read).seconds * 1e9 == pytest.approx(plan.summary.step_ns, rel=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        PlanOptions(in_flight=2),
        PlanOptions(target="fsdp2"),
        PlanOptions(in_time=False),
        PlanOptions(mode="inference"),
    ],
    ids=["pipeline", "another runtime", "price", "inference"],
)
def test_none_stays(model, cluster, options):
    assert not build_cost_graph(model, model_rules(model), cluster, options).recompute.held


def test_what_is_recomputed_is_gathered_again(model, cluster):
    built = build_cost_graph(model, model_rules(model), cluster, PlanOptions(remat="full"))
    until, held = built.recompute.until, built.recompute.held
    assert until
    assert held  # the output matrix is in no block
    assert not any(index in until for index, _ in held)


def test_a_weight_stays_from_its_last_reader_to_that_ones_backward(planned, model, cluster):
    built = build_cost_graph(model, model_rules(model), cluster, PlanOptions())
    memory = Memory(built)
    for copy in copies(built, planned[0].moves, memory):
        last = max(index for index, _ in built.flow.readers[copy.tensor])
        assert (copy.begin, copy.end) == (last + 1, memory.time.backward(last))
        assert copy.size_bytes == model.tensor(copy.tensor).size_bytes


def test_a_schedule_with_some_is_between_those_with_all_and_none(model, cluster):
    built = build_cost_graph(model, model_rules(model), cluster, PlanOptions())
    memory = Memory(built)
    choices = solve(restrict(base_problem(built), built, RECIPES["ZeRO-3"](built))).choices
    whole = price(built, memory, choices, UNLIMITED_BYTES)
    steps, limit = [whole.step_s], whole.memory.total
    for share in (0.97, 0.94, 0.91, 0.88):
        one = price(built, memory, choices, int(share * limit))
        assert one.memory.total <= share * limit
        assert one.fitted.gathered_again
        steps.append(one.step_s)
    assert steps == sorted(steps)
