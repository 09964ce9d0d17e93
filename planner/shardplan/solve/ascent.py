"""Better and better prices, until they promise little more."""

from __future__ import annotations

import numpy as np

from shardplan.solve.exact import Incumbent, meet, offer
from shardplan.solve.lagrange import DeadEnd, Relaxation
from shardplan.solve.prices import Prices

POINTS = 60
STALL = 5
RISES = 0.005
"""Prices are good enough when they promise, or the last few brought, less than this share of the gap."""


def ascend(relaxation: Relaxation, best: Incumbent, prices: Prices, enough: float = 0.0) -> None:
    """Raise the bound by better and better prices, and offer what fits on the way."""
    history = [best.bound]
    for _ in range(POINTS):
        try:
            there = relaxation.best is not None and relaxation.known.prices == prices
            point = relaxation.known if there else relaxation.at(prices)
        except DeadEnd:
            return
        best.prove(point.bound)
        fits, above = relaxation.fits(point)
        if fits:
            offer(relaxation.graph, relaxation.core, point.choices, best, above)
            meet(relaxation.graph, relaxation.core, point.choices, best, above)
        asked = point.prices
        ceiling, prices = relaxation.propose()
        history.append(best.bound)
        known = relaxation.known.bound
        gap = max((best.cost if np.isfinite(best.cost) else ceiling) - known, best.scale)
        stalled = len(history) > STALL and history[-1] - history[-STALL] <= RISES * gap
        if best.within(enough) or relaxation.budget.expired():
            return
        if ceiling - known <= RISES * gap or stalled or prices == asked:
            return
