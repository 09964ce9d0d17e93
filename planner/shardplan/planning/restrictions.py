"""Restrictions of the choices: to those that a caller allows, and to those that another cost model's planner has."""

from __future__ import annotations

from dataclasses import dataclass

from shardplan.cost.named import CostModel
from shardplan.planning.reduction import Problems, Reduction, Restrict, Restricting


@dataclass(frozen=True)
class Restriction(Reduction[None]):
    """The reduction to the choices that a caller allows: of a recipe, of another plan, at a stage's borders."""

    restrict: Restrict | None

    def apply(self, problems: Problems) -> tuple[Problems, None]:
        if self.restrict is None:
            return problems, None
        limited = Restricting(self.restrict)
        return problems.map(lambda each: each.having(limited(each.problem, each.built))), None


@dataclass(frozen=True)
class KnownToPlanner(Reduction[None]):
    """The reduction to the choices that the planner of a cost model has (see `shardplan.cost.named`)."""

    cost_model: CostModel

    def apply(self, problems: Problems) -> tuple[Problems, None]:
        known = self.cost_model.restricted
        return problems.map(lambda each: each.having(known(each.problem, each.built))), None
