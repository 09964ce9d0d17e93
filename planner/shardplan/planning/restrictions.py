"""Restrictions of the choices: to what a caller allows, and to what the planner of another cost model has."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardplan.cost.named import CostModel
from shardplan.planning.reduction import Layouts, Posed, Reduction, Restrict, restrict


@dataclass(frozen=True)
class Restriction(Reduction[None]):
    """The choices that a caller allows: those of a recipe, of another plan, of a stage's borders."""

    restrict: Restrict | None

    def apply(self, posed: Posed) -> tuple[Posed, None]:
        return posed.map(self._restricted) if self.restrict else posed, None

    def _restricted(self, layouts: Layouts) -> Layouts:
        assert self.restrict is not None
        problem = restrict(layouts.problem, layouts.built, self.restrict(layouts.built))
        return replace(layouts, problem=problem)


@dataclass(frozen=True)
class KnownToPlanner(Reduction[None]):
    """The choices that the planner of a cost model has (see `shardplan.cost.named`)."""

    cost_model: CostModel

    def apply(self, posed: Posed) -> tuple[Posed, None]:
        return posed.map(self._known), None

    def _known(self, layouts: Layouts) -> Layouts:
        return replace(layouts, problem=self.cost_model.restricted(layouts.problem, layouts.built))
