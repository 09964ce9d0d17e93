"""Parts of other assignments in the best one, judged by their schedules."""

import numpy as np
import pytest
from random_problems import problem_of_maxima

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.models import described
from shardplan.planning import PlanOptions, branch_and_bound, plan_model, recombinations
from shardplan.planning.recombinations import divisions_of, promising
from shardplan.solve import evaluate
from shardplan.solve.linear_functions import Functions


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("seed", range(20))
def test_every_part_costs_what_the_evaluator_says(seed: int, copies: int) -> None:
    problem = problem_of_maxima(seed, memory=False)
    functions, count = Functions.of(problem), len(problem.costs)
    rng = np.random.default_rng(seed)
    one, other = (tuple(int(rng.integers(len(cost))) for cost in problem.costs) for _ in range(2))
    places = tuple(node // copies for node in range(count)) if copies > 1 else ()
    for division in divisions_of(count, places):
        costs = division.costs(functions, one, other)
        assert len(costs) == len(division.parts)
        for part, cost in zip(division.parts, costs.tolist(), strict=True):
            expected = evaluate(problem, division.joined(part, one, other)).cost
            assert cost == expected or (np.isinf(cost) and np.isinf(expected))


def test_parts_are_stretches_of_the_graph_and_of_the_block_in_some_copies() -> None:
    """A node outside, then three copies of two nodes."""
    of_graph, of_blocks = divisions_of(7, (0, 1, 2, 1, 2, 1, 2))
    assert len(of_graph.parts) == 7 * 8 // 2
    joined = {of_blocks.joined(part, (0,) * 7, (1,) * 7) for part in of_blocks.parts}
    assert (0, 1, 0, 1, 0, 1, 0) in joined  # the first half of all copies
    assert (0, 0, 0, 1, 1, 0, 0) in joined  # the copy in the middle
    assert (0, 0, 0, 0, 1, 0, 1) in joined  # the second half of the last two
    assert not any(choices[0] for choices in joined)
    assert len(joined) == 3 * 6


@pytest.mark.parametrize("seed", range(10))
def test_what_is_promising_is_new_and_costs_less_than_asked(seed: int) -> None:
    problem = problem_of_maxima(seed, memory=False)
    functions, rng = Functions.of(problem), np.random.default_rng(seed)
    best, *others = (tuple(int(rng.integers(len(cost))) for cost in problem.costs) for _ in range(5))
    below, tried = 1.2 * functions.costs(np.array([best]))[0], {best, *others}
    divisions = divisions_of(len(problem.costs), ())
    found = promising(functions, divisions, best, others, below, tried)
    costs = [evaluate(problem, choices).cost for choices in found]
    assert costs == sorted(costs)
    assert all(cost < below for cost in costs)
    assert not tried & set(found)
    assert not set(found) & set(promising(functions, divisions, best, others, below, {*tried, *found}))


def test_parts_of_other_plans_shorten_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    model = described("transformer:style=gpt,layers=2,hidden=1024,heads=16,vocab=32000,seq=128,batch=16")
    cluster = make_cluster(load_profile("h100-dgx"), "2x4")
    monkeypatch.setitem(branch_and_bound.BRANCHES, "thorough", 0)
    found = plan_model(model, cluster, PlanOptions()).summary
    monkeypatch.setattr(recombinations, "RECOMBINED_GAP", 1.0)
    without = plan_model(model, cluster, PlanOptions()).summary
    assert found.step_ns < 0.99 * without.step_ns
