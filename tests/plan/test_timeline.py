"""The scheduled step of a plan, rebuilt from what its file says."""

import itertools
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from example_plans import example_plan
from forced_plans import forced_plan

from shardplan import load, make_plan
from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.cluster.types import Coalesce
from shardplan.models import transformer
from shardplan.pipeline.schedule import Schedule
from shardplan.plan.file import dumps, loads
from shardplan.plan.views.pipeline_timeline import _order
from shardplan.plan.views.timeline import MOST_SHOWN, chrome_trace, step_schedule, streams_of, timeline
from shardplan.plan.views.tracks import drawn
from shardplan.planning import Planner, PlanOptions, plan_model
from shardplan.planning.recipes import RECIPES
from shardplan.schedule.tasks import Task, schedule

ROOT = Path(__file__).parents[2]
SIZES = {"layers": 2, "hidden": 1024, "heads": 16, "vocab": 4096, "seq": 512, "batch": 16}


@pytest.fixture(scope="module")
def plan():
    return plan_model(transformer(**SIZES), make_cluster(load_profile("h100-dgx"), "2x4"), PlanOptions(effort="quick"))


@pytest.fixture(scope="module")
def accumulated():
    """A plan with gradient accumulation."""
    options = PlanOptions(microbatches=4, effort="quick")
    return plan_model(transformer(**SIZES), make_cluster(load_profile("h100-dgx"), "2x4"), options)


def seconds_sent(plan, scheduled):
    """Seconds per step of every move as the schedule has it, and of the collectives inside operators."""
    of_moves, inside = defaultdict(float), 0.0
    for phase, item, _, numbers, _ in scheduled.spans():
        if item.action == "compute":
            continue
        if not numbers:
            inside += phase.count * item.seconds
        whole = sum(plan.moves[number].time_ns / plan.moves[number].count for number in numbers)
        for number in numbers:
            share = plan.moves[number].time_ns / plan.moves[number].count / whole
            of_moves[number] += phase.count * item.seconds * share
    return of_moves, inside


def test_weights_that_come_in_time_are_faster_than_one_block_ahead():
    """Of weights that are all re-gathered for backward, one of which takes longer than a block computes."""
    sizes = {"layers": 2, "hidden": 1024, "heads": 8, "vocab": 65536, "seq": 128, "batch": 8}
    plan = forced_plan(transformer(**sizes), "1x4", recipe="ZeRO-3")
    assert plan.summary.prefetches_in_time
    fixed = [
        step_schedule(
            replace(plan, summary=replace(plan.summary, prefetch_distance=blocks, prefetches_in_time=False))
        ).seconds
        for blocks in (0, 1, 2, 4, 8)
    ]
    seconds = step_schedule(plan).seconds
    assert seconds < 0.97 * min(fixed[:2])
    assert seconds <= min(fixed)


def test_other_runtimes_gather_weights_again_and_one_block_ahead():
    sizes = {"layers": 2, "hidden": 1024, "heads": 8, "vocab": 65536, "seq": 128, "batch": 8}
    model, cluster = transformer(**sizes), make_cluster(load_profile("generic"), "1x4")
    assert not PlanOptions(effort="quick", target="deepspeed").gathers_in_time
    plans = [
        Planner(model, cluster, PlanOptions(effort="quick", in_time=in_time)).plan(RECIPES["ZeRO-3"])
        for in_time in (False, True)
    ]
    assert not plans[0].summary.prefetches_in_time
    assert plans[0].summary.step_ns > plans[1].summary.step_ns


@pytest.mark.parametrize("which", ["plan", "accumulated"])
def test_all_work_of_the_plan_is_scheduled_once(which, request):
    plan = request.getfixturevalue(which)
    scheduled = step_schedule(plan)
    micro = plan.model["microbatches"]
    computed = sum(phase.count * item.seconds for phase, item, *_ in scheduled.spans() if item.action == "compute")
    assert computed * 1e9 == pytest.approx(plan.summary.compute_ns, abs=2 * micro * len(plan.operators))
    sent, inside = seconds_sent(plan, scheduled)
    inner_ns = sum(operator.inner_ns for operator in plan.operators)
    assert inside * 1e9 == pytest.approx(inner_ns, abs=2 * micro * len(plan.operators))
    for number, move in enumerate(plan.moves):
        assert sent[number] * 1e9 == pytest.approx(move.time_ns, rel=1e-6, abs=1), move


