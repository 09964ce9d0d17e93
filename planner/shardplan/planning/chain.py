"""The chain of reductions: a question about an instance -> arrays -> solver -> an answer about the instance."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from shardplan.constraints.types import Constraint
from shardplan.graph.build import CostGraph
from shardplan.graph.memory import Memory
from shardplan.graph.options import PlanOptions
from shardplan.graph.problem import to_problem
from shardplan.graph.remat import Recompute
from shardplan.planning.constraint_masks import ConstraintMasks
from shardplan.planning.instance import CostGraphs, Instance
from shardplan.planning.objective import LargerSum, TooLargeError
from shardplan.planning.reduction import Assignment, Layouts, Posed, Reduction, Restrict
from shardplan.planning.rematerialisation import Rematerialisation, everything
from shardplan.planning.restrictions import KnownToPlanner, Restriction
from shardplan.solve import Problem, Progress, Solution, evaluate, solve

Undo: TypeAlias = Sequence[tuple[Reduction[Any], Any]]
"""Reductions, each with the data of its inversion, in the order in which they were applied."""
UNSOLVED = Solution("limit", None, math.inf, -math.inf)


@dataclass(frozen=True)
class Question:
    """A problem to be solved. `limit_bytes`: of memory, if any. `weights`: of the objective's first sum; with two of
    them (`objective.BOTH`) the larger sum is minimised. `remat`: what is recomputed, by default what the options say;
    `chooses_remat`: that is chosen too. `restriction`: what is allowed; `without`: constraints that are dropped.
    `ends_s`: when the search ends (`time.monotonic`); `unproven`: the relative gap that is left when multipliers close
    it no further. `unlimited`: the solution of the same without a limit and with nothing recomputed, where known."""

    limit_bytes: int | None
    weights: tuple[float, ...] = (1.0,)
    remat: Recompute | None = None
    chooses_remat: bool = False
    restriction: Restrict | None = None
    without: Sequence[Constraint] = ()
    ends_s: float = math.inf
    unproven: float = 0.0
    unlimited: Solution | None = None


@dataclass(frozen=True)
class Answer:
    """`solution`: in the choices of `layouts`, the problem of the first sum of the graph in which that is recomputed
    which was chosen; its `candidates` are still those of the solver's problem, `undo` leads back from there.
    `too_large`: the problem was too large to be posed."""

    question: Question
    layouts: Layouts
    solution: Solution
    undo: Undo = ()
    too_large: bool = False

    def pool(self) -> Iterator[Assignment]:
        """All assignments that the solver met, the cheapest first; each is an answer as `taking` has it."""
        return (_inverted(self.undo, choices) for choices in self.solution.candidates)


def chain(instance: Instance, question: Question) -> tuple[tuple[Reduction[Any], ...], tuple[Reduction[Any], ...]]:
    """The reductions in the order in which they are applied: those that rule out or penalise choices of one cost graph,
    then those that change what the choices are. Solutions go back in reverse order."""
    peers = () if instance.complete else (KnownToPlanner(instance.options.cost_model),)
    restricting = (ConstraintMasks(instance.constraints, question.without), Restriction(question.restriction), *peers)
    return restricting, (Rematerialisation(), LargerSum())


def answer(graphs: CostGraphs, question: Question, on_progress: Callable[[Progress], None] | None = None) -> Answer:
    """The best assignment there is, or the proof that there is none. Raises `ShardplanError` for constraints that leave
    a tensor or an operator without any choice."""
    instance = graphs.instance
    restricting, transforming = chain(instance, question)
    posed, _ = _applied(restricting, _posed(graphs, question))
    layouts = posed.sums[0]
    try:
        reduced, undo = _applied(transforming, posed)
    except TooLargeError:
        return Answer(question, layouts, UNSOLVED, too_large=True)
    solution = _solved(reduced.sums[0].problem, instance.options, question, _lifted(undo, question), on_progress)
    if solution.choices is None:
        return Answer(question, layouts, solution)
    return taking(graphs, Answer(question, layouts, solution, undo), _inverted(undo, solution.choices))


def taking(graphs: CostGraphs, found: Answer, assignment: Assignment) -> Answer:
    """An answer with another assignment: one of its pool."""
    question, layouts = found.question, found.layouts
    solution = replace(found.solution, choices=assignment.choices)
    if assignment.remat is not None:
        weight, complete = question.weights[0], len(question.weights) > 1
        decided = _layouts(graphs.recomputing(weight, assignment.remat, complete=complete), question)
        restricting, _ = chain(graphs.instance, question)
        layouts = _applied(restricting, Posed((decided,)))[0].sums[0]
    if len(question.weights) == 1:
        cost = evaluate(layouts.problem, assignment.choices).cost
        solution = replace(solution, cost=cost, bound=min(solution.bound, cost))
    return replace(found, layouts=layouts, solution=solution)


def _posed(graphs: CostGraphs, question: Question) -> Posed:
    """The problem of layouts at each weight; with several weights all strategies are there, and so the same choices."""
    complete, remat = len(question.weights) > 1, question.remat
    if complete and remat is None:
        remat = graphs.at(question.weights[0])[0].recompute

    def at(weight: float, remat: Recompute | None) -> Layouts:
        if remat is None:
            return _layouts(graphs.at(weight), question)
        return _layouts(graphs.recomputing(weight, remat, complete=complete), question)

    sums = tuple(at(weight, remat) for weight in question.weights)
    if not question.chooses_remat:
        return Posed(sums)
    repeated = everything(sums[0].built)
    return Posed(sums, tuple(at(weight, repeated) for weight in question.weights))


def _layouts(graph: tuple[CostGraph, Memory], question: Question) -> Layouts:
    return Layouts(*graph, to_problem(*graph, question.limit_bytes), {})


def _applied(reductions: Sequence[Reduction[Any]], posed: Posed) -> tuple[Posed, Undo]:
    """The problem after `reductions`, and how to go back."""
    undo = []
    for reduction in reductions:
        posed, data = reduction.apply(posed)
        undo.append((reduction, data))
    return posed, undo


def _inverted(undo: Undo, choices: tuple[int, ...]) -> Assignment:
    """An assignment of the solver's problem as one of the problem of layouts."""
    assignment = Assignment(choices)
    for reduction, data in reversed(undo):
        assignment = reduction.invert(assignment, data)
    return assignment


def _lifted(undo: Undo, question: Question) -> Solution | None:
    """The solution that is known of the problem without a limit as one of the solver's problem."""
    known = question.unlimited
    if known is None or known.choices is None:
        return None
    assignment = Assignment(known.choices)
    for reduction, data in undo:
        assignment = reduction.lift(assignment, data)
    return replace(known, choices=assignment.choices)


def _solved(
    problem: Problem,
    options: PlanOptions,
    question: Question,
    unlimited: Solution | None,
    on_progress: Callable[[Progress], None] | None,
) -> Solution:
    left_s = question.ends_s - time.monotonic()
    if options.time_limit is not None:
        left_s = min(options.time_limit, left_s)
    return solve(
        problem,
        unproven=question.unproven,
        time_limit=None if left_s == math.inf else max(0.0, left_s),
        gap=options.gap,
        seed=options.seed,
        presolve=options.presolve,
        on_progress=on_progress,
        roomy=unlimited,
    )
