"""Small cores without memory: raise the bound, remove what it excludes, reduce again, and let HiGHS prove the rest."""

from __future__ import annotations

import itertools
import math

import numpy as np

from shardplan.solve.bound.decoding import condition, cutset, greedy
from shardplan.solve.bound.dual import Dual
from shardplan.solve.budget import Budget
from shardplan.solve.constants import (
    CUTSET_COMBINATIONS,
    CUTSET_NODES,
    EXACT_DECODED,
    EXACT_IDLE,
    EXACT_LARGE_PAIRS,
    EXACT_PROOF_SWEEPS,
    EXACT_PROVABLE_PAIRS,
    EXACT_REFINED,
    EXACT_RISE,
    EXACT_SHRINKS,
    EXACT_SWEEPS,
)
from shardplan.solve.highs.program import Program
from shardplan.solve.incumbent import Incumbent, offer
from shardplan.solve.reduce.core import Core, core_of
from shardplan.solve.reduce.eliminate import eliminate
from shardplan.solve.reduce.fixing import prune
from shardplan.solve.reduce.graph import Contradiction, Graph
from shardplan.solve.reduce.memory import Profiles


def close(graph: Graph, best: Incumbent, budget: Budget, unproven: float = 0.0) -> None:
    """Solves a graph without memory to optimality unless the budget ends; there is one sweep, and what it decodes, even
    if that is over. `unproven`: a relative gap that may stay open on large cores, of which each sweep takes long."""
    try:
        eliminate(graph)
        core = core_of(graph)
        while core.nodes:
            before = best.bound
            enough = unproven if core.pairs > EXACT_LARGE_PAIRS else 0.0
            dual = raise_bound(graph, core, best, budget, enough)
            if best.within(enough) or budget.expired():
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
            best.offer(graph.const, lambda: graph.invert({}))
            best.prove(graph.const)
        elif combinations(graph) <= CUTSET_COMBINATIONS:
            enumerate_cutset(graph, best, budget)
        elif not budget.expired():
            prove(graph, core, best, budget)
    except Contradiction:
        best.prove(best.cost)  # nothing costs less than the incumbent


def combinations(graph: Graph) -> int:
    """The number of assignments of the cutset, without which elimination removes everything."""
    return math.prod(graph.sizes[node] for node in cutset(graph))


def enumerate_cutset(graph: Graph, best: Incumbent, budget: Budget) -> None:
    """The optimum: the best over all assignments of the cutset, with everything else minimised out."""
    fixed = cutset(graph)
    least = np.inf
    for labels in itertools.product(*(range(graph.sizes[node]) for node in fixed)):
        if budget.expired():
            return
        found = condition(graph, dict(zip(fixed, labels, strict=True)))
        if found is not None:
            least = min(least, found[0])
            _offer_all(graph, *found, best)
    best.prove(min(least, best.cost))


def raise_bound(graph: Graph, core: Core, best: Incumbent, budget: Budget, enough: float = 0.0) -> Dual:
    """Sweeps while the bound rises and the gap is above the share `enough`, and decodes assignments from the
    messages."""
    dual = Dual(core)
    last = -np.inf
    for sweep in range(1, EXACT_SWEEPS + 1):
        bound = dual.sweep()
        budget.spend(2 * core.pairs)
        best.prove(bound)
        refine = enough > 0.0 and sweep == EXACT_REFINED
        if sweep in EXACT_DECODED or refine:
            decode(graph, core, dual, best, refine=refine)
        idle = bound - last < max(best.scale, EXACT_IDLE * (best.cost - bound))
        last = bound
        if best.within(enough) or idle or budget.expired():
            break
    if not best.within(enough):
        decode(graph, core, dual, best, refine=True)
    return dual


def decode(graph: Graph, core: Core, dual: Dual, best: Incumbent, *, refine: bool) -> None:
    """Offers the greedy assignments of both directions, and the best completion of their cutsets."""
    position = {node: p for p, node in enumerate(core.nodes)}
    fixed = cutset(graph) if refine else []
    for backward in (False, True):
        choices = greedy(dual, backward=backward)
        if choices is None:
            continue
        offer(graph, core, choices, best)
        if not best.closed and fixed and len(fixed) <= CUTSET_NODES:
            found = condition(graph, {node: int(choices[position[node]]) for node in fixed})
            if found is not None:
                _offer_all(graph, *found, best)


def _offer_all(graph: Graph, cost: float, choices: tuple[int, ...], best: Incumbent) -> None:
    best.offer(cost, lambda: graph.invert(dict(zip(graph.alive, choices, strict=True))))


def prove(graph: Graph, core: Core, best: Incumbent, budget: Budget, limit: int | None = None) -> None:
    """Solves the core by HiGHS: its answer is optimal, or the incumbent is."""
    dual = Dual(core)
    for _ in range(EXACT_PROOF_SWEEPS):
        dual.sweep()
    profiles = None if limit is None else Profiles(core.uses, core.offsets, graph.tables.arrays, graph.base)
    answer = Program(dual, budget, best.target, profiles, limit or 0, hinges=graph.hinges, over=graph.scale).solve()
    if answer.choices is not None:
        offer(graph, core, answer.choices, best, answer.above)
    best.prove(best.cost if answer.verdict == "infeasible" else answer.bound)
