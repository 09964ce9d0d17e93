"""Weights that are gathered beside compute are issued where the plan says, in its order, and awaited where they are
read."""

from dataclasses import replace

import pytest

pytest.importorskip("torch")

from forced_plans import forced_plan
from tiny_models import Sizes, tiny_gpt

from shardplan.graph.options import PlanOptions
from shardplan.runtime.issue_order import IssuePoint, Mark, Marks, issue_order

TINY = tiny_gpt(Sizes(batch=8))


@pytest.fixture(scope="module")
def zero_3(tmp_path_factory):
    return forced_plan(TINY.model(tmp_path_factory.mktemp("model")), "2x2", PlanOptions(), recipe="ZeRO-3")


@pytest.mark.parametrize(("mode", "blocks"), [("eager", 1), ("exported", 1), ("eager", "in time")])
def test_weights_are_issued_in_the_order_of_the_plan_and_before_they_are_read(four, zero_3, mode, blocks):
    in_time = blocks == "in time"
    zero_3 = replace(zero_3, summary=replace(zero_3.summary, prefetch_distance=1, prefetches_in_time=in_time))
    order = issue_order(zero_3)
    forward, backward = ([point.numbers for point in points] for points in (order.forward, order.backward))
    assert len(forward) > 20
    assert len(backward) > 10
    for first, second, again in four.run("torch_cases", "issues_of_gathers", TINY, zero_3, mode):
        assert [numbers for what, numbers in first if what == "issue"] == []
        assert [numbers for what, numbers in second if what == "issue"] == forward
        assert [numbers for what, numbers in again if what == "issue"] == backward
        for events, points in ((second, order.forward), (again, order.backward)):
            assert sorted(n for what, n in events if what == "wait") == sorted(point.numbers for point in points)
            assert ahead(events) == pytest.approx(planned_ahead(points), rel=0.6)


def test_gradients_are_those_of_moves_that_are_waited_for_at_once(four, zero_3):
    summary = replace(zero_3.summary, prefetch_distance=-1, prefetches_in_time=False, reduces_beside=False)
    at_once = replace(zero_3, summary=summary)
    assert max(four.run("torch_cases", "gradients_apart", TINY, zero_3, at_once)) == 0.0


def ahead(events):
    """Mean number of gathers that are on their way when one is awaited, itself among them."""
    flying, seen = 0, []
    for what, _ in events:
        seen += [flying] if what == "wait" else []
        flying += 1 if what == "issue" else -1
    return sum(seen) / len(seen)


def planned_ahead(points):
    """About the same of the plan: what one block issues, and half of it on the way at any time."""
    return len(points) / len({point.at for point in points})


def test_marks_stand_where_something_is_issued():
    points = IssuePoint(0, (1,)), IssuePoint(3, (2,))
    again = IssuePoint(5, (3,)), IssuePoint(2, (4,))
    marks = Marks(issue_order_of(points, again))
    assert [marks.at(number) for number in (0, 1, 2, 4, 3, 5)] == [
        None,
        None,
        Mark(3, 2),
        None,
        None,
        Mark(6, 5),
    ]


def issue_order_of(forward, backward):
    from shardplan.runtime.issue_order import IssueOrder

    return IssueOrder(forward, forward, backward)
