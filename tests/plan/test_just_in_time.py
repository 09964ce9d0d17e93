"""Prefetches just in time: where they move, and what never changes."""

from pathlib import Path

import pytest

from shardplan.plan.file import read_plan
from shardplan.plan.step.just_in_time import just_in_time
from shardplan.plan.step.moves import StepMoves, StepParts
from shardplan.plan.step.phases import EAGER, Phase, Policy
from shardplan.plan.step.schedule import schedule_step
from shardplan.plan.types import Move
from shardplan.plan.views.timeline import parts_of
from shardplan.schedule.links import LinkLevels
from shardplan.schedule.streams import Item, simulate

ROOT = Path(__file__).resolve().parents[2]
UP, NET = frozenset({"up"}), frozenset({"net"})
LINKS = LinkLevels(("up", "net"))


def computes(seconds):
    return Item("compute", "operator", seconds)


def gathers(number, seconds, levels=UP, after=()):
    return Item("issue", f"gather {number}", seconds, levels, number, after)


def reduces(number, seconds, levels=UP):
    return Item("issue", f"reduce {number}", seconds, levels, number, (), deferred=True)


def waits(number):
    return Item("wait", f"gather {number}", number=number)


def moved(name, *turns):
    """The phase of these turns (one per operator), moved: its program, and its seconds before and after."""
    program = [(item, operator) for operator, items in enumerate(turns) for item in items]
    numbers = [(item.number,) if item.action == "issue" else () for item, _ in program]
    items, operators = zip(*program, strict=True)
    phase = Phase(name, 1, items, tuple(numbers), (0,) * len(items), operators)
    moves = [Move(f"weight {number}", None, None, "", "forward", ()) for number in range(9)]
    step = StepMoves(StepParts((), moves, (), True, 1, 0, (0,), LINKS))
    found = just_in_time(phase, simulate(phase.program, 1.0, LINKS), step)
    return found, *(simulate(one.program, 1.0, LINKS).seconds for one in (phase, found))


def issued_at(phase):
    """By collective, the number of operators that have computed when it is issued."""
    computed, found = 0, {}
    for item in phase.program:
        computed += item.action == "compute"
        if item.action == "issue":
            found[item.number] = computed
    return found


def test_a_gather_longer_than_a_block_starts_as_many_blocks_earlier_as_it_needs():
    turns = [[computes(1.0)], [computes(1.0)], [computes(1.0)], [gathers(0, 2.5), waits(0), computes(1.0)]]
    phase, before_s, after_s = moved("forward", *turns)
    assert issued_at(phase) == {0: 0}
    assert (before_s, after_s) == (6.5, 4.0)


def test_a_gather_moves_no_farther_than_it_has_to():
    turns = [[computes(1.0)], [computes(1.0)], [computes(1.0)], [gathers(0, 0.5), waits(0), computes(1.0)]]
    phase, _, after_s = moved("forward", *turns)
    assert issued_at(phase) == {0: 2}
    assert after_s == 4.0


def test_gathers_of_one_link_make_room_for_those_that_are_read_sooner():
    turns = [
        [computes(1.0)],
        [computes(1.0)],
        [gathers(0, 1.0), waits(0), computes(0.1)],
        [gathers(1, 1.0), waits(1), computes(1.0)],
    ]
    phase, _, after_s = moved("forward", *turns)
    assert issued_at(phase) == {0: 0, 1: 1}
    assert after_s == pytest.approx(3.1)


def test_what_is_read_first_is_sent_first_however_busy_the_link_is():
    turns = [
        [gathers(0, 0.1), gathers(1, 1.0), waits(0), computes(1.0)],
        [gathers(2, 3.0), waits(1), computes(1.0)],
        [waits(2), computes(1.0)],
    ]
    phase, before_s, after_s = moved("forward", *turns)
    assert [item.number for item in phase.program if item.action == "issue"] == [0, 1, 2]
    assert after_s == before_s == pytest.approx(5.1)


def test_blocking_collectives_of_a_link_do_not_count_as_time_for_its_gathers():
    blocking = Item("blocking", "all-reduce", 1.0, UP)
    turns = [[computes(1.0)], [computes(1.0)], [blocking], [gathers(0, 1.0), waits(0), computes(1.0)]]
    phase, _, after_s = moved("forward", *turns)
    assert issued_at(phase) == {0: 1}
    assert after_s == 4.0


def test_gathers_of_backward_fill_the_link_before_there_are_gradients():
    """The link is busy to the end either way: what it does not do at first makes the phase longer."""
    turns = [
        [computes(1.0)],
        [reduces(1, 2.0), computes(1.0)],
        [reduces(2, 2.0), computes(1.0)],
        [gathers(0, 0.9), waits(0), computes(1.0)],
    ]
    phase, _, after_s = moved("backward", *turns)
    assert issued_at(phase)[0] == 0
    assert after_s == pytest.approx(5.0)


def test_what_a_gather_depends_on_is_issued_before_it():
    last = [gathers(0, 0.4, NET), gathers(1, 0.9, UP, (0,)), waits(1), computes(1.0)]
    turns = [[computes(1.0)], [computes(1.0)], last]
    phase, _, after_s = moved("forward", *turns)
    assert [item.number for item in phase.program if item.action == "issue"] == [0, 1]
    assert after_s == pytest.approx(3.0)


@pytest.mark.parametrize("name", ["gpt2_small.4x4", "llama3_8b.4x8"])
def test_the_same_items_run_in_an_order_that_keeps_all_dependencies(name):
    """Of committed plans."""
    parts = parts_of(read_plan(ROOT / "plans" / f"{name}.plan.json"))
    before, after = (schedule_step(parts, policy) for policy in (EAGER, Policy(just_in_time=True)))
    for one, other in zip(before.phases, after.phases, strict=True):
        assert sorted(map(repr, one.program)) == sorted(map(repr, other.program))
        place = {item.number: index for index, item in enumerate(other.program) if item.action == "issue"}
        for index, item in enumerate(other.program):
            assert all(place[number] < index for number in item.after)
            assert item.action != "wait" or place[item.number] < index
        rest = [[item for item in phase.program if item.action != "issue" or item.deferred] for phase in (one, other)]
        assert rest[0] == rest[1]
        assert all(now <= issued_at(one)[number] for number, now in issued_at(other).items())
    assert after.seconds <= before.seconds
