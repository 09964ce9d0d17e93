"""Laws of moves, proved by carrying them out on all devices of small meshes.

A device reads only what its group holds, so a wrong group, order or share shows as an error or as other values.
All values are whole numbers, so sums are exact and equality is equality.
"""

import itertools
import random
from functools import cache

import move_pairs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mesh_values import shard
from move_pairs import LARGE, SMALL, Moves

from shardplan.layout.collective import FREE
from shardplan.layout.layout import Layout
from shardplan.layout.legal import is_legal, legal_for
from shardplan.layout.lower import by_bytes, lower, wire_share
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import RP, P, R, S
from shardplan.layout.table import transition_table
from shardplan.program.collectives import run, unshard

FLAT = [(2, 2), (2, 3), (4,), (3,)]
DEEP = [(2, 2, 2)]
SAMPLED = [(3, 2, 2), (2, 2, 3), (3, 3), (1, 2), (2, 1, 2), (2, 4), (4, 2)]
PLAIN = (S(0), S(1), S(2), P())


def run_sequence(value, layout, steps, mesh):
    """The mesh value after all `steps` of a move that begins in the plain layout `layout`."""
    for step in steps:
        value = run(value, layout, step.collective, step.target, mesh)
        layout = step.target
    return value


def mesh_of(sizes):
    return Mesh.of(**{f"axis{number}": size for number, size in enumerate(sizes)})


@cache
def whole(shape, seed=0):
    return np.random.default_rng(seed).integers(-50, 50, shape).astype(np.float64)


@cache
def everything(sizes):
    """Mesh, a cube that every layout divides, and the table over three dims and partial sums."""
    mesh = mesh_of(sizes)
    return mesh, whole((mesh.size,) * 3), transition_table(mesh, PLAIN)


def assert_holds(value, layout, mesh, array):
    """`value` is `array` in `layout`; without partial values, local by local."""
    if any(p.kind == "P" for p in layout.placements):
        assert np.array_equal(unshard(value, layout, mesh), array)
    else:
        for local, expected in zip(value, shard(array, layout, mesh), strict=True):
            assert np.array_equal(local, expected)


def assert_transitions(mesh, array, table, chosen):
    """Each chosen transition, carried out, gives its target; the bytes moved are the bytes priced."""
    value, at = None, -1
    for row in chosen:
        source, target = (table.states[states[row]] for states in (table.source, table.target))
        collective = table.collectives[table.kind_index[row]]
        if table.source[row] != at:
            value, at = shard(array, source, mesh), table.source[row]
        received = [0] * mesh.size
        after = run(value, source, collective, target, mesh, received=received)
        assert_holds(after, target, mesh, array)
        priced = wire_share(collective, mesh) * array.nbytes
        if collective.kind == "permute":
            assert max(received) == priced, (source, collective, target)
        else:
            assert set(received) == {priced}, (source, collective, target)


@pytest.mark.parametrize("sizes", FLAT + DEEP, ids=str)
def test_every_single_collective_gives_its_target_and_moves_what_is_priced(sizes):
    """All transitions between all plain layouts of rank 3 (lower ranks are those with unused dims)."""
    mesh, array, table = everything(sizes)
    assert_transitions(mesh, array, table, range(len(table.source)))


@pytest.mark.parametrize("sizes", SAMPLED, ids=str)
def test_sampled_collectives_on_uneven_meshes(sizes):
    mesh, array, table = everything(sizes)
    rows = range(len(table.source))
    assert_transitions(mesh, array, table, sorted(random.Random(7).sample(rows, min(300, len(rows)))))


def assert_pairs(mesh, array, pairs, **options):
    """Lowered sequences, carried out, give their targets."""
    price = by_bytes(mesh)
    for source, target in pairs:
        steps = lower(mesh, source, target, price, **options)
        assert (steps == ()) == (source == target)
        value = run_sequence(shard(array, source, mesh), source, steps, mesh)
        assert_holds(value, target, mesh, array)


@pytest.mark.parametrize("size_bytes", [SMALL, LARGE])
@pytest.mark.parametrize(("mesh", "rank"), [("2x2", 0), ("2x2", 1), ("2x2", 2), ("2x2", 3), ("2x3", 3)])
def test_every_move_on_two_axes_gives_its_target_by_the_bytes_and_at_the_price_that_plans_list(mesh, rank, size_bytes):
    moves = Moves(mesh, rank, size_bytes)
    faults = {pair: fault for pair in itertools.product(moves.layouts, repeat=2) if (fault := moves.fault(*pair))}
    assert faults == {}
    assert moves.collectives


