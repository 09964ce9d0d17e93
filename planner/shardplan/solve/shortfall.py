"""The memory shortfall: the smallest limit under which an assignment exists."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from shardplan.solve.bound.decoding import cutset
from shardplan.solve.bound.dual import Dual
from shardplan.solve.bound.multipliers import lagrangian
from shardplan.solve.budget import Budget
from shardplan.solve.constants import CUTSET_NODES, LIMIT_STRIDE, PRESOLVE_ROUNDS, PROOF_WORK
from shardplan.solve.highs.program import Program
from shardplan.solve.incumbent import Incumbent
from shardplan.solve.problem import Bytes, Costs, Problem
from shardplan.solve.prove.exact import close
from shardplan.solve.reduce.aggregate import aggregate, flatten
from shardplan.solve.reduce.core import core_of
from shardplan.solve.reduce.dominate import dominate
from shardplan.solve.reduce.eliminate import eliminate
from shardplan.solve.reduce.graph import Contradiction, Graph, build
from shardplan.solve.reduce.memory import Profiles, drop_moments
from shardplan.solve.reduce.presolve import presolve
from shardplan.solve.reduce.tables import Tables
from shardplan.solve.small_cores import fit

Verdict = Literal["fits", "too much", "unknown"]


def least_limit(problem: Problem, budget: Budget) -> int | None:
    """The smallest limit at which some assignment fits; `None` if forbidden pairs exclude every assignment.

    If the budget or the work for a proof ends early, a proven lower bound of it.
    """
    free = _without_costs(problem)
    everything = sum(int(usage.amount.max()) for usage in problem.usages)
    try:
        graph = build(replace(free, limit=everything), Tables())
        whole = Profiles(graph.uses, np.cumsum([0, *graph.sizes]), graph.tables.arrays, graph.base)
        graph.propagate()
        if len(cutset(graph)) > CUTSET_NODES:
            return _Large(free, budget).least(int(graph.base.max(initial=0)), everything)
        low = _of_one_moment(graph, budget)
        if low is None or budget.expired():
            return low
        return _Small(_thinned(graph, low), whole, budget).least(low, everything)
    except Contradiction:
        return None


def _without_costs(problem: Problem) -> Problem:
    """The same problem with only forbidden choices and pairs; all other costs are zero."""
    cleared: dict[int, Costs] = {}

    def clear(table: Costs) -> Costs:
        return cleared.setdefault(id(table), np.where(np.isinf(table), np.inf, 0.0))

    edges = tuple(edge._replace(table=clear(edge.table)) for edge in problem.edges)
    return Problem(tuple(map(clear, problem.costs)), edges, problem.usages, problem.limit)


def _of_one_moment(graph: Graph, budget: Budget) -> int | None:
    """A lower bound: the least use at the moment of the largest minimum; `None` if nothing is allowed."""
    base = graph.base
    moment = int(np.argmax(base)) if len(base) else 0
    used = lagrangian(graph, {moment: 1.0} if len(base) else {})
    for node in used.alive:
        used.uses[node] = ()
    best = Incumbent(1.0)
    close(used, best, budget)
    if best.bound == np.inf:
        return None
    return int(base.max(initial=0)) + int(max(best.bound, 0.0))


def _thinned(graph: Graph, low: int) -> Graph:
    """The graph of moments that may use more than `low`, reduced by steps that are valid for every limit from
    there on."""
    thin = graph.copy()
    drop_moments(thin, low)
    thin.propagate()
    for _ in range(PRESOLVE_ROUNDS):
        changed = aggregate(thin)
        thin.propagate()
        eliminate(thin)
        for node in thin.alive:
            flatten(thin, node)
        changed |= dominate(thin)
        thin.propagate()
        eliminate(thin)
        if not changed:
            break
    return thin


@dataclass
class _Small:
    """A thinned graph for which each limit is tested by its own integer program."""

    thin: Graph
    whole: Profiles
    budget: Budget

    def least(self, low: int, most: int) -> int | None:
        """The smallest limit from `low` on, by steps that double, then halve."""
        limit, stride = low, max(int(low * LIMIT_STRIDE), 1)
        high: int | None = None
        while high is None or low < high:
            if self.budget.expired():
                return low
            verdict, peak = self._try(limit)
            if verdict == "unknown":
                return low
            if verdict == "fits":
                high = peak
            elif limit >= most:
                return None
            else:
                low = self._next(limit + 1)
            limit = min(low + stride, most) if high is None else (low + high) // 2
            stride *= 2
        return high

    @cached_property
    def _steps(self) -> tuple[int, Bytes]:
        """All memory use is a multiple of the first number above a multiple of the second."""
        used = {use.amount for node in self.thin.alive for use in self.thin.uses[node]}
        amounts = [int(np.gcd.reduce(self.thin.tables.arrays[number].astype(np.int64))) for number in sorted(used)]
        return int(np.gcd.reduce(np.array(amounts, dtype=np.int64))) if amounts else 0, self.thin.base

    def _next(self, limit: int) -> int:
        """The smallest possible memory use that is at least `limit`."""
        step, base = self._steps
        return limit + int(((base - limit) % step).min()) if step else limit

    def _try(self, limit: int) -> tuple[Verdict, int]:
        """Whether any assignment fits; if so, its peak."""
        trial = self.thin.copy()
        try:
            presolve(trial, limit)
            core = core_of(trial)
            choices = np.zeros(0, dtype=np.int64)
            if core.nodes:
                profiles = Profiles(core.uses, core.offsets, trial.tables.arrays, trial.base)
                answer = Program(Dual(core), self.budget, np.inf, profiles, limit, most_work=PROOF_WORK).solve()
                if answer.choices is None:
                    return "too much" if answer.verdict == "infeasible" else "unknown", 0
                choices = answer.choices
        except Contradiction:
            return "too much", 0
        found = trial.invert(dict(zip(core.nodes, choices.tolist(), strict=True)))
        return "fits", int(self.whole.of(np.array(found)).max(initial=0))


@dataclass
class _Large:
    """A problem with a large cutset: each limit is tested by a search."""

    free: Problem
    budget: Budget

    def least(self, low: int, most: int) -> int | None:
        """The smallest limit from `low` on, by halving."""
        high = self._peak_within(most)
        if high is None:
            return None
        while low < high and not self.budget.expired():
            middle = (low + high) // 2
            peak = self._peak_within(middle)
            low, high = (middle + 1, high) if peak is None else (low, peak)
        return low

    def _peak_within(self, limit: int) -> int | None:
        """The peak of some assignment that fits, or `None` if none was found."""
        bounded = replace(self.free, limit=limit)
        graph, found = build(bounded, Tables()), Incumbent(1.0)  # there are no costs to scale
        whole = Profiles(graph.uses, np.cumsum([0, *graph.sizes]), graph.tables.arrays, graph.base)
        try:
            fit(graph, limit, found, self.budget)
        except Contradiction:
            return None
        return None if found.choices is None else int(whole.of(np.array(found.choices)).max(initial=0))