def test_the_step_lies_between_perfect_overlap_and_none(plan):
    chart = timeline(plan)
    streams = [chart.busy(stream) for stream in range(len(streams_of(plan)))]
    work = sum(item.seconds for _, item, *_ in step_schedule(plan).spans())
    assert max(streams) <= chart.seconds * (1 + 1e-9)
    assert chart.seconds <= 1.1 * work
    assert plan.summary.step_ns == round(chart.seconds * 1e9)


def test_one_operator_is_computed_at_a_time(plan):
    chart = timeline(plan)
    spans = zip(chart.tasks, chart.starts, chart.ends, strict=True)
    computed = sorted((start, end) for task, start, end in spans if task.stream == 0)
    assert all(end <= start + 1e-12 for (_, end), (start, _) in itertools.pairwise(computed))


@pytest.mark.parametrize("which", ["plan", "accumulated", "tight"])
def test_the_file_alone_has_the_schedule(which, request):
    plan = request.getfixturevalue(which)
    again = loads(dumps(plan))
    assert timeline(again) == timeline(plan)
    assert timeline(again).seconds * 1e9 == pytest.approx(plan.summary.step_ns, rel=1e-6, abs=0.5)
    marked = step_schedule(again).marked(again.moves)
    assert [(m.issue_after, m.wait_before) for m in marked] == [(m.issue_after, m.wait_before) for m in plan.moves]


def test_forward_comes_before_backward_and_the_optimizer_last(plan):
    chart = timeline(plan)
    named = {task.name: number for number, task in enumerate(chart.tasks)}
    forward = max(chart.ends[n] for name, n in named.items() if name in {o.name for o in plan.operators})
    backward = min(chart.starts[n] for name, n in named.items() if name.startswith("backward: "))
    assert forward <= backward
    assert chart.ends[named["optimizer step"]] == pytest.approx(chart.seconds, rel=1e-12)
    module = "model.layers.1.mlp.down_proj.MatMul"
    assert chart.starts[named[f"backward: {module}"]] >= chart.ends[named[module]]


def test_the_first_microbatches_of_a_phase_are_shown_and_the_rest_counts(accumulated):
    chart, scheduled = timeline(accumulated), step_schedule(accumulated)
    shown = sum(task.name == accumulated.operators[0].name for task in chart.tasks)
    counts = {phase.name: phase.count for phase in scheduled.phases}
    assert counts == {"forward": 4, "backward": 3, "last backward": 1, "update": 1}
    assert shown == MOST_SHOWN
    assert chart.seconds == pytest.approx(
        sum(phase.count * ran.seconds for phase, ran in scheduled.phases_ran()), rel=1e-12
    )


def test_what_moves_once_a_step_moves_in_the_last_backward(accumulated):
    once = {number for number, move in enumerate(accumulated.moves) if move.phase == "backward" and move.count == 1}
    assert once
    seen = {
        (number, phase.name) for phase, _, _, numbers, _ in step_schedule(accumulated).spans() for number in numbers
    }
    assert {name for number, name in seen if number in once} == {"last backward"}


def test_an_operator_waits_for_its_moves():
    cluster = replace(make_cluster(load_profile("h100-dgx"), "2x4"), coalesce=Coalesce())
    plan = plan_model(
        transformer(**SIZES), cluster, PlanOptions(effort="quick")
    )  # data parallel if gradients go together
    scheduled = step_schedule(plan)
    number = {operator.name: index for index, operator in enumerate(plan.operators)}
    begins, checked = {}, 0
    for phase, item, operator, _, span in scheduled.spans():
        if phase.name == "forward" and item.action == "compute":
            begins[operator] = span.start
    for phase, _, _, numbers, span in scheduled.spans():
        for move in (plan.moves[one] for one in numbers):
            if phase.name == "forward" and number.get(move.reader) in begins:
                assert span.end <= begins[number[move.reader]] + 1e-12
                checked += 1
    assert checked


