"""The stages of a cut as plans: each planned as a model of its own, between borders as the cut has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from shardplan.cluster.types import Cluster
from shardplan.errors import InfeasibleError
from shardplan.graph.options import PlanOptions
from shardplan.layout.layout import Layout
from shardplan.plan.types import Plan
from shardplan.planning import Planner
from shardplan.stages.cut import part_of
from shardplan.stages.parts import concerning, kept_so, limit_bytes
from shardplan.stages.prices import Prices
from shardplan.stages.search import Cut


@dataclass
class StagePlanner:
    """Plans stages of `prices.chain`; every one once."""

    prices: Prices
    cluster: Cluster
    options: PlanOptions
    pieces: int
    _planned: dict[tuple[Cut, int], Plan | None] = field(init=False, default_factory=dict)

    def plans(self, cuts: Sequence[Cut]) -> tuple[Plan, ...] | None:
        """A plan of every stage; `None` when one does not fit, which is then left out of the search."""
        plans = []
        for place, cut in enumerate(cuts):
            waiting = self.in_flight(place, len(cuts))
            plan = self.plan(cut, waiting, place)
            if plan is None:
                never = self._plan(cut, waiting, self.prices.model.name, free=True) is None
                self.prices.refuse(cut, len(cuts) - 1 - place, one_waits=waiting == 1, never=never)
                return None
            plans.append(plan)
        return tuple(plans)

    def in_flight(self, place: int, count: int) -> int:
        """Microbatches that stage `place` of `count` holds; pieces of one stage count one by one."""
        stages = count // self.pieces
        return self.prices.in_flight(stages - 1 - place % stages, stages)

    def plan(self, cut: Cut, in_flight: int, place: int) -> Plan | None:
        """The plan of a stage with so many microbatches in flight; None where none fits."""
        key = (cut, in_flight)
        if key not in self._planned:
            self._planned[key] = self._plan(cut, in_flight, f"{self.prices.model.name}.stage{place}")
        return self._planned[key]

    def _plan(self, cut: Cut, in_flight: int, name: str, *, free: bool = False) -> Plan | None:
        """The plan of a stage, its borders as the cut has them or `free`; None where none fits."""
        chain, cluster = self.prices.chain, self.prices.parts[cut.submesh].cluster
        model = part_of(chain, cut.first, cut.last, name)
        options = replace(
            self.options,
            in_flight=in_flight,
            constraints=concerning(self.options.constraints, model, cluster.mesh),
            memory_limit_bytes=limit_bytes(self.options, self.cluster) // self.pieces,
        )
        planner = Planner(model, cluster, options, reasons=False)
        ends: dict[str, Layout] = {}
        if cut.first:
            ends[chain.borders[cut.first - 1]] = self.prices.layout_of(cut.submesh, cut.first - 1, cut.enters)
        if cut.last < len(chain):
            ends[chain.borders[cut.last - 1]] = self.prices.layout_of(cut.submesh, cut.last - 1, cut.leaves)
        try:
            return planner.plan(None if free else lambda built: kept_so(built, ends))
        except InfeasibleError:
            return None
