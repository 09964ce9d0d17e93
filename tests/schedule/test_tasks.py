"""Laws of list scheduling, and overlap by hand."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardplan.schedule.tasks import Task, Timeline, Unlisted, schedule


@st.composite
def graphs(draw):
    count = draw(st.integers(1, 25))
    return [
        Task(
            f"t{number}",
            draw(st.integers(0, 2)),
            draw(st.integers(0, 9)) / 4,
            tuple(draw(st.lists(st.integers(0, number - 1), max_size=3, unique=True))) if number else (),
        )
        for number in range(count)
    ]


def longest_chain(tasks):
    ends = []
    for task in tasks:
        ends.append(task.seconds + max((ends[before] for before in task.after), default=0.0))
    return max(ends)


@given(graphs(), st.sampled_from([1.0, 1.1, 2.0]))
def test_nothing_starts_early_and_nobody_idles_for_nothing(tasks, kappa):
    chart = schedule(tasks, kappa)
    for number, task in enumerate(tasks):
        assert chart.ends[number] >= chart.starts[number] + task.seconds
        assert all(chart.ends[before] <= chart.starts[number] for before in task.after)
    for stream in range(3):
        spans = sorted(
            (start, end)
            for task, start, end in zip(tasks, chart.starts, chart.ends, strict=True)
            if task.stream == stream and end > start
        )
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    busiest = max(sum(task.seconds for task in tasks if task.stream == stream) for stream in range(3))
    assert chart.seconds >= max(busiest, longest_chain(tasks)) - 1e-9
    assert chart.seconds <= kappa * sum(task.seconds for task in tasks) + 1e-9


@given(graphs())
def test_the_same_tasks_give_the_same_times(tasks):
    assert schedule(tasks) == schedule(list(tasks))


def test_a_gather_hides_behind_what_does_not_need_it():
    tasks = [Task("gather", 2, 3.0), Task("first", 0, 4.0), Task("second", 0, 1.0, (0, 1))]
    assert schedule(tasks).seconds == 5.0
    exposed = [Task("gather", 2, 3.0), Task("first", 0, 4.0, (0,)), Task("second", 0, 1.0, (1,))]
    assert schedule(exposed).seconds == 8.0


def test_compute_beside_communication_is_slower_while_that_lasts():
    tasks = [Task("gather", 2, 2.0), Task("compute", 0, 10.0)]
    assert schedule(tasks, kappa=1.5).seconds == 11.0
    assert schedule([Task("alone", 0, 10.0)], kappa=1.5).seconds == 10.0


def test_two_communication_streams_do_not_wait_for_each_other():
    assert schedule([Task("a", 1, 2.0), Task("b", 2, 2.0)]).seconds == 2.0
    assert schedule([Task("a", 1, 2.0), Task("b", 1, 2.0)]).seconds == 4.0


def test_busy_counts_the_work_of_one_stream():
    chart = schedule([Task("a", 1, 2.0), Task("b", 0, 5.0, (0,)), Task("c", 1, 1.0)])
    assert [chart.busy(stream) for stream in range(3)] == [5.0, 3.0, 0]
    assert schedule([]).seconds == 0.0


def test_a_collective_that_gives_way_to_another_keeps_its_stream_busy_once():
    tasks = tuple(Task(name, 1, 1.0) for name in "abcd")
    chart = Timeline(tasks, (0.0, 1.0, 6.0, 2.0), (5.0, 2.0, 7.0, 3.0), unlisted=(Unlisted(0, 2, 3, 7.0, 25.0),))
    assert chart.spans(1) == [(0.0, 5.0), (6.0, 7.0)]
    assert chart.busy(1) == 6.0 + 3 * 5.0
    assert chart.busy_unlisted(1, chart.unlisted[0]) == 15.0 / 18.0


def test_a_circle_is_refused():
    with pytest.raises(ValueError, match="in a circle"):
        schedule([Task("a", 0, 1.0, (1,)), Task("b", 0, 1.0, (0,))])
