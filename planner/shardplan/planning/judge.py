"""The judge: an answer -> its plan's price, independent of the solver's, and what is proven of its step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from shardplan.graph.build import Node
from shardplan.graph.memory import Memory
from shardplan.plan.assemble import Priced, peak_memory, price
from shardplan.planning.chain import Answer
from shardplan.solve import evaluate
from shardplan.solve.problem import Outcome
from shardplan.units import PS_PER_S

SAME = 1e-8
"""Relative: prices are rounded to picoseconds."""


@dataclass(frozen=True)
class Candidate:
    """A plan with its price. `bound_s`: the proven bound on the objective that was minimised, in seconds."""

    priced: Priced
    memory: Memory
    bound_s: float

    @property
    def weight(self) -> float:
        """The weight of f1 at which the bound was found."""
        return self.priced.built.prices.weight if self.priced.weight is None else self.priced.weight

    @property
    def f1_s(self) -> float:
        """The first sum of the objective, penalties included."""
        return self.priced.f1_s + self.priced.penalty_s

    @property
    def f2_s(self) -> float:
        """The second one."""
        return self.priced.f2_s + self.priced.penalty_s

    @property
    def step_s(self) -> float:
        """What candidates are compared by."""
        return max(self.f1_s, self.f2_s)


def judged(answer: Answer) -> Candidate:
    """The plan of an answer that has an assignment, at its own price (see `plan.assemble.price`)."""
    layouts, solution = answer.layouts, answer.solution
    assert solution.choices is not None
    cost = float(evaluate(layouts.problem, solution.choices).cost)
    priced = price(layouts.built, replace(solution, cost=cost), layouts.penalties)
    if len(answer.question.weights) > 1:
        priced = replace(priced, weight=1.0 - solution.multipliers[0][0], solution=solution)
    return Candidate(priced, layouts.memory, solution.bound / PS_PER_S)


def fits(answer: Answer, limit_bytes: int) -> bool:
    """Whether an answer is proven to be the best, and keeps a limit on memory that may not have been asked for."""
    layouts, solution = answer.layouts, answer.solution
    if solution.choices is None or solution.outcome != "optimal":
        return False
    return _peak_bytes(layouts.memory, layouts.chosen(solution.choices)) <= limit_bytes


def keeps(candidate: Candidate, limit_bytes: int) -> bool:
    """Whether a plan keeps a limit on memory."""
    return _peak_bytes(candidate.memory, candidate.priced.choice) <= limit_bytes


def proven(candidate: Candidate, bound_s: float) -> Candidate:
    """A plan, of which the solution says what is proven of its step when no step is below `bound_s`."""
    priced = candidate.priced
    cost, bound = float(priced.step_s + priced.penalty_s) * PS_PER_S, float(bound_s) * PS_PER_S
    outcome: Outcome = "optimal" if cost - bound <= SAME * cost else "feasible"
    if priced.solution.outcome == "interrupted":
        outcome = "interrupted"
    solution = replace(priced.solution, outcome=outcome, cost=cost, bound=min(cost, bound))
    return Candidate(replace(priced, solution=solution), candidate.memory, bound_s)


def _peak_bytes(memory: Memory, choice: Mapping[Node, int]) -> int:
    return peak_memory(memory.holdings, memory.moments, choice).total
