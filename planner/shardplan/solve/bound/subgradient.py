"""Large cores: subgradient steps on memory multipliers, each after one sweep of message passing.

Only moments that were short of memory have multipliers. A step follows the excess at those moments of the decoded
assignment, averaged over the last steps and scaled by its own history (AdaGrad). When the bound stops rising, the
search returns to the best state and shortens the step. Before a sweep, the messages continue in the direction of the
last one (momentum), which makes them converge several times faster. Amounts times multipliers are rounded down, so all
costs stay integers and the bound is exact up to the last sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardplan.solve.bound.dual import Dual
from shardplan.solve.constants import (
    BOUND_SAFETY,
    MESSAGE_MOMENTUM,
    SUBGRADIENT_DAMPING,
    SUBGRADIENT_FRESH,
    SUBGRADIENT_IDLE,
    SUBGRADIENT_MEMORY,
    SUBGRADIENT_SEPARATION,
    SUBGRADIENT_SHORTER,
    SUBGRADIENT_STEP,
)
from shardplan.solve.problem import Bytes, Costs
from shardplan.solve.reduce.core import Core
from shardplan.solve.reduce.memory import Profiles, peaks


@dataclass(frozen=True, slots=True)
class _State:
    bound: float
    messages: Costs
    theta: Costs
    paid: Costs
    multipliers: Costs


class SubgradientAscent:
    """Messages and multipliers of a core, the bound that they prove, and the best of both so far."""

    def __init__(self, core: Core, profiles: Profiles, limit: int) -> None:
        self.core = core
        self.dual = Dual(core)
        self.profiles = profiles
        self.limit = limit
        self.room = (limit - profiles.base).astype(np.float64)
        self.multipliers = np.zeros(len(profiles.base))
        self.active = np.zeros(len(profiles.base), dtype=bool)
        self.slope = np.zeros(len(profiles.base))
        self.history = np.zeros(len(profiles.base))
        self.steps = np.zeros(len(profiles.base))
        self.paid = np.zeros(len(core.costs))
        self.length = SUBGRADIENT_STEP
        self.idle = 0
        self._before = self.dual.messages.copy()
        self.best = self._state(-np.inf)
        lengths = np.diff(profiles.offsets)
        self._use = np.repeat(np.arange(len(profiles.owner)), lengths)
        self._label = profiles.labels[self._use] + np.arange(len(profiles.amounts)) - profiles.offsets[:-1][self._use]

    def _state(self, bound: float) -> _State:
        dual = self.dual
        return _State(bound, dual.messages.copy(), dual.theta.copy(), self.paid.copy(), self.multipliers.copy())

    def bound(self) -> float:
        """Valid right after a sweep."""
        constant = float((self.multipliers * self.room).sum())
        return self.dual.bound() - constant - BOUND_SAFETY * abs(constant)

    def set_multipliers(self, multipliers: Costs) -> None:
        """Adds the multipliers times the bytes to the choices' costs."""
        total = np.concatenate([[0.0], np.cumsum(multipliers)])
        per_use = np.maximum(total[self.profiles.end] - total[self.profiles.start], 0.0)
        owed = np.floor(per_use[self._use] * self.profiles.amounts)
        paid = np.asarray(np.bincount(self._label, weights=owed, minlength=len(self.core.costs)), dtype=np.float64)
        self.dual.theta += paid - self.paid
        self.paid, self.multipliers = paid, multipliers

    def improve(self) -> float:
        """One sweep and one subgradient step; returns the bound after the sweep."""
        before, self._before = self._before, self.dual.messages.copy()
        self.dual.push(before, MESSAGE_MOMENTUM)
        self.dual.sweep()
        bound = self.bound()
        self.idle += 1
        if bound > self.best.bound:
            self.best, self.idle = self._state(bound), 0
        if self.idle >= SUBGRADIENT_IDLE:
            self.idle = 0
            self.length *= SUBGRADIENT_SHORTER
            self.slope[:] = 0.0
            self.back()
        self._step(self.profiles.of(self.dual.decode()), max(abs(bound), 1.0))
        return bound

    def _step(self, used: Bytes, money: float) -> None:
        excess = (used - self.limit) / max(self.limit, 1)
        for moment in peaks(excess, SUBGRADIENT_FRESH, SUBGRADIENT_SEPARATION):
            self.active[moment] = True
        slope = np.clip(np.where(self.active, excess, 0.0), -1.0, 1.0)
        self.slope = SUBGRADIENT_MEMORY * self.slope + (1 - SUBGRADIENT_MEMORY) * slope
        self.history += slope**2
        self.steps += self.active
        mean = self.history / np.maximum(self.steps, 1.0)
        change = self.length * money / max(self.limit, 1) * self.slope / np.sqrt(mean + SUBGRADIENT_DAMPING)
        self.set_multipliers(np.maximum(self.multipliers + change, 0.0))

    def back(self) -> None:
        """Returns to the best state."""
        self.dual.messages[:] = self._before = self.best.messages
        self.dual.theta[:] = self.best.theta
        self.paid, self.multipliers = self.best.paid.copy(), self.best.multipliers.copy()
