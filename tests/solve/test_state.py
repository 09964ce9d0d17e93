"""Messages that are pushed, cores that shrink, and assignments that follow them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_problems import optimum, random_problem

from shardplan.solve import evaluate
from shardplan.solve.reduce.core import core_of
from shardplan.solve.reduce.fixing import prune, surviving
from shardplan.solve.reduce.graph import Contradiction, build
from shardplan.solve.reduce.presolve import presolve
from shardplan.solve.reduce.tables import Tables
from shardplan.solve.search.assignment import completed, polish
from shardplan.solve.search.state import SearchState

laws = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def state_of(seed: int, nodes: int, choices: int = 3) -> tuple[SearchState, float, float]:
    """A state whose bound was raised, the scale of its costs, and the optimum."""
    problem = random_problem(seed, nodes, choices)
    assert problem.limit is not None
    graph = build(problem, Tables())
    presolve(graph, problem.limit)
    state = SearchState(graph, problem.limit)
    for _ in range(12):
        state.duals.improve()
    return state, graph.scale, optimum(problem) if nodes <= 8 else math.nan


@laws
@given(st.integers(0, 10**6), st.integers(2, 8), st.floats(0.0, 5.0))
def test_pushed_messages_prove_a_bound_too(seed: int, nodes: int, share: float) -> None:
    try:
        state, scale, best = state_of(seed, nodes)
    except Contradiction:
        return
    dual = state.duals.dual
    for _ in range(4):
        before = dual.messages.copy()
        dual.sweep()
        dual.push(before, share)
        dual.sweep()
        assert state.duals.bound() / scale <= best
        spread = state.core.costs + state.duals.paid
        np.add.at(spread, dual._receivers, dual.messages)
        assert np.array_equal(spread, dual.theta)  # theta is what the messages say


@laws
@given(st.integers(0, 10**6), st.integers(2, 8), st.integers(0, 40))
def test_pruning_keeps_everything_up_to_the_ceiling(seed: int, nodes: int, above: int) -> None:
    try:
        state, scale, best = state_of(seed, nodes)
    except Contradiction:
        return
    if not math.isfinite(best):
        return
    ceiling = (best + above) * scale
    target = ceiling + state.restore_best()
    counted = surviving(state.duals.dual, target)
    trial = state.graph.copy()
    prune(trial, state.duals.dual, target, adopt=False)
    trial.propagate()  # choices without a partner are forbidden only now
    assert sum(np.isfinite(table).sum() for table in core_of(trial).tables) <= counted
    left = state.pruned(target)
    assert left.const <= ceiling
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shardplan.solve.search.state.STATE_SHRINKS", math.inf)
        patch.setattr("shardplan.solve.search.state.STATE_SHRUNK", math.inf)
        smaller = state.smaller(ceiling)
    assert smaller is not None
    for _ in range(12):
        smaller.duals.improve()
    assert smaller.duals.best.bound / scale <= best or not smaller.core.nodes


def test_ceilings_below_the_bound_leave_nothing() -> None:
    state, scale, _ = state_of(4, 8)
    with pytest.raises(Contradiction):
        state.pruned(state.duals.best.bound - scale + state.restore_best())


def test_assignments_follow_into_smaller_cores() -> None:
    problem = random_problem(7, 60, choices=5)
    assert problem.limit is not None
    graph = build(problem, Tables())
    before = graph.copy()
    presolve(graph, problem.limit)
    state = SearchState(graph, problem.limit)
    rng = np.random.default_rng(0)
    assert -1 in graph.apply(tuple(int(rng.integers(size)) for size in before.sizes), state.core.nodes)
    found = completed(state.space, [-1] * len(state.core.nodes))
    assert found is not None
    polish(found)
    whole = graph.invert(dict(zip(state.core.nodes, found.labels, strict=True)))
    assert evaluate(problem, whole).cost == found.cost() / graph.scale
    partial = graph.apply(whole, state.core.nodes)
    assert partial == found.labels
    partial[::2] = [-1] * len(partial[::2])
    again = completed(state.space, partial)
    assert again is None or again.feasible()


def test_likeliest_labels_hold_an_assignment_and_grow_with_the_width() -> None:
    state, _, _ = state_of(3, 80, choices=6)
    found = completed(state.space, [-1] * len(state.core.nodes))
    assert found is not None
    few, many = (state.likeliest(found.choices(), width) for width in (50.0, 600.0))
    for label, some, more in zip(found.labels, few, many, strict=True):
        assert label in some
        assert set(some) <= set(more)
    assert sum(map(len, few)) < sum(map(len, many))
