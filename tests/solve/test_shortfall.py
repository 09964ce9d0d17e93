"""The least limit under which anything fits: found to the byte, or a bound of it when the budget ends."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from shardplan.solve import Edge, Problem, Usage, evaluate, shortfall
from shardplan.solve.budget import Budget
from shardplan.solve.shortfall import least_limit

CHOICES = 3


def trade_offs(seed: int, nodes: int = 7, unit: int = 1) -> Problem:
    """Nodes that use much now or much later, in a ring with chords whose ends may not all differ."""
    random = np.random.default_rng(seed)
    usages = []
    for node in range(nodes):
        for moment in random.choice(6, size=3, replace=False).tolist():
            amount = unit * random.integers(1, 40, size=CHOICES)
            usages.append(Usage(node, moment, moment + int(random.integers(1, 3)), amount.astype(np.int64)))
    for moment, share in enumerate(random.random(7).tolist()):  # what every choice uses is no whole number of units
        usages.append(Usage(0, moment, moment + 1, np.full(CHOICES, int(unit * share))))
    edges = []
    for u, v in itertools.combinations(range(nodes), 2):
        if v - u in (1, 3):
            table = np.where(random.random((CHOICES, CHOICES)) < 0.3, np.inf, 0.0)
            edges.append(Edge(u, v, table))
    return Problem(tuple(np.zeros(CHOICES) for _ in range(nodes)), tuple(edges), tuple(usages), limit=0)


def enumerated(problem: Problem) -> int | None:
    every = itertools.product(range(CHOICES), repeat=len(problem.costs))
    free = replace(problem, limit=None)
    return min((each.peak_bytes for choices in every if (each := evaluate(free, choices)).feasible), default=None)


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 50])
@pytest.mark.parametrize("unit", [1, 1000])
def test_least_limit_is_that_of_enumeration(seed: int, unit: int) -> None:
    problem = trade_offs(seed, unit=unit)
    assert least_limit(problem, Budget()) == enumerated(problem)


def test_memory_that_comes_in_pieces_is_tried_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand times larger amounts are not ten more halvings."""
    tried: list[int] = []
    one_try = shortfall._Small._try
    monkeypatch.setattr(shortfall._Small, "_try", lambda self, limit: (tried.append(limit), one_try(self, limit))[1])
    counts = []
    for unit in (1, 1 << 20):
        tried.clear()
        least_limit(trade_offs(3, unit=unit), Budget())
        counts.append(len(tried))
    assert counts[1] <= counts[0] + 8  # the steps up from the first bound are shares of it


def test_where_a_proof_takes_too_long_the_answer_is_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = trade_offs(3)
    least = enumerated(problem)
    monkeypatch.setattr(shortfall, "PROOF_WORK", 0.0)
    bound = least_limit(problem, Budget())
    assert bound is not None
    assert least is not None
    assert 0 < bound <= least


def test_budget_that_is_spent_leaves_a_bound() -> None:
    problem = trade_offs(5)
    least = enumerated(problem)
    bound = least_limit(problem, Budget(work_limit=0.0))
    assert bound is not None
    assert least is not None
    assert 0 < bound <= least


def test_nothing_is_allowed_at_any_limit() -> None:
    problem = trade_offs(0)
    closed = Edge(0, 1, np.full((CHOICES, CHOICES), np.inf))
    assert least_limit(replace(problem, edges=(*problem.edges, closed)), Budget()) is None
