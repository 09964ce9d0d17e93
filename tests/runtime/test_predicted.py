"""What a step sends, summed from a plan."""

import math
from pathlib import Path

from example_plans import example_plan

from shardplan.plan.file import read_plan
from shardplan.runtime.predicted import Total, inner_operators, predicted_collectives, total

PLANS = Path(__file__).parents[2] / "plans"


def test_every_collective_with_its_bytes():
    rows = predicted_collectives(example_plan())
    assert len(rows) == 12
    gather = rows[0]
    assert (gather.phase, gather.kind, gather.axes, gather.count) == ("forward", "all_gather", ("gpu",), 1)
    assert (gather.payload_bytes, gather.wire_bytes) == (8_388_608, 6_291_456)
    assert (gather.tensor, gather.reader, gather.regather) == ("norm_0", "", False)
    assert [row.regather for row in rows[:3]] == [False, False, True]


def test_sums_count_microbatches():
    sums = total(predicted_collectives(example_plan()))
    assert sums["backward", "all_reduce", ("machine",)] == Total(4, 4 * 2_097_152, 4 * 3_145_728)
    assert sums["forward", "reduce_scatter", ("gpu",)] == Total(2, 2 * 8_388_608, 2 * 6_291_456)
    assert list(sums) == sorted(sums)


def test_slices_and_masks_send_nothing():
    kinds = set()
    for path in sorted(PLANS.glob("*.plan.json")):
        plan = read_plan(path)
        moved = {row.kind for row in predicted_collectives(plan)}
        kinds |= {step.collective.kind for move in plan.moves for step in move.steps} - moved
    assert {"mask", "slice"} <= kinds


def test_rings_send_what_their_formulas_say():
    """Thakur et al. 2005: (n - 1) / n of what an all-gather ends with, twice that for an all-reduce."""
    plan = read_plan(PLANS / "llama3_8b.4x8.plan.json")
    sizes = {axis.name: axis.size for axis in plan.mesh.axes}
    sums = total(predicted_collectives(plan))
    assert {kind for _, kind, _ in sums} >= {"all_gather", "all_reduce", "reduce_scatter", "all_to_all"}
    for (_, kind, axes), sent in sums.items():
        devices = math.prod(sizes[axis] for axis in axes)
        assert sent.wire_bytes * devices == sent.payload_bytes * (devices - 1) * (2 if kind == "all_reduce" else 1)


def test_operators_that_talk_inside_are_told():
    assert inner_operators(example_plan()) == ()
