"""Bounds on runs of units that know of memory: never above a plan that fits, and closer to it than those without."""

import itertools
from pathlib import Path

import pytest

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.errors import InfeasibleError
from shardplan.graph.options import UNLIMITED_BYTES, PlanOptions
from shardplan.model.read import read_model
from shardplan.models.named import described
from shardplan.pipeline.bounds.cost import CostBounds
from shardplan.pipeline.bounds.run_costs import RunCosts
from shardplan.pipeline.cut_points import chain_of, part_of
from shardplan.planning import Planner
from shardplan.rules import model_rules

MODELS = Path(__file__).parents[1] / "models"
PICOSECONDS_PER_NS = 1000
ROUNDED_NS = 8
"""Of all times of a step together."""
MODEL = "transformer:layers=3,hidden=256,heads=4,vocab=512,seq=128,batch=16"
TIGHT = {"none": 0.8, "selective": 0.8, "full": 0.8, "auto": 0.2}
"""Of what layers hold where memory is plenty: so much is hard to keep to."""


def run_costs(model, mesh, remat):
    cluster = make_cluster(load_profile("h100-dgx"), mesh)
    options = PlanOptions(effort="quick", microbatches=4, remat=remat, memory_limit_bytes=UNLIMITED_BYTES)
    built = Planner(model, cluster, options, reasons=False).built_at()[0]
    return RunCosts(built, chain_of(model, model_rules(model)))


@pytest.fixture(scope="module", params=TIGHT)
def parts(request):
    return run_costs(described(MODEL), "1x2", request.param)


def planned(runs, first, last, waiting, limit):
    """The summary of a plan of a run that fits; None where none fits."""
    options = PlanOptions(
        microbatches=4, remat=runs.built.options.remat, in_flight=waiting, memory_limit_bytes=limit, effort="quick"
    )
    try:
        part = part_of(runs.chain, first, last, "part")
        return Planner(part, runs.built.cluster, options, reasons=False).plan().summary
    except InfeasibleError:
        return None


def is_below(bound, summary):
    """Whether a bound is none to a plan: operators and moves are rounded to nanoseconds, ties broken by picoseconds."""
    return summary is None or bound <= (summary.step_ns * (1 + 1e-6) + ROUNDED_NS) * PICOSECONDS_PER_NS


@pytest.mark.parametrize("remat", TIGHT)
@pytest.mark.parametrize("name", ["layers", "resnet50"])
def test_nothing_is_counted_that_a_part_does_not_hold(remat, name):
    """One device has no choice but what to recompute, so a stage that may hold what it holds has no bound above it."""
    model = described(MODEL) if name == "layers" else read_model(MODELS / "resnet50.onnx")
    runs = run_costs(model, "1x1", remat)
    count = len(runs.chain)
    for (first, last), waiting in itertools.product(
        itertools.combinations(range(0, count + 1, 1 + count // 4), 2), (1, 64)
    ):
        found = planned(runs, first, last, waiting, UNLIMITED_BYTES)
        assert is_below(runs.least(first, last), found)
        bounds = CostBounds(runs, found.memory.total)
        bounds.raise_for(first, last, waiting, runs.least(first, last))
        assert bounds.table(waiting) is None or is_below(bounds.table(waiting)[first, last], found)


def test_no_plan_that_fits_takes_less(parts):
    """Whether or not the run has the ends of the model."""
    for first, last in ((0, 2), (1, 3), (2, 5)):
        limit = int(TIGHT[parts.built.options.remat] * planned(parts, first, last, 4, UNLIMITED_BYTES).memory.total)
        bounds = CostBounds(parts, limit)
        bounds.raise_for(first, last, 4, parts.least(first, last))
        if (table := bounds.table(4)) is not None:
            assert is_below(table[first, last], planned(parts, first, last, 4, limit))


def test_memory_makes_a_difference(parts):
    """What layers hand on is held under every flag, so bounds rise where it is nearly all that there is."""
    unlimited = planned(parts, 1, 4, 4, UNLIMITED_BYTES)
    limit = int(TIGHT[parts.built.options.remat] * unlimited.memory.total)
    bounds = CostBounds(parts, limit)
    assert bounds.raise_for(1, 4, 4, parts.least(1, 4))
    assert bounds.table(4)[1, 4] > parts.least(1, 4)
    assert is_below(bounds.table(4)[1, 4], planned(parts, 1, 4, 4, limit))


def test_a_floor_for_one_run_is_one_for_all_and_for_more_in_flight(parts):
    limit = int(TIGHT[parts.built.options.remat] * planned(parts, 0, 3, 2, UNLIMITED_BYTES).memory.total)
    bounds = CostBounds(parts, limit)
    assert bounds.raise_for(0, 3, 2, parts.least(0, 3))
    assert bounds.table(1) is None
    for first, last in itertools.combinations(range(4), 2):
        assert is_below(bounds.table(3)[first, last], planned(parts, first, last, 3, limit))


def test_what_cannot_fit_is_far_above_all_that_can(parts):
    bounds = CostBounds(parts, 1 << 10)
    bounds.raise_for(0, 3, 2, parts.least(0, 3))
    assert bounds.table(2)[0, 3] > 20 * parts.least(0, 3)


def test_least_costs_of_all_runs_at_once_are_those_of_each(parts):
    table, count = parts.leasts(), len(parts.chain)
    for first, last in itertools.combinations(range(count + 1), 2):
        assert table[first, last] == parts.least(first, last)
