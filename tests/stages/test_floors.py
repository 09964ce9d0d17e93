"""Bounds on runs of units that know of memory: never above a plan that fits, and closer to it than those without."""

import itertools

import pytest

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.graph.options import PlanOptions
from shardplan.models.named import described
from shardplan.planning import Planner
from shardplan.rules import model_rules
from shardplan.stages.chain import RunCosts
from shardplan.stages.cut import chain_of, part_of
from shardplan.stages.floors import Floors

PICOSECONDS_PER_NS = 1000
MODEL = "transformer:layers=3,hidden=256,heads=4,vocab=512,seq=64,batch=16"


@pytest.fixture(scope="module", params=["none", "selective", "full"])
def parts(request):
    model = described(MODEL)
    cluster = make_cluster(load_profile("h100-dgx"), "1x4")
    options = PlanOptions(microbatches=4, remat=request.param, memory_limit_bytes=1 << 60)
    built = Planner(model, cluster, options, reasons=False).built_at(1.0)[0]
    return chain_of(model, model_rules(model)), built


def step_ns(parts, first, last, waiting, limit):
    """Of the fastest plan of a run that fits, and how much it holds; None where none fits."""
    chain, built = parts
    options = PlanOptions(
        microbatches=4, remat=built.options.remat, in_flight=waiting, memory_limit_bytes=limit, gap=1e-9
    )
    plan = Planner(part_of(chain, first, last, "part"), built.cluster, options, reasons=False).plan()
    return plan.summary.step_ns, plan.summary.memory.total


def test_no_plan_that_fits_takes_less(parts):
    (chain, built), waiting = parts, 2
    runs = RunCosts(built, chain)
    for first, last in ((1, 3), (0, len(chain))):  # one layer alone is no repeated block, and nothing of it runs again
        roomy, held = step_ns(parts, first, last, waiting, 1 << 60)
        limit = int(0.7 * held)
        found, _ = step_ns(parts, first, last, waiting, limit)
        floors = Floors(built, chain, limit)
        floors.raise_for(first, last, waiting, runs.least(first, last))
        table = floors.table(waiting)
        assert table[first, last] <= found * PICOSECONDS_PER_NS * (1 + 1e-9)
        least = max(runs.least(first, last), table[first, last])
        assert least <= found * PICOSECONDS_PER_NS * (1 + 1e-9)
        if built.options.remat != "full" and found > 1.05 * roomy:
            assert table[first, last] > runs.least(first, last)


def test_a_floor_for_one_run_is_one_for_all(parts):
    chain, built = parts
    runs = RunCosts(built, chain)
    _, held = step_ns(parts, 0, 3, 2, 1 << 60)
    limit = int(0.75 * held)
    floors = Floors(built, chain, limit)
    floors.raise_for(0, 3, 2, runs.least(0, 3))
    for first, last in itertools.combinations(range(4), 2):
        if built.options.remat == "full" and last - first < 3 - bool(first):
            continue
        found, _ = step_ns(parts, first, last, 2, limit)
        assert floors.table(2)[first, last] <= found * PICOSECONDS_PER_NS * (1 + 1e-9)
    assert floors.table(1) is None