@pytest.fixture(scope="module")
def tight():
    """A plan that runs operators of attention a second time."""
    sizes = SIZES | {"hidden": 256, "heads": 8, "vocab": 512, "seq": 256}
    model = transformer(style="gpt", **sizes, attention="decomposed")
    cluster = make_cluster(load_profile("h100-dgx"), "1x4")
    free = plan_model(model, cluster, PlanOptions(effort="quick"))
    limit = int(0.7 * free.summary.memory.total)
    return plan_model(model, cluster, PlanOptions(remat="auto", memory_limit_bytes=limit, effort="quick"))


def test_second_runs_are_work_of_their_own(tight):
    chart = timeline(tight)
    seconds = {task.name: task.seconds for task in chart.tasks if task.stream == 0}
    twice = [operator for operator in tight.operators if operator.recomputed_before and operator.recompute_ns]
    assert twice
    for operator in twice:
        assert seconds[f"recompute: {operator.name}"] == pytest.approx(seconds[operator.name])
        backward_ns = operator.backward_ns - operator.recompute_ns
        assert seconds.get(f"backward: {operator.name}", 0.0) * 1e9 == pytest.approx(backward_ns)
    assert sum(name.startswith("recompute: ") for name in seconds) == len(twice)
    assert sum(seconds.values()) * 1e9 == pytest.approx(tight.summary.compute_ns, abs=3 * len(tight.operators))


def test_second_runs_come_right_before_the_backward_that_asks_for_them(tight):
    chart = timeline(tight)
    named = {task.name: number for number, task in enumerate(chart.tasks)}
    order = [name for operator in tight.operators if (name := f"backward: {operator.name}") in named]
    checked = 0
    for operator in tight.operators:
        number = named.get(f"recompute: {operator.name}")
        if number is None or f"backward: {operator.recomputed_before}" not in named:
            continue
        wanted = order.index(f"backward: {operator.recomputed_before}")
        assert chart.ends[number] <= chart.starts[named[order[wanted]]]
        if wanted + 1 < len(order):
            assert chart.starts[number] >= chart.ends[named[order[wanted + 1]]]
            checked += 1
    assert checked


def test_what_reads_a_recomputed_value_waits_for_its_second_run(tight):
    chart = timeline(tight)
    named = {task.name: number for number, task in enumerate(chart.tasks)}
    again = {tensor.name for tensor in tight.tensors if tensor.recomputed}
    makers = {name: operator for operator in tight.operators for name in operator.outputs}
    waited = 0
    for operator in tight.operators:
        for name in again & set(operator.inputs):
            made, reads = (named.get(f"recompute: {one}") for one in (makers[name].name, operator.name))
            if made is not None and reads is not None and makers[name].recomputed_before == operator.recomputed_before:
                assert chart.ends[made] <= chart.starts[reads]
                waited += 1
    assert waited


def test_serving_has_no_backward():
    options = PlanOptions(effort="quick", mode="inference")
    served = plan_model(transformer(**SIZES), make_cluster(load_profile("h100-dgx"), "1x4"), options)
    assert {phase.name for phase in step_schedule(served).phases} == {"forward"}
    assert not [task for task in timeline(served).tasks if "backward" in task.name]


def test_the_trace_is_what_chrome_reads(plan):
    document = json.loads(json.dumps(chrome_trace(plan)))
    events = [event for event in document["traceEvents"] if event["ph"] == "X"]
    names = [event["args"]["name"] for event in document["traceEvents"] if event["name"] == "thread_name"]
    assert names[:3] == list(streams_of(plan)) == ["compute", "communication: up", "communication: net"]
    assert {event["tid"] for event in events} <= set(range(len(names)))
    last = max(event["ts"] + event["dur"] for event in events)
    assert last == pytest.approx(plan.summary.step_ns / 1000, abs=0.01)


