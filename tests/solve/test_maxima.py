"""Sums of maxima as a caller sees them: known optima, multipliers, candidates, refusals, and steps that fail."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from random_problems import optimum, problem_of_maxima, random_problem

from shardplan.errors import ShardplanError
from shardplan.solve import LinearSum, Maximum, Problem, Start, Usage, evaluate, small_cores, solve, solver
from shardplan.solve.bound.dual import Dual
from shardplan.solve.bound.lagrange import DeadEnd, Relaxation
from shardplan.solve.bound.multipliers import lagrangian
from shardplan.solve.budget import Budget
from shardplan.solve.highs.program import HighsError, Program
from shardplan.solve.prove import exact
from shardplan.solve.reduce.core import core_of
from shardplan.solve.reduce.graph import Contradiction, Graph, build
from shardplan.solve.reduce.memory import Profiles
from shardplan.solve.reduce.sums import sums_to_nodes
from shardplan.solve.reduce.tables import Tables


def phases(count: int = 8) -> Problem:
    """Nodes that compute 3 or send 2, in either of two phases; a phase takes the longer of compute and traffic."""
    zeros, sends, computes = np.zeros(2), np.array([0.0, 2.0]), np.array([3.0, 0.0])
    own = tuple(sends for _ in range(count))
    groups = []
    for phase in range(2):
        mine = [node % 2 == phase for node in range(count)]
        groups.append(Maximum((LinearSum(tuple(computes - sends if one else zeros for one in mine), ()),)))
    return Problem(own, (), maxima=tuple(groups))


def graph_of(problem: Problem) -> Graph | None:
    """The graph whose nodes have all sums of a problem; none where nothing is allowed."""
    wide = sums_to_nodes(problem)
    try:
        graph = build(wide.problem, Tables(), wide.amounts, wide.groups)
        graph.propagate()
    except Contradiction:
        return None
    return graph


def test_two_phases_balance_compute_and_traffic_each() -> None:
    """Of 4 nodes in a phase, 2 compute and 2 send: max(6, 4) = 6; 1 and 3: max(3, 6) = 6."""
    solution = solve(phases())
    assert (solution.outcome, solution.cost) == ("optimal", 12.0)
    assert solution.choices in solution.candidates
    assert all(0.0 <= weight <= 1.0 for group in solution.sum_multipliers for weight in group)


def test_multipliers_to_start_from_change_no_optimum() -> None:
    for start in (((0.0,), (0.0,)), ((1.0,), (0.25,))):
        assert solve(phases(), start=Start(start)).cost == 12.0


@pytest.mark.parametrize("seed", range(60))
def test_multipliers_that_add_up_to_more_than_one_give_a_bound_all_the_same(seed: int) -> None:
    """Above one in all, or below zero, their averages may be above the maxima."""
    problem = problem_of_maxima(seed, memory=False)
    graph = graph_of(problem)
    if graph is None:
        return
    profiles = Profiles(graph.uses, np.cumsum([0, *graph.sizes]), graph.tables.arrays, graph.base)
    relaxation = Relaxation(graph, 0, Budget(), profiles)
    choose = np.random.default_rng(seed).choice
    start = tuple(tuple(choose([0.0, 0.03, 0.9, 1.0], len(group.sums)).tolist()) for group in problem.maxima)
    point = relaxation.at(small_cores.first_multipliers(relaxation, start))
    assert point.bound <= optimum(problem) * graph.scale
    assert all(multiplier >= 0.0 for multiplier in point.multipliers.values())


@pytest.mark.parametrize("seed", range(60))
def test_highs_has_one_epigraph_per_maximum_at_any_multipliers(seed: int) -> None:
    problem = problem_of_maxima(seed, memory=False)
    graph = graph_of(problem)
    if graph is None:
        return
    rng = np.random.default_rng(seed)
    multipliers = {}
    for group in graph.hinges:
        shares = np.floor(rng.dirichlet(np.ones(len(group) + 1)) * 64) / 64
        multipliers |= {
            moment: share * graph.scale for moment, share in zip(group, shares.tolist(), strict=False) if share
        }
    core = core_of(graph)
    dual = Dual(core_of(lagrangian(graph, multipliers)))
    dual.sweep()
    profiles = Profiles(core.uses, core.offsets, graph.tables.arrays, graph.base)
    program = Program(dual, Budget(), np.inf, profiles, 0, multipliers, hinges=graph.hinges, over=graph.scale)
    answer = program.solve()
    assert answer.choices is not None
    assert core.cost(answer.choices) + answer.above == optimum(problem) * graph.scale


@pytest.mark.parametrize("fault", [DeadEnd, HighsError])
@pytest.mark.parametrize("seed", range(8))
def test_a_step_that_fails_only_weakens_the_bound(seed: int, fault: type[Exception], monkeypatch) -> None:
    problem = problem_of_maxima(seed, memory=bool(seed % 2))
    best = optimum(problem)

    def fail(*_: object) -> None:
        raise fault

    if fault is DeadEnd:
        look = Relaxation.look
        left = [2]

        def look_twice(self: Relaxation, multipliers: dict[int, float]):
            left[0] -= 1
            return look(self, multipliers) if left[0] >= 0 else fail()

        monkeypatch.setattr(Relaxation, "look", look_twice)
    else:
        monkeypatch.setattr(Program, "_run", fail)
    solution = solve(problem, presolve=fault is DeadEnd)
    assert solution.bound <= best <= solution.cost
    assert solution.choices is None or evaluate(problem, solution.choices).feasible


def test_a_maximum_needs_sums_of_the_right_shape() -> None:
    problem = Problem((np.zeros(2),), (), (Usage(0, 0, 1, np.zeros(2, np.int64)),), 0)
    for maxima, summary in (
        ((Maximum(()),), "maximum 0: has no sums"),
        (
            (Maximum((LinearSum((np.zeros(3),), ()),)),),
            "maximum 0, sum 0: has not one number for every choice",
        ),
        ((Maximum((LinearSum((np.full(2, np.inf),), ()),)),), "maximum 0, sum 0: a number is not a finite integer"),
    ):
        with pytest.raises(ShardplanError) as caught:
            solve(replace(problem, maxima=maxima))
        assert caught.value.diagnostics[0].summary.startswith(summary)


def test_one_maximum_at_a_time_raises_the_lagrangian_bound_and_never_above_the_optimum(monkeypatch) -> None:
    """Nothing else that recombines or proves is there to close the gap."""
    for name in ("_finish", "_fuse", "_crossover"):
        monkeypatch.setattr(small_cores, name, lambda *_: None)
    problems = [problem_of_maxima(seed, memory=False) for seed in range(40)]
    bounds = [solve(problem).bound for problem in problems]
    monkeypatch.setattr(small_cores, "one_by_one", lambda *_: None)
    lagrangian = [solve(problem).bound for problem in problems]
    assert all(less <= more <= optimum(one) for less, more, one in zip(lagrangian, bounds, problems, strict=True))
    assert sum(less < more for less, more in zip(lagrangian, bounds, strict=True)) >= 2


@pytest.mark.parametrize("seed", range(20))
def test_averages_that_begin_with_the_optimum_end_with_it(seed: int) -> None:
    problem = problem_of_maxima(seed, memory=False)
    every = itertools.product(*(range(len(costs)) for costs in problem.costs))
    best = min((evaluate(problem, one).cost, one) for one in every if evaluate(problem, one).feasible)
    found = solve(problem, averages=4, gap=0.1, start=Start(assignments=[best[1]]))
    assert found.bound <= best[0] == found.cost


def test_a_gap_that_may_stay_open_on_large_cores_leaves_valid_bounds(monkeypatch) -> None:
    monkeypatch.setattr(exact, "EXACT_LARGE_PAIRS", 0)
    monkeypatch.setattr(solver, "AVERAGES_LARGE_UNPROVEN", 0.2)
    gaps = []
    for seed in range(30):
        problem = replace(random_problem(seed, 8), usages=(), limit=None)
        found = solve(problem, unproven=0.5)
        assert found.bound <= optimum(problem) <= found.cost <= found.bound / 0.8
        gaps.append(found.cost - found.bound)
    assert 0 < sum(map(bool, gaps)) < len(gaps)
