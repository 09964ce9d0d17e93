"""The schedule as a chart of text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardplan.api import make_plan
from shardplan.plan.views.breakdown import breakdown
from shardplan.plan.views.timeline import timeline
from shardplan.render.solve import time_line
from shardplan.render.timeline import _slowed, gantt
from shardplan.schedule.tasks import Task, schedule
from shardplan.units import duration

MODEL = "transformer:layers=2,hidden=64,heads=4,vocab=128,seq=32,batch=8"
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


@pytest.mark.parametrize("microbatches", [1, 2, 4, 8])
def test_microbatches_that_are_not_listed_count(microbatches):
    """The compute stream works for as long as the plan computes: a little longer where it runs beside communication."""
    plan = make_plan(MODEL, "1x2", microbatches=microbatches, effort="quick")
    made = timeline(plan)
    assert sum(part.times for part in made.unlisted) == 2 * max(0, microbatches - 2) - max(0, microbatches > 2)
    assert plan.summary.compute_ns <= made.busy(0) * 1e9 * (1 + 1e-9) <= 1.1 * plan.summary.compute_ns
    assert made.busy(0) <= made.seconds * (1 + 1e-9)
    said = f"compute takes {duration(plan.summary.compute_ns)} alone, and longer beside communication"
    assert [*_slowed(made, plan)] == [said] * (made.busy(0) * 1e9 > 1.001 * plan.summary.compute_ns)
    for part in made.unlisted:
        assert part.start == pytest.approx(max(made.ends[part.first : part.last]), rel=0.01)


def test_a_pipeline_says_its_bubble():
    plan = make_plan(MODEL, "2x1", stages="2", microbatches=4, effort="quick")
    found = breakdown(plan)
    assert found.compute_ns + found.exposed_ns + found.bubble_ns == plan.summary.step_ns
    assert found.bubble_ns > 0.1 * plan.summary.step_ns
    assert ", bubble " in time_line(plan)
    assert ", bubble " not in time_line(found.of[0])
