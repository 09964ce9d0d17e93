"""Lowering on examples: the table of dual moves, fusing, orders, prices, and what cannot be done."""

from fractions import Fraction

import pytest

from shardplan.layout.collective import Collective
from shardplan.layout.layout import Layout
from shardplan.layout.lower import Step, by_bytes, lower, wire_share
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import RP, P, R, S
from shardplan.layout.transitions import transitions

LINE = Mesh.of(gpu=4)
GRID = Mesh.of(machine=2, gpu=4)


def kinds(steps):
    return [step.collective.kind for step in steps]


S0, S1 = S(0), S(1)
DUAL_MOVES = [
    (S0, S0, [], []),
    (S0, S1, ["all_to_all"], ["all_to_all"]),
    (S0, R, ["all_gather"], ["slice"]),
    (S0, RP, ["all_gather"], ["reduce_scatter"]),
    (S0, P(), ["mask"], ["slice"]),
    (R, S1, ["slice"], ["all_gather"]),
    (R, R, [], []),
    (R, RP, [], ["all_reduce"]),
    (R, P(), ["mask"], []),
    (RP, S1, ["slice"], ["mask"]),
    (RP, R, [], ["mask"]),
    (RP, RP, [], []),
    (RP, P(), ["mask"], ["mask"]),
    (P(), S1, ["reduce_scatter"], ["all_gather"]),
    (P(), R, ["all_reduce"], []),
    (P(), RP, ["all_reduce"], ["all_reduce"]),
    (P(), P(), [], []),
]


@pytest.mark.parametrize(("source", "target", "forward", "gradient"), DUAL_MOVES)
def test_table_of_dual_moves_on_one_axis(source, target, forward, gradient):
    """Every cell: what the value does, and what the gradient does on its way back."""
    u, v = Layout.of(source), Layout.of(target)
    assert kinds(lower(LINE, u, v, by_bytes(LINE))) == forward
    assert kinds(lower(LINE, v.gradient, u.gradient, by_bytes(LINE))) == gradient


def test_several_axes_are_one_fused_collective():
    steps = lower(GRID, Layout.of(P(), P()), Layout.of(R, R), by_bytes(GRID))
    assert steps == (Step(Collective("all_reduce", (0, 1), Fraction(1)), Layout.of(R, R)),)
    steps = lower(GRID, Layout.of(S0, S1), Layout.of(R, R), by_bytes(GRID))
    assert steps == (Step(Collective("all_gather", (0, 1), Fraction(1)), Layout.of(R, R)),)
    steps = lower(GRID, Layout.of(R, R), Layout.of(S1, S0), by_bytes(GRID))
    assert steps == (Step(Collective("slice", (0, 1), Fraction(0)), Layout.of(S1, S0)),)


def test_shares_are_payloads():
    whole, half = Layout.of(S1, P()), Layout.of(S1, S0)
    (scatter,) = lower(GRID, whole, half, by_bytes(GRID))
    assert scatter.collective == Collective("reduce_scatter", (1,), Fraction(1, 2))
    (gather,) = lower(GRID, half, Layout.of(S1, R), by_bytes(GRID))
    assert gather.collective == Collective("all_gather", (1,), Fraction(1, 2))
    (exchange,) = lower(GRID, half, Layout.of(S1, S(2)), by_bytes(GRID))
    assert exchange.collective == Collective("all_to_all", (1,), Fraction(1, 8))


def test_another_order_of_axes_is_a_permute():
    source, target = Layout.of(S0, S0), Layout.of(S0, S0, order=(1, 0))
    assert lower(GRID, source, target, by_bytes(GRID)) == (Step(Collective("permute", (0, 1), Fraction(1, 8)), target),)


def test_permute_stays_within_the_axes_whose_digit_changes():
    mesh = Mesh.of(a=2, b=2, c=2)

    def permute(source, target):
        (found,) = (c for t, c in transitions(mesh, source, ()) if t == target and c.kind == "permute")
        return found

    swapped = permute(Layout.of(S0, S0, S0), Layout.of(S0, S0, S0, order=(1, 0, 2)))
    assert swapped == Collective("permute", (0, 1), Fraction(1, 8))
    assert permute(Layout.of(S0, R, P()), Layout.of(R, S0, P())) == Collective("permute", (0, 1), Fraction(1, 2))
    assert permute(Layout.of(S0, R, P()), Layout.of(R, P(), S0)) == Collective("permute", (0, 1, 2), Fraction(1, 2))


