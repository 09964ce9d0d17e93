"""What is told while a search goes on: the best step and the lower bound."""

from types import SimpleNamespace

import pytest

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.models import described
from shardplan.planning import PlanOptions, plan_model
from shardplan.planning.chain import Question
from shardplan.planning.standing import _holds_for_all


@pytest.mark.parametrize(
    ("question", "holds"),
    [
        (Question(None), True),
        (Question(100), True),
        (Question(99), False),
        (Question(None, regather=True), False),
        (Question(None, equal_layers=True), False),
        (Question(None, bucket_bytes=1.0), False),
    ],
)
def test_the_bounds_of_questions_about_all_plans_at_prices_of_the_schedule_are_told(question, holds):
    assert _holds_for_all(question, SimpleNamespace(limit_bytes=100, chooses_remat=False)) is holds


def test_the_bound_that_was_told_is_proven_in_the_end():
    """The bound of the first objective holds when sums are added that its assignment shows to be missing."""
    told = []
    cluster = make_cluster(load_profile("h100-dgx"), "2x8")
    model = described("transformer:layers=1,hidden=1024,heads=16,vocab=100,seq=64,batch=32")
    plan = plan_model(model, cluster, PlanOptions(), told.append)
    assert max(standing.bound for standing in told) <= 1000 * (plan.summary.step_bound_ns + 1)
