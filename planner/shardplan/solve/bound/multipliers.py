"""Lagrange multipliers of moments, and the Lagrangian of a graph: its costs with the multipliers times the bytes."""

from __future__ import annotations

import numpy as np

from shardplan.solve.reduce.graph import Graph

Multipliers = dict[int, float]
"""Lagrange multiplier (cost per byte) of each moment with one. Sums of maxima are the last moments of a graph."""


def rounded(multipliers: Multipliers) -> Multipliers:
    """Multipliers with few digits, so that sums of them are exact and equal sums are equal numbers."""
    if max(multipliers.values(), default=0.0) <= 0:
        return {}
    step = digit(multipliers)
    steps = {moment: float(np.round(multiplier / step)) for moment, multiplier in sorted(multipliers.items())}
    return {moment: count * step for moment, count in steps.items() if count > 0}


def digit(multipliers: Multipliers) -> float:
    """The unit of the last digit of `rounded` multipliers, of which one is positive."""
    return float(2.0 ** (np.floor(np.log2(max(multipliers.values()))) - 24))


def lagrangian(graph: Graph, multipliers: Multipliers) -> Graph:
    """A copy without a postsolve stack in which choices cost their bytes times the multipliers of the
    moments, rounded down."""
    twin = graph.copy()
    twin.postsolve = []
    total = np.zeros(len(graph.base_steps))
    for moment, multiplier in multipliers.items():
        total[moment + 1] = multiplier
    total = np.cumsum(total)  # exact: multipliers have few digits
    for node in twin.alive:
        for use in twin.uses[node]:
            multiplier = float(total[use.end] - total[use.start])
            if multiplier > 0:
                twin.add_cost(node, *twin.tables.times(use.amount, multiplier))
    return twin
