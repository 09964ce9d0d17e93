"""The matrix of move prices agrees with lowering one move at a time."""

import itertools

import numpy as np
import pytest

from shardplan.cost.moves import move_space
from shardplan.errors import ShardplanError
from shardplan.layout.legal import is_legal
from shardplan.layout.lower import lower
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import P, S

SLOW_AXIS = 0


def seconds(collective, size_bytes):
    """A made-up machine: axis 0 is ten times slower than the others, latency grows with the group."""
    if collective.is_free:
        return 0.0
    slow = 10.0 if SLOW_AXIS in collective.axes else 1.0
    rounds = 2.0 if collective.kind == "all_reduce" else 1.0
    return 3e-6 * len(collective.axes) * rounds + slow * rounds * float(collective.share) * size_bytes / 1e11


@pytest.mark.parametrize(
    ("mesh", "shards", "shape", "size_bytes"),
    [
        (Mesh.of(machine=2, gpu=4), (S(0), S(1)), (8, 16), 1 << 20),
        (Mesh.of(machine=4, gpu=2), (S(0), S(1), S(1, (4, 4))), (8, 8), 1 << 26),
        (Mesh.of(a=2, b=2, c=2), (S(0), S(1)), (8, 4), 1 << 10),
    ],
)
def test_price_matrix_is_the_price_of_the_lowered_moves(mesh, shards, shape, size_bytes):
    space = move_space(mesh, len(shards))
    legal = space.legal(shape, shards)
    prices = space.prices(legal, size_bytes, seconds)
    layouts = [space.layout(state, shards) for state in range(len(space.states))]
    assert [is_legal(layout, mesh, shape) for layout in layouts] == legal.tolist()
    states = np.flatnonzero(legal)
    pairs = list(itertools.product(states.tolist(), repeat=2))
    for source, target in pairs[:: max(1, len(pairs) // 400)]:
        steps = lower(
            mesh,
            layouts[source],
            layouts[target],
            lambda collective: seconds(collective, size_bytes),
            shards=(*shards, P()),
            legal=lambda layout: is_legal(layout, mesh, shape),
        )
        total = sum(seconds(step.collective, size_bytes) for step in steps)
        assert prices[source, target] == pytest.approx(total, abs=1e-15)


def test_illegal_layouts_are_out_of_reach():
    space = move_space(Mesh.of(a=4), 1)
    legal = space.legal((6,), (S(0),))
    prices = space.prices(legal, 1024, seconds)
    sharded = int(space.state_of(np.array([0])))
    assert not legal[sharded]
    assert np.isinf(prices[sharded]).all()
    assert np.isinf(prices[:, sharded]).all()


@pytest.mark.parametrize("bad", [float("nan"), -1e-6, -float("inf"), 1e12])
def test_a_price_that_is_no_price_is_refused(bad):
    """With one there is no cheapest path: looking for it would never end."""
    space = move_space(Mesh.of(machine=2, gpu=2), 1)
    legal = space.legal((8,), (S(0),))

    def price(collective, size_bytes):
        return bad if collective.kind == "all_gather" else seconds(collective, size_bytes)

    with pytest.raises(ShardplanError) as caught:
        space.prices(legal, 1024, price)
    assert str(caught.value) == (
        f"error[bad-price]: all-gather of 1024 bytes over gpu is priced at {bad} s\n"
        "hint: a price is from 0 to 1e+06 s: check bandwidths, latencies and payloads of the cost model"
    )


def test_what_costs_infinitely_much_is_not_used():
    space = move_space(Mesh.of(gpu=2), 1)
    legal = space.legal((8,), (S(0),))
    prices = space.prices(legal, 1024, lambda c, size: np.inf if c.kind == "all_gather" else seconds(c, size))
    shard, whole = int(space.state_of(np.array([0]))), int(space.state_of(np.array([1])))
    assert np.isfinite(prices[shard, whole]), "by way of a masked sum"
    prices = space.prices(legal, 1024, lambda _c, _size: np.inf)
    assert np.isinf(prices[shard, whole])


def test_axes_of_one_device_add_no_states():
    """They replicate everything: with them there are the moves that there are without."""
    plain, idle = move_space(Mesh.of(a=2, b=4), 2), move_space(Mesh.of(one=1, a=2, two=1, b=4), 2)
    assert len(idle.states) == len(plain.states)
    assert (idle.codes[:, [0, 2]] == idle.count).all()
    assert np.array_equal(idle.codes[:, [1, 3]], plain.codes)
    assert np.array_equal(idle.tiles, plain.tiles)
    orders = [[axis for axis in layout.order if axis in (1, 3)] for layout in idle.states]
    assert orders == [[(1, 3)[axis] for axis in layout.order] for layout in plain.states]
    legal = plain.legal((8, 16), (S(0), S(1)))
    assert np.array_equal(idle.legal((8, 16), (S(0), S(1))), legal)

    def price(collective, size_bytes):
        return 0.0 if collective.is_free else 3e-6 * len(collective.axes) + float(collective.share) * size_bytes / 1e11

    assert np.array_equal(idle.prices(legal, 1 << 20, price), plain.prices(legal, 1 << 20, price))
