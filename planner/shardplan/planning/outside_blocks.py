"""Plans that differ from the best one only outside of the repeated blocks, and in the first and last copy of each
(unless layers have to be equal).

Blocks decide what the best multipliers are. A few large choices outside of them, such as those of an embedding and of
the head, cannot be mixed as the choices of many equal blocks can: at any multipliers all of them go to one side. Their
problem is small while the blocks keep their choices, so it is solved at many multipliers, and the schedule decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from shardplan.planning.constants import OUTSIDE_GAIN, OUTSIDE_ROUNDS, OUTSIDE_TOWARDS, WORTH_FOLDING
from shardplan.planning.equal_layers import first_copies
from shardplan.planning.reduction import LayoutProblem
from shardplan.planning.search import Found, Questions, Search
from shardplan.schedule.objective import fitting, towards_each_sum
from shardplan.solve.subproblem import Subproblem


def outside_blocks(search: Search, found: Found) -> Questions[Found]:
    """The best of the known plan and of those that differ from it outside of the blocks. Nothing is tried for a model
    with few repetitions: it is all outside."""
    yield from ()
    whole = found.whole
    if whole is None or found.candidate.layouts.built is not whole.built:
        return found
    parts = _parts(whole)[: 1 if search.instance.options.equal_layers else None]
    for free in parts * OUTSIDE_ROUNDS:
        before_s = found.candidate.step_s
        if len(free) > WORTH_FOLDING * len(whole.problem.costs) or search.is_over():
            break
        found = _resolved(search, found, whole, free)
        if found.candidate.step_s > before_s * (1.0 - OUTSIDE_GAIN):
            break
    return found


def _parts(whole: LayoutProblem) -> tuple[list[int], list[int]]:
    """The nodes that are in no block, or in one that occurs once; and these with the first and last copy of each."""
    places = first_copies(whole.built, [cost.size for cost in whole.problem.costs])
    copies, passed = Counter(places), Counter[int]()
    alone: list[int] = []
    ends: list[int] = []
    for node, place in enumerate(places):
        passed[place] += 1
        if copies[place] == 1:
            alone.append(node)
        if passed[place] in (1, copies[place]):
            ends.append(node)
    return alone, ends


def _resolved(search: Search, found: Found, whole: LayoutProblem, free: Sequence[int]) -> Found:
    """The best of the known plan and of those in which the nodes `free` are optimal at multipliers around the best
    ones."""
    best = found.candidate
    part = Subproblem.of(whole.problem, tuple(best.priced.choice.values()), free)
    multipliers = fitting(found.multipliers, found.objective)  # the bound may be that of another question
    known = tuple(weights for weights in multipliers if weights)
    tried = (known, *towards_each_sum(multipliers, OUTSIDE_TOWARDS))
    near = dict.fromkeys(filter(None, map(part.best_at, tried)))
    return search.best_of(found, [(best.layouts, choices) for choices in near])