def assert_nothing_overlaps(trace):
    """No two events of a track run at one time, and a track is used only if those before it are taken."""
    tracks = defaultdict(list)
    for event in trace:
        if event["ph"] == "X":
            start_ns = round(1000 * event["ts"])
            tracks[event["pid"], event["tid"]].append((start_ns, start_ns + round(1000 * event["dur"])))
    for spans in tracks.values():
        spans.sort()
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
    return tracks


@pytest.mark.parametrize("path", sorted((ROOT / "plans").glob("*.plan.json")), ids=lambda path: path.name)
def test_nothing_overlaps_on_a_track_of_a_trace(path):
    plan = load(path)
    trace = chrome_trace(plan)["traceEvents"]
    tracks = assert_nothing_overlaps(trace)
    names = {event["tid"]: event["args"]["name"] for event in trace if event["name"] == "thread_name"}
    assert len(tracks) == len(names)
    assert sum(name.startswith("compute") for name in names.values()) == 1


def test_what_runs_at_one_time_has_the_fewest_tracks():
    spans = [(1, 0.0, 4.0), (1, 1.0, 2.0), (0, 0.0, 9.0), (1, 2.0, 3.0), (1, 2.5, 5.0), (1, 4.0, 4.5)]
    found = drawn(("compute", "net"), spans)
    assert found.names == ("compute", "net", "net 2", "net 3")
    assert [event.track for event in found.events] == [1, 2, 0, 2, 3, 1]
    assert [event["args"]["sort_index"] for event in found.threads(0) if event["name"] == "thread_sort_index"] == [
        0, 1, 2, 3,
    ]  # fmt: skip


def test_times_of_a_trace_are_rounded_where_they_begin_and_end():
    found = drawn(("compute",), [(0, 0.0, 1.4e-9), (0, 1.4e-9, 2.8e-9), (0, 2.8e-9 - 1e-18, 4.2e-9)])
    assert [(event.start_ns, event.end_ns) for event in found.events] == [(0, 1), (1, 3), (3, 4)]
    assert found.names == ("compute",)


def test_events_of_a_move_have_the_bytes_of_their_own_collective():
    plans = (forced_plan(transformer(**SIZES), "2x4", seed=seed, bucket_bytes=0) for seed in range(40))
    plan = next(plan for plan in plans if any(has_sizes(move) for move in plan.moves))
    events = [event for event in chrome_trace(plan)["traceEvents"] if event["ph"] == "X" and event["args"].get("bytes")]
    stored = {tensor.name: tensor.checkpoint for tensor in plan.tensors if tensor.checkpoint}
    own = defaultdict(set)
    for move in plan.moves:
        for step in move.steps:
            name = f"{step.collective.kind.replace('_', '-')} {stored.get(move.tensor, move.tensor)}"
            own[name].add(step.payload_bytes)
    assert any(event["name"] in own for event in events)
    assert all(event["args"]["bytes"] in own[event["name"]] for event in events if event["name"] in own)


def has_sizes(move):
    return len({step.payload_bytes for step in move.steps}) > 1


def test_the_trace_says_what_is_sent_and_in_which_phase(accumulated):
    sent = [event for event in chrome_trace(accumulated)["traceEvents"] if event["ph"] == "X" and event["tid"]]
    assert {event["args"]["phase"] for event in sent} <= {"forward", "backward", "last backward"}
    assert any(event["args"].get("bytes", 0) > 0 for event in sent)


