"""What a step sends, summed from a plan."""

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


def test_slices_and_masks_are_free():
    plan = read_plan(PLANS / "llama3_8b.4x8.plan.json")
    moved, everything = predicted_collectives(plan), predicted_collectives(plan, free=True)
    assert len(moved) < len(everything)
    assert {row.kind for row in everything} - {row.kind for row in moved} == {"mask", "slice"}
    assert sum(row.wire_bytes for row in everything) == sum(row.wire_bytes for row in moved)
    gathered = total(moved)["forward", "all_gather", ("machine", "gpu")]
    assert gathered == Total(1, 8 * 2048 * 4096 * 2, 8 * 2048 * 4096 * 2 * 31 // 32)


def test_operators_that_talk_inside_are_told():
    assert inner_operators(example_plan()) == ()
