"""Plans laid out in time."""

import json

import pytest
from example_plans import example_plan

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.models import transformer
from shardplan.plan.file import dumps, loads
from shardplan.plan.timeline import ACTIVATIONS, STREAMS, WEIGHTS, chrome_trace, timeline
from shardplan.planning import PlanOptions, plan_model

SIZES = {"layers": 4, "hidden": 1024, "heads": 16, "vocab": 4096, "seq": 512, "batch": 16}


@pytest.fixture(scope="module")
def plan():
    return plan_model(transformer(**SIZES), make_cluster(load_profile("h100-dgx"), "2x4"), PlanOptions())


def test_all_work_of_the_plan_is_laid_out_once(plan):
    laid_out, summary = timeline(plan), plan.summary
    computed = sum(task.seconds for task in laid_out.tasks if task.stream == 0)
    assert computed * 1e9 == pytest.approx(summary.compute_ns, abs=2 * len(plan.operators))
    inner = sum(operator.inner_ns for operator in plan.operators)
    sent = sum(task.seconds for task in laid_out.tasks if task.stream != 0)
    assert sent * 1e9 == pytest.approx(sum(move.time_ns for move in plan.moves) + inner, abs=2 * len(plan.operators))


def test_the_step_lies_between_perfect_hiding_and_none(plan):
    laid_out, summary = timeline(plan), plan.summary
    streams = [sum(task.seconds for task in laid_out.tasks if task.stream == stream) for stream in range(3)]
    assert max(streams) <= laid_out.seconds <= 1.1 * sum(streams)
    assert summary.scheduled_ns == round(laid_out.seconds * 1e9)


def test_the_file_keeps_what_the_timeline_needs(plan):
    again = loads(dumps(plan))
    assert timeline(again) == timeline(plan)
    assert again.summary.scheduled_ns == plan.summary.scheduled_ns


def test_forward_comes_before_backward_and_the_optimizer_last(plan):
    laid_out = timeline(plan)
    named = {task.name: number for number, task in enumerate(laid_out.tasks)}
    forward = max(laid_out.ends[n] for name, n in named.items() if name in {o.name for o in plan.operators})
    backward = min(laid_out.starts[n] for name, n in named.items() if name.startswith("backward: "))
    assert forward <= backward
    assert laid_out.ends[named["optimizer step"]] == laid_out.seconds
    module = "model.layers.1.mlp.down_proj.MatMul"
    assert laid_out.starts[named[f"backward: {module}"]] >= laid_out.ends[named[module]]


def test_an_operator_waits_for_its_moves(plan):
    laid_out = timeline(plan)
    named = {task.name: number for number, task in enumerate(laid_out.tasks)}
    moves = [move for move in plan.moves if move.phase == "forward" and move.time_ns and move.reader in named]
    assert moves
    for move in moves:
        brought = [n for n, task in enumerate(laid_out.tasks) if task.name.startswith(f"{move.tensor} (")]
        assert any(laid_out.ends[n] <= laid_out.starts[named[move.reader]] for n in brought)


def test_serving_has_no_backward():
    options = PlanOptions(mode="inference")
    served = plan_model(transformer(**SIZES), make_cluster(load_profile("h100-dgx"), "1x4"), options)
    assert not [task for task in timeline(served).tasks if "backward" in task.name or "gradient" in task.name]


def test_the_trace_is_what_chrome_reads(plan):
    trace = chrome_trace(timeline(plan), "a title")
    document = json.loads(json.dumps(trace))
    events = [event for event in document["traceEvents"] if event["ph"] == "X"]
    names = [event["args"]["name"] for event in document["traceEvents"] if event["name"] == "thread_name"]
    assert names == list(STREAMS)
    assert {event["tid"] for event in events} <= {0, ACTIVATIONS, WEIGHTS}
    last = max(event["ts"] + event["dur"] for event in events)
    assert last == pytest.approx(plan.summary.scheduled_ns / 1000, abs=0.01)


def test_any_plan_file_can_be_laid_out():
    assert timeline(example_plan()).seconds > 0