def test_arrows_lead_from_what_comes_before_to_what_waits_in_one_microbatch():
    accumulated = forced_plan(transformer(**SIZES), "4", PlanOptions(effort="quick", microbatches=4), recipe="ZeRO-3")
    assert any(move.kind == "prefetched" and move.issue_after for move in accumulated.moves)
    trace = chrome_trace(accumulated)["traceEvents"]
    spans = [event for event in trace if event["ph"] == "X"]
    begins = min(event["ts"] for event in spans if event["args"]["phase"] == "last backward")
    tails = {event["id"]: event for event in trace if event["ph"] == "s"}
    heads = {event["id"]: event for event in trace if event["ph"] == "f"}
    assert tails
    assert tails.keys() == heads.keys()
    second = [event["ts"] for event in spans if event["name"] == accumulated.operators[0].name][1]
    for identity, tail in tails.items():
        head = heads[identity]
        assert head["ts"] >= tail["ts"]
        assert any(abs(one["ts"] + one["dur"] - tail["ts"]) < 0.01 for one in spans if one["tid"] == tail["tid"])
        assert (tail["ts"] < second) == (head["ts"] < second)
        assert (tail["ts"] < begins) == (head["ts"] < begins)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved:2"])
def test_the_trace_of_a_pipeline_says_what_is_sent_and_what_waits_for_it(schedule):
    model = "transformer:layers=4,hidden=256,heads=4,vocab=512,seq=64,batch=16,style=gpt"
    staged = make_plan(model, "1x4", stages=2, schedule=schedule, microbatches=4, effort="quick")
    trace = json.loads(json.dumps(chrome_trace(staged)))["traceEvents"]
    spans = [event for event in trace if event["ph"] == "X"]
    sent = [event for event in spans if event["name"].startswith("hand ")]
    transfers = staged.pipeline.handed
    assert len(sent) == 2 * 4 * len(transfers)
    assert {(event["args"]["phase"], event["args"]["bytes"]) for event in sent} == {
        (phase, sum(step.payload_bytes for step in steps))
        for transfer in transfers
        for phase, steps in (("forward", transfer.forward), ("backward", transfer.backward))
    }
    assert {event["args"]["phase"] for event in spans} <= {"forward", "backward", "update"}
    assert_nothing_overlaps(trace)
    tails = {event["id"]: event for event in trace if event["ph"] == "s"}
    heads = {event["id"]: event for event in trace if event["ph"] == "f"}
    assert tails.keys() == heads.keys()
    assert len(tails) >= 2 * len(sent)
    for identity, tail in tails.items():
        assert heads[identity]["ts"] >= tail["ts"]
        assert any(abs(one["ts"] + one["dur"] - tail["ts"]) < 0.01 for one in spans if one["tid"] == tail["tid"])


def test_any_plan_file_can_be_laid_out():
    assert timeline(example_plan()).seconds > 0


@pytest.mark.parametrize(("stages", "chunks"), [(2, 1), (4, 1), (2, 2), (2, 5), (4, 2), (4, 3), (3, 4)])
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_equal_stages_take_as_long_as_the_formula_of_their_schedule_says(stages, chunks, rounds):
    micro, forward, backward = rounds * stages, 1.0, 2.0
    tasks, numbers = [], {}
    for stage in range(stages):
        ahead = 2 * (stages - 1 - stage) + (chunks - 1) * stages if chunks > 1 else stages - 1 - stage
        for kind, chunk, batch in _order(micro, chunks, stages, ahead, training=True):
            numbers[kind, chunk * stages + stage, batch] = len(tasks)
            tasks.append((stage, kind, chunk * stages + stage, batch))
    after = [
        [number - 1] * (number > 0 and tasks[number - 1][0] == stage)
        + ([numbers["F", place - 1, batch]] if kind == "F" and place else [])
        + ([numbers["B", place + 1, batch]] if kind == "B" and place + 1 < stages * chunks else [])
        for number, (stage, kind, place, batch) in enumerate(tasks)
    ]
    seconds = {"F": forward, "B": backward}
    found = schedule(
        [Task("", one[0], seconds[one[1]], tuple(before)) for one, before in zip(tasks, after, strict=True)]
    )
    name = Schedule("interleaved", chunks) if chunks > 1 else Schedule("1f1b")
    assert found.seconds == pytest.approx(name.step([micro * chunks * (forward + backward)] * stages, micro))
