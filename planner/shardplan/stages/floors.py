"""What a run of units costs at least when it must fit in memory.

With m the bytes that a device holds at the turn from forward to backward and L what it may hold, every plan of a run
that fits costs at least

    min over layouts of (cost + p m)  -  p L        for any price p >= 0 of a byte,

and both sums are made unit by unit, so the minimum is again a (min, +) product (`shardplan.stages.chain`). The bytes
are weights with their gradients and optimizer state, and what is saved for backward, once for every microbatch in
flight. What is recomputed differs between a whole model and a part of it, so where all is recomputed, or it is chosen
what, saved values are not counted. The price with the greatest floor of one run is looked for; every price that was
tried is a floor for all runs.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np

from shardplan.graph.build import CostGraph, Node
from shardplan.graph.memory import Memory
from shardplan.solve.problem import Costs
from shardplan.stages.chain import RunCosts
from shardplan.stages.cut import Chain

_LIKE_IN_PARTS = ("none", "selective")
"""Of `remat`: what is saved of a part of a model is what is saved of it in the whole."""
_FIRST = 0.05
"""Of the cost of a run over the bytes of a device: the first price that is tried."""
_STEP = 3.0
_HALVINGS = 2
_WORTH = 1e-3


@dataclass
class Floors:
    """Floors of all runs of `chain` on the submesh of `built`, a device of which may hold `limit_bytes`."""

    built: CostGraph
    chain: Chain
    limit_bytes: int
    _state: dict[Node, Costs] = field(init=False, default_factory=dict)
    _saved: dict[Node, Costs] = field(init=False, default_factory=dict)
    _tables: dict[int, Costs] = field(init=False, default_factory=dict)
    _prices: dict[int, set[float]] = field(init=False, default_factory=dict)
    _single: dict[tuple[int, float], Costs] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        memory = Memory(self.built)
        turn = memory.count - 1
        alike = self.built.options.remat in _LIKE_IN_PARTS
        for holding in memory.holdings:
            if holding.category == "temporaries" or not holding.start <= turn < holding.end:
                continue
            per_microbatch = holding.category == "activations"
            if alike or not per_microbatch:
                held = self._saved if per_microbatch else self._state
                held[holding.node] = held.get(holding.node, np.zeros(1)) + holding.amount

    def table(self, waiting: int) -> Costs | None:
        """The floors known so far with so many microbatches in flight: shape (first unit, last), picoseconds."""
        return self._tables.get(waiting)

    def raise_for(self, first: int, last: int, waiting: int, cost: float) -> bool:
        """Look for the price with the greatest floor of units `first` .. `last` - 1, which cost at least `cost`.

        Whether one was found that is above what was known.
        """
        before = self._tables.get(waiting)
        least = cost if before is None else max(cost, float(before[first, last]))
        known = self._prices.get(waiting) or next(iter(self._prices.values()), set())
        price = max(
            known, key=lambda p: (self._at(first, last, waiting, p), p), default=_FIRST * cost / self.limit_bytes
        )
        best = self._at(first, last, waiting, price)
        step = _STEP
        for _ in range(_HALVINGS):
            for factor in (step, 1.0 / step):
                while (found := self._at(first, last, waiting, price * factor)) > best:
                    best, price = found, price * factor
            step = step**0.5
        return best > least * (1.0 + _WORTH)

    def _at(self, first: int, last: int, waiting: int, price: float) -> float:
        """The floor of a run at a price; that of every run is kept."""
        if price in self._prices.setdefault(waiting, set()):
            return float(self._single[waiting, price][first, last])
        self._prices[waiting].add(price)
        nodes = {*self._state, *self._saved}
        none = np.zeros(1)
        charges = {n: price * (self._state.get(n, none) + waiting * self._saved.get(n, none)) for n in nodes}
        runs = RunCosts(self.built, self.chain, charges)
        count = len(self.chain)
        table = np.full((count + 1, count + 1), -np.inf)
        for low, high in itertools.combinations(range(count + 1), 2):
            table[low, high] = runs.least(low, high) - price * self.limit_bytes
        before = self._tables.get(waiting)
        self._tables[waiting] = table if before is None else np.maximum(before, table)
        self._single[waiting, price] = table
        return float(table[first, last])
