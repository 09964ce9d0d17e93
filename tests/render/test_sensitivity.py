"""What `solve --robust` says."""

import io
import math
from dataclasses import replace

from rich.console import Console

from shardplan.render.sensitivity import describe_sensitivity, sensitivity_record
from shardplan.study.sensitivity import Robustness, Slack

FOUND = Robustness((0.0, 0.004, 0.023), (Slack("compute", 0.0, 1.41), Slack("net latency", 0.0, math.inf)))


def test_robustness_in_words():
    stream = io.StringIO()
    describe_sensitivity(Console(file=stream, width=200), FOUND)
    assert [" ".join(line.split()) for line in stream.getvalue().splitlines()] == [
        "robust plan still optimal in 2 of 3 perturbed profiles (±15.0 %)",
        "in the worst of them the plan is 2.3 % slower than the best plan there",
        "another plan gains more than 1.0 % if compute is above 1.41 times what the profile says",
        "from 0.5 to 2 times as much nothing changes with net latency",
    ]


def test_robustness_as_a_document():
    record = sensitivity_record(replace(FOUND, regrets=(0.0, math.inf)))
    assert record["regrets"] == [0.0, None]
    assert record["slacks"][1] == {"constant": "net latency", "low": None, "high": None}
