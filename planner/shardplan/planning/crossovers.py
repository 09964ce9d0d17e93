"""Plans that mix the assignments that a search has met.

The best multipliers have several best assignments, such as one that computes more and one that sends more, and the
best plan is between them: some layers do one thing, and some another. A crossover mixes two of them at one place; a
stretch of one goes into another where the sums say so. The last assignments are scheduled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
from shardplan.planning.reduction import LayoutProblem
from shardplan.planning.search import Found, Questions, Search
from shardplan.schedule.objective import Weights, fitting
from shardplan.solve.linear_functions import Choices, Functions
from shardplan.solve.problem import SumMultipliers
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
    plans = [one for one in search.known.values() if one.layouts.built is whole.built and one is not candidate]
    ranked = [candidate, *sorted(plans, key=lambda one: one.step_s)]
    below = candidate.step_s * PS_PER_S  # what its sums say is a lower bound on the schedule of each
    others = (choices for choices, layouts in search.hopeless.items() if layouts.built is whole.built)
    met = (*(tuple(one.priced.choice.values()) for one in ranked), *others)
    copies = MergedCopies.of(whole, merges=search.instance.options.equal_layers)
    choices = list(dict.fromkeys(map(copies.merged, met)))
    crossovers = crossovers_with(copies.functions, CROSSOVER_PARENTS, choices, CROSSOVERS_JUDGED, below)
    assignments = [(candidate.layouts, copies.unmerged(one)) for one in crossovers]
    return found.better(search.judged(assignments), search.limit_bytes)


def with_stretches(search: Search, found: Found) -> Questions[Found]:
    """The best of the known plan and of those that take stretches of nodes from other assignments: from those met, and
    from those with equal layers at multipliers around the best ones."""
    yield from ()
    best, whole = found.candidate, found.whole
    if whole is None or best.layouts.built is not whole.built or found.gap <= STRETCHES_GAP or search.is_over:
        return found
    copies = MergedCopies.of(whole, merges=search.instance.options.equal_layers)
    known = sorted(search.known.values(), key=lambda one: one.step_s)
    met = [tuple(one.priced.choice.values()) for one in known if one.layouts.built is whole.built]
    met += [choices for choices, layouts in search.hopeless.items() if layouts.built is whole.built]
    near = _with_equal_layers(whole, met[0], fitting(found.multipliers, found.objective))
    others = list(dict.fromkeys(map(copies.merged, (*near, *met))))[: len(near) + STRETCHES_FROM]
    numbers = copies.functions.u.size * (1 + len(copies.functions.sums)) * len(others)
    rounds = min(STRETCHES_ROUNDS, int(STRETCHES_WORK / max(1, numbers)))
    made: list[Choices] = []
    for start in dict.fromkeys((copies.merged(met[0]), _cheapest(copies.functions, others))):
        made += with_stretches_of(copies.functions, start, others, rounds)[-STRETCHES_JUDGED:]
    return search.best_of(found, [(best.layouts, copies.unmerged(one)) for one in dict.fromkeys(made)])


def _cheapest(functions: Functions, assignments: Sequence[Choices]) -> Choices:
    """The first of the assignments of least cost."""
    return assignments[int(functions.costs(np.array(assignments)).argmin())]


def _with_equal_layers(whole: LayoutProblem, known: Choices, multipliers: Weights) -> list[Choices]:
    """The best assignments with equal layers at multipliers around the best ones, without a memory limit."""
    places = first_copies(whole.built, [cost.size for cost in whole.problem.costs])
    problem = folded(whole.problem, places)
    one_copy = dict(zip(places, known, strict=True))
    start = tuple([one_copy[place] for place in range(len(one_copy))])
    part = Subproblem.of(problem, start, range(len(start)))
    found = (part.best_at(weights) for weights in _around(multipliers))
    return [tuple([choices[place] for place in places]) for choices in dict.fromkeys(found) if choices is not None]


def _around(multipliers: Weights) -> Iterator[SumMultipliers]:
    """For each phase the multipliers on the way from the best ones to those of one of its sums, or of none."""
    best = tuple(weights for weights in multipliers if weights)
    for phase, weights in enumerate(best):
        for towards in range(-1, len(weights)):
            for share in STRETCHES_TOWARDS:
                moved = tuple([(1 - share) * weight + share * (k == towards) for k, weight in enumerate(weights)])
                yield (*best[:phase], moved, *best[phase + 1 :])