@pytest.mark.parametrize("reduction", ["sum", "max"])
def test_some_moves_on_three_axes_as_benchmarks_moves_does_all(reduction):
    moves, draw = Moves("2x2x2", 2, LARGE, reduction), random.Random(5)
    pairs = [(draw.choice(moves.layouts), draw.choice(moves.layouts)) for _ in range(200)]
    assert {pair: fault for pair in pairs if (fault := moves.fault(*pair))} == {}


def test_a_mover_that_is_wrong_is_caught(monkeypatch):
    """Tiles in another order, bytes that are not counted, another sequence than the one that was priced."""
    moves = Moves("2x2", 2, LARGE)
    source, target = Layout.of(S(0), S(0)), Layout.of(S(1), R)
    assert moves.fault(source, target) == ""
    with monkeypatch.context() as patch:
        patch.setattr(move_pairs, "run", lambda *args, **more: run(*args, **more)[::-1])
        assert moves.fault(source, target)
    with monkeypatch.context() as patch:
        patch.setattr(move_pairs, "run", lambda *args, **_: run(*args))
        assert "moved [0, 0, 0, 0] bytes, priced are" in moves.fault(source, target)
    with monkeypatch.context() as patch:
        roundabout = lower(moves.mesh, source, Layout.replicated(2), moves.price)
        roundabout += lower(moves.mesh, Layout.replicated(2), target, moves.price)
        patch.setattr(move_pairs, "lower", lambda *_, **__: roundabout)
        assert "the solver was told" in moves.fault(source, target)


@pytest.mark.parametrize("sizes", DEEP + SAMPLED, ids=str)
def test_sampled_moves_on_three_axes(sizes):
    """A random sample of all pairs. That the others are right too follows for (2, 2, 2) from the test of every single
    collective, because `lower` returns nothing but chains of the table's transitions; elsewhere it is a sample."""
    mesh, array, table = everything(sizes)
    draw = random.Random(11)
    assert_pairs(mesh, array, [(draw.choice(table.states), draw.choice(table.states)) for _ in range(150)])


SEGMENTED = [
    ((2, 2), (4, 24), S(1, (8, 8, 8))),
    ((2, 2), (4, 16), S(1, (8, 4, 4))),
    ((2, 2), (4, 16), S(1, (4, 4, 4, 4))),
    ((2, 3), (6, 36), S(1, (6,) * 6)),
]


@pytest.mark.parametrize(("sizes", "shape", "split"), SEGMENTED, ids=str)
def test_segmented_shards_move_like_dims(sizes, shape, split):
    """Every legal transition and every move with a segmented shard, equal and unequal segments.

    Between `S(1)` and its segmented twin the pieces exchanged are unequal, but never more than the payload. In the last
    two cases plain and segmented shards also meet on one dim."""
    mesh, array = mesh_of(sizes), whole(shape)
    legal = legal_for(mesh, shape)
    table = transition_table(mesh, (S(0), S(1), split, P()))
    allowed = [legal(layout) for layout in table.states]
    met = 0
    for source, target, kind in zip(*(a.tolist() for a in (table.source, table.target, table.kind_index)), strict=True):
        if allowed[source] and allowed[target]:
            u, v, collective = table.states[source], table.states[target], table.collectives[kind]
            received = [0] * mesh.size
            after = run(shard(array, u, mesh), u, collective, v, mesh, received=received)
            assert_holds(after, v, mesh, array)
            limit = collective.share if collective.kind == "all_to_all" else wire_share(collective, mesh)
            assert max(received) <= limit * array.nbytes
            met += {S(1), split} <= set(v.placements)
    assert bool(met) == (len(set(split.segments)) == 1 and len(split.segments) % 2 == 0)
    states = [layout for layout, ok in zip(table.states, allowed, strict=True) if ok]
    assert_pairs(mesh, array, itertools.product(states, repeat=2), legal=legal)


