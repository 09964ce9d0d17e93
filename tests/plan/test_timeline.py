"""Plans laid out in time."""

import json
from dataclasses import replace

import pytest
from example_plans import example_plan

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.cluster.types import Coalesce
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


def test_an_operator_waits_for_its_moves():
    cluster = replace(make_cluster(load_profile("h100-dgx"), "2x4"), coalesce=Coalesce())
    plan = plan_model(transformer(**SIZES), cluster, PlanOptions())  # data parallel if gradients go together
    laid_out = timeline(plan)
    named = {task.name: number for number, task in enumerate(laid_out.tasks)}
    moves = [move for move in plan.moves if move.phase == "forward" and move.time_ns and move.reader in named]
    assert moves
    for move in moves:
        brought = [n for n, task in enumerate(laid_out.tasks) if task.name.startswith(f"{move.tensor} (")]
        assert any(laid_out.ends[n] <= laid_out.starts[named[move.reader]] for n in brought)


@pytest.fixture(scope="module")
def tight():
    """A plan that runs operators of attention a second time."""
    sizes = SIZES | {"layers": 3, "hidden": 256, "heads": 8, "vocab": 512, "seq": 256}
    model = transformer(style="gpt", **sizes, attention="decomposed")
    cluster = make_cluster(load_profile("h100-dgx"), "1x4")
    free = plan_model(model, cluster, PlanOptions())
    return plan_model(model, cluster, PlanOptions(remat="auto", memory_limit_bytes=free.summary.memory.total // 2))


def test_second_runs_are_work_of_their_own(tight):
    laid_out = timeline(tight)
    seconds = {task.name: task.seconds for task in laid_out.tasks if task.stream == 0}
    twice = [operator for operator in tight.operators if operator.again and operator.again_ns]
    assert twice
    for operator in twice:
        assert seconds[f"again: {operator.name}"] == pytest.approx(seconds[operator.name])
        assert seconds[f"backward: {operator.name}"] * 1e9 == pytest.approx(operator.backward_ns - operator.again_ns)
    assert sum(name.startswith("again: ") for name in seconds) == len(twice)
    assert sum(seconds.values()) * 1e9 == pytest.approx(tight.summary.compute_ns, abs=3 * len(tight.operators))


def test_second_runs_come_right_before_the_backward_that_asks_for_them(tight):
    laid_out = timeline(tight)
    named = {task.name: number for number, task in enumerate(laid_out.tasks)}
    order = [name for operator in tight.operators if (name := f"backward: {operator.name}") in named]
    checked = 0
    for operator in tight.operators:
        number = named.get(f"again: {operator.name}")
        if number is None or f"backward: {operator.again}" not in named:
            continue
        wanted = order.index(f"backward: {operator.again}")
        assert laid_out.ends[number] <= laid_out.starts[named[order[wanted]]]
        if wanted + 1 < len(order):
            assert laid_out.starts[number] >= laid_out.ends[named[order[wanted + 1]]]
            checked += 1
    assert checked


def test_what_reads_a_value_that_is_made_again_waits_for_its_second_run(tight):
    laid_out = timeline(tight)
    named = {task.name: number for number, task in enumerate(laid_out.tasks)}
    again = {tensor.name for tensor in tight.tensors if tensor.recomputed}
    makers = {name: operator for operator in tight.operators for name in operator.outputs}
    waited = 0
    for operator in tight.operators:
        for name in again & set(operator.inputs):
            made, reads = (named.get(task) for task in (f"again: {makers[name].name}", f"again: {operator.name}"))
            if made is not None and reads is not None and makers[name].again == operator.again:
                assert laid_out.ends[made] <= laid_out.starts[reads]
                waited += 1
    assert waited


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
