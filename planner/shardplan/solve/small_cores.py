"""Small cores with memory or maxima: cutting-plane ascent, crossover, reduced-cost fixing, and HiGHS for the rest."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from itertools import permutations

import numpy as np

from shardplan.interruption import GivenUpError
from shardplan.solve.bound.ascent import ascend
from shardplan.solve.bound.decoding import cutset
from shardplan.solve.bound.lagrange import DeadEnd, Point, Relaxation
from shardplan.solve.bound.marginals import Marginals
from shardplan.solve.bound.multipliers import Multipliers, rounded
from shardplan.solve.budget import Budget
from shardplan.solve.constants import (
    BRANCH_SHRINKS,
    CROSSOVERS,
    CUTSET_NODES,
    EXACT_PROVABLE_PAIRS,
    FIRST_MULTIPLIER,
    FRUGAL_WORK,
    FUSION_GAP,
    FUSION_OF_SUMS,
    MAXIMA_PROOF,
    MAXIMA_PROVABLE_PAIRS,
    NEAR_POINTS,
    ONE_MAXIMUM_WORK,
    PROOF_CEILINGS,
    ROOMY_FACTOR,
    TIGHTER_GAP,
    TIGHTER_LIMITS,
)
from shardplan.solve.incumbent import Incumbent, offer
from shardplan.solve.problem import ANYWHERE, Start, SumMultipliers
from shardplan.solve.prove.branch_and_bound import prove_by_parts
from shardplan.solve.prove.cutset import cutset_branches, forbid
from shardplan.solve.prove.exact import close
from shardplan.solve.prove.integer import Pressure, Quota, integer
from shardplan.solve.prove.one_maximum import one_by_one
from shardplan.solve.reduce.graph import Contradiction, Graph
from shardplan.solve.reduce.memory import Profiles, flat, keep_moments, reduce
from shardplan.solve.reduce.presolve import presolve
from shardplan.solve.reduce.tables import open_rows
from shardplan.solve.search.crossover_of_cores import crossover, crossover_bytes, crossover_costs
from shardplan.solve.search.large_cores import search_large


def fit(
    graph: Graph,
    limit: int,
    best: Incumbent,
    budget: Budget,
    gap: float = 0.0,
    seed: int = 0,
    unproven: float = 0.0,
    start: Start = ANYWHERE,
) -> None:
    """Solves a graph with memory or maxima to optimality or a relative `gap`, unless the budget ends. `unproven`: a
    gap that may stay open when better multipliers do not close it; above it, a fusion of the assignments found is the
    last step; `start`: multipliers to begin with."""
    again = graph.copy()
    short = _fit(graph, limit, best, budget, gap, seed, unproven, start)
    for share in TIGHTER_LIMITS:
        if not again.hinges or not short or best.within(max(gap, unproven, TIGHTER_GAP)) or budget.expired():
            return
        less, tight, trial = again.copy(), int(share * limit), Incumbent(best.scale, pool=best.pool)
        less.base_steps[min(flat(again.hinges))] -= (
            limit - tight
        )  # sums, the last moments, count from zero all the same
        _fit(less, tight, trial, budget, gap, seed, unproven, start)
        best.take(trial)


def _fit(
    graph: Graph,
    limit: int,
    best: Incumbent,
    budget: Budget,
    gap: float,
    seed: int,
    unproven: float,
    start: Start,
) -> bool:
    """`fit` at one limit; returns whether the limit may exclude something better."""
    whole = Profiles(graph.uses, np.cumsum([0, *graph.sizes]), graph.tables.arrays, graph.base)
    balanced = None
    try:
        if graph.hinges:
            balanced = _without_limit(graph, limit, best, budget, whole, max(gap, unproven), start.sum_multipliers)
            if best.choices is not None or best.closed or budget.expired():
                return False
        reduce(graph, limit)
        if len(cutset(graph)) > CUTSET_NODES and not graph.hinges:
            presolve(graph, limit)
            search_large(graph, limit, best, budget, whole, seed, max(gap, unproven), start.memory_multipliers)
            return False
        relaxation = Relaxation(graph, limit, budget, whole)
        if not relaxation.hinges:
            _free(relaxation, best)
        if best.closed:
            return False
        if balanced is not None:
            relaxation.know(balanced, -np.inf)
        _raise(relaxation, best, gap, start.sum_multipliers)
        if not best.within(gap):
            _crossover(relaxation, best)
        with contextlib.suppress(DeadEnd):
            _close_gap(relaxation, best, gap, unproven)
    except Contradiction:
        best.prove(best.cost)
    return not best.closed


def _without_limit(
    graph: Graph, limit: int, best: Incumbent, budget: Budget, whole: Profiles, enough: float, start: SumMultipliers
) -> tuple[int, ...] | None:
    """The best assignment for the maxima without the memory limit: a bound, a partner for crossovers, and, if it keeps
    the limit, the answer."""
    trial = Incumbent(best.scale, pool=best.pool)
    sums = np.array(flat(graph.hinges))
    free, hard = graph.copy(), ~np.isin(np.arange(len(graph.moments)), sums)

    def fits(choices: tuple[int, ...] | None, times: float = 1.0) -> bool:
        return choices is not None and bool((whole.of(np.array(choices))[hard] <= times * limit).all())

    keep_moments(free, sums)
    try:
        reduce(free, limit)
        if not free.hinges:
            close(free, trial, budget)
        else:
            _prove_maxima(Relaxation(free, limit, budget, whole), trial, enough, fits, start)
    except Contradiction:
        trial.prove(trial.cost)
    except GivenUpError:  # what is known without the limit is kept; the caller's budget has ended
        pass
    best.multipliers = trial.multipliers
    best.prove(trial.bound)
    if fits(trial.choices):
        best.take(trial)
    return trial.choices


def _prove_maxima(
    relaxation: Relaxation,
    best: Incumbent,
    enough: float,
    fits: Callable[[tuple[int, ...] | None, float], bool],
    start: SumMultipliers,
) -> None:
    """A graph with maxima and no memory: multipliers, a fusion and a proof, as long as each improves the result."""
    with contextlib.suppress(DeadEnd):
        point = relaxation.at(first_multipliers(relaxation, start))
        labels = dict(zip(relaxation.core.nodes, point.choices.tolist(), strict=True))
        if not fits(relaxation.graph.invert(labels), ROOMY_FACTOR):
            best.prove(point.bound)
            return
    _raise(relaxation, best, 0.0, start)
    _crossover(relaxation, best)
    if np.isfinite(best.cost) and not fits(best.choices, ROOMY_FACTOR):
        return
    if not best.within(FUSION_GAP):
        _fuse(relaxation, best)
    if relaxation.best is None or not np.isfinite(best.cost):
        _finish(relaxation, best, enough)
    elif fits(best.choices, ROOMY_FACTOR):
        with contextlib.suppress(DeadEnd):
            if relaxation.hinge is not None:
                prove_by_parts(relaxation, best, enough)
            else:
                one_by_one(relaxation, best, enough, _proven)
                _finish(relaxation, best, enough, MAXIMA_PROOF if enough and relaxation.budget.free else None)


def _proven(relaxation: Relaxation, best: Incumbent, multiplier: float) -> None:
    """The bound of a graph with one maximum, and the assignments met on the way."""
    try:
        reduce(relaxation.graph, relaxation.limit)
        twin = Relaxation(relaxation.graph, relaxation.limit, relaxation.budget, relaxation.whole)
        if not twin.hinges:
            close(twin.graph, best, twin.budget)
            return
        ascend(twin, best, {twin.hinge: multiplier} if twin.hinge is not None and multiplier else {})
        _crossover(twin, best)
        if twin.best is not None and twin.hinge is not None and np.isfinite(best.cost):
            prove_by_parts(twin, best, FUSION_GAP, ONE_MAXIMUM_WORK)
    except Contradiction:
        best.prove(best.cost)
    except DeadEnd:
        return


def _close_gap(relaxation: Relaxation, best: Incumbent, gap: float, unproven: float) -> None:
    """Closes the gap that multipliers leave open: by a fusion, an integer program, or branches on the cutset."""
    if best.within(max(gap, unproven)) or relaxation.budget.expired():
        return
    small = bool(relaxation.hinges) and relaxation.core.pairs <= EXACT_PROVABLE_PAIRS
    if unproven and np.isfinite(best.cost) and not small:
        _fuse(relaxation, best)
    elif relaxation.hinges or relaxation.best is None:
        _finish(relaxation, best, gap)
    else:
        _branch(relaxation, best, gap)


def _pressure(relaxation: Relaxation) -> Pressure:
    """The moments at which memory is short, as the multipliers show."""
    multipliers = relaxation.known.multipliers if relaxation.best is not None else {}
    moments = tuple(relaxation.moments)
    numbers, hinges = relaxation.graph.moments, relaxation.hinges
    return Pressure(numbers, relaxation.limit, relaxation.budget, relaxation.whole, moments, multipliers, hinges)


def first_multipliers(relaxation: Relaxation, start: SumMultipliers) -> Multipliers:
    """Multipliers of the sums to begin with: those of `start`, by number of maximum and sum, if it has any."""
    numbers, scale = relaxation.graph.moments, relaxation.graph.scale
    given = dict(zip(flat(relaxation.graph.groups), [each for group in start for each in group], strict=False))
    multipliers = {}
    for group in relaxation.hinges:
        for moment in group:
            multiplier = given.get(int(numbers[moment]), FIRST_MULTIPLIER / len(group))
            if multiplier > 0:
                multipliers[moment] = multiplier * scale
    return relaxation.capped(rounded(multipliers))


def _raise(relaxation: Relaxation, best: Incumbent, gap: float, start: SumMultipliers) -> None:
    """Searches good multipliers from the starting point."""
    if not relaxation.hinges:
        frugal(relaxation.graph, best)
        if best.choices is not None:
            relaxation.know(best.choices, -np.inf)
    ascend(relaxation, best, first_multipliers(relaxation, start), gap)
    if relaxation.hinges and relaxation.best is not None:
        multipliers, numbers = relaxation.known.multipliers, relaxation.graph.moments
        sums = flat(relaxation.hinges)
        best.multipliers = {int(numbers[moment]): multipliers.get(moment, 0.0) / best.scale for moment in sums}


def _free(relaxation: Relaxation, best: Incumbent) -> None:
    """The optimum without a limit: a bound, and the optimum with it if it fits."""
    trial, free = Incumbent(best.scale), relaxation.graph.copy()
    for node in free.alive:
        free.uses[node] = ()
    close(free, trial, relaxation.budget)
    best.prove(trial.bound)
    if trial.choices is not None and _pressure(relaxation).excess(trial.choices)[0].max(initial=0) <= 0:
        best.take(trial)
    elif trial.choices is not None and trial.closed:
        relaxation.know(trial.choices, trial.bound, {})


def frugal(graph: Graph, best: Incumbent) -> None:
    """The cheapest assignment in which every node uses its least memory at all moments, if there is one."""
    arrays = graph.tables.arrays
    least = graph.copy()
    try:
        for node in list(least.alive):
            if least.uses[node]:
                thrifty = np.all([arrays[use.amount] == 0 for use in least.uses[node]], axis=0)
                least.keep(node, open_rows(thrifty))
        trial = Incumbent(best.scale)
        close(least, trial, Budget(work_limit=FRUGAL_WORK))
    except Contradiction:
        return
    if trial.choices is not None:
        best.take(trial)


def _branch(relaxation: Relaxation, best: Incumbent, enough: float) -> None:
    """Fixes the cutset at all assignments that may be better: elimination is then complete and bounds are exact."""
    branches = cutset_branches(relaxation, best)
    bounds = []
    for _, labels in branches:
        trial = Incumbent(best.scale, cost=best.cost, choices=best.choices)
        try:
            part, multipliers = relaxation.restricted(labels)
            if part is not relaxation:
                ascend(part, trial, multipliers, enough)
                _crossover(part, trial)
            if trial.within(enough):
                pass
            elif (
                part.best is None
                or part.core.pairs >= BRANCH_SHRINKS * relaxation.core.pairs
                or part.reduction[1] is None
            ):
                _finish(part, trial, enough)
            else:
                _branch(part, trial, enough)
        except Contradiction:
            trial.prove(trial.cost)
        best.take(trial)
        bounds.append(trial.bound)
    best.prove(min(bounds, default=best.cost))


def _crossover(relaxation: Relaxation, best: Incumbent) -> None:
    """The best crossovers of assignments near the best multipliers."""
    core, profiles, limit = relaxation.core, relaxation.profiles, relaxation.limit
    rows = {moment: profiles.row(moment) for moment in relaxation.moments}
    for head, tail in permutations(_near(relaxation), 2):
        costs = crossover_costs(core, head.choices, tail.choices)
        over = {
            moment: crossover_bytes(core, *row, head.choices, tail.choices) - relaxation.room[moment]
            for moment, row in rows.items()
        }
        for group in relaxation.hinges:
            costs += best.scale * np.maximum(0.0, np.max([over.pop(moment) for moment in group], axis=0))
        for above in over.values():
            costs[above > 0] = np.inf
        for at in np.argsort(costs, kind="stable")[:CROSSOVERS].tolist():
            if costs[at] >= best.cost:
                break
            choices = crossover(core, head.choices, tail.choices, at)
            excess, above = profiles.excess(choices, limit, relaxation.hinges)
            if excess.max(initial=0) <= 0:
                offer(relaxation.graph, core, choices, best, best.scale * above)
                break


def _near(relaxation: Relaxation) -> list[Point]:
    """A few different assignments of the points with the best bounds."""
    near: list[Point] = []
    if relaxation.best is None:
        return near
    for point in sorted(relaxation.points, key=relaxation.value):
        if len(near) < NEAR_POINTS and not any(np.array_equal(point.choices, other.choices) for other in near):
            near.append(point)
    return near


def _fuse(relaxation: Relaxation, best: Incumbent) -> None:
    """The best fusion of the assignments near the best multipliers, if there are any."""
    near = _near(relaxation)
    if not near:
        return
    trial = relaxation.graph.copy()
    for position, node in enumerate(relaxation.core.nodes):
        seen = sorted({int(point.choices[position]) for point in near})
        if len(seen) < trial.sizes[node]:
            trial.keep(node, tuple(seen))
    try:
        integer(trial, _pressure(relaxation), best, None, FUSION_OF_SUMS if relaxation.hinges else None)
    except Contradiction:
        return


def _finish(relaxation: Relaxation, best: Incumbent, enough: float, quota: Quota | None = None) -> None:
    """Forbids what the best multipliers exclude, and lets HiGHS prove the rest until the gap is small enough. Without
    multipliers (if no assignment could be decoded), HiGHS gets everything."""
    graph = relaxation.graph
    if relaxation.best is None:
        integer(graph.copy(), _pressure(relaxation), best, np.inf)
        return
    best.prove(relaxation.known.bound)
    if not best.within(FUSION_GAP) and quota is None:
        _fuse(relaxation, best)
    if not np.isfinite(best.cost):
        integer(graph.copy(), _pressure(relaxation), best, np.inf)
    for share in PROOF_CEILINGS:
        if best.within(enough) or relaxation.budget.expired() or not np.isfinite(best.cost):
            return
        bound, cost = best.bound, best.cost
        ceiling = best.step_up(bound + share * (cost - bound))
        trial = graph.copy()
        try:
            room = ceiling - relaxation.known.bound
            forbid(trial, [(Marginals(*relaxation.reduction, room), room)])
            if quota is not None and trial.pairs > MAXIMA_PROVABLE_PAIRS:
                return
            integer(trial, _pressure(relaxation), best, ceiling, quota)
        except Contradiction:
            best.prove(ceiling)
        if best.bound - bound < (ceiling - bound) / 2 and best.cost == cost:
            return  # it got stuck; a proof for more would take even longer
