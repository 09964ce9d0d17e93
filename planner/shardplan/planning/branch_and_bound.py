"""Branch and bound over where tensors are whole: bounds that no multipliers give, and plans on the way.

At the best multipliers several assignments are best together, such as one that sends more and one that computes more,
and the bound is that of a mixture of them which no plan is. A branch rules mixtures out: in one half of all plans a
tensor is whole along a mesh axis, in the other half it is split or partial. Each half has multipliers and a bound of
its own, no lower than that of both together, and the least bound of all open parts holds for every plan.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
from numpy.typing import NDArray

from shardplan.graph.build import CostGraph, Node
from shardplan.planning.constants import (
    BRANCH_AVERAGES,
    BRANCH_GAP,
    BRANCH_LEAST,
    BRANCH_PAIRS,
    BRANCHES,
    ROUGH_WORK,
)
from shardplan.planning.questions import about, asked, by_phase
from shardplan.planning.reduction import Allowed, LayoutProblem, Mask
from shardplan.planning.search import Found, Questions, Search
from shardplan.schedule.objective import Weights, fitting
from shardplan.solve.linear_functions import Choices
from shardplan.units import PS_PER_S


@dataclass(frozen=True)
class Part:
    """The plans that `allowed` leaves. `bound_s`: a lower bound on their steps; `multipliers`: those of that bound;
    `mixture`: the assignments that are best together at them, with their shares."""

    allowed: Allowed
    bound_s: float
    multipliers: Weights
    mixture: Mapping[Choices, float]


@dataclass(frozen=True)
class Split:
    """Two halves of the choices of one node: `mask` and the others."""

    node: Node
    mask: Mask

    def of(self, allowed: Allowed) -> Iterator[Allowed]:
        """What both halves of a part allow, unless that is nothing."""
        before = allowed.get(self.node, np.ones_like(self.mask))
        for half in (before & self.mask, before & ~self.mask):
            if half.any():
                yield {**allowed, self.node: half}


def branched(search: Search, found: Found) -> Questions[Found]:
    """The best of the known plan and of those met on the way, with the bound of all parts of the plans. The part with
    the least bound is split next, until no part has a bound far below the best step. Nothing is tried where the bound
    is as high as the sums of the best plan nearly allow."""
    whole = found.whole
    is_open = found.gap - found.excess > BRANCH_GAP and not search.regather
    if whole is None or found.candidate.layouts.built is not whole.built or not (found.mixture and is_open):
        return found
    left = _most_parts(search, whole)
    root = Part({}, found.bound_s, fitting(found.multipliers, found.objective), found.mixture)
    turn = count()
    parts = [(found.bound_s, next(turn), root)]  # those that may be split, the lowest bound first
    whole_s = found.candidate.step_s  # least bound of those that cannot be
    while parts and parts[0][0] < (1.0 - BRANCH_GAP) * found.candidate.step_s:
        if search.is_over() or left <= 0 or found.outcome == "interrupted":
            break
        bound_s, _, part = heapq.heappop(parts)
        split = _split(whole.built, part.mixture)
        if split is None:
            whole_s = min(whole_s, bound_s)
            continue
        for allowed in split.of(part.allowed):
            left -= 1
            found, half = yield from _bounded(search, found, replace(part, allowed=allowed))
            heapq.heappush(parts, (half.bound_s, next(turn), half))
    bound_s = min([whole_s, found.candidate.step_s, *(bound_s for bound_s, _, _ in parts)])
    return replace(found, bound_s=max(found.bound_s, bound_s))


def _bounded(search: Search, found: Found, part: Part) -> Questions[tuple[Found, Part]]:
    """The best of the known plan and of the plans of a part, and the part with a bound of its own, as far as there is
    time for it."""
    if search.is_over() or found.outcome == "interrupted":
        return found, part
    known = [choices for choices in part.mixture if _allows(part.allowed, choices, found.candidate.layouts.built)]
    question = replace(
        about(found, None, restriction=lambda _: part.allowed),
        start=part.multipliers,
        assignments=known,
        averages=BRANCH_AVERAGES,
        ends_s=search.share(2),
        below_s=found.candidate.step_s,
        shortfall=False,
    )
    answer = yield from asked(search, question, min(ROUGH_WORK, search.work_left))
    solution = answer.solution
    bound_s = max(part.bound_s, solution.bound / PS_PER_S)
    if solution.outcome == "interrupted":
        found = replace(found, outcome="interrupted")
    if solution.choices is None or answer.whole is None:
        return found, replace(part, bound_s=bound_s, mixture={})
    multipliers = by_phase(answer.objective, solution.sum_multipliers)
    part = Part(part.allowed, bound_s, multipliers, answer.mixture)
    return search.best_of(found, answer.candidates), part


def _most_parts(search: Search, whole: LayoutProblem) -> int:
    """The number of parts that the effort is worth."""
    effort, pairs = search.instance.options.effort, sum(edge.table.size for edge in whole.problem.edges)
    return min(BRANCHES[effort], int(BRANCH_PAIRS[effort] / max(1, pairs)))


def _allows(allowed: Allowed, choices: Choices, built: CostGraph) -> bool:
    return all(mask[choices[built.node_numbers[node]]] for node, mask in allowed.items())


def _split(built: CostGraph, mixture: Mapping[Choices, float]) -> Split | None:
    """The activation in the middle of those that a mixture has in two ways. Preferred are two halves that differ in
    whether an activation is whole along an axis, and then a division of the mixture that most activations share."""
    shares, choices = np.array(list(mixture.values())), np.array(list(mixture), dtype=np.int64)
    groups: dict[tuple[bool, tuple[bool, ...]], list[Split]] = {}
    for number, node in enumerate(node for node, _ in built.node_data):
        kind, name = node
        space = built.kept[name] if kind == "kept" else None
        if space is None or space.kind.traffic != "activation":
            continue
        replicated = len(space.kind.shards)
        for column in space.codes.T:
            met = column[choices[:, number]]
            if (met == met[0]).all():
                continue
            code = replicated if (met == replicated).any() else _most_divided(met, shares)
            side = (met == code) == (met[0] == code)
            groups.setdefault((code == replicated, tuple(side.tolist())), []).append(Split(node, column == code))

    def worth(key: tuple[bool, tuple[bool, ...]]) -> tuple[bool, float]:
        is_whole, side = key
        share = float(shares[list(side)].sum())
        less = min(share, 1.0 - share)
        return is_whole and less > BRANCH_LEAST, less * len(groups[key])

    if not groups:
        return None
    same = groups[max(groups, key=worth)]
    return same[len(same) // 2]


def _most_divided(met: NDArray[np.int64], shares: NDArray[np.float64]) -> int:
    """The code whose share of a mixture is nearest to a half."""
    codes: list[int] = sorted(set(met.tolist()))
    return min(codes, key=lambda code: abs(float(shares[met == code].sum()) - 0.5))
