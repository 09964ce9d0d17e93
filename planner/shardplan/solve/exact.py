"""Small cores: raise the bound, forbid what it excludes, reduce again, and let HiGHS prove the rest."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from shardplan.solve.budget import Budget
from shardplan.solve.constants import (
    CUTSET_COMBINATIONS,
    CUTSET_NODES,
    EXACT_DECODED,
    EXACT_PROOF_SWEEPS,
    EXACT_PROVABLE_PAIRS,
    EXACT_RISE,
    EXACT_SHRINKS,
    EXACT_SWEEPS,
)
from shardplan.solve.core import Core, Indices, core_of
from shardplan.solve.decode import condition, greedy, hubs
from shardplan.solve.dual import Dual
from shardplan.solve.eliminate import eliminate
from shardplan.solve.graph import Contradiction, Graph
from shardplan.solve.highs import Program
from shardplan.solve.memory import Profiles
from shardplan.solve.pool import Pool
from shardplan.solve.prune import prune


@dataclass(slots=True)
class Incumbent:
    """The best assignment known and the bound proven, in costs of the problem times `scale`. `multipliers`: those of
    the moments that stand for sums, where the best bound was found; `pool`: what else was met on the way."""

    scale: float
    cost: float = np.inf
    bound: float = -np.inf
    choices: tuple[int, ...] | None = None
    multipliers: dict[int, float] = field(default_factory=dict)
    pool: Pool | None = None
    report: Callable[[], None] = lambda: None

    def offer(self, cost: float, choices: Callable[[], tuple[int, ...]]) -> bool:
        """Take an assignment of the whole problem if it is better."""
        if cost >= self.cost:
            return False
        self.cost, self.choices = cost, choices()
        if self.pool is not None:
            self.pool.add(cost, self.choices)
        self.report()
        return True

    def take(self, other: Incumbent) -> None:
        """Take over the assignment of another if it is better."""
        choices = other.choices
        if choices is not None:
            self.offer(other.cost, lambda: choices)

    def prove(self, bound: float) -> None:
        """Take a bound if it is better; costs are integers, so it is rounded up to the next."""
        rounded = self.step_up(bound)
        if min(rounded, self.cost) > self.bound:
            self.bound = min(rounded, self.cost)
            self.report()

    def step_up(self, cost: float) -> float:
        """The next cost that an assignment can have: a program that is to prove less would prove nothing."""
        return float(np.ceil(cost / self.scale - 1e-6) * self.scale) if np.isfinite(cost) else cost

    @property
    def target(self) -> float:
        """What a better assignment costs at most."""
        return self.cost - self.scale

    def within(self, share: float) -> bool:
        """Whether the gap is at most a share of the cost; with share 0, whether the incumbent is proven optimal."""
        return self.closed or (self.choices is not None and self.cost - self.bound <= share * abs(self.cost))

    @property
    def closed(self) -> bool:
        """Whether the incumbent is proven optimal."""
        return self.bound >= self.cost


def close(graph: Graph, best: Incumbent, budget: Budget) -> None:
    """Solve a graph without memory to optimality unless the budget ends."""
    try:
        eliminate(graph)
        core = core_of(graph)
        while core.nodes and not budget.expired():
            before = best.bound
            dual = raise_bound(graph, core, best, budget)
            if best.closed:
                return
            gap = best.cost - dual.bound()
            prune(graph, dual, best.target)
            eliminate(graph)
            smaller = core_of(graph)
            idle = dual.bound() - before < EXACT_RISE * gap and smaller.pairs > EXACT_SHRINKS * core.pairs
            core = smaller
            if core.pairs <= EXACT_PROVABLE_PAIRS or idle or combinations(graph) <= CUTSET_COMBINATIONS:
                break
        if not core.nodes:
            best.offer(graph.const, lambda: graph.restore({}))
            best.prove(graph.const)
        elif combinations(graph) <= CUTSET_COMBINATIONS:
            enumerate_hubs(graph, best, budget)
        elif not budget.expired():
            prove(graph, core, best, budget)
    except Contradiction:
        best.prove(best.cost)  # nothing costs less than the incumbent


def combinations(graph: Graph) -> int:
    """How many ways there are to fix the hubs, without which elimination removes everything."""
    return math.prod(graph.sizes[node] for node in hubs(graph))


def enumerate_hubs(graph: Graph, best: Incumbent, budget: Budget) -> None:
    """The optimum: the best of all ways to fix the hubs, everything else minimised out."""
    fixed = hubs(graph)
    least = np.inf
    for labels in itertools.product(*(range(graph.sizes[node]) for node in fixed)):
        if budget.expired():
            return
        found = condition(graph, dict(zip(fixed, labels, strict=True)))
        if found is not None:
            least = min(least, found[0])
            _offer_all(graph, *found, best)
    best.prove(min(least, best.cost))


def raise_bound(graph: Graph, core: Core, best: Incumbent, budget: Budget) -> Dual:
    """Sweep while the bound rises, and decode what the messages suggest."""
    dual = Dual(core)
    last = -np.inf
    for sweep in range(1, EXACT_SWEEPS + 1):
        bound = dual.sweep()
        budget.spend(2 * core.pairs)
        best.prove(bound)
        if sweep in EXACT_DECODED:
            decode(graph, core, dual, best, refine=sweep == EXACT_SWEEPS)
        idle = bound - last < max(best.scale, 1e-3 * (best.cost - bound))
        last = bound
        if best.closed or idle or budget.expired():
            break
    if not best.closed:
        decode(graph, core, dual, best, refine=True)
    return dual


def decode(graph: Graph, core: Core, dual: Dual, best: Incumbent, *, refine: bool) -> None:
    """Offer the greedy assignments of both directions, and the best for their hubs."""
    position = {node: p for p, node in enumerate(core.nodes)}
    fixed = hubs(graph) if refine else []
    for backward in (False, True):
        choices = greedy(dual, backward=backward)
        if choices is None:
            continue
        offer(graph, core, choices, best)
        if not best.closed and fixed and len(fixed) <= CUTSET_NODES:
            found = condition(graph, {hub: int(choices[position[hub]]) for hub in fixed})
            if found is not None:
                _offer_all(graph, *found, best)


def _offer_all(graph: Graph, cost: float, choices: tuple[int, ...], best: Incumbent) -> None:
    best.offer(cost, lambda: graph.restore(dict(zip(graph.alive, choices, strict=True))))


def offer(graph: Graph, core: Core, choices: Indices, best: Incumbent, above: float = 0.0) -> None:
    """Offer labels of a core as an assignment of the whole problem; `above`: what maxima add."""
    cost = core.cost(choices) + above
    best.offer(cost, lambda: graph.restore(dict(zip(core.nodes, choices.tolist(), strict=True))))


def meet(graph: Graph, core: Core, choices: Indices, best: Incumbent, above: float) -> None:
    """Remember labels of a core as an assignment of the whole problem, if the incumbent has a pool."""
    if best.pool is not None:
        best.pool.add(core.cost(choices) + above, graph.restore(dict(zip(core.nodes, choices.tolist(), strict=True))))


def prove(graph: Graph, core: Core, best: Incumbent, budget: Budget, limit: int | None = None) -> None:
    """HiGHS on the core: its answer is optimal, or the incumbent is."""
    dual = Dual(core)
    for _ in range(EXACT_PROOF_SWEEPS):
        dual.sweep()
    profiles = None if limit is None else Profiles(core.uses, core.offsets, graph.tables.arrays, graph.base)
    answer = Program(dual, budget, best.target, profiles, limit or 0, hinges=graph.hinges, over=graph.scale).solve()
    if answer.choices is not None:
        offer(graph, core, answer.choices, best, answer.above)
    best.prove(best.cost if answer.verdict == "infeasible" else answer.bound)
