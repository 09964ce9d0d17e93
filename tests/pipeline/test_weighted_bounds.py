"""Bounds on runs of units at several multipliers: never above what a stage takes, and closer where much is sent."""

import itertools

import pytest

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.graph.options import UNLIMITED_BYTES, PlanOptions
from shardplan.models.named import described
from shardplan.pipeline.bounds.run_costs import RunCosts
from shardplan.pipeline.bounds.tied_layouts import StageSite
from shardplan.pipeline.bounds.weighted import WeightedBounds
from shardplan.pipeline.cut_points import chain_of, chain_part, part_of
from shardplan.planning import Planner
from shardplan.rules import model_rules

MODEL = described("transformer:layers=2,hidden=512,heads=4,vocab=256,seq=64,batch=16,dtype=float")
"""Few rows for large weights: gradients take longer than what they may hide behind."""
CLUSTER = make_cluster(load_profile("generic"), "2x2")
OPTIONS = PlanOptions(effort="quick", microbatches=2, memory_limit_bytes=UNLIMITED_BYTES)
CHAIN = chain_of(MODEL, model_rules(MODEL))
PICOSECONDS_PER_NS = 1000


def least_costs(chain):
    planner = Planner(chain.model, CLUSTER, OPTIONS, reasons=False)
    return WeightedBounds(lambda multipliers: RunCosts(planner.built_at(multipliers)[0], chain))


@pytest.fixture(scope="module")
def whole():
    """The plan of the whole model."""
    return Planner(MODEL, CLUSTER, OPTIONS, reasons=False).plan().summary


@pytest.fixture(scope="module")
def both(whole):
    """Without multipliers, and at those of the whole model's plan too."""
    plain, sharp = least_costs(CHAIN), least_costs(CHAIN)
    assert sharp.sharpen(whole.multipliers)
    assert not sharp.sharpen(whole.multipliers)
    return plain, sharp


def test_no_stage_takes_less(both, whole):
    _, sharp = both
    closer = 0
    for first, last in ((0, 1), (1, 2), (1, 3), (0, len(CHAIN))):
        found = whole
        if (first, last) != (0, len(CHAIN)):
            found = Planner(part_of(CHAIN, first, last, "part"), CLUSTER, OPTIONS, reasons=False).plan().summary
        step_ps = found.step_ns * PICOSECONDS_PER_NS
        low, high = (float(runs.of(first, last).min()) for runs in both)
        assert low <= high <= step_ps * (1 + 1e-6) + 2 * PICOSECONDS_PER_NS
        assert sharp.leasts()[first, last] <= high * (1 + 1e-12)
        closer += high > 1.05 * low
    assert closer > 0


def test_layouts_are_numbered_as_at_the_first_multipliers(both):
    """Of a value that the runs of another model lay out in other ways too, nothing is known."""
    _, sharp = both
    before = sharp.layouts[0]
    turned = sharp.between(1, 2, before[::-1], sharp.layouts[1])
    assert (turned == sharp.of(1, 2)[::-1]).all()
    nowhere = [layout for layout in before if layout == before[0]]
    assert (sharp.between(1, 2, nowhere, sharp.layouts[1]) == sharp.of(1, 2)[:1]).all()


def test_a_part_of_a_chain_is_the_chain_of_a_part():
    whole, part = CHAIN, chain_part(CHAIN, 1, 3)
    assert len(part) == 2
    assert part.borders == whole.borders[1:2]
    assert part.names == whole.names[1:3]
    for mine, theirs in zip(part.units, whole.units[1:3], strict=True):
        names = [part.model.operators[index].name for index in mine]
        assert names == [whole.model.operators[index].name for index in theirs]


@pytest.mark.parametrize(("ends", "allowed"), [(-1, {(0, 3), (1, 2)}), (0, {(0, 1), (0, 2)}), (1, {(1, 3), (2, 3)})])
def test_which_stages_may_be_which(ends, allowed):
    runs = set(itertools.combinations(range(4), 2))
    assert {run for run in runs if StageSite(0, ends).allows(*run, 3)} == allowed
