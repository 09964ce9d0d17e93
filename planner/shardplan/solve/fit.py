"""Small cores under a memory limit: prices for bytes, pruning at the best prices, and HiGHS for the rest."""

from __future__ import annotations

import numpy as np

from shardplan.solve.budget import Budget
from shardplan.solve.core import core_of
from shardplan.solve.dual import Dual
from shardplan.solve.eliminate import eliminate
from shardplan.solve.exact import Incumbent, close, offer
from shardplan.solve.graph import Contradiction, Graph
from shardplan.solve.highs import Program
from shardplan.solve.lagrange import DeadEnd, Point, Prices, Relaxation, priced
from shardplan.solve.marginals import Marginals
from shardplan.solve.memory import Profiles, tighten
from shardplan.solve.tables import open_rows

POINTS = 60
FUSED = 6
SWEEPS = 10
SHARES = (0.02, 0.1, 0.4, 1.0)
FUSION_EFFORT = 1000.0
FUSION_GAP = 0.02


def fit(graph: Graph, limit: int, best: Incumbent, budget: Budget) -> None:
    """Solve a graph with memory to optimality unless the budget ends."""
    try:
        reduce(graph, limit)
        if not any(graph.uses[node] for node in graph.alive):
            close(graph, best, budget)
            return
        relaxation = Relaxation(graph, limit, budget)
        frugal(graph, best)
        _price(relaxation, best)
        if best.closed or budget.expired():
            return
        _fuse(relaxation, best)
        _finish(relaxation, best)
    except Contradiction:
        best.prove(best.cost)


def reduce(graph: Graph, limit: int) -> None:
    """All that is exact and cheap: moments, choices that cannot fit, nodes without memory."""
    eliminate(graph)
    while tighten(graph, limit):
        eliminate(graph)


def frugal(graph: Graph, best: Incumbent) -> None:
    """The cheapest assignment in which every node uses its least memory at all moments, where there is one."""
    arrays = graph.tables.arrays
    least = graph.copy()
    try:
        for node in list(least.alive):
            if least.uses[node]:
                thrifty = np.all([arrays[use.amount] == 0 for use in least.uses[node]], axis=0)
                least.keep(node, open_rows(thrifty))
        trial = Incumbent(best.scale)
        close(least, trial, Budget(work_limit=200))
    except Contradiction:
        return
    if trial.choices is not None:
        choices = trial.choices
        best.offer(trial.cost, lambda: choices)


def _price(relaxation: Relaxation, best: Incumbent) -> None:
    """Raise the bound by better and better prices, and offer what fits on the way."""
    point = _try(relaxation, {}, best)
    for _ in range(POINTS):
        if (
            point is None
            or best.closed
            or relaxation.budget.expired()
            or (point.excess.max() <= 0 and not point.prices)
        ):
            return
        ceiling, prices = relaxation.propose()
        assert relaxation.best is not None
        if ceiling - relaxation.best.bound <= 1e-3 * max(best.cost - relaxation.best.bound, best.scale):
            return
        point = _try(relaxation, prices, best)


def _try(relaxation: Relaxation, prices: Prices, best: Incumbent) -> Point | None:
    try:
        point = relaxation.at(prices)
    except DeadEnd:
        return None
    best.prove(point.bound)
    if point.excess.max() <= 0:
        offer(relaxation.graph, relaxation.core, point.choices, best)
    return point


def _fuse(relaxation: Relaxation, best: Incumbent) -> None:
    """The best mixture of the assignments that the last prices gave."""
    near = sorted(relaxation.points, key=lambda point: -point.bound)[:FUSED]
    trial = relaxation.graph.copy()
    for position, node in enumerate(relaxation.core.nodes):
        seen = sorted({int(point.choices[position]) for point in near})
        if len(seen) < trial.sizes[node]:
            trial.keep(node, tuple(seen))
    try:
        _integer(trial, relaxation, best, None)
    except Contradiction:
        return


def _finish(relaxation: Relaxation, best: Incumbent) -> None:
    """Forbid what the best prices exclude, and let HiGHS prove the rest."""
    assert relaxation.best is not None
    assert relaxation.reduction is not None
    graph = relaxation.graph
    if not np.isfinite(best.cost):
        _integer(graph.copy(), relaxation, best, np.inf)
    for share in SHARES:
        if best.closed or relaxation.budget.expired() or not np.isfinite(best.cost):
            return
        bound = relaxation.best.bound
        ceiling = bound + share * (best.cost - bound)
        trial = graph.copy()
        _forbid(trial, Marginals(*relaxation.reduction, ceiling - bound))
        try:
            _integer(trial, relaxation, best, ceiling)
        except Contradiction:
            best.prove(ceiling)


def _forbid(graph: Graph, known: Marginals) -> None:
    tables = graph.tables
    for u in graph.alive:
        for v in [v for v in graph.neighbours[u] if u < v]:
            excess = known.pair.get(u, {}).get(v)
            table = tables.arrays[graph.neighbours[u][v]]
            if excess is not None and (np.isinf(excess) & np.isfinite(table)).any():
                graph.forbid(u, v, np.isinf(excess))
    for node in graph.alive:
        fits = np.isfinite(known.node[node])
        if not fits.all():
            graph.keep(node, open_rows(fits))


def _integer(graph: Graph, relaxation: Relaxation, best: Incumbent, ceiling: float | None) -> None:
    """HiGHS on what is left of a restricted graph: whatever costs less than `ceiling` is still in it, if one is
    given."""
    limit, budget = relaxation.limit, relaxation.budget
    assert relaxation.best is not None
    prices = {int(relaxation.graph.moments[m]): price for m, price in relaxation.best.prices.items()}
    reduce(graph, limit)
    trial = Incumbent(best.scale, cost=best.cost if ceiling is None else min(ceiling, best.cost))
    if any(graph.uses[node] for node in graph.alive):
        _program(graph, limit, prices, trial, budget, proof=ceiling is not None)
    else:
        close(graph, trial, budget)
    if trial.choices is not None:
        choices = trial.choices
        best.offer(trial.cost, lambda: choices)
    if ceiling is not None:
        best.prove(trial.bound)


def _program(graph: Graph, limit: int, prices: Prices, best: Incumbent, budget: Budget, *, proof: bool) -> None:
    place = {int(moment): index for index, moment in enumerate(graph.moments)}
    here = {place[moment]: price for moment, price in prices.items() if moment in place}
    core = core_of(graph)
    dual = Dual(core_of(priced(graph, here)))
    for _ in range(SWEEPS):
        dual.sweep()
    profiles = Profiles(core.uses, core.offsets, graph.tables.arrays, graph.base)
    program = Program(dual, budget, best.target, profiles, limit, here)
    if proof:
        program.effort = budget.effort(best.cost - program.floor, best.cost)
    else:
        program.effort, program.gap = FUSION_EFFORT, FUSION_GAP
    answer = program.solve()
    if answer.choices is not None:
        offer(graph, core, answer.choices, best)
    best.prove(best.cost if answer.verdict == "infeasible" else answer.bound)
