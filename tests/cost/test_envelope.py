import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardplan.cost.envelope import envelope, measured, price_at, prices_at, scaled, then

coefficients = st.floats(0, 1, allow_subnormal=False)
prices = st.tuples(coefficients, coefficients, coefficients)
payloads = st.floats(1e-3, 1e12)


def value(price, payload):
    return price[0] + price[1] * payload + price[2] * payload**0.5


@given(st.lists(prices, min_size=1, max_size=15), payloads)
def test_nothing_cheapest_is_ever_dropped(given_prices, payload):
    best = min(value(price, payload) for price in given_prices)
    assert price_at(envelope(given_prices), payload) == pytest.approx(best, rel=1e-9)


@given(st.lists(prices, min_size=1, max_size=15))
def test_an_envelope_is_its_own_envelope_whatever_the_order(given_prices):
    once = envelope(given_prices)
    assert set(once) <= set(given_prices)
    assert envelope(reversed(once)) == once
    assert envelope(reversed(given_prices)) == once


@given(prices, prices, payloads, st.floats(0.01, 100))
def test_stages_add_and_payloads_scale(first, second, payload, factor):
    assert price_at(envelope(then([first], [second])), payload) == pytest.approx(
        value(first, payload) + value(second, payload)
    )
    assert price_at(envelope(scaled([first], factor)), payload) == pytest.approx(value(first, payload * factor))


def test_dominated_prices_go():
    assert envelope([(1, 1, 1), (1, 1, 0), (2, 1, 1), (0, 3, 0)]) == ((0, 3, 0), (1, 1, 0))


def test_of_many_lines_only_the_lower_hull_stays():
    tangents = [(0.1 * i, (10 - i) ** 2 / 10, 0.0) for i in range(10)]
    assert len(envelope(tangents)) == 10
    lifted = [(a + 0.5, b + 0.5, c) for a, b, c in tangents]
    assert envelope([*tangents, *lifted[:-1]]) == envelope(tangents)


def test_no_bytes_and_no_prices_cost_nothing():
    assert price_at(((1, 1, 1),), 0) == price_at((), 5) == 0
    assert prices_at(((1.0, 1.0, 0.0),), np.array([0.0, 2.0])).tolist() == [0, 3]
    assert prices_at((), np.array([[1.0]])).tolist() == [[0]]


points = st.lists(st.tuples(st.floats(1, 1e9), st.floats(1e-6, 1)), min_size=2, max_size=8, unique_by=lambda p: p[0])


@given(points.map(sorted))
def test_a_measured_curve_rises_is_concave_and_is_nowhere_below_the_points(points):
    """Every piece rises; how fast may be below what a float can add to a price, so prices need only not fall."""
    curve = measured(points)
    assert all(at_rest >= 0 and per_byte > 0 for at_rest, per_byte, _ in curve)
    for payload, seconds in points:
        assert price_at(curve, payload) >= seconds * (1 - 1e-9)
    grid = np.geomspace(1e-2, 1e11, 40)
    priced = prices_at(curve, grid)
    assert all(low <= high for low, high in itertools.pairwise(priced))
    assert np.all(prices_at(curve, 2 * grid) <= 2 * priced * (1 + 1e-9))


def test_good_measurements_are_kept_exactly():
    points = [(1.0, 10.0), (10.0, 12.0), (100.0, 22.0), (200.0, 30.0)]
    assert [price_at(measured(points), payload) for payload, _ in points] == [10, 12, 22, 30]
    assert price_at(measured(points), 300.0) == pytest.approx(38)
    noisy = [(1.0, 10.0), (2.0, 9.0), (100.0, 22.0)]
    assert price_at(measured(noisy), 2.0) == pytest.approx(10 + 12 / 99)
