"""The engine of large cores, on problems small enough to enumerate and on one that is not."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_problems import optimum, random_problem

from shardplan.solve import Edge, Problem, Progress, Usage, evaluate, small_cores, solve
from shardplan.solve.bound.subgradient import SubgradientAscent
from shardplan.solve.incumbent import Incumbent
from shardplan.solve.reduce.core import core_of
from shardplan.solve.reduce.graph import Contradiction, build
from shardplan.solve.reduce.memory import Profiles
from shardplan.solve.reduce.presolve import presolve
from shardplan.solve.reduce.tables import Tables
from shardplan.solve.search.assignment import Assignment, Space, polish
from shardplan.solve.search.rounding import round_primal
from shardplan.solve.search.tree import grow, improve, random_size

laws = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@laws
@given(st.integers(0, 10**6), st.integers(1, 8))
def test_presolve_keeps_the_optimum_and_restores_what_fits(seed: int, nodes: int) -> None:
    problem = random_problem(seed, nodes, forbidden=0.5)
    best = optimum(problem)
    assert problem.limit is not None
    try:
        graph = build(problem, Tables())
        presolve(graph, problem.limit)
    except Contradiction:
        assert best == math.inf
        return
    core = core_of(graph)
    profiles = Profiles(core.uses, core.offsets, graph.tables.arrays, graph.base)
    cheapest = math.inf
    for labels in itertools.product(*map(range, core.sizes.tolist())):
        choices = np.array(labels, dtype=np.int64)
        cost = core.cost(choices) / graph.scale
        restored = graph.invert(dict(zip(core.nodes, labels, strict=True)))
        if math.isfinite(cost) and profiles.of(choices).max(initial=0) <= problem.limit:
            priced = evaluate(problem, restored)
            assert priced.feasible
            assert priced.cost == cost
            assert graph.apply(restored, core.nodes) == list(labels)
            cheapest = min(cheapest, cost)
    assert cheapest == best


@laws
@given(st.integers(0, 10**6), st.integers(2, 8))
def test_large_engine_finds_the_optimum_of_small_problems(seed: int, nodes: int) -> None:
    problem = random_problem(seed, nodes)
    best = optimum(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small_cores, "CUTSET_NODES", -1)  # every core counts as large
        solution = solve(problem, work_limit=3000, seed=seed)
    assert solution.bound <= best <= solution.cost
    if solution.choices is not None:
        assert evaluate(problem, solution.choices).feasible
    if solution.outcome == "optimal":
        assert solution.cost == best


def test_cores_without_edges_do_not_shrink_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_cores, "CUTSET_NODES", -1)
    problem = random_problem(595749, 8)  # its core soon has no edges, and a gap
    solution = solve(problem, work_limit=3000, seed=595749)
    assert (solution.outcome, solution.cost) == ("optimal", optimum(problem))


def ascent(problem: Problem) -> tuple[Space, SubgradientAscent, float]:
    graph = build(problem, Tables())
    assert problem.limit is not None
    presolve(graph, problem.limit)
    core = core_of(graph)
    profiles = Profiles(core.uses, core.offsets, graph.tables.arrays, graph.base)
    return Space(core, profiles, problem.limit), SubgradientAscent(core, profiles, problem.limit), graph.scale


def test_assignments_stay_feasible_and_moves_never_cost_more() -> None:
    problem = random_problem(3, 300, choices=6)
    space, duals, _ = ascent(problem)
    rng = random.Random(0)
    for _ in range(20):
        duals.improve()
    found = round_primal(space, duals, rng)
    assert found is not None
    assert found.feasible()
    costs = [found.cost()]
    paid = [duals.paid[a:b] for a, b in itertools.pairwise(space.core.offsets.tolist())]
    for _ in range(40):
        change = improve(found, grow(space, rng, random_size(rng)), rng.choice([0.0, 0.3]), paid)
        costs.append(found.cost())
        assert found.feasible()
        assert change == costs[-1] - costs[-2] <= 0
    assert costs[-1] < costs[0]
    polish(found)
    assert found.feasible()
    assert duals.best.bound <= found.cost() <= costs[-1]


def test_trees_are_induced() -> None:
    space, _, _ = ascent(random_problem(5, 200))
    rng = random.Random(1)
    for _ in range(30):
        tree = grow(space, rng, 60)
        inside = {branch[0] for branch in tree}
        inner = sum(a in inside and b in inside for a, b in zip(space.core.first, space.core.second, strict=True))
        assert inner == len(tree) - 1


def test_tree_moves_are_exact_on_trees() -> None:
    rng = np.random.default_rng(0)
    tables = [np.floor(rng.random((4, 4)) * 90) for _ in range(7)]
    costs = tuple(np.floor(rng.random(4) * 90) for _ in range(8))
    edges = tuple(Edge(v // 2, v + 1, table) for v, table in enumerate(tables))
    usages = tuple(Usage(v, 0, 1, np.array([0, 1, 1, 1])) for v in range(8))
    problem = Problem(costs, edges, usages, 7)
    graph = build(problem, Tables())
    core = core_of(graph)
    profiles = Profiles(core.uses, core.offsets, graph.tables.arrays, graph.base)
    space = Space(core, profiles, 8)  # memory is slack
    start = Assignment(space, [0] * 8)
    improve(start, grow(space, random.Random(0), 8), 0.0, [])
    free = Problem(costs, edges)
    assert start.cost() / graph.scale == optimum(free)


def test_search_is_monotone_bounded_and_reproducible() -> None:
    problem = random_problem(11, 400, choices=6)
    runs = []
    for _ in range(2):
        seen: list[Progress] = []
        solution = solve(problem, work_limit=1200, seed=5, on_progress=seen.append)
        runs.append((solution.choices, solution.cost, solution.bound))
        assert solution.choices is not None
        assert evaluate(problem, solution.choices).feasible
        assert solution.reproducible
        assert all(a.best >= b.best and a.bound <= b.bound for a, b in itertools.pairwise(seen))
        assert solution.bound <= solution.cost
    assert runs[0] == runs[1]


def test_incumbent_takes_only_better_assignments() -> None:
    best = Incumbent(4.0)
    assert best.offer(40.0, lambda: (1,))
    assert not best.offer(44.0, lambda: (2,))
    best.prove(33.0)  # 8.25: costs are integers, so 9
    assert (best.choices, best.cost, best.bound, best.target) == ((1,), 40.0, 36.0, 36.0)
    best.prove(99.0)
    assert best.closed
