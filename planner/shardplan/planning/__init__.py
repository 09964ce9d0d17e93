"""Model + cluster + options -> plan: candidates from a chain of reductions around the solver, priced and compared."""

from shardplan.graph.options import PlanOptions
from shardplan.planning.finer import CoarsePlans
from shardplan.planning.planner import Planner, plan_model

__all__ = ["CoarsePlans", "PlanOptions", "Planner", "plan_model"]
