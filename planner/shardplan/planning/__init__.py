"""From a model, a cluster and options to a plan: candidates from a chain of reductions around the solver, compared by
their schedules."""

from shardplan.graph.options import PlanOptions
from shardplan.planning.best_plan import plan_model
from shardplan.planning.finer import CoarsePlans
from shardplan.planning.planner import Planner

__all__ = ["CoarsePlans", "PlanOptions", "Planner", "plan_model"]
