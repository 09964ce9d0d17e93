"""Maxima by plain problems: at fixed multipliers, the weighted sums are ordinary costs, and that problem is solved.

    L(w) = min over x that fits of  cost(x) + sum_gk w_gk s_gk(x)    <=  optimum,    w_gk >= 0,  sum_k w_gk <= 1

L is concave, and every assignment gives a cutting plane above it. The next multipliers are halfway between the best
known ones and the maximum of the planes, until that point stops moving. Planes of more restricted problems are planes
of this one too and give a starting point. This method is for problems whose sums have too many pairs to become nodes
(`sums.py`); it does not close the gap between the best bound and the best assignment any further.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import highspy
import numpy as np

from shardplan.solve.constants import (
    AVERAGES_CLOSE,
    AVERAGES_CROSSOVERS,
    AVERAGES_GAP,
    AVERAGES_OPEN,
    AVERAGES_SOLVES,
    AVERAGES_WEAK,
    MASTER_PULL,
    MASTER_STEADY,
    MIXTURE_LEAST,
    MULTIPLIER_DIGITS,
)
from shardplan.solve.evaluate import evaluate
from shardplan.solve.highs.program import quiet_highs
from shardplan.solve.linear_functions import Choices, Functions
from shardplan.solve.problem import Edge, Plane, Problem, Solution, Start, SumMultipliers
from shardplan.solve.search.crossover_of_problems import crossovers

Solve = Callable[[Problem, Start], Solution]


def by_averages(
    problem: Problem,
    solve: Solve,
    start: Start,
    stop: Callable[[], bool] = bool,
    most: int = AVERAGES_SOLVES,
    below: float = np.inf,
) -> Solution:
    """The best assignment met and the best bound. `solve` solves a problem without maxima, starting from multipliers of
    memory and a known assignment; `stop` says when to end (at once if assignments are known); it also ends after `most`
    problems, or with a bound of `below`.

    Work, and the shortfall if nothing fits, are those of the plain problems.
    """
    search = _Search(problem, start)
    weights = search.first()
    seconds, reproducible, tried = 0.0, True, {weights}
    memory: Mapping[int, float] = _times(2.0**MULTIPLIER_DIGITS, start.memory_multipliers)
    interrupted = False
    for _ in range(most):
        if search.planes and stop():
            break
        begin = Start(memory_multipliers=memory, assignments=search.cheapest(weights))
        plain = solve(averaged(problem, search.functions, weights, MULTIPLIER_DIGITS), begin)
        memory = plain.memory_multipliers or memory
        seconds, reproducible = seconds + plain.seconds, reproducible and plain.reproducible
        if plain.choices is None and not search.planes:
            return replace(plain, bound=plain.bound / 2**MULTIPLIER_DIGITS, sum_multipliers=search.grouped(weights))
        search.learn(weights, plain)
        interrupted = plain.outcome == "interrupted"
        if interrupted or stop() or search.converged(plain) or search.bound >= below:
            break
        is_weak = plain.choices is None or plain.cost - plain.bound > AVERAGES_WEAK * abs(plain.cost)
        goal = search.milder(weights) if is_weak else search.goal()
        if goal in tried:
            break
        tried.add(goal)
        weights = goal
    if search.bound < below:
        search.cross_over()
    found = search.answer(interrupted, seconds, reproducible)
    return replace(found, memory_multipliers=_times(2.0**-MULTIPLIER_DIGITS, memory))


def _times(factor: float, multipliers: Mapping[int, float]) -> dict[int, float]:
    return {moment: factor * multiplier for moment, multiplier in multipliers.items()}


def averaged(problem: Problem, functions: Functions, weights: Sequence[int], digits: int) -> Problem:
    """The problem whose costs are 2 ** digits times the costs plus `weights` times the sums; equal tables stay the same
    objects. `functions`: those of `problem`."""
    values = functions.base * 2.0**digits
    for weight, one in zip(weights, functions.sums, strict=True):
        if weight:
            values += weight * one
    costs, tables = functions.arrays(values)
    edges = (Edge(edge.u, edge.v, table) for edge, table in zip(problem.edges, tables, strict=True))
    return replace(problem, costs=costs, edges=tuple(edges), maxima=())


def best_multipliers(planes: Sequence[Plane], sizes: Sequence[int]) -> tuple[tuple[float, ...], float]:
    """Multipliers, sum by sum, at which the least plane is highest, and its value there: max z subject to
    z <= cost_k + sum_i w_i s_ki over the simplices of w. `sizes`: the numbers of sums of the maxima."""
    highs, unit = _master(planes, sizes)
    value, *point = highs.getSolution().col_value
    return tuple(map(float, point)), float(value) * unit


def mixed(planes: Sequence[Plane], sizes: Sequence[int]) -> tuple[float, ...]:
    """The shares of planes, which make 1, whose mean is no higher at any multipliers than the least plane is at the
    best ones: the dual values of the program of `best_multipliers`."""
    highs, _ = _master(planes, sizes)
    shares = np.abs(np.array(highs.getSolution().row_dual[len(sizes) :]))
    return tuple((shares / shares.sum()).tolist())


def _master(planes: Sequence[Plane], sizes: Sequence[int]) -> tuple[highspy.Highs, float]:
    """The solved program of `best_multipliers`, with a row for every maximum and one for every plane, and the unit of
    its objective."""
    unit = max(1.0, *(abs(plane.cost) for plane in planes), *(abs(s) for plane in planes for s in plane.sums))
    highs, none = quiet_highs(), (np.zeros(0, np.int32), np.zeros(0))
    highs.addCol(-1.0, -highspy.kHighsInf, highspy.kHighsInf, 0, *none)
    first = 1
    for size in sizes:
        columns = np.arange(first, first + size, dtype=np.int32)
        for _ in columns:
            highs.addCol(0.0, 0.0, 1.0, 0, *none)
        highs.addRow(-highspy.kHighsInf, 1.0, len(columns), columns, np.ones(len(columns)))
        first += size
    for plane in planes:
        row = np.concatenate([[1.0], -np.array(plane.sums) / unit])
        highs.addRow(-highspy.kHighsInf, plane.cost / unit, first, np.arange(first, dtype=np.int32), row)
    highs.run()
    return highs, unit


def pulled(known: Sequence[float], point: Sequence[float]) -> tuple[float, ...]:
    """Most of the way from known multipliers to a point: a full step often goes too far."""
    return tuple(MASTER_PULL * a + (1.0 - MASTER_PULL) * b for a, b in zip(point, known, strict=True))


class _Search:
    """Planes and bounds so far. Multipliers are integers in units of 2 ** -DIGITS."""

    def __init__(self, problem: Problem, start: Start) -> None:
        self.problem, self.start = problem, start.sum_multipliers
        self.starts_there = start.starts_there
        self.sizes = [len(maximum.sums) for maximum in problem.maxima]
        self.known = [plane for plane in start.planes if len(plane.sums) == sum(self.sizes)]
        self.functions = Functions.of(problem)
        self.planes: dict[Choices, Plane] = {}
        self._meet(self._that_fit(start.assignments))
        self.bound = -np.inf
        self.best: tuple[int, ...] = ()
        self.ceiling = np.inf
        self._rest: tuple[float, ...] = ()

    def first(self) -> tuple[int, ...]:
        """The multipliers to start with."""
        if not self.starts_there and (self.known or self.planes):
            return self.goal()
        equal = [[1.0 / (2 * size)] * size for size in self.sizes]
        given = [list(group) for group in self.start] if self.start else equal
        return self._whole([weight for group in given for weight in group])

    def milder(self, weights: tuple[int, ...]) -> tuple[int, ...]:
        """Multipliers closer to equal ones: if one sum has all the weight, multipliers of memory may be hard
        to find."""
        equal = [1.0 / (2 * size) for size in self.sizes for _ in range(size)]
        given = [weight / 2**MULTIPLIER_DIGITS for weight in weights]
        return self._whole(pulled(equal, given))

    def grouped(self, weights: Sequence[int]) -> SumMultipliers:
        """Integers as multipliers, by maximum."""
        left = iter(weights)
        return tuple(tuple(next(left) / 2**MULTIPLIER_DIGITS for _ in maximum.sums) for maximum in self.problem.maxima)

    def learn(self, weights: tuple[int, ...], plain: Solution) -> None:
        """Takes a plain problem's bound, and its assignment as a cutting plane."""
        bound = plain.bound / 2**MULTIPLIER_DIGITS
        if bound > self.bound:
            self.bound, self.best = bound, weights
        if plain.choices is not None:
            self._meet([plain.choices])

    def cheapest(self, weights: Sequence[int]) -> tuple[Choices, ...]:
        """The cheapest assignment met at given multipliers, if any was met."""

        def cost(choices: Choices) -> float:
            plane = self.planes[choices]
            own = plane.cost * 2.0**MULTIPLIER_DIGITS
            return own + sum(weight * value for weight, value in zip(weights, plane.sums, strict=True))

        return (min(self.planes, key=cost),) if self.planes else ()

    def _meet(self, assignments: Sequence[Choices]) -> None:
        """Adds the cutting planes of assignments."""
        if assignments:
            whole = np.array(assignments, dtype=np.int64)
            totals = np.array([*self.functions.totals(whole)]).T.tolist()
            for choices, (cost, *values) in zip(assignments, totals, strict=True):
                self.planes.setdefault(choices, Plane(cost, tuple(values)))

    def cross_over(self) -> None:
        """Adds crossovers of the assignments met, as far as they fit in memory."""
        found = crossovers(self.functions, list(self.planes), AVERAGES_CROSSOVERS)
        self._meet(found if self.problem.limit is None else self._that_fit(found))

    def _that_fit(self, assignments: Sequence[Choices]) -> list[Choices]:
        """Those that are allowed and fit in memory, whatever their maxima."""
        plain = replace(self.problem, maxima=())
        return [choices for choices in assignments if evaluate(plain, choices).feasible]

    def cost(self, plane: Plane) -> float:
        """The cost of an assignment with its maxima."""
        left = iter(plane.sums)
        return plane.cost + sum(max([0.0, *(next(left) for _ in maximum.sums)]) for maximum in self.problem.maxima)

    def converged(self, plain: Solution) -> bool:
        """Whether no multipliers can raise the bound much, compared with the gap that the last plain problem
        left open."""
        best = min(map(self.cost, self.planes.values()))
        left = 0.0 if plain.choices is None else (plain.cost - plain.bound) / 2**MULTIPLIER_DIGITS
        promised = min(best, self.ceiling) - self.bound
        is_close = promised <= AVERAGES_CLOSE * abs(best)
        return promised <= max(AVERAGES_GAP * abs(best), AVERAGES_OPEN * left * is_close)

    def goal(self) -> tuple[int, ...]:
        """The multipliers to try next."""
        point = self._master()
        calm = len(self._rest) == len(point) and all(
            abs(a - b) <= MASTER_STEADY for a, b in zip(point, self._rest, strict=True)
        )
        self._rest = point
        if calm:
            return self._whole(point)
        known = [weight / 2**MULTIPLIER_DIGITS for weight in self.best] or point
        return self._whole(pulled(known, point))

    def _whole(self, weights: Sequence[float]) -> tuple[int, ...]:
        """Multipliers as integers; those of one maximum sum to at most one."""
        whole: list[int] = []
        left = iter(weights)
        for maximum in self.problem.maxima:
            room = 2**MULTIPLIER_DIGITS
            for _ in maximum.sums:
                whole.append(max(0, min(room, round(next(left) * 2**MULTIPLIER_DIGITS))))
                room -= whole[-1]
        return tuple(whole)

    def _master(self) -> tuple[float, ...]:
        """The best multipliers of the planes so far; their value becomes the ceiling on L."""
        point, self.ceiling = best_multipliers([*self.known, *self.planes.values()], self.sizes)
        return point

    def mixture(self) -> dict[Choices, float]:
        """The assignments met whose planes bound the best multipliers, with their shares."""
        shares = mixed([*self.planes.values()], self.sizes)
        return {choices: share for choices, share in zip(self.planes, shares, strict=True) if share > MIXTURE_LEAST}

    def answer(self, interrupted: bool, seconds: float, reproducible: bool) -> Solution:
        """The solution: the cheapest assignment met, the best bound, and all other assignments."""
        ranked = sorted(self.planes, key=lambda choices: self.cost(self.planes[choices]))
        cost = self.cost(self.planes[ranked[0]])
        bound = min(float(np.ceil(self.bound)), cost) if np.isfinite(self.bound) else self.bound
        return Solution(
            outcome="interrupted" if interrupted else "optimal" if bound >= cost else "feasible",
            choices=ranked[0],
            cost=cost,
            bound=bound,
            reproducible=reproducible,
            seconds=seconds,
            sum_multipliers=self.grouped(self.best or self.first()),
            candidates=tuple(ranked),
            planes=tuple(self.planes[choices] for choices in ranked),
            mixture=self.mixture(),
        )
