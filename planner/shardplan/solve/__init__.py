"""The solver: from a `Problem` to a `Solution` with a proven lower bound. It knows no tensors and no devices."""

from shardplan.solve.bound.averages import best_multipliers, pulled
from shardplan.solve.budget import Progress
from shardplan.solve.evaluate import Evaluation, evaluate
from shardplan.solve.problem import Edge, LinearSum, Maximum, Plane, Problem, Solution, Start, Usage
from shardplan.solve.solver import solve

__all__ = [
    "Edge",
    "Evaluation",
    "LinearSum",
    "Maximum",
    "Plane",
    "Problem",
    "Progress",
    "Solution",
    "Start",
    "Usage",
    "best_multipliers",
    "evaluate",
    "pulled",
    "solve",
]
