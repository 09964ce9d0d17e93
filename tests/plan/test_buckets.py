"""Which gradients of weights a plan sends together, and what it says of that."""

import json
from collections import Counter
from importlib.resources import files

import pytest
from forced_plans import cluster_of, forced_plan
from jsonschema import Draft202012Validator

from shardplan.constraints.parse import parse_pin
from shardplan.graph.options import PlanOptions
from shardplan.models import transformer
from shardplan.plan.file import dumps, loads
from shardplan.plan.step.buckets import buckets_of, device_bytes
from shardplan.planning import plan_model
from shardplan.runtime.predicted import predicted_collectives, sent_together, total
from shardplan.study.evaluate import evaluate_plan

MODEL = transformer(layers=3, hidden=64, heads=4, vocab=128, seq=32, batch=16)
BUCKET = 20_000
FORMS = {
    "data parallel": {},
    "ZeRO-1": {"shard_optimizer": True},
    "2-D": {},
    "ZeRO-3": {},
}


def planned(recipe="data parallel", bucket_bytes=BUCKET, **options):
    return forced_plan(MODEL, "2x4", PlanOptions(effort="quick", **options), recipe=recipe, bucket_bytes=bucket_bytes)


@pytest.fixture(scope="module", params=FORMS)
def plan(request):
    return planned(request.param, **FORMS[request.param])


def test_only_weights_that_stay_where_they_are_or_were_just_made_go_together(plan):
    weights = {tensor.name: tensor for tensor in plan.tensors if tensor.role == "parameter"}
    reads = {(name, op.name): lay for op in plan.operators for name, lay in zip(op.inputs, op.reads, strict=True)}
    for move in plan.moves:
        if move.bucket is None:
            continue
        decision = weights[move.tensor]
        assert move.count == 1
        assert not move.regather
        if move.reader:
            assert reads[move.tensor, move.reader].forward == decision.layout.forward
        elif move.phase == "backward" and move.target == decision.layout.gradient:
            assert decision.served.forward == decision.layout.forward


def test_a_bucket_is_of_one_kind_and_no_fuller_than_the_profile_says(plan):
    dtype = {tensor.name: tensor.dtype for tensor in plan.tensors}
    for number, bucket in buckets_of(plan.moves).items():
        key = {
            (move.phase, dtype[move.tensor], tuple((s.collective.kind, s.collective.axes) for s in move.steps))
            for move in bucket
        }
        assert len(key) == 1
        assert len(bucket) == 1 or sum(device_bytes(move, plan.mesh) for move in bucket) <= BUCKET
        assert number < len(buckets_of(plan.moves))


def test_all_of_a_data_parallel_step_goes_together():
    moves = [move for move in planned().moves if move.phase == "backward"]
    assert {move.bucket is None for move in moves if move.reader} == {False}
    assert len(buckets_of(moves)) > 4


def test_new_weights_go_together_in_the_order_in_which_they_are_read():
    plan = planned("ZeRO-1", shard_optimizer=True)
    apart = [move for move in plan.moves if move.bucket is not None and not move.reader]
    phases = Counter(move.phase for move in apart)
    assert phases["update"] == phases["backward"] > 20
    backward, update = (
        [move.tensor for move in sorted(apart, key=lambda m: m.bucket) if move.phase == phase]
        for phase in ("backward", "update")
    )  # fmt: skip
    layer = "layers.{}.mlp.down_proj.weight"
    names = [next(name for name in update if layer.format(number) in name) for number in range(3)]
    assert [update.index(name) for name in names] == sorted(update.index(name) for name in names)
    assert [backward.index(name) for name in names] == sorted((backward.index(n) for n in names), reverse=True)


def test_zero_means_each_by_itself():
    assert not buckets_of(planned(bucket_bytes=0.0).moves)


def test_what_is_sent_is_a_collective_for_each_bucket():
    plan = planned()
    listed, together = (total(rows(plan)) for rows in (predicted_collectives, sent_together))
    key = ("backward", "all_reduce", ("machine", "gpu"))
    assert listed[key].count == sum(map(len, buckets_of(plan.moves).values()))
    assert together[key].count == len(buckets_of(plan.moves))
    assert together[key].payload_bytes == listed[key].payload_bytes
    assert abs(together[key].wire_bytes - listed[key].wire_bytes) < listed[key].count
    assert {k: v for k, v in listed.items() if k != key} == {k: v for k, v in together.items() if k != key}


def test_the_file_says_it(plan):
    text = dumps(plan)
    document = json.loads(text)
    assert [row.get("bucket") for row in document["moves"]] == [move.bucket for move in plan.moves]
    schema = json.loads((files("shardplan.plan") / "schema.json").read_text(encoding="utf-8"))
    Draft202012Validator(schema).validate(document)
    assert loads(text).moves == plan.moves
    assert dumps(loads(text)) == text


def test_microbatches_do_not_change_what_goes_together():
    one, two = (
        [
            (m.bucket, m.tensor, m.reader, m.source, m.target, m.steps, m.count)
            for m in plan.moves
            if m.bucket is not None
        ]
        for plan in (planned(), planned(microbatches=2))
    )
    assert one
    assert one == two


def test_it_is_evaluated_as_it_was_priced():
    model = transformer(layers=2, hidden=512, heads=8, vocab=1024, seq=512, batch=64)
    whole = parse_pin("*weight*=replicate")
    cluster, options = cluster_of("2x4"), PlanOptions(effort="quick", shard_optimizer=True, constraints=(whole,))
    plan = plan_model(model, cluster, options)
    assert buckets_of(plan.moves)
    assert evaluate_plan(model, cluster, options, plan, "one.json").plan.moves == plan.moves


def test_buckets_make_no_plan_slower():
    clusters = [cluster_of("2x4", bucket_bytes) for bucket_bytes in (0.0, 1e4, 1e6, 25e6, 1e9)]
    steps = [plan_model(MODEL, cluster, PlanOptions(effort="quick")).summary.step_ns for cluster in clusters]
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] < 0.9 * steps[0]
