"""Multipliers of memory at moments, and graphs whose costs include them."""

from __future__ import annotations

import numpy as np

from shardplan.solve.reduce.graph import Graph

Prices = dict[int, float]
"""Multiplier (cost per byte) of each moment."""


def rounded(prices: Prices) -> Prices:
    """Multipliers with few digits, so that sums of them are exact and equal sums are equal numbers."""
    largest = max(prices.values(), default=0.0)
    if largest <= 0:
        return {}
    step = float(2.0 ** (np.floor(np.log2(largest)) - 24))
    steps = {moment: float(np.round(price / step)) for moment, price in sorted(prices.items())}
    return {moment: count * step for moment, count in steps.items() if count > 0}


def priced(graph: Graph, prices: Prices) -> Graph:
    """A copy without a postsolve stack in which choices cost their bytes times the multipliers of the
    moments, rounded down."""
    twin = graph.copy()
    twin.postsolve = []
    total = np.zeros(len(graph.base_steps))
    for moment, price in prices.items():
        total[moment + 1] = price
    total = np.cumsum(total)  # exact: prices have few digits
    for node in twin.alive:
        for use in twin.uses[node]:
            price = float(total[use.end] - total[use.start])
            if price > 0:
                twin.add_cost(node, *twin.tables.at_price(use.amount, price))
    return twin
