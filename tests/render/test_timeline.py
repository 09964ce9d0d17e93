"""The schedule as a chart of text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardplan.render.timeline import gantt
from shardplan.schedule.tasks import Task, schedule

TASKS = schedule((Task("a", 0, 2.0), Task("b", 1, 1.0), Task("c", 1, 0.25, (0,)), Task("d", 0, 2.0, (0,))))


def test_each_stream_is_dark_where_it_works():
    assert gantt(TASKS, 0, 8) == "████████"
    assert gantt(TASKS, 1, 8) == "██  ▒   "
    assert gantt(TASKS, 2, 8) == "        "


@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=20), st.integers(1, 100))
def test_a_stream_that_never_rests_fills_its_line(seconds, cells):
    made = schedule([Task("x", 0, each) for each in seconds])
    assert gantt(made, 0, cells) == "█" * cells


def test_a_step_that_takes_no_time_is_empty():
    assert gantt(schedule([Task("x", 0, 0.0)]), 0, 5) == "     "


@pytest.mark.parametrize("cells", [1, 3, 50])
def test_it_is_as_wide_as_was_asked(cells):
    assert len(gantt(TASKS, 1, cells)) == cells
