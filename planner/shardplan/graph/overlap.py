"""Communication that hides behind compute, and no more of it than there is compute.

With C the compute of a step, H the communication that can hide (gathering weights, reducing their gradients), h the
share of it that does at best, and X all other communication, a step takes

    step = C + X + max((1 - h) H, H - C) = max(f1, f2),    f1 = X + C + (1 - h) H,    f2 = X + H

A plan that is cheap only because ten times its compute is taken to be hidden is not cheap. Both f1 and f2 are sums over
choices, so for any weight w in [0, 1] the solver minimises w f1 + (1 - w) f2 = X + w C + (1 - w h) H exactly, and that
minimum is a lower bound on every step. `shortest_step` looks for the weight with the greatest bound: one-dimensional
and concave, by cutting planes, each the line of a plan that was found. Where everything fits under the compute at
w = 1, as in most large batches, that is the answer at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

PlanT = TypeVar("PlanT")
_LOWER_WEIGHT = 0.5
"""Where the search for a plan that computes longer than it communicates ends: below it compute is nearly free, and the
plans are no use."""
MOST_SOLVES = 4
_CLOSE = 2e-3
"""Relative: the best step is this close to the bound, so no other weight can matter."""
_SAME = 1e-9


@dataclass(frozen=True, slots=True)
class Trial(Generic[PlanT]):
    """A plan that is optimal at `weight`, with its f1 and f2 and the proven bound on its objective, in seconds."""

    weight: float
    plan: PlanT
    f1_s: float
    f2_s: float
    bound_s: float

    @property
    def step_s(self) -> float:
        return max(self.f1_s, self.f2_s)

    def at(self, weight: float) -> float:
        """The plan's objective at another weight."""
        return weight * self.f1_s + (1.0 - weight) * self.f2_s


def shortest_step(solve_at: Callable[[float], Trial[PlanT] | None]) -> tuple[Trial[PlanT], float] | None:
    """The plan with the shortest step found, and the greatest proven lower bound on any step.

    `solve_at(weight)` gives the plan that is best at a weight, or `None` when there is none.
    """
    high = solve_at(1.0)
    if high is None:
        return None
    trials, low = [high], None
    if high.f1_s < high.f2_s and (trial := solve_at(_LOWER_WEIGHT)) is not None:
        trials.append(trial)
        low = trial if trial.f1_s >= trial.f2_s else None
    while low is not None and len(trials) < MOST_SOLVES and not _settled(trials):
        weight = _crossing(low, high)
        trial = solve_at(weight)
        if trial is None or trial.at(weight) >= low.at(weight) * (1.0 - _SAME):
            break
        trials.append(trial)
        low, high = (trial, high) if trial.f1_s >= trial.f2_s else (low, trial)
    return min(trials, key=lambda trial: trial.step_s), max(trial.bound_s for trial in trials)


def _settled(trials: list[Trial[PlanT]]) -> bool:
    best, bound = min(trial.step_s for trial in trials), max(trial.bound_s for trial in trials)
    return best - bound <= _CLOSE * best


def _crossing(low: Trial[PlanT], high: Trial[PlanT]) -> float:
    """The weight at which two plans, one with f1 >= f2 and one with f1 < f2, have the same objective."""
    return (high.f2_s - low.f2_s) / ((low.f1_s - low.f2_s) - (high.f1_s - high.f2_s))
