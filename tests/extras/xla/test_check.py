"""What is compared, and what is credited: hand-written programs against hand-written moves."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from example_plans import GPU, example_plan

from shardplan.extras.xla.check import check_text
from shardplan.layout.collective import Collective
from shardplan.layout.layout import Layout
from shardplan.layout.placement import P, R, S
from shardplan.plan.types import CollectiveStep, Move

HEAD = """HloModule jit_f, num_partitions=16

ENTRY %main (x: f32[8,16]) -> f32[8,16] {
  %x = f32[8,16]{1,0} parameter(0)
  %zero = s32[] constant(0)
  %id = u32[] partition-id()
  %place = s32[] convert(%id)
"""
SUM = "  %sum = f32[8,16]{1,0} all-reduce(%x), replica_groups=[4,4]<=[16], to_apply=%add\n"
CUT = "  %cut = f32[2,16]{1,0} dynamic-slice(%sum, %place, %zero), dynamic_slice_sizes={2,16}\n"
GATHER = "  %whole = f32[8,16]{1,0} all-gather(%cut), replica_groups=[4,4]<=[16], dimensions={0}\n"
BYTES = 8 * 16 * 4


OVER_MACHINES = (
    "  %all = f32[8,16]{1,0} all-reduce(%sum), replica_groups={{0,4,8,12},{1,5,9,13},{2,6,10,14},{3,7,11,15}}, "
    "to_apply=%add\n"
)


def program(*lines: str) -> str:
    name = lines[-1].split()[0]
    return f"{HEAD}{''.join(lines)}  ROOT %out = f32[2,16]{{1,0}} copy({name})\n}}\n"


def plan_of(*kinds: str, axes: tuple[int, ...] = (GPU,)):
    """A plan whose only moves are one of each kind, of the same tensor, by default over the inner axis."""
    step = {kind: CollectiveStep(Collective(kind, axes, Fraction(1)), BYTES, 1) for kind in kinds}
    layouts = Layout.of(R, P()), Layout.of(R, S(0))
    return example_plan(moves=tuple(Move("x", *layouts, "", "forward", (step[kind],)) for kind in kinds))


@pytest.mark.parametrize(
    ("planned", "lines", "scattered", "merged"),
    [
        (("all_reduce",), (SUM,), 0, 0),
        (("reduce_scatter",), (SUM, CUT), 1, 0),
        (("all_reduce",), (SUM, CUT), 0, 0),  # and a slice, which is free
        (("all_reduce",), (SUM, CUT, GATHER), 0, 1),
        (("reduce_scatter", "all_gather"), (SUM, CUT, GATHER), 1, 0),
    ],
)
def test_what_agrees(planned, lines, scattered, merged):
    found = check_text(program(*lines), plan_of(*planned))
    assert found.agrees, str(found)
    assert (found.scattered, found.merged) == (scattered, merged)


@pytest.mark.parametrize(
    ("planned", "lines"),
    [
        (("reduce_scatter",), (SUM,)),  # nobody cuts it
        (("all_reduce", "all_gather", "all_gather"), (SUM, CUT, GATHER)),
        (("all_gather",), (SUM, CUT, GATHER)),
        ((), (SUM,)),
    ],
)
def test_what_does_not(planned, lines):
    found = check_text(program(*lines), plan_of(*planned))
    assert not found.agrees
    assert (found.scattered, found.merged) == (0, 0)


def test_sums_over_one_axis_after_the_other_count_as_the_one_of_the_plan():
    found = check_text(program(SUM, OVER_MACHINES), plan_of("all_reduce", axes=(0, GPU)))
    assert found.agrees, str(found)
    assert found.folded == 1
    assert found.emitted_bytes("forward") == 2 * BYTES * 15 // 16
    assert str(found).endswith("\n1 all-reduces that others sum further counted as one with these")


def test_sums_that_the_plan_has_apart_stay_apart():
    """The plan has them one after the other as well, or reads what lies between, or sums over one axis only."""
    both = plan_of("all_reduce"), plan_of("all_reduce", axes=(0,))
    apart = replace(both[0], moves=(*both[0].moves, *both[1].moves))
    found = check_text(program(SUM, OVER_MACHINES), apart)
    assert (found.agrees, found.folded) == (True, 0)
    read = "  %read = f32[8,16]{1,0} negate(%sum)\n"
    for plan, lines in (
        (plan_of("all_reduce", axes=(0, GPU)), (SUM, read, OVER_MACHINES)),
        (both[0], (SUM, OVER_MACHINES)),
    ):
        found = check_text(program(*lines), plan)
        assert (found.agrees, found.folded) == (False, 0)


CUT_TWICE = "  %cut = f32[1,8]{1,0} dynamic-slice(%all, %place, %place), dynamic_slice_sizes={1,8}\n"


def test_sums_over_one_axis_after_the_other_that_are_cut_by_both_count_as_the_reduce_scatter_of_the_plan():
    lines = SUM, OVER_MACHINES, CUT_TWICE
    found = check_text(program(*lines), plan_of("reduce_scatter", axes=(0, GPU)))
    assert found.agrees, str(found)
    assert (found.folded, found.scattered) == (1, 1)
    assert found.emitted_bytes("forward") == BYTES * 15 // 16
    summed = check_text(program(*lines), plan_of("all_reduce", axes=(0, GPU)))  # and a slice, which is free
    assert (summed.agrees, summed.folded, summed.scattered) == (True, 1, 0)


def test_sums_that_are_cut_by_fewer_devices_than_summed_them_are_no_reduce_scatter():
    by_one_axis = CUT_TWICE.replace("f32[1,8]", "f32[2,16]").replace("{1,8}", "{2,16}")
    found = check_text(program(SUM, OVER_MACHINES, by_one_axis), plan_of("reduce_scatter", axes=(0, GPU)))
    assert (found.agrees, found.folded, found.scattered) == (False, 0, 0)


GATHERED = (
    "  %rows = f32[32,16]{1,0} all-gather(%x), replica_groups=[4,4]<=[16], dimensions={0}\n",
    "  %turned = f32[32,16]{0,1} fusion(%rows), kind=kLoop, calls=%turn\n",
    "  %square = f32[32,64]{1,0} all-gather(%turned), replica_groups=[4,4]<=[4,4]T(1,0), dimensions={1}\n",
)
TURN = """%turn (p: f32[32,16]) -> f32[32,16] {
  %p = f32[32,16]{1,0} parameter(0)
  ROOT %q = f32[32,16]{0,1} OP(%p)
}
"""


def gathered(*lines: str, between: str = "copy") -> str:
    return program(*lines).replace("ENTRY", f"{TURN.replace('OP', between)}\nENTRY")


def gather_plan(*axes_and_bytes: tuple[tuple[int, ...], int]):
    layouts = Layout.of(S(1), S(0)), Layout.of(R, R)
    steps = [CollectiveStep(Collective("all_gather", axes, Fraction(1)), size, 1) for axes, size in axes_and_bytes]
    return example_plan(moves=tuple(Move("x", *layouts, "", "forward", (step,)) for step in steps))


@pytest.mark.parametrize("between", ["copy", "convert"])
def test_gathers_over_one_axis_after_the_other_count_as_the_one_of_the_plan(between):
    found = check_text(gathered(*GATHERED, between=between), gather_plan(((0, GPU), 16 * BYTES)))
    assert found.agrees, str(found)
    assert found.gathered == 1
    assert found.emitted_bytes("forward") == 15 * BYTES
    assert str(found).endswith("\n1 all-gathers that others gather further counted as one with these")


@pytest.mark.parametrize(
    ("lines", "plan", "between"),
    [
        (GATHERED, gather_plan(((0, GPU), 16 * BYTES)), "negate"),  # not what was gathered
        (GATHERED, gather_plan(((0, GPU), 8 * BYTES)), "copy"),  # other bytes
        (GATHERED, gather_plan(((GPU,), 16 * BYTES)), "copy"),  # other axes
        ((*GATHERED[:2], "  %read = f32[32,16]{1,0} negate(%rows)\n", *GATHERED[2:]),
         gather_plan(((0, GPU), 16 * BYTES)), "copy"),  # what lies between is read
        ((GATHERED[0], GATHERED[1].replace("f32[32,16]{0,1} fusion", "f32[8,16]{0,1} fusion"), GATHERED[2]),
         gather_plan(((0, GPU), 4 * BYTES)), "copy"),  # a part of it is gathered further
    ],
)  # fmt: skip
def test_other_gathers_stay_apart(lines, plan, between):
    found = check_text(gathered(*lines, between=between), plan)
    assert (found.agrees, found.gathered) == (False, 0)


def test_gathers_that_the_plan_has_one_after_the_other_stay_so():
    found = check_text(gathered(*GATHERED), gather_plan(((GPU,), 4 * BYTES), ((0,), 16 * BYTES)))
    assert (found.agrees, found.gathered) == (True, 0)


def test_the_table():
    assert str(check_text(program(SUM, CUT, GATHER), plan_of("reduce_scatter"))) == (
        "phase     collective      axes                    emitted      planned  bytes of one device\n"
        "forward   all_gather      gpu                         384            0\n"
        "forward   reduce_scatter  gpu                         384          384\n"
        "forward   total                                       768          384  x 2.00\n"
        "1 all-reduce + slice counted as reduce-scatter"
    )


def test_phases_are_those_of_the_program():
    forward = program(SUM)
    both = forward.replace("to_apply=%add", 'to_apply=%add, metadata={op_name="jit(f)/transpose(jvp())/dot"}')
    plan = example_plan()
    assert {row.phase for row in check_text(forward, plan).predicted} == {"forward"}
    assert {row.phase for row in check_text(both, plan).predicted} == {"forward", "backward"}
    assert {row.phase for row in check_text(both, plan, phases=["backward"]).predicted} == {"backward"}
    assert check_text(both, plan_of("all_reduce")).ratio("backward") == float("inf")
