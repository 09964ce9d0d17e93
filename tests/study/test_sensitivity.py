"""What a plan is worth when the profile is wrong."""

import json
import math

import numpy as np
import pytest

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.perturb import constants, perturbed
from shardplan.cluster.profile import load_profile
from shardplan.models import transformer
from shardplan.planning import Planner, PlanOptions, plan_model
from shardplan.planning.decided import Decided
from shardplan.study.sensitivity import _slack, drawn, regret, robustness

SIZES = {"layers": 1, "hidden": 1024, "heads": 16, "vocab": 4096, "seq": 512, "batch": 16}
OPTIONS = PlanOptions(effort="quick")


@pytest.fixture(scope="module")
def model():
    return transformer(**SIZES)


@pytest.fixture(scope="module")
def cluster():
    return make_cluster(load_profile("h100-dgx"), "1x4")


@pytest.fixture(scope="module")
def plan(model, cluster):
    return plan_model(model, cluster, OPTIONS)


def test_a_plan_can_be_held_to(model, cluster, plan):
    again = Planner(model, cluster, OPTIONS).plan(Decided.of_plan(plan).fixed)
    assert again.operators == plan.operators
    assert again.tensors == plan.tensors
    assert again.summary.step_ns == plan.summary.step_ns


def test_the_best_plan_has_no_regret_where_it_is_the_best(model, cluster, plan):
    assert regret(model, cluster, OPTIONS, plan) == 0.0


def test_a_plan_for_another_machine_has_some(model, cluster, plan):
    slow = perturbed(cluster, {"up bandwidth": 0.02})
    assert regret(model, slow, OPTIONS, plan) > 0.05


def test_ends_of_the_slack_are_around_the_profile(model, cluster, plan):
    counted = []
    found = robustness(model, cluster, OPTIONS, plan, draws=2, on_done=lambda *told: counted.append(told))
    assert [slack.constant for slack in found.slacks] == list(constants(cluster))
    assert all(0 <= slack.low <= 1 <= slack.high for slack in found.slacks)
    assert len(found.regrets) == 2
    assert 0 <= found.regrets[0] <= found.regrets[1] < math.inf
    assert 2 + 2 * len(found.slacks) <= len(counted) <= 2 + 6 * len(found.slacks)
    totals = [done + left for done, left in counted]
    assert [done for done, _ in counted] == list(range(1, len(counted) + 1))
    assert totals == sorted(totals, reverse=True)
    assert (totals[0], totals[-1]) == (2 + 6 * len(found.slacks), len(counted))


def test_ends_of_the_slack_are_where_another_plan_becomes_better():
    """Between 0.8 and 1.5 times the constant the plan is the best; the interval is halved twice on the logarithm."""
    found = _slack("up", lambda factors, _: 0.0 if 0.8 <= factors["up"] <= 1.5 else 1.0)
    assert (found.low, found.high) == (pytest.approx(2**-0.25), pytest.approx(2**0.5))


def test_draws_depend_on_the_seed_alone(cluster):
    one, same, other = (drawn(cluster, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert one == same != other


def test_the_command_says_it(shardplan_run):
    described = "transformer:" + ",".join(f"{name}={size}" for name, size in SIZES.items())
    quick = ("--effort", "quick")
    run = shardplan_run("solve", described, "--mesh", "1x2", "--robust", "1", "-c", "generic", *quick)
    assert run[0] == 0
    assert "of 1 perturbed profiles (±15.0 %)" in run[1]
    document = shardplan_run("solve", described, "--mesh", "1x2", "--robust", "1", "-c", "generic", *quick, "--json")[1]
    found = json.loads(document)["result"]["robustness"]
    assert len(found["regrets"]) == 1
    assert [slack["constant"] for slack in found["slacks"]] == list(
        constants(make_cluster(load_profile("generic"), "1x2"))
    )


@pytest.fixture
def shardplan_run(tmp_path, monkeypatch, capsys):
    from shardplan.cli import main

    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        code = main(arguments)
        return code, capsys.readouterr().out

    return run
