"""Operators that read weights alone: views take no turn, and in backward what computes does not stop the rest."""

from fractions import Fraction

import pytest

from shardplan.layout.collective import Collective
from shardplan.layout.layout import Layout
from shardplan.layout.placement import P, R, S
from shardplan.plan.step.moves import StepParts
from shardplan.plan.step.schedule import schedule_step
from shardplan.plan.types import CollectiveStep, Move, OperatorDecision

SHARDED, HALF, WHOLE = (Layout.of(*pair) for pair in ((S(0), S(1)), (R, S(1)), (R, R)))
MS = 1_000_000


def operator(name, inputs, result, compute_ms):
    """Half of what it computes is backward."""
    nanoseconds = compute_ms * MS
    return OperatorDecision(name, "", "", "", (), (), (), nanoseconds, inputs, (result,), nanoseconds // 2)


def moves_of(tensor, source, target, reader, axis):
    """Gathered before, and reduced after, in a millisecond each."""
    gather, scatter = (
        CollectiveStep(Collective(kind, (axis,), Fraction(1)), 8, MS) for kind in ("all_gather", "reduce_scatter")
    )
    yield Move(tensor, source, target, reader, "forward", (gather,), kind="prefetched")
    yield Move(tensor, Layout.of(P(), P()), source, reader, "backward", (scatter,), kind="deferred")


def scheduled(turn_ms, blocks=(0, 1, 2, 3)):
    """A weight is gathered over machines, turned, gathered inside of them, and read by the last of three products."""
    operators = (
        operator("early", ("x",), "a", 20),
        operator("middle", ("a",), "b", 20),
        operator("turn", ("w",), "t", turn_ms),
        operator("last", ("b", "t"), "y", 20),
    )
    moves = (*moves_of("w", SHARDED, HALF, "turn", 0), *moves_of("t", HALF, WHOLE, "last", 1))
    parts = StepParts(operators, moves, ("net", "up"), True, 1, 0, blocks, inputs=frozenset({"x"}))
    return schedule_step(parts), moves


def phase(step, name):
    return next(one for one in step.phases if one.name == name)


def program(step, name):
    return [(item.action, item.name) for item in phase(step, name).program]


def test_a_view_takes_no_turn_and_is_awaited_by_its_reader():
    step, moves = scheduled(0)
    assert program(step, "forward") == [
        ("compute", "early"),
        ("issue", "all-gather w"),
        ("issue", "all-gather t"),
        ("compute", "middle"),
        ("wait", "t"),
        ("compute", "last"),
    ]
    there = [move for move in step.marked(moves) if move.phase == "forward"]
    assert [(move.tensor, move.issue_after, move.wait_before) for move in there] == [
        ("w", "early", "last"),
        ("t", "early", "last"),
    ]
    assert step.seconds == pytest.approx(0.06)


def test_gradients_of_what_a_view_reads_come_after_those_of_what_it_makes():
    step, _ = scheduled(0)
    assert program(step, "last backward") == [
        ("compute", "backward: last"),
        ("issue", "reduce-scatter t"),
        ("issue", "reduce-scatter w"),
        ("compute", "backward: middle"),
        ("compute", "backward: early"),
        ("wait", "gradients"),
        ("wait", "gradients"),
    ]
    first, second = (item for item in phase(step, "last backward").program if item.action == "issue")
    assert second.after == (first.number,)


@pytest.mark.parametrize(
    ("blocks", "turns"),
    [((0, 1, 2, 3), "backward: middle"), ((0,), "backward: early")],
    ids=["a block later", "at the end of the only block"],
)
def test_what_computes_is_put_off_while_its_gradients_are_on_their_way(blocks, turns):
    step, _ = scheduled(4, blocks)
    names = [name for action, name in program(step, "last backward") if action == "compute"]
    assert names.index("backward: turn") == names.index(turns) + 1
    backward = next(ran for one, ran in step.phases_ran() if one.name == "last backward")
    assert backward.waited <= 0.0011  # the last reduction alone, where it is issued at the end


def test_what_computes_has_its_turn_where_nothing_is_on_its_way():
    operators = (operator("turn", ("w",), "t", 4), operator("last", ("x", "t"), "y", 20))
    moves = tuple(moves_of("w", SHARDED, HALF, "turn", 0))
    step = schedule_step(StepParts(operators, moves, ("net", "up"), True, 1, 0, (0,), inputs=frozenset({"x"})))
    assert [name for _, name in program(step, "last backward")] == [
        "backward: last",
        "backward: turn",
        "reduce-scatter w",
        "gradients",
    ]


def test_what_reads_an_input_has_its_turn():
    """A view of what changes from step to step is one more operator."""
    operators = (operator("turn", ("w",), "t", 0), operator("last", ("x", "t"), "y", 20))
    moves = tuple(moves_of("w", SHARDED, HALF, "turn", 0))
    parts = StepParts(operators, moves, ("net", "up"), True, 1, 0, (0,), inputs=frozenset({"w", "x"}))
    assert [move.wait_before for move in schedule_step(parts).marked(moves) if move.phase == "forward"] == ["turn"]
