"""Communication that hides behind compute, and no more of it than there is compute.

With C the compute of a step, H the communication that can hide (gathering weights, reducing their gradients), h the share
of it that does at best, and X all other communication, a step takes

    step = C + X + max((1 - h) H, H - C)

A plan that is cheap only because ten times its compute is taken to be hidden is not cheap. The objective that is solved
is linear: C + X + (1 - s h) H. With s = 1 it is a lower bound on the step of every plan, and equal to it where enough
compute is there; otherwise plans are also solved for smaller s, which charge more of what hides, and the one with the
shortest step is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

PlanT = TypeVar("PlanT")
_WEIGHTS = (0.0, 0.5)
"""Values of s tried after 1 when what hides at best does not fit under the compute."""


@dataclass(frozen=True, slots=True)
class Trial(Generic[PlanT]):
    """A plan, optimal for the objective with s = `weight`. `at_best_s`: its step if all hides that can; `step_s`: its step
    as above; `bound_s`: proven lower bound on the objective that was solved. Seconds."""

    weight: float
    plan: PlanT
    at_best_s: float
    step_s: float
    bound_s: float


def shortest_step(solve_at: Callable[[float], Trial[PlanT] | None]) -> tuple[Trial[PlanT], float] | None:
    """The plan with the shortest step found, and the proven lower bound on any step.

    `solve_at(s)` gives the plan that is best for s, or `None` when there is none.
    """
    first = solve_at(1.0)
    if first is None:
        return None
    trials = [first]
    if first.step_s > first.at_best_s:
        trials += [trial for trial in map(solve_at, _WEIGHTS) if trial is not None]
    return min(trials, key=lambda trial: trial.step_s), first.bound_s
