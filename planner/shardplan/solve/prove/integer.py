"""The integer program of what is left under a memory limit, at first with only the moments that are known to
be short."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardplan.solve.bound.dual import Dual
from shardplan.solve.bound.multipliers import Multipliers, lagrangian
from shardplan.solve.budget import Budget
from shardplan.solve.constants import FRESH_MOMENTS, FUSION, PROGRAM_SWEEPS, PROOF_SMALL_GAP
from shardplan.solve.highs.program import Program
from shardplan.solve.incumbent import Incumbent, offer
from shardplan.solve.problem import Bytes
from shardplan.solve.prove.exact import close
from shardplan.solve.reduce.core import Indices, core_of
from shardplan.solve.reduce.graph import Contradiction, Graph, Groups
from shardplan.solve.reduce.memory import Profiles, flat, keep_moments, paid_above, peaks
from shardplan.solve.reduce.presolve import presolve

Quota = tuple[float, float, float]
"""Work, gap as a share of the range, and seconds (where there is a time limit) after which a heuristic program ends."""


@dataclass(frozen=True, slots=True)
class Pressure:
    """The moments at which memory is short. `numbers[i]`: the problem's number of moment i; `moments` and `multipliers`
    have the same order."""

    numbers: Indices
    limit: int
    budget: Budget
    whole: Profiles
    moments: tuple[int, ...]
    multipliers: Multipliers
    hinges: Groups = ()

    def excess(self, choices: tuple[int, ...]) -> tuple[Bytes, int]:
        """Bytes above the limit per moment of an assignment of the whole problem, and the value of the maxima."""
        over = np.asarray(self.whole.of(np.array(choices, dtype=np.int64))[self.numbers] - self.limit)
        return over, paid_above(over, self.hinges)


def integer(
    graph: Graph, pressure: Pressure, best: Incumbent, ceiling: float | None, quota: Quota | None = None
) -> None:
    """Solves what is left of a restricted graph by HiGHS; its moments are those of `pressure`.

    With a `ceiling`, the graph still contains everything that costs less, and the answer is a proof, by default within
    what the budget allows; without one, it is a heuristic that ends at its `quota`. Leaving out moments that are
    not known to be short lets elimination remove many nodes; moments that the answer violates are added.
    """
    moments = {*pressure.moments, *flat(pressure.hinges)}
    place = {int(number): index for index, number in enumerate(pressure.numbers)}
    while True:
        trial = Incumbent(best.scale, cost=best.cost if ceiling is None else min(ceiling, best.cost))
        part = graph.copy()
        wanted = [index for index, number in enumerate(part.moments) if place[int(number)] in moments]
        keep_moments(part, np.array(wanted, dtype=np.int64))
        try:
            presolve(part, pressure.limit)
            _program(part, pressure, trial, quota or (None if ceiling is not None else FUSION))
        except Contradiction:
            trial.prove(trial.cost)
        if ceiling is not None:
            best.prove(trial.bound)
        if trial.choices is None:
            return
        excess, _ = pressure.excess(trial.choices)
        if excess.max(initial=0) <= 0:
            best.take(trial)
            return
        moments.update(peaks(excess.astype(np.float64), FRESH_MOMENTS, 1))


def _program(graph: Graph, pressure: Pressure, best: Incumbent, quota: Quota | None) -> None:
    budget = pressure.budget
    if not any(graph.uses[node] for node in graph.alive):
        close(graph, best, budget)
        return
    place = {int(moment): index for index, moment in enumerate(graph.moments)}
    multipliers = {int(pressure.numbers[m]): multiplier for m, multiplier in pressure.multipliers.items()}
    here = {place[moment]: multiplier for moment, multiplier in multipliers.items() if moment in place}
    core = core_of(graph)
    dual = Dual(core_of(lagrangian(graph, here)))
    for _ in range(PROGRAM_SWEEPS):
        dual.sweep()
    profiles = Profiles(core.uses, core.offsets, graph.tables.arrays, graph.base)
    program = Program(
        dual, budget, best.target, profiles, pressure.limit, here, hinges=graph.hinges, over=graph.scale
    )  # fmt: skip
    if quota is None:
        program.most_work, program.enough = budget.proof_work()
        program.small_gap = PROOF_SMALL_GAP * abs(best.cost)
    else:
        program.most_work, program.gap, program.seconds = quota
    answer = program.solve()
    if answer.choices is not None:
        offer(graph, core, answer.choices, best, answer.above)
    best.prove(best.cost if answer.verdict == "infeasible" else answer.bound)
