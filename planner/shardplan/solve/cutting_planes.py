"""Cutting planes for maxima: the best Lagrange multipliers of their sums, and assignments met on the way.

    minimise  cost(x) + sum_g max(0, max_k s_gk(x))  =  min_x max_w  cost(x) + sum_gk w_gk s_gk(x)

over multipliers w >= 0 with sum_k w_gk <= 1 for every maximum g. At given multipliers this is a problem without maxima,
solved exactly by the engine, and its optimum L(w) is a lower bound. L is concave, and every assignment x found is a
plane above it: w -> cost(x) + sum w s(x). The multipliers with the highest point below all planes are sought by a small
linear program; the next ones lie between these and the best known, where L is better understood.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import highspy
import numpy as np
from numpy.typing import NDArray

from shardplan.solve.evaluate import evaluate
from shardplan.solve.problem import Costs, Edge, Problem, Solution

STEP = 0.6
"""Share of the way from the best multipliers known to those of the linear program: all of it overshoots."""
START = 0.25
"""Multiplier of every sum to start from, where nothing is known."""
CLOSE = 1e-3
"""Relative: no multipliers can raise the bound by more than this."""
MOST_CANDIDATES = 24
_ROUNDING = 1e-6
"""Of a unit of cost: what products of multipliers may lose."""
Vector = NDArray[np.float64]
SolvePlain = Callable[[Problem, float | None], Solution]
"""Solves a problem without maxima within so many seconds, if any."""


@dataclass(slots=True)
class _Pool:
    """Assignments met: their cost without maxima and the values of all sums, in the order in which they were met."""

    planes: dict[tuple[int, ...], tuple[float, Vector]] = field(default_factory=dict)

    def costs(self, groups: Sequence[int]) -> dict[tuple[int, ...], float]:
        return {choices: base + _paid(values, groups) for choices, (base, values) in self.planes.items()}


def cutting_planes(
    problem: Problem,
    solve_plain: SolvePlain,
    *,
    start: Sequence[Sequence[float]] = (),
    gap: float = 0.0,
    most: int = 8,
    time_limit: float | None = None,
    known: Sequence[tuple[int, ...]] = (),
) -> Solution:
    """The cheapest assignment met, the best bound, its multipliers, and the candidates by cost.

    `start`: multipliers to begin with; `gap`: relative, that is good enough; `most`: problems solved at most, each a
    better bound and one more assignment; `known`: assignments of which planes are
    made first. What ends a solve without an answer ends the search with what there is.
    """
    sums = [(g, one) for g, maximum in enumerate(problem.maxima) for one in maximum.sums]
    groups = [g for g, _ in sums]
    search = _Search(problem, groups, solve_plain, time_limit)
    for choices in known:
        search.note(choices)
    center = multipliers = _start(problem, start)
    bound, refusal, outcome = -np.inf, None, "feasible"
    for solved in range(most):
        answer = search.solve(multipliers)
        if answer is None:
            break
        if answer.choices is None:
            refusal = answer
            break
        search.note(answer.choices)
        if answer.bound > bound:
            bound, center = answer.bound, multipliers
        best = min(search.pool.costs(groups).values())
        if answer.outcome == "interrupted":
            outcome = "interrupted"
            break
        if best - bound <= gap * best or solved + 1 == most:
            break
        target, top = _master(search.pool, groups)
        if top - bound <= CLOSE * abs(top):
            break
        multipliers = center + STEP * (target - center)
    return _solution(problem, search, groups, bound, center, refusal, outcome)


def at(problem: Problem, multipliers: Vector) -> Problem:
    """The problem without maxima at given multipliers, rounded to integers; equal tables stay the same objects."""
    sums = [one for maximum in problem.maxima for one in maximum.sums]
    used = [(weight, one) for weight, one in zip(multipliers.tolist(), sums, strict=True) if weight > 0.0]
    known: dict[tuple[int, ...], Costs] = {}

    def mixed(base: Costs, others: list[Costs]) -> Costs:
        key = (id(base), *map(id, others))
        if key not in known:
            result = base.copy()
            for (weight, _), other in zip(used, others, strict=True):
                result += weight * other
            known[key] = np.floor(result + _ROUNDING)
        return known[key]

    costs = tuple(mixed(cost, [one.costs[v] for _, one in used]) for v, cost in enumerate(problem.costs))
    edges = tuple(
        Edge(edge.u, edge.v, mixed(edge.table, [one.tables[e] for _, one in used]))
        for e, edge in enumerate(problem.edges)
    )
    return replace(problem, costs=costs, edges=edges, maxima=())


class _Search:
    """What has been met, and the clock."""

    def __init__(
        self, problem: Problem, groups: Sequence[int], solve_plain: SolvePlain, time_limit: float | None
    ) -> None:
        self.problem, self.groups = problem, groups
        self.pool = _Pool()
        self._solve_plain = solve_plain
        self._ends = None if time_limit is None else time.monotonic() + time_limit

    def solve(self, multipliers: Vector) -> Solution | None:
        """The problem at multipliers; `None` when the clock or a failing proof ends it."""
        left = None if self._ends is None else self._ends - time.monotonic()
        if left is not None and left <= 0.0 and self.pool.planes:
            return None
        with contextlib.suppress(ArithmeticError):
            return self._solve_plain(at(self.problem, multipliers), left)
        return None

    def note(self, choices: tuple[int, ...]) -> None:
        """Make a plane of an assignment."""
        if choices not in self.pool.planes:
            self.pool.planes[choices] = self._plane(choices)

    def _plane(self, choices: tuple[int, ...]) -> tuple[float, Vector]:
        problem = self.problem
        base = sum(float(cost[c]) for cost, c in zip(problem.costs, choices, strict=True))
        base += sum(float(edge.table[choices[edge.u], choices[edge.v]]) for edge in problem.edges)
        values = [
            sum(float(cost[c]) for cost, c in zip(one.costs, choices, strict=True))
            + sum(
                float(table[choices[edge.u], choices[edge.v]])
                for edge, table in zip(problem.edges, one.tables, strict=True)
            )
            for maximum in problem.maxima
            for one in maximum.sums
        ]
        return base, np.array(values)


def _paid(values: Vector, groups: Sequence[int]) -> float:
    """What the maxima add."""
    most: dict[int, float] = {}
    for group, value in zip(groups, values.tolist(), strict=True):
        most[group] = max(most.get(group, 0.0), value)
    return sum(most.values())


def _start(problem: Problem, start: Sequence[Sequence[float]]) -> Vector:
    found: list[float] = []
    for number, maximum in enumerate(problem.maxima):
        given = list(start[number]) if number < len(start) else [START] * len(maximum.sums)
        own = (given + [0.0] * len(maximum.sums))[: len(maximum.sums)]
        whole = sum(own)
        found += [each / whole for each in own] if whole > 1.0 else own
    return np.array(found)


def _master(pool: _Pool, groups: Sequence[int]) -> tuple[Vector, float]:
    """The multipliers with the highest point below all planes, and that point."""
    scale = max(abs(base) for base, _ in pool.planes.values()) or 1.0
    count = len(groups)
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    infinity = highspy.kHighsInf
    for _ in range(count):
        solver.addVar(0.0, 1.0)
    solver.addVar(-infinity, infinity)
    solver.changeColCost(count, -1.0)
    for base, values in pool.planes.values():
        row = [-value / scale for value in values.tolist()]
        solver.addRow(-infinity, base / scale, count + 1, list(range(count + 1)), [*row, 1.0])
    for group in sorted(set(groups)):
        members = [number for number, of in enumerate(groups) if of == group]
        solver.addRow(-infinity, 1.0, len(members), members, [1.0] * len(members))
    solver.run()
    values = np.clip(np.array(solver.getSolution().col_value[: count + 1]), -np.inf, np.inf)
    return np.clip(values[:count], 0.0, 1.0), float(values[count]) * scale


def _solution(
    problem: Problem,
    search: _Search,
    groups: Sequence[int],
    bound: float,
    multipliers: Vector,
    refusal: Solution | None,
    outcome: str,
) -> Solution:
    costs = search.pool.costs(groups)
    if not costs:
        return refusal or Solution("limit", None, np.inf, -np.inf)
    ranked = sorted(costs, key=lambda choices: (costs[choices], choices))[:MOST_CANDIDATES]
    best = ranked[0]
    cost = float(evaluate(problem, best).cost)
    bound = min(bound, cost)
    proven = "optimal" if bound >= cost else outcome
    by_group = tuple(
        tuple(float(w) for w, of in zip(multipliers.tolist(), groups, strict=True) if of == group)
        for group in range(len(problem.maxima))
    )
    return Solution(proven, best, cost, bound, multipliers=by_group, candidates=tuple(ranked))  # type: ignore[arg-type]
