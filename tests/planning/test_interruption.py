"""Ctrl-C at any moment: what is known is kept, and where there is nothing yet it ends the search."""

import math
import signal
from dataclasses import replace

import pytest
from random_problems import problem_of_maxima

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.interruption import Interruption
from shardplan.models import described
from shardplan.pipeline.plan import plan_stages
from shardplan.pipeline.schedule import parse_schedule
from shardplan.planning import PlanOptions, plan_model
from shardplan.solve import solve
from shardplan.study.meshes import best_of, try_meshes

MODEL = "transformer:hidden=256,layers=1,heads=8,ffn=1024,vocab=1024,batch=8,seq=128"


@pytest.fixture(scope="module")
def model():
    return described(MODEL)


def on(mesh):
    return make_cluster(load_profile("h100-dgx"), mesh)


class Hurry:
    """Presses Ctrl-C when it hears of progress for the `number`th time; `known`: whether there was a plan then."""

    def __init__(self, number):
        self.left, self.known, self.pressed = number, False, False

    def __call__(self, standing):
        self.left -= 1
        if self.left == 0:
            self.known, self.pressed = math.isfinite(standing.best), True
            signal.raise_signal(signal.SIGINT)


def outcomes(search, numbers):
    """What comes of pressing Ctrl-C at each of these moments."""
    for number in numbers:
        hurry = Hurry(number)
        try:
            plan = search(hurry)
        except KeyboardInterrupt:
            assert not hurry.known
            yield "nothing"
        else:
            assert plan.summary.outcome == "interrupted" or not hurry.pressed
            assert plan.summary.bound_ns <= plan.summary.step_ns
            yield plan.summary.outcome


@pytest.mark.parametrize(
    ("mesh", "moments"), [("2x4", (1, 3, 6, 10, 15, 21)), ("4x2x2", (1, 6, 15)), ("2x2x2x2", (3, 10, 21))]
)
def test_a_plan_that_is_known_survives_ctrl_c(model, mesh, moments):
    cluster = on(mesh)
    found = list(outcomes(lambda hurry: plan_model(model, cluster, PlanOptions(), hurry), moments))
    assert "interrupted" in found


def test_the_best_plan_is_told_while_the_search_goes_on(model):
    told = []
    plan = plan_model(model, on("2x4"), PlanOptions(), told.append)
    best = [standing.best for standing in told if math.isfinite(standing.best)]
    assert len(best) > 1, "it was told more than once, so before the end"
    assert best == sorted(best, reverse=True)
    assert round(best[-1] / 1000) >= plan.summary.step_ns > 0


def test_the_first_plan_is_told_before_a_bound_is_known_and_survives_ctrl_c():
    """With equal layers a plan is known long before the answer to the first question."""
    told = []

    def hurry(standing):
        told.append(standing)
        if math.isfinite(standing.best) and sum(math.isfinite(one.best) for one in told) == 1:
            signal.raise_signal(signal.SIGINT)

    model = described(MODEL.replace("layers=1", "layers=4"))
    plan = plan_model(model, on("2x4"), PlanOptions(effort="quick"), hurry)
    first = next(standing for standing in told if math.isfinite(standing.best))
    assert first.bound == -math.inf
    assert plan.summary.outcome == "interrupted"
    assert plan.summary.step_ns * 1000 <= first.best + 1000


def test_a_proof_that_nothing_fits_is_no_less_one_after_ctrl_c():
    """Its outcome was `interrupted`, with an infinite bound, which the planner took for a defect of its own."""
    problem = replace(problem_of_maxima(0, memory=True), limit=0)
    with Interruption(armed=True):
        signal.raise_signal(signal.SIGINT)
        assert solve(problem, averages=3).outcome == "infeasible"


def test_a_pipeline_that_is_known_survives_ctrl_c(model):
    options, schedule = PlanOptions(microbatches=4), parse_schedule("1f1b")

    def search(hurry):
        return plan_stages(model, on("2x4"), options, schedule, on_progress=hurry)

    assert "interrupted" in list(outcomes(search, (8, 16, 24, 32, 48)))


def test_the_best_of_the_meshes_that_are_done_survives_ctrl_c(model):
    profile, meshes = load_profile("h100-dgx"), ("machine=2,gpu=4", "machine=2,gpu0=2,gpu1=2")
    hurry = Hurry(30)
    trials = try_meshes(model, profile, PlanOptions(effort="quick"), meshes, on_progress=hurry)
    assert best_of(trials) is not None


def test_until_there_is_something_to_keep_ctrl_c_ends():
    with Interruption() as outer:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with Interruption() as inner:
            inner.arm()
            signal.raise_signal(signal.SIGINT)
            assert inner.asked
        assert outer.asked
        with Interruption() as later:
            assert later.asked
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_is_kept_inside_is_worth_keeping_outside():
    with Interruption() as outer:
        with Interruption() as inner:
            inner.arm()
        signal.raise_signal(signal.SIGINT)
        assert outer.asked
