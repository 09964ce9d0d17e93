"""Plans that mix the assignments that a search has met.

The best multipliers have several best assignments, such as one that computes more and one that sends more, and the
best plan is between them: some layers do one thing, and some another. A crossover mixes two of them at one place; a
stretch of one goes into another where the sums say so. The last assignments are scheduled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, takewhile

import numpy as np

from shardplan.planning.constants import (
    CROSSOVER_PARENTS,
    CROSSOVERS_JUDGED,
    STRETCHES_FROM,
    STRETCHES_GAP,
    STRETCHES_JUDGED,
    STRETCHES_ROUNDS,
    STRETCHES_TOWARDS,
    STRETCHES_WORK,
)
from shardplan.planning.equal_layers import MergedCopies, first_copies, folded
from shardplan.planning.judge import Candidate
from shardplan.planning.reduction import LayoutProblem
from shardplan.planning.search import Found, Questions, Search
from shardplan.schedule.objective import Weights, fitting, towards_each_sum
from shardplan.solve.linear_functions import Choices, Functions
from shardplan.solve.search.crossover_of_problems import crossovers_with
from shardplan.solve.search.stretches import with_stretches_of
from shardplan.solve.subproblem import Subproblem
from shardplan.units import PS_PER_S


def crossed(search: Search, found: Found) -> Questions[Found]:
    """Crossovers of the best plans with all assignments met: one plan in the first layers, the other plan in
    the rest. Layers that have to be equal are one layer."""
    yield from ()
    candidate, whole = found.candidate, found.whole
    if whole is None or candidate.layouts.built is not whole.built:
        return found
    below = candidate.step_s * PS_PER_S  # what its sums say is a lower bound on the schedule of each
    copies = MergedCopies.of(whole, merges=search.instance.options.equal_layers)
    choices = list(dict.fromkeys(map(copies.merged, (choices_of(candidate), *met_by(search, whole)))))
    crossovers = crossovers_with(copies.functions, CROSSOVER_PARENTS, choices, CROSSOVERS_JUDGED, below)
    assignments = [(candidate.layouts, copies.unmerged(one)) for one in crossovers]
    return found.better(search.judged(assignments), search.limit_bytes)


def with_stretches(search: Search, found: Found) -> Questions[Found]:
    """The best of the known plan and of those that take stretches of nodes from other assignments: from those met, and
    from those with equal layers at multipliers around the best ones."""
    yield from ()
    best, whole = found.candidate, found.whole
    if whole is None or best.layouts.built is not whole.built or found.gap <= STRETCHES_GAP or search.is_over():
        return found
    copies = MergedCopies.of(whole, merges=search.instance.options.equal_layers)
    met = (*met_by(search, whole), choices_of(best))
    solved = _with_equal_layers(whole, met[0], fitting(found.multipliers, found.objective))
    near = list(dict.fromkeys(_while_there_is_time(search, solved)))
    others = list(dict.fromkeys(map(copies.merged, (*near, *met))))[: len(near) + STRETCHES_FROM]
    numbers = copies.functions.u.size * (1 + len(copies.functions.sums)) * len(others)
    rounds = min(STRETCHES_ROUNDS, int(STRETCHES_WORK / max(1, numbers)))
    made: list[Choices] = []
    for start in dict.fromkeys((copies.merged(met[0]), _cheapest(copies.functions, others))):
        better = islice(with_stretches_of(copies.functions, start, others), rounds)
        made += [*_while_there_is_time(search, better)][-STRETCHES_JUDGED:]
    return search.best_of(found, [(best.layouts, copies.unmerged(one)) for one in dict.fromkeys(made)])


def met_by(search: Search, whole: LayoutProblem) -> list[Choices]:
    """The assignments of a problem that a search has met: plans, those with the shortest steps first, and what was not
    scheduled."""
    plans = [one for one in search.known.values() if one.layouts.built is whole.built]
    others = (choices for choices, layouts in search.hopeless.items() if layouts.built is whole.built)
    return [*map(choices_of, sorted(plans, key=lambda one: one.step_s)), *others]


def choices_of(plan: Candidate) -> Choices:
    """The assignment of a plan."""
    return tuple(plan.priced.choice.values())


def _while_there_is_time(search: Search, found: Iterator[Choices]) -> Iterator[Choices]:
    return takewhile(lambda _: not search.is_over(), found)


def _cheapest(functions: Functions, assignments: Sequence[Choices]) -> Choices:
    """The first of the assignments of least cost."""
    return assignments[int(functions.costs(np.array(assignments)).argmin())]


def _with_equal_layers(whole: LayoutProblem, known: Choices, multipliers: Weights) -> Iterator[Choices]:
    """The best assignments with equal layers at multipliers around the best ones, without a memory limit."""
    places = first_copies(whole.built, [cost.size for cost in whole.problem.costs])
    problem = folded(whole.problem, places)
    one_copy = dict(zip(places, known, strict=True))
    start = tuple([one_copy[place] for place in range(len(one_copy))])
    part = Subproblem.of(problem, start, range(len(start)))
    for weights in towards_each_sum(multipliers, STRETCHES_TOWARDS):
        choices = part.best_at(weights)
        if choices is not None:
            yield tuple([choices[place] for place in places])
