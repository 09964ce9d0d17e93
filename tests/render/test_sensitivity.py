"""What `solve` says when the schedule and the sum differ, and of robustness."""

import io
import math
from dataclasses import replace

from example_plans import example_plan
from rich.console import Console

from shardplan.render.sensitivity import describe_sensitivity, sensitivity_record
from shardplan.render.solve import scheduled_lines
from shardplan.study.robust import Robustness, Slack

FOUND = Robustness((0.0, 0.004, 0.023), (Slack("compute", 0.0, 1.41), Slack("net latency", 0.0, math.inf)))


def test_robustness_in_words():
    stream = io.StringIO()
    describe_sensitivity(Console(file=stream, width=200), FOUND)
    assert [" ".join(line.split()) for line in stream.getvalue().splitlines()] == [
        "robust plan still optimal in 2 of 3 perturbed profiles (±15.0 %)",
        "in the worst of them the plan is 2.3 % slower than the optimum there",
        "another plan gains more than 1.0 % if compute is above 1.41 times what the profile says",
        "from 0.5 to 2 times as much nothing changes with net latency",
    ]


def test_robustness_as_a_document():
    record = sensitivity_record(replace(FOUND, regrets=(0.0, math.inf)))
    assert record["regrets"] == [0.0, None]
    assert record["slacks"][1] == {"constant": "net latency", "low": None, "high": None}


def test_the_schedule_is_named_where_it_says_something_else():
    summary = replace(example_plan().summary, step_ns=40_000_000)
    assert scheduled_lines(replace(summary, scheduled_ns=41_000_000)) == []
    assert scheduled_lines(replace(summary, scheduled_ns=0)) == []
    (longer,) = scheduled_lines(replace(summary, scheduled_ns=50_000_000))
    assert longer == "laid out in time it takes 50 ms: less hides than the sum takes to (shardplan timeline)"
    (shorter,) = scheduled_lines(replace(summary, scheduled_ns=30_000_000))
    assert "more hides than the sum allows" in shorter
