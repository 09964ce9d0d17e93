"""Plans for gradient buckets of the size that a schedule has."""

from __future__ import annotations

import numpy as np
import pytest

from shardplan.graph.build import in_buckets
from shardplan.plan.step.buckets import buckets_of, device_bytes
from shardplan.planning.answers import Answers
from shardplan.planning.constants import BUCKET_GAP, BUCKET_SHARE
from shardplan.planning.instance import instance_of
from shardplan.planning.questions import of_phases
from shardplan.planning.scheduled_buckets import at_scheduled_buckets
from shardplan.planning.search import Search
from shardplan.request import Request
from shardplan.study.instance import read

MODEL = "transformer:layers=2,hidden=1024,heads=16,vocab=1000,seq=256,batch=64"


@pytest.fixture(scope="module")
def answers():
    asked = read(Request(model=MODEL, mesh="4x8"))
    return Answers(instance_of(asked.model, asked.cluster, asked.options, pytest.fail), pytest.fail)


@pytest.fixture(scope="module")
def first(answers):
    """A search after its first question, and what that found."""
    search = Search.of(answers.instance)
    return search, answers.to(of_phases(search, None), search)


def test_smaller_buckets_are_never_cheaper_and_leave_the_choices(answers) -> None:
    built, _ = answers.graphs.asked()
    before = built.all_work
    full, *smaller = (in_buckets(built, share * built.prices.bucket_bytes).all_work for share in (1.0, 0.5, 0.1))

    for mine, other in zip(before, full, strict=True):
        assert all(map(np.array_equal, mine, other))
    dearer = 0
    for larger, less in zip([full, *smaller], smaller, strict=False):
        assert all(map(np.array_equal, larger[0], less[0])), "buckets change what edges cost, not nodes"
        assert all((b >= a).all() for a, b in zip(larger[1], less[1], strict=True))
        dearer += sum((b > a).any() for a, b in zip(larger[1], less[1], strict=True))
    assert dearer


def test_no_prices_are_left_from_graphs_that_are_gone(answers) -> None:
    """Prices were once kept by numbers of objects, which later objects get again."""
    built, _ = answers.graphs.asked()
    nodes, _ = built.all_work
    for count in range(1, 60):
        again, _ = in_buckets(built, built.prices.bucket_bytes / count).all_work
        assert all(map(np.array_equal, nodes, again))


def test_buckets_have_half_the_mean_size_of_those_that_a_schedule_far_above_its_sums_sends(answers, first) -> None:
    search, found = first
    best = found.candidate.priced
    cost = found.whole.functions.costs(np.array([tuple(best.choice.values())]))[0]
    assert found.candidate.step_s * 1e12 > (1.0 + BUCKET_GAP) * cost
    buckets = buckets_of(best.scheduled.parts.moves).values()
    sent = sum(device_bytes(move, answers.instance.cluster.mesh) for bucket in buckets for move in bucket)

    question = next(at_scheduled_buckets(search, found))

    assert question.bucket_bytes == pytest.approx(BUCKET_SHARE * float(sent) / len(buckets))
    assert question.bucket_bytes < answers.instance.pricing.moves.bucket_bytes
    after = answers.to(at_scheduled_buckets(search, found), search)
    assert after.candidate.step_s <= found.candidate.step_s
    assert after.bound_s == found.bound_s, "prices that a schedule may be below prove nothing"


def test_nothing_is_asked_if_the_schedule_is_near_its_sums(first, monkeypatch) -> None:
    search, found = first
    monkeypatch.setattr("shardplan.planning.scheduled_buckets.BUCKET_GAP", 1.0)

    with pytest.raises(StopIteration) as end:
        next(at_scheduled_buckets(search, found))

    assert end.value.value is found
