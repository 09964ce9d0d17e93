"""The choice of what to recompute, made with the choice of layouts: one problem, its answer as a graph and a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardplan.graph.build import CostGraph, Node
from shardplan.graph.memory import Memory
from shardplan.graph.pieces import scope
from shardplan.graph.remat import Recompute, recompute, recomputed
from shardplan.graph.tiles import Tiled, tile
from shardplan.graph.wishes import Bearing
from shardplan.solve import Problem, Solution, evaluate
from shardplan.solve.problem import Costs

UNPROVEN = 0.03
"""A choice of what to recompute that is proven to be so near to the best is taken: its integer programs are large."""
UNSOLVED = Solution("limit", None, np.inf, -np.inf)


@dataclass(frozen=True)
class Solved:
    """One solve at one weight: the graph, its memory rows, the arrays and what came of them.

    `tiled`: where the arrays are those of the choice of what to recompute, and not of the graph alone.
    """

    built: CostGraph
    memory: Memory
    problem: Problem
    solution: Solution
    charges: Mapping[Node, Costs]
    asked: Sequence[Bearing]
    tiled: Tiled | None = None


Pose = Callable[[Recompute], Solved]
"""The problem of layouts, unsolved, when that runs again."""
Solve = Callable[[Problem, Solution | None], Solution]
"""Solves arrays; the second is their solution without a limit on memory, where it is known."""


def opened(once: Solved, pose: Pose) -> Solved:
    """`once`, in which nothing runs again, with the choice of what does; `pose` asks for the same otherwise."""
    built = once.built
    again = pose(_everything_again(built))
    choices = scope(built.model, built.rules, built.flow, built.fusion, built.options)
    tiled = tile(choices, built, again.built, (once.problem, again.problem))
    return replace(once, problem=tiled.problem, tiled=tiled)


def read(posed: Solved, solution: Solution, pose: Pose) -> Solved:
    """A solution of `opened` as one of the graph in which that runs again which it says, priced by that graph."""
    if posed.tiled is None or solution.choices is None:
        return replace(posed, solution=solution)
    again, choices = posed.tiled.read(posed.built, solution.choices)
    decided = pose(again)
    priced = evaluate(decided.problem, choices)
    solution = replace(solution, choices=choices, cost=priced.cost, bound=min(solution.bound, priced.cost))
    return replace(decided, solution=solution)


def choose(once: Solved, roomy: Solution, pose: Pose, solve: Solve) -> Solved:
    """The best layouts and what is best recomputed for them. `roomy`: the solution of `once` without a limit.

    Where the search finds nothing that fits before it gives up, a flag may know something.
    """
    posed = opened(once, pose)
    assert posed.tiled is not None
    known = None if roomy.choices is None else replace(roomy, choices=posed.tiled.once(roomy.choices))
    found = read(posed, solve(posed.problem, known), pose)
    if found.solution.outcome != "limit":
        return found
    for flag in flags(once.built):
        tried = pose(flag)
        solution = solve(tried.problem, None)
        if solution.choices is not None and solution.cost < found.solution.cost:
            outcome = "feasible" if solution.outcome == "optimal" else solution.outcome
            found = replace(tried, solution=replace(solution, bound=found.solution.bound, outcome=outcome))
    return found


def flags(built: CostGraph) -> Iterator[Recompute]:
    """What `--remat none`, `selective` and `full` recompute, as far as they differ."""
    yield built.recompute
    for flag in ("selective", "full"):
        options = replace(built.options, remat=flag)
        again = recompute(built.model, built.rules, built.flow, built.fusion, options)
        if again.until:
            yield again


def _everything_again(built: CostGraph) -> Recompute:
    """As if every operator ran again: for prices alone."""
    last = len(built.model.operators) - 1
    until = dict.fromkeys(range(len(built.model.operators)), last)
    return recomputed(built.model, built.rules, built.flow, until, built.fusion.saved)
