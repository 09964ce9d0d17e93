"""The objective: the larger of two sums, as one problem or by weights of the two.

Communication hides behind compute, and no more of it than there is compute. With C the compute of a step, H the
communication that can be overlapped (gathering weights, reducing their gradients), h the share of it that is at best,
and X all other communication, a step takes

    step = C + X + max((1 - h) H, H - C) = max(f1, f2),    f1 = X + C + (1 - h) H,    f2 = X + H

Both f1 and f2 are sums over choices. Where neither depends on the weight at which choices are priced, `LargerSum` poses
f1 + max(0, f2 - f1). Otherwise, for any weight w in [0, 1] the solver minimises
w f1 + (1 - w) f2 = X + w C + (1 - w h) H exactly, and that minimum is a lower bound on every step. `next_weight` looks
for the weight with the greatest bound: one-dimensional and concave, by cutting planes, each the line of a plan that was
found. Where everything is overlapped at w = 1, as in most large batches, that is the answer at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from shardplan.planning.reduction import Posed, Reduction
from shardplan.solve.reduce.sums import between, breadth

BOTH = (1.0, 0.0)
"""The weights of f1 at which the problem of each sum alone is built."""
BROADEST = 5e7
"""Entries of tables that the larger of two sums may add; beyond, weights must do."""
MOST_WEIGHTS = 4
_LOWER_WEIGHT = 0.5
"""Where the search for a plan that computes longer than it communicates ends: below it compute is nearly free, and the
plans are no use."""
_CLOSE = 2e-3
"""Relative: the best step is this close to the bound, so no other weight can matter."""
_SAME = 1e-9


class TooLargeError(Exception):
    """The problem of the larger sum has too large tables."""


class LargerSum(Reduction[None]):
    """One sum is minimised as it is; of two, the larger. Raises `TooLargeError` where that is too large a problem."""

    def apply(self, posed: Posed) -> tuple[Posed, None]:
        if len(posed.sums) == 1:
            return posed, None
        first, second = posed.sums
        problem = between(first.problem, second.problem)
        if breadth(problem) > BROADEST:
            raise TooLargeError
        return Posed((replace(first, problem=problem),)), None


class Sums(Protocol):
    """A plan's f1 and f2, and the proven bound on the objective at the weight at which it is best, in seconds."""

    @property
    def weight(self) -> float: ...
    @property
    def f1_s(self) -> float: ...
    @property
    def f2_s(self) -> float: ...
    @property
    def bound_s(self) -> float: ...
    @property
    def step_s(self) -> float: ...


def next_weight(trials: Sequence[Sums]) -> float | None:
    """The weight to try after these, the first of which is 1; `None` where no other can matter."""
    if not trials:
        return 1.0
    high, *others = trials
    if high.f1_s >= high.f2_s:
        return None
    if not others:
        return _LOWER_WEIGHT
    low, *between_them = others
    if low.f1_s < low.f2_s or len(trials) >= MOST_WEIGHTS or _settled(trials):
        return None
    for trial in between_them:
        low, high = (trial, high) if trial.f1_s >= trial.f2_s else (low, trial)
    return _crossing(low, high)


def improves(trial: Sums, trials: Sequence[Sums]) -> bool:
    """Whether a trial at the weight at which two earlier ones cross is better there than they are."""
    if len(trials) < 2:
        return True
    longer = [other for other in trials if other.f1_s >= other.f2_s]
    return _at(trial, trial.weight) < _at(longer[-1], trial.weight) * (1.0 - _SAME)


def _at(trial: Sums, weight: float) -> float:
    return weight * trial.f1_s + (1.0 - weight) * trial.f2_s


def _settled(trials: Sequence[Sums]) -> bool:
    best, bound = min(trial.step_s for trial in trials), max(trial.bound_s for trial in trials)
    return best - bound <= _CLOSE * best


def _crossing(low: Sums, high: Sums) -> float:
    """The weight at which two plans, one with f1 >= f2 and one with f1 < f2, have the same objective."""
    return (high.f2_s - low.f2_s) / ((low.f1_s - low.f2_s) - (high.f1_s - high.f2_s))