def test_illegal_layouts_are_never_met():
    """Dims that only one axis divides: every move still exists and stays legal on the way."""
    mesh, shape = mesh_of((2, 3)), (6, 3, 2)
    legal = legal_for(mesh, shape)
    states = [layout for layout in transition_table(mesh, PLAIN).states if is_legal(layout, mesh, shape)]
    for source, target in itertools.product(states, repeat=2):
        steps = lower(mesh, source, target, by_bytes(mesh), shards=PLAIN, legal=legal)
        assert all(legal(step.target) for step in steps)


def duals(axes):
    """Every dual layout of rank 2."""
    plain = itertools.product((S(0), S(1), R, RP, P()), repeat=axes)
    orders = list(itertools.permutations(range(axes)))
    return sorted({Layout.of(*placements, order=order) for placements in plain for order in orders}, key=str)


def paired(value, gradient, layout, mesh):
    """Sum of local products; copies of a value whose gradient is a copy too count once."""
    copies = mesh.ways([axis for axis, placement in enumerate(layout.placements) if placement == R])
    return sum(float(np.vdot(x, y)) for x, y in zip(value, gradient, strict=True)) / copies


def assert_transpose(mesh, source, target, array, covector):
    price = by_bytes(mesh)
    value, gradient = shard(array, source, mesh, 1), shard(covector, target.gradient, mesh, 2)
    moved = run_sequence(value, source.forward, lower(mesh, source, target, price), mesh)
    back = run_sequence(gradient, target.gradient, lower(mesh, target.gradient, source.gradient, price), mesh)
    assert_holds(back, source.gradient, mesh, covector)
    assert paired(moved, gradient, target, mesh) == paired(value, back, source, mesh), (source, target)


@pytest.mark.parametrize("sizes", [(3,), (2, 2), (2, 3)], ids=str)
def test_backward_is_the_transpose(sizes):
    """<move(x), y> = <x, move back(y)> over the local tensors, for every pair of dual layouts."""
    mesh = mesh_of(sizes)
    array, covector = whole((mesh.size, mesh.size), 3), whole((mesh.size, mesh.size), 4)
    for source, target in itertools.product(duals(len(mesh)), repeat=2):
        assert_transpose(mesh, source, target, array, covector)


@settings(max_examples=60)
@given(st.data())
def test_backward_is_the_transpose_on_three_axes(data):
    mesh = mesh_of((2, 2, 2))
    array, covector = whole((8, 8), 3), whole((8, 8), 4)
    source, target = (data.draw(st.sampled_from(duals(3))) for _ in range(2))
    assert_transpose(mesh, source, target, array, covector)


def test_equal_layouts_cost_nothing():
    for layout in duals(3):
        mesh = mesh_of((2, 3, 2))
        for half in (layout, layout.gradient):
            assert lower(mesh, half, half, by_bytes(mesh)) == ()


def prices_of_three(table, price):
    """Cheapest price over all sequences of at most three transitions, for every pair of states."""
    count = len(table.states)
    one = np.full((count, count), np.inf)
    np.fill_diagonal(one, 0.0)
    prices = np.array([price(collective) for collective in table.collectives])
    np.minimum.at(one, (table.source, table.target), prices[table.kind_index])
    two = np.min(one[:, :, None] + one[None, :, :], axis=1)
    return np.min(two[:, :, None] + one[None, :, :], axis=1)


@settings(max_examples=6)
@given(st.sampled_from([(2, 2), (2, 3), (4, 2)]), st.integers(0, 2**32 - 1), st.booleans())
def test_no_three_collectives_are_cheaper(sizes, seed, wild):
    """Against all sequences of at most three single collectives, at ordinary and at arbitrary prices."""
    mesh, _, table = everything(sizes)
    draw = random.Random(seed)
    speed = [draw.choice([1.0, 3.0, 50.0]) for _ in sizes]
    arbitrary = {collective: 0.0 if collective.kind in FREE else draw.random() for collective in table.collectives}

    def price(collective):
        if wild:
            return arbitrary[collective]
        slowest = max(speed[axis] for axis in collective.axes)
        return 0.0 if collective.is_free else 0.01 * slowest + float(wire_share(collective, mesh)) * slowest

    bound = prices_of_three(table, price)
    for source, u in enumerate(table.states):
        for target, v in enumerate(table.states):
            steps = lower(mesh, u, v, price, shards=PLAIN)
            assert sum(price(step.collective) for step in steps) <= bound[source, target] + 1e-9
