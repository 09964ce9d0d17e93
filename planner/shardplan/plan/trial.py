"""Priced plans as trials: what is proven of their step."""

from __future__ import annotations

from dataclasses import replace

from shardplan.graph.memory import Memory
from shardplan.graph.overlap import Trial
from shardplan.graph.tensors import PICOSECONDS
from shardplan.plan.assemble import Priced
from shardplan.solve.problem import Outcome

SAME = 1e-8
"""Relative: prices are rounded to picoseconds."""
PlanTrial = Trial[tuple[Priced, Memory]]


def trial_of(priced: Priced, memory: Memory, bound_s: float) -> PlanTrial:
    """A plan with both of its sums, at the weight at which its bound was found."""
    weight = priced.built.prices.weight if priced.weight is None else priced.weight
    return Trial(weight, (priced, memory), priced.f1_s + priced.wish_s, priced.f2_s + priced.wish_s, bound_s)


def proven(priced: Priced, memory: Memory, bound_s: float) -> PlanTrial:
    """A plan, of which the solution says what is proven of its step."""
    cost, bound = float(priced.step_s + priced.wish_s) * PICOSECONDS, float(bound_s) * PICOSECONDS
    outcome: Outcome = "optimal" if cost - bound <= SAME * cost else "feasible"
    if priced.solution.outcome == "interrupted":
        outcome = "interrupted"
    solution = replace(priced.solution, outcome=outcome, cost=cost, bound=min(cost, bound))
    return trial_of(replace(priced, solution=solution), memory, bound_s)