def test_reducing_first_makes_everything_after_it_smaller():
    """A partial axis that is in the way of nothing is still scattered first if that saves bytes later."""
    mesh = Mesh.of(a=2, b=2, c=2)
    steps = lower(mesh, Layout.of(S0, R, P()), Layout.of(R, S0, P()), by_bytes(mesh))
    assert kinds(steps) == ["slice", "reduce_scatter", "permute", "all_gather", "mask"]


def test_shrinks_first_and_grows_last():
    """Gathering one axis while another becomes sharded: slice first, so that less is gathered."""
    steps = lower(GRID, Layout.of(S0, R), Layout.of(R, S1), by_bytes(GRID))
    assert [(s.collective.kind, s.collective.share) for s in steps] == [("slice", 0), ("all_gather", Fraction(1, 4))]


def test_the_price_decides():
    """Where one axis is dear, an all-reduce of both becomes a scatter, a small all-reduce and a gather."""

    def slow_machines(collective):
        return float(wire_share(collective, GRID)) * (100 if 0 in collective.axes else 1)

    steps = lower(GRID, Layout.of(P(), P()), Layout.of(R, R), slow_machines, shards=(S0,))
    assert [(s.collective.kind, s.collective.axes) for s in steps] == [
        ("reduce_scatter", (1,)),
        ("all_reduce", (0,)),
        ("all_gather", (1,)),
    ]
    steps = lower(GRID, Layout.of(P(), P()), Layout.of(R, R), slow_machines)
    assert [(s.collective.kind, s.collective.axes) for s in steps] == [("all_reduce", (1,)), ("all_reduce", (0,))], (
        "no dim is sharded on the way unless it is named"
    )


def test_forbidden_collectives_and_layouts_are_gone_round():
    def no_exchange(collective):
        return float("inf") if collective.kind == "all_to_all" else 1.0

    assert kinds(lower(LINE, Layout.of(S0), Layout.of(S1), no_exchange)) == ["all_gather", "slice"]
    source, target = Layout.of(S0, R), Layout.of(R, S1)
    steps = lower(GRID, source, target, by_bytes(GRID), legal=lambda layout: layout.placements != (S0, S1))
    assert (S0, S1) not in [step.target.placements for step in steps]
    assert steps[-1].target == target


def test_equal_layouts_need_nothing():
    assert lower(LINE, Layout.of(RP), Layout.of(R), by_bytes(LINE)) == ()
    assert lower(Mesh(()), Layout.of(), Layout.of(), by_bytes(Mesh(()))) == ()


def test_segmented_shards_move_as_dims_of_their_own():
    qkv = S(1, (8, 8, 8))
    assert kinds(lower(LINE, Layout.of(S1), Layout.of(qkv), by_bytes(LINE))) == ["all_to_all"]
    assert kinds(lower(LINE, Layout.of(P()), Layout.of(qkv), by_bytes(LINE))) == ["reduce_scatter"]
    assert kinds(lower(LINE, Layout.of(R), Layout.of(qkv), by_bytes(LINE))) == ["slice"]


def test_partial_maxima_come_from_operators_only():
    assert kinds(lower(LINE, Layout.of(P("max")), Layout.of(R), by_bytes(LINE))) == ["all_reduce"]
    with pytest.raises(ValueError, match="no sequence of collectives leads from"):
        lower(LINE, Layout.of(R), Layout.of(P("max")), by_bytes(LINE))
    with pytest.raises(ValueError, match=r"one layout cannot hold both P and P\(max\)"):
        lower(LINE, Layout.of(P()), Layout.of(P("max")), by_bytes(LINE))


def test_a_price_is_a_number_of_at_least_zero():
    for wrong in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="a price is at least 0"):
            lower(LINE, Layout.of(S0), Layout.of(R), lambda _collective, wrong=wrong: wrong)


def test_wire_shares():
    for kind, expected in [
        ("all_gather", Fraction(3, 8)),
        ("reduce_scatter", Fraction(3, 8)),
        ("all_to_all", Fraction(3, 8)),
        ("all_reduce", Fraction(3, 4)),
        ("permute", Fraction(1, 2)),
        ("slice", 0),
        ("mask", 0),
    ]:
        assert wire_share(Collective(kind, (1,), Fraction(1, 2)), GRID) == expected
    assert wire_share(Collective("permute", (0,), Fraction(1)), Mesh.of(one=1, two=2)) == 0
    price = by_bytes(GRID)
    assert price(Collective("all_gather", (1,), Fraction(1, 2))) == 3 / 8 * 2**20 + 64
    assert price(Collective("slice", (1,), Fraction(0))) == 0.0
