"""There is always a plan once one is known to fit: limits, efforts and failures only weaken its bound."""

import math
from dataclasses import replace

import pytest
from random_problems import optimum, problem_of_maxima, random_problem

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.errors import LimitError
from shardplan.models import described
from shardplan.planning import Planner, PlanOptions, plan_model
from shardplan.planning.infeasible import out_of_time
from shardplan.solve import evaluate, solve
from shardplan.units import PS_PER_NS

MODEL = "transformer:hidden=256,layers=2,heads=8,ffn=1024,vocab=1024,batch=8,seq=128"


@pytest.fixture(scope="module")
def model():
    return described(MODEL)


@pytest.fixture(scope="module")
def cluster():
    return make_cluster(load_profile("h100-dgx"), "2x4")


@pytest.fixture(scope="module")
def best(model, cluster):
    return plan_model(model, cluster, PlanOptions())


@pytest.fixture
def survives(monkeypatch):
    """As outside of tests: an answer survives defects."""
    monkeypatch.delenv("SHARDPLAN_CHECK_PRICES")


def fails(*_, **__):
    raise ZeroDivisionError("on purpose")


def test_a_search_of_no_time_has_a_plan_and_no_bound_above_the_best_step(model, cluster, best):
    plan = plan_model(model, cluster, PlanOptions(time_limit=1e-6))
    assert plan.summary.step_ns >= plan.summary.bound_ns
    assert plan.summary.bound_ns <= best.summary.step_ns
    assert not plan.summary.reproducible


def test_a_proof_that_fails_leaves_the_plan_and_the_bound_of_a_search_with_a_gap(model, cluster, best, monkeypatch):
    def searched(self, search, *given):
        if not self.instance.options.gap:
            raise LimitError(out_of_time(self.instance.model, self.instance.cluster))
        return Planner._searched(self, search, *given)

    class Unproven(Planner):
        _searched = searched

    plan = Unproven(model, cluster, PlanOptions(gap=0.0)).plan()
    assert (plan.summary.step_ns, plan.summary.bound_ns) == (best.summary.step_ns, best.summary.bound_ns)


def test_no_bound_that_is_told_meanwhile_is_above_the_proven_one(model):
    """Questions under less memory, or as if all weights were gathered again, have bounds that hold for them alone."""
    cluster, told = make_cluster(load_profile("generic"), "2x2"), []
    options = PlanOptions(memory_limit_bytes=40 << 20, effort="quick")
    plan = plan_model(model, cluster, options, on_progress=told.append)
    assert max(standing.bound for standing in told) <= (plan.summary.bound_ns + 1) * PS_PER_NS
    assert any(math.isfinite(standing.bound) for standing in told)


def test_a_proof_that_fails_leaves_a_plan_a_bound_and_a_warning(model, cluster, best, survives, monkeypatch):
    monkeypatch.setattr("shardplan.solve.solver.close", fails)
    heard = []
    plan = plan_model(model, cluster, PlanOptions(), on_warning=heard.append)
    assert plan.summary.bound_ns <= best.summary.step_ns <= 2 * plan.summary.step_ns
    said = [str(one) for one in heard if one.code == "search-failed"]
    assert said
    assert said[0] == (
        "warning[search-failed]: a step of the search was given up: ZeroDivisionError: on purpose\n"
        "hint: the plan stands; please report this defect of shardplan as CONTRIBUTING.md says"
    )


def test_in_tests_a_proof_that_fails_is_an_error(model, cluster, monkeypatch):
    monkeypatch.setattr("shardplan.solve.solver.close", fails)
    with pytest.raises(ZeroDivisionError):
        plan_model(model, cluster, PlanOptions())


def test_where_every_question_fails_a_person_hears_of_a_limit(model, cluster, survives, monkeypatch):
    monkeypatch.setattr("shardplan.solve.solver.close", fails)
    monkeypatch.setattr("shardplan.solve.solver.fit", fails)
    with pytest.raises(LimitError):
        plan_model(model, cluster, PlanOptions())


@pytest.mark.parametrize("effort", [0.0, 0.01, 0.1, 1.0, math.inf])
@pytest.mark.parametrize("seed", range(6))
def test_an_effort_ends_with_an_assignment_and_a_bound_that_holds(seed, effort):
    for problem in (replace(random_problem(seed, 9), limit=None), problem_of_maxima(seed, memory=False)):
        least, found = optimum(problem), solve(problem, most_work=effort)
        assert found.reproducible
        assert found.bound <= least
        assert found.choices is not None
        assert evaluate(problem, found.choices).cost == found.cost >= least
        assert effort < math.inf or found.cost == least


def test_a_tighter_effort_gives_the_same_plan_twice(model, cluster, monkeypatch):
    monkeypatch.setattr(
        "shardplan.planning.constants.SEARCH_WORK", dict.fromkeys(("quick", "thorough", "exhaustive"), 1e-3)
    )
    one, other = (plan_model(model, cluster, PlanOptions()) for _ in range(2))
    assert one == other
    assert one.summary.reproducible
