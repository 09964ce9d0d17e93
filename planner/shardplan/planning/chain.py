"""The chain of reductions: a question about an instance becomes arrays for the solver, and the solution becomes an
answer."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

from shardplan.constraints.types import Constraint
from shardplan.graph.build import CostGraph, in_buckets
from shardplan.graph.memory import MemoryRows
from shardplan.graph.neighbourhood import Neighbourhood
from shardplan.graph.objective_cuts import binding_cuts
from shardplan.graph.options import PlanOptions, Remat
from shardplan.graph.problem import objective_of, to_problem, to_problems
from shardplan.graph.remat import Recompute
from shardplan.interruption import NEVER, Deadline, GivenUpError
from shardplan.planning.constants import (
    ANSWER_JUDGED,
    ANSWER_JUDGED_NODES,
    AVERAGES,
    CUT_LEAST,
    CUT_ROUNDS,
    EQUAL_JUDGED,
    WORTH_FOLDING,
)
from shardplan.planning.constraint_masks import ConstraintMasks
from shardplan.planning.equal_layers import EqualLayers
from shardplan.planning.instance import CostGraphs, Instance
from shardplan.planning.objective import Maxima
from shardplan.planning.reduction import Assignment, LayoutProblem, Problems, Reduction, Restrict
from shardplan.planning.rematerialisation import Rematerialisation, everything, flagged
from shardplan.planning.restrictions import KnownToPlanner, Restriction
from shardplan.planning.staying_weights import StayingWeights
from shardplan.schedule.objective import Linear, Objective, Sum, Weights, fitting, single_sums
from shardplan.solve import Plane, Problem, Progress, Solution, Start, solve
from shardplan.solve.linear_functions import Choices
from shardplan.solve.problem import Outcome
from shardplan.units import PS_PER_S

T = TypeVar("T")


@dataclass(frozen=True)
class Question:
    """A problem to solve: what is minimised, over which choices, where the search starts and where it ends."""

    limit_bytes: int | None  # memory limit, if any
    objective: Objective | None = None  # default: that of the step
    linear: Linear | None = None  # one linear function of the terms, in place of the objective

    remat: Recompute | Remat | None = None  # what is recomputed, or at what flag; default: what the options say
    chooses_remat: bool = False  # the solver chooses what is recomputed
    equal_layers: bool = False  # all copies of a block have the same layouts
    near: Neighbourhood | None = None  # only layouts near these plans
    regather: bool = False  # costs as if all weights were gathered again for backward
    stay: bool = False  # costs as if all gathered weights stayed until backward and took no memory
    bucket_bytes: float | None = None  # costs for gradient buckets of this size; not with `chooses_remat`
    restriction: Restrict | None = None  # what is allowed
    without: Sequence[Constraint] = ()  # constraints that are dropped

    known: Restrict | None = None  # a known plan, which excludes what costs more
    assignments: Sequence[Choices] = ()  # known ones of the cost graph, from which the averaging starts
    start: Weights = ()  # multipliers of the sums, by phase
    planes: Sequence[Plane] = ()  # cutting planes of questions that allow less
    memory_multipliers: Mapping[int, float] = field(default_factory=dict)  # picoseconds per byte, by moment

    averages: int | None = None  # maximum number of plain problems; default: that of the instance's effort
    ends_s: float = math.inf  # end by the clock `time.monotonic`
    is_late: bool = False  # there is time for one assignment only, and for the bound of the base sums
    deadline: Deadline = NEVER  # after which it is given up
    unproven: float = 0.0  # relative gap that may stay open where a proof takes long
    work: float = math.inf  # maximum work, in the units of `shardplan.solve.constants`
    below_s: float = math.inf  # the search ends once it is proven that no plan takes less
    shortfall: bool = True  # an infeasible answer says how many bytes are missing


Assigned: TypeAlias = tuple[LayoutProblem, tuple[int, ...]]
"""An assignment with the problem to whose choices it refers."""


@dataclass(frozen=True)
class Answer:
    """`solution` has the choices of `within`, the problem of the phases' base sums, which is `None` if the question was
    given up. `whole` is that problem with all maxima, if it has the same choices. `candidates` are the assignments met
    during the solve, the best first, each with the cost graph of what it recomputes. `mixture`: assignments of `whole`
    that are best together, with their shares (`Solution.mixture`)."""

    question: Question
    objective: Objective
    within: LayoutProblem | None
    solution: Solution
    whole: LayoutProblem | None = None
    candidates: tuple[Assigned, ...] = ()
    mixture: Mapping[Choices, float] = field(default_factory=dict)

    @property
    def layouts(self) -> LayoutProblem:
        """`within`, of a question that was not given up."""
        assert self.within is not None
        return self.within


def most_solved(question: Question, options: PlanOptions) -> int:
    """Upper bound on the plain problems that the answer takes: one for a linear function, else one for each averaging
    of maxima."""
    return max(1, _averages(question, options)) if question.linear is None else 1


def _averages(question: Question, options: PlanOptions) -> int:
    """Upper bound on the averagings of maxima; 0 if the solver takes the maxima themselves."""
    return (question.averages or AVERAGES[options.effort]) if options.gap > 0.0 else 0


def chain(
    instance: Instance, question: Question, objective: Objective
) -> tuple[tuple[Reduction[Any], ...], tuple[Reduction[Any], ...]]:
    """The reductions in the order of `apply`: first those that rule out or penalise choices of one cost graph, then
    those that change what the choices are. `invert` runs in reverse order."""
    peers = () if instance.every_choice else (KnownToPlanner(instance.options.cost_model),)
    restricting = (ConstraintMasks(instance.constraints, question.without), Restriction(question.restriction), *peers)
    alike = EqualLayers(_most_left(instance, question))
    return restricting, (Rematerialisation(), StayingWeights(), Maxima(objective.sizes), alike)


def _linears(question: Question, objective: Objective) -> tuple[Linear, ...]:
    return single_sums(objective) if question.linear is None else (question.linear,)


def _most_left(instance: Instance, question: Question) -> float:
    """The largest share of the nodes that may remain after equal layers are merged."""
    wanted = WORTH_FOLDING if question.equal_layers else 0.0
    return 1.0 if instance.options.equal_layers else wanted


Answering: TypeAlias = Generator[Assigned, None, T]
"""A generator that yields assignments as soon as they are known, and returns its result."""


def answer(graphs: CostGraphs, question: Question) -> Answer:
    """The answer that `answering` returns."""
    steps = answering(graphs, question)
    try:
        while True:
            next(steps)
    except StopIteration as end:
        found: Answer = end.value
        return found


def answering(
    graphs: CostGraphs, question: Question, on_progress: Callable[[Progress], None] | None = None
) -> Answering[Answer]:
    """Yields the best assignment that treats equal layers alike, which is known long before the answer; returns the
    best assignment, or the proof that there is none. A question that is given up has an answer without assignment and
    bound. Raises `ShardplanError` for constraints that leave an operator or a tensor without any choice.
    """
    try:
        return (yield from _answered(graphs, question, on_progress))
    except GivenUpError:
        return given_up(question)


def given_up(question: Question) -> Answer:
    """The answer without assignment and bound."""
    outcome: Outcome = "interrupted" if question.deadline.interruption.asked else "limit"
    return Answer(question, Objective((), 0.0), None, Solution(outcome, None, math.inf, -math.inf))


def _answered(
    graphs: CostGraphs, question: Question, on_progress: Callable[[Progress], None] | None
) -> Answering[Answer]:
    """As `answering`. Raises `GivenUpError` at the question's deadline."""
    question.deadline.check()
    instance, asked = graphs.instance, _graph(graphs, question)
    reduced, solution = yield from _solved_with_cuts(graphs, question, asked, on_progress)
    objective, layouts, undo, alike = reduced.objective, reduced.layouts, reduced.undo, reduced.start.assignments
    if solution.choices is None:
        return Answer(question, objective, layouts, solution)
    candidates: list[Assigned] = []
    most = max(ANSWER_JUDGED, ANSWER_JUDGED_NODES // len(solution.choices))
    ranked = (solution.candidates or (solution.choices,))[:most]
    for choices in dict.fromkeys((*ranked, *alike[:EQUAL_JUDGED])):
        if question.deadline.has_passed and candidates:
            break
        assignment = _inverted(undo, choices)
        chosen = layouts
        if assignment.remat is not None:
            decided = graphs.recomputing(assignment.remat)
            alone = LayoutProblem(
                *decided, to_problem(*decided, question.limit_bytes, _linears(question, objective)[0]), {}
            )
            restricted, _ = _applied(chain(instance, question, objective)[0], Problems((alone,)))
            chosen = restricted.sums[0]
        candidates.append((chosen, assignment.choices))
    is_part = question.is_late or (_most_left(instance, question) and not instance.options.equal_layers)
    whole = None if question.chooses_remat or is_part else layouts.having(reduced.whole)
    best, choices = candidates[0]
    mixture: dict[Choices, float] = {}
    for each, share in solution.mixture.items() if whole is not None else ():
        same = _inverted(undo, each).choices
        mixture[same] = mixture.get(same, 0.0) + share
    return Answer(question, objective, best, replace(solution, choices=choices), whole, tuple(candidates), mixture)


@dataclass(frozen=True)
class _Reduced:
    """A question after all reductions: the problem of layouts, that before equal layers are merged (`whole`) and that
    of the solver, the data that take assignments back, and where the search starts."""

    objective: Objective
    layouts: LayoutProblem
    whole: Problem
    problem: Problem
    undo: Sequence[tuple[Reduction[Any], Any]]
    start: Start

    def solved(
        self, question: Question, options: PlanOptions, on_progress: Callable[[Progress], None] | None
    ) -> Solution:
        start = self.start
        if question.start and not question.assignments:  # planes of few assignments lead away from good multipliers
            start = replace(start, assignments=())
        return _solved(self.problem, options, question, start, on_progress)

    def first(self, assignments: Sequence[tuple[int, ...]]) -> Assigned | None:
        """The first of some assignments of the solver's problem; none where it says what is recomputed."""
        assignment = _inverted(self.undo, assignments[0]) if assignments else None
        return None if assignment is None or assignment.remat is not None else (self.layouts, assignment.choices)

    def binding_cuts(self, met: Assigned | None) -> Mapping[str, tuple[Sum, ...]]:
        """The sums that an assignment shows to be missing."""
        return {} if met is None else binding_cuts(self.layouts.built, met[1], self.objective, CUT_LEAST)


def _solved_with_cuts(
    graphs: CostGraphs,
    question: Question,
    asked: tuple[CostGraph, MemoryRows],
    on_progress: Callable[[Progress], None] | None,
) -> Answering[tuple[_Reduced, Solution]]:
    """The question after all reductions, with the sums that its first assignment shows to be missing (one with equal
    layers, or else the solution), and its solution."""
    options = graphs.instance.options
    objective = question.objective or objective_of(asked[0])
    reduced = _reduced(graphs, question, asked, objective.base if question.is_late else objective)
    is_open = question.objective is None and question.linear is None and options.cost_model.is_ours
    is_open = is_open and not question.is_late
    solution: Solution | None = None
    bound = -math.inf  # of fewer sums: their maxima are no more
    for left in range(CUT_ROUNDS if is_open else 0, -1, -1):
        met = reduced.first(reduced.start.assignments)
        if met:
            yield met
        if not left:
            break
        if not reduced.start.assignments:
            solution = reduced.solved(question, options, on_progress)
            bound = max(bound, solution.bound)
            met = reduced.first(solution.candidates)
        cuts = reduced.binding_cuts(met)
        if not cuts or _is_over(question):
            break
        solution = None
        reduced = _reduced(graphs, question, asked, reduced.objective.with_cuts(cuts))
    solution = solution or reduced.solved(question, options, on_progress)
    return reduced, replace(solution, bound=max(bound, solution.bound))


def _is_over(question: Question) -> bool:
    """Whether time or Ctrl-C end a question with the answer that it has, which its deadline remembers."""
    is_over = question.deadline.interruption.asked or time.monotonic() >= question.ends_s
    question.deadline.by_clock |= is_over
    return is_over


def _reduced(
    graphs: CostGraphs, question: Question, asked: tuple[CostGraph, MemoryRows], objective: Objective
) -> _Reduced:
    """The question with an objective, after all reductions."""
    instance = graphs.instance
    restricting, transforming = chain(instance, question, objective)
    problems = _problems(graphs, question, asked, _linears(question, objective))
    restricted, _ = _applied(restricting, problems, question.deadline)
    *others, alike = transforming
    unmerged, undo = _applied(others, restricted, question.deadline)
    last, merged = _applied((alike,), unmerged, question.deadline)
    usual, given = (
        Start(tuple(each for each in multipliers if each), question.planes, question.memory_multipliers)
        for multipliers in (objective.usual_multipliers, question.start and fitting(question.start, objective))
    )
    start = given if given.sum_multipliers else usual
    starts = bool(question.planes or question.assignments or question.is_late)
    is_new = question.linear is None and not (_most_left(instance, question) or starts)
    if is_new and _averages(question, instance.options):
        start = _from_equal_layers(last, instance.options, question, usual) or start
    whole, problem = unmerged.sums[0].problem, last.sums[0].problem
    if question.known is not None:
        start = replace(start, assignments=_assignment(question.known, asked[0], problem))
    elif question.assignments:
        start = replace(start, assignments=_of_these_nodes(question.assignments, problem), starts_there=True)
    return _Reduced(objective, restricted.sums[0], whole, problem, [*undo, *merged], start)


def _assignment(known: Restrict, built: CostGraph, problem: Problem) -> tuple[Choices, ...]:
    """The assignment of the first choices that `known` allows; none if reductions gave the problem other nodes."""
    allowed = known(built)
    choices = tuple(int(allowed[node].argmax()) if node in allowed else 0 for node, _ in built.node_data)
    return _of_these_nodes([choices], problem)


def _of_these_nodes(assignments: Sequence[Choices], problem: Problem) -> tuple[Choices, ...]:
    """Those assignments that are assignments of a problem, whose nodes may be others after reductions."""
    sizes = [len(costs) for costs in problem.costs]

    def fits(choices: Choices) -> bool:
        return len(sizes) == len(choices) and all(one < size for one, size in zip(choices, sizes, strict=True))

    return tuple(filter(fits, assignments))


def _graph(graphs: CostGraphs, question: Question) -> tuple[CostGraph, MemoryRows]:
    """The cost graph that a question is about."""
    deadline, remat = question.deadline, question.remat
    if isinstance(remat, str):
        remat = flagged(graphs.asked(deadline)[0], remat)
    if question.near is not None:
        return graphs.near(question.near, remat, deadline)
    return graphs.asked(deadline) if remat is None else graphs.recomputing(remat, deadline)


def _problems(
    graphs: CostGraphs, question: Question, asked: tuple[CostGraph, MemoryRows], linears: Sequence[Linear]
) -> Problems:
    """The problems of layouts for every sum of the objective."""

    def layouts_of(priced: tuple[CostGraph, MemoryRows]) -> tuple[LayoutProblem, ...]:
        made = to_problems(*priced, question.limit_bytes, linears, question.deadline)
        return tuple(LayoutProblem(*(priced if question.chooses_remat else asked), problem, {}) for problem in made)

    if question.chooses_remat:
        repeated = graphs.recomputing(everything(asked[0]), question.deadline)
        return Problems(layouts_of(asked), layouts_of(repeated))
    is_open = question.limit_bytes is not None and not question.stay
    size_bytes = question.bucket_bytes
    priced = asked if size_bytes is None else (in_buckets(asked[0], size_bytes), asked[1])
    if not asked[0].recompute.held or not (question.regather or is_open):
        return Problems(layouts_of(priced))
    regathered = layouts_of(graphs.regathering(priced, question.deadline))
    return Problems(regathered) if question.regather else Problems(layouts_of(priced), regathered=regathered)


def _applied(
    reductions: Sequence[Reduction[Any]], problems: Problems, deadline: Deadline = NEVER
) -> tuple[Problems, list[tuple[Reduction[Any], Any]]]:
    """The problems after all of `reductions`, and the data that their inversions need. Raises `GivenUpError`."""
    undo = []
    for reduction in reductions:
        deadline.check()
        problems, data = reduction.apply(problems)
        undo.append((reduction, data))
    return problems, undo


def _inverted(undo: Sequence[tuple[Reduction[Any], Any]], choices: tuple[int, ...]) -> Assignment:
    """An assignment of the solver's problem, as an assignment of the problem of layouts."""
    assignment = Assignment(choices)
    for reduction, data in reversed(undo):
        assignment = reduction.invert(assignment, data)
    return assignment


def _from_equal_layers(problems: Problems, options: PlanOptions, question: Question, usual: Start) -> Start | None:
    """The question with the starting point that plans with equal layers give, if the model has equal layers: solving
    the problem of one layer takes a fraction of the time."""
    layers = EqualLayers(WORTH_FOLDING)
    alike, places = layers.apply(problems)
    if alike is problems:
        return None
    now = time.monotonic()
    ends_s = now + (question.ends_s - now) / 4
    asked = replace(question, ends_s=ends_s, averages=None, work=question.work / 4, below_s=math.inf, shortfall=False)
    found = _solved(alike.sums[0].problem, options, asked, usual, None)
    if found.choices is None:
        return None
    met = [layers.invert(Assignment(each), places).choices for each in found.candidates or (found.choices,)]
    return replace(usual, sum_multipliers=found.sum_multipliers, assignments=met)


def _solved(
    problem: Problem,
    options: PlanOptions,
    question: Question,
    start: Start,
    on_progress: Callable[[Progress], None] | None,
) -> Solution:
    question.deadline.check()
    left_s = question.ends_s - time.monotonic()
    if options.time_limit is not None:
        left_s = min(options.time_limit, left_s)
    found = solve(
        problem,
        time_limit=None if left_s == math.inf else max(0.0, left_s),
        gap=options.gap,
        seed=options.seed,
        presolve=options.presolve,
        on_progress=on_progress,
        unproven=question.unproven,
        start=start,
        averages=_averages(question, options),
        below=question.below_s * PS_PER_S,
        most_work=question.work,
        shortfall=question.shortfall,
        closes=question.averages is None and question.linear is None,
        is_patient=question.is_late and not question.deadline.armed,  # else there would be no plan at all
    )
    question.deadline.by_clock |= not found.reproducible
    return found
