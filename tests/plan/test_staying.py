"""Gathered weights that stay from forward to backward, as many as fit."""

import pytest
from step_problems import base_problem

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.graph.build import build_cost_graph
from shardplan.graph.memory import MemoryRows
from shardplan.graph.options import UNLIMITED_BYTES
from shardplan.models import transformer
from shardplan.plan.assemble import price
from shardplan.plan.file import dumps, loads
from shardplan.plan.step.staying_weights import copies
from shardplan.plan.views.timeline import step_schedule
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
def built(model, cluster):
    return build_cost_graph(model, model_rules(model), cluster, PlanOptions())


@pytest.fixture(scope="module")
def fitting(built):
    """One assignment, whose weights are sharded, scheduled under ever tighter limits; the first one has none."""
    memory = MemoryRows(built)
    choices = solve(restrict(base_problem(built), built, RECIPES["ZeRO-3"](built))).choices
    whole = price(built, memory, choices, UNLIMITED_BYTES)
    limits = [int(share * whole.memory.total) for share in (0.97, 0.93, 0.89, 0.85, 0.8)]
    return [(UNLIMITED_BYTES, whole), *((limit, price(built, memory, choices, limit)) for limit in limits)]


@pytest.fixture(scope="module")
def planned(cluster):
    """Plans of the sharded weights of two layers without a limit on memory, and under two."""
    model = transformer(**SIZES | {"layers": 2})

    def plan(limit_bytes):
        options = PlanOptions(effort="quick", memory_limit_bytes=limit_bytes)
        return Planner(model, cluster, options).plan(RECIPES["ZeRO-3"])

    free = plan(UNLIMITED_BYTES)
    return [free, *(plan(int(share * free.summary.memory.total)) for share in (0.9, 0.75))]


def gathered(plan):
    """The weights that are gathered for use, and those of them that are re-gathered."""
    moves = [move for move in plan.moves if move.kind == "prefetched"]
    return {move.tensor for move in moves if move.phase == "forward"}, {move.tensor for move in moves if move.regather}


def test_all_stay_where_there_is_room(planned):
    there, again = gathered(planned[0])
    assert there
    assert not again


def test_ever_fewer_stay_in_ever_less_memory(fitting):
    numbers = [len(gathered(one)[1]) for _, one in fitting]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) > 2
    for _, one in fitting:
        there, again = gathered(one)
        stay = [int(name.split(".")[2]) for name in there - again if "layers" in name]
        first = [int(name.split(".")[2]) for name in again if "layers" in name]
        assert max(first, default=-1) <= min(stay, default=LAYERS)  # the last layers' weights stay


def test_a_schedule_fits_and_is_the_longer_the_less_memory_there_is(fitting):
    assert all(one.memory.total <= limit for limit, one in fitting)
    steps = [one.step_s for _, one in fitting]
    assert steps == sorted(steps)


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
        PlanOptions(effort="quick", in_flight=2),
        PlanOptions(effort="quick", target="fsdp2"),
        PlanOptions(effort="quick", in_time=False),
        PlanOptions(effort="quick", mode="inference"),
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


def test_a_weight_stays_from_its_last_reader_to_that_ones_backward(built, fitting, model):
    memory = MemoryRows(built)
    for copy in copies(built, fitting[0][1].moves, memory):
        last = max(index for index, _ in built.flow.readers[copy.tensor])
        assert (copy.begin, copy.end) == (last + 1, memory.time.backward(last))
        assert copy.size_bytes == model.tensor(copy.tensor).size_bytes
