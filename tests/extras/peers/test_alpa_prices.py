"""The objectives of Alpa's solver playground (MLPs), as closed forms of its collective prices."""

import math

import pytest

from shardplan.extras.peers.alpa import AlpaCollectives

FLOAT = 4


def ring(sizes, beta=(1, 1), **options):
    return AlpaCollectives(sizes, (1, 1), beta, **options)


@pytest.mark.parametrize("sizes", [(4, 1), (1, 4)])
@pytest.mark.parametrize(("layers", "wide", "narrow"), [(2, 196614.02, 786437.0), (12, 1179684.1, 8650767.0)])
def test_one_dimensional_meshes(sizes, layers, wide, narrow):
    """A large batch is data parallel: one gradient all-reduce a layer. A large width: columns, then rows."""
    axis = sizes.index(4)
    gradients = layers * ring(sizes).seconds("all_reduce", (axis,), 128 * 128 * FLOAT)
    activations = (layers - 1) * ring(sizes).seconds("all_reduce", (axis,), 128 * 1024 * FLOAT)
    assert gradients == pytest.approx(wide, rel=1e-3)
    assert activations == pytest.approx(narrow, rel=1e-3)


@pytest.mark.parametrize(
    ("sizes", "layers", "objective"),
    [
        ((4, 8), 2, 26872.03), ((8, 4), 2, 58330.03), ((3, 4), 2, 46314.03),
        ((4, 8), 12, 172702.23), ((8, 4), 12, 354900.22), ((3, 4), 12, 290994.25),
        ((4, 4), 12, 316561.23), ((4, 4), 24, 635089.47), ((4, 4), 48, 1272145.94),
    ],
)  # fmt: skip
def test_two_dimensional_meshes(sizes, layers, objective):
    prices = ring(sizes, beta=(1, 0.01))
    gradients = prices.seconds("all_reduce", (0,), 128 * 128 * FLOAT / sizes[1])
    activations = prices.seconds("all_reduce", (1,), 1024 * 128 * FLOAT / sizes[0])
    assert layers * gradients + (layers - 1) * activations == pytest.approx(objective, rel=1e-3)


@pytest.mark.parametrize(("sizes", "objective"), [((4, 8), 27740.05), ((8, 4), 59454.05), ((3, 4), 47170.05)])
def test_with_bias(sizes, objective):
    prices = ring(sizes, beta=(1, 0.01))
    total = prices.seconds("all_reduce", (1,), 1024 * 128 * FLOAT / sizes[0])
    total += 2 * prices.seconds("all_reduce", (0,), 128 * 128 * FLOAT / sizes[1])
    total += prices.seconds("all_reduce", (0,), 128 * FLOAT)
    total += prices.seconds("all_reduce", (0,), 128 * FLOAT / sizes[1])
    assert total == pytest.approx(objective, rel=1e-3)


def test_single_collectives():
    prices = ring((4, 4), beta=(1, 0.1))
    assert prices.seconds("all_gather", (0,), 1000) == 751.1
    assert prices.seconds("all_reduce", (0,), 1000) == 1501.01
    assert prices.seconds("reduce_scatter", (1,), 1000) == 76.001
    assert prices.seconds("all_to_all", (0,), 1000) == prices.seconds("permute", (1,), 1000) == math.inf
    assert ring((4, 1)).seconds("all_to_all", (0,), 1000) == 1126.001
    assert ring((1, 4), beta=(1, 0.1)).seconds("permute", (1,), 1000) == 101.001
    assert prices.seconds("slice", (0,), 1000) == prices.seconds("all_gather", (0,), 0) == 0
    assert ring((1, 4)).seconds("all_gather", (0,), 1000) == 0
    assert ring((4, 1), gather_cost=1e10).seconds("all_gather", (0,), 8) == 1e10


def test_two_axes_at_once_are_the_cheapest_order_of_single_ones():
    prices = ring((4, 4), beta=(1, 0.1))
    slow_first = prices.seconds("all_gather", (0,), 4000) + prices.seconds("all_gather", (1,), 16000)
    assert prices.seconds("all_gather", (0, 1), 16000) == slow_first
    assert prices.seconds("reduce_scatter", (0, 1), 16000) == 1201.001 + 3001.001
    assert prices.seconds("all_reduce", (0, 1), 1000) == 1501.01 + 151.01
