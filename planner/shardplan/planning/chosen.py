"""A plan with the assignment that it was made of."""

from __future__ import annotations

from dataclasses import dataclass

from shardplan.graph.memory import MemoryRows
from shardplan.graph.remat import Recompute
from shardplan.plan.assemble import PricedAssignment
from shardplan.plan.types import Plan


@dataclass(frozen=True)
class Chosen:
    """A plan, its assignment, and the cost graph of that assignment."""

    plan: Plan
    priced: PricedAssignment
    memory: MemoryRows

    @property
    def recompute(self) -> Recompute:
        """What is recomputed."""
        return self.priced.built.recompute
