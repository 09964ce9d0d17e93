"""Cutting-plane dual ascent: better multipliers, one after the other, until the bound hardly rises."""

from __future__ import annotations

import numpy as np

from shardplan.solve.bound.lagrange import DeadEnd, Relaxation
from shardplan.solve.bound.multipliers import Multipliers
from shardplan.solve.constants import ASCENT_POINTS, ASCENT_RISE, ASCENT_STALL
from shardplan.solve.incumbent import Incumbent, meet, offer


def ascend(relaxation: Relaxation, best: Incumbent, multipliers: Multipliers, enough: float = 0.0) -> None:
    """Raises the bound by better multipliers, and offers the assignments that fit on the way."""
    history = [best.bound]
    for _ in range(ASCENT_POINTS):
        try:
            there = relaxation.best is not None and relaxation.known.multipliers == multipliers
            point = relaxation.known if there else relaxation.at(multipliers)
        except DeadEnd:
            return
        best.prove(point.bound)
        fits, above = relaxation.fits(point)
        if fits:
            offer(relaxation.graph, relaxation.core, point.choices, best, above)
            meet(relaxation.graph, relaxation.core, point.choices, best, above)
        asked = point.multipliers
        ceiling, multipliers = relaxation.propose()
        history.append(best.bound)
        known = relaxation.known.bound
        gap = max((best.cost if np.isfinite(best.cost) else ceiling) - known, best.scale)
        stalled = len(history) > ASCENT_STALL and history[-1] - history[-ASCENT_STALL] <= ASCENT_RISE * gap
        if best.within(enough) or relaxation.budget.expired():
            return
        if ceiling - known <= ASCENT_RISE * gap or stalled or multipliers == asked:
            return
