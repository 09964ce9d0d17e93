"""Scaled-down pipelines: each stage keeps its layers, its mesh and its strategies; what goes on fits the next."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from forced_plans import cluster_of

from shardplan.constraints.parse import parse_pin
from shardplan.errors import ShardplanError
from shardplan.graph.options import PlanOptions
from shardplan.model.read import read_model
from shardplan.pipeline.manual.stages import stages_in
from shardplan.pipeline.plan import plan_stages
from shardplan.pipeline.schedule import parse_schedule
from shardplan.program.machine.verify import verify_plan
from shardplan.program.shrink.shrink import shrink

MODELS = Path(__file__).parents[1] / "models"
PINS = {
    "gpt2_small": ("*.mlp.c_fc.weight=[null, gpu]", "*.c_proj.weight=[gpu, null]"),
    "llama3_8b": ("*.up_proj.weight=[null, gpu]", "*.o_proj.weight=[gpu, null]"),
    "lstm_lm": (),
}
FIRST = {
    "gpt2_small": "transformer.w*, 'transformer.h.[0-5]'",
    "llama3_8b": "model.embed_tokens, 'model.layers.?', 'model.layers.1[0-5]'",
    "lstm_lm": "e",
}
"""What the first of two stages runs: where the best cut is makes no difference here, and to find it takes long."""


@cache
def pipeline(name, schedule):
    """A model, and its plan of two stages with tensor parallelism inside; interleaved ones are cut by the solver."""
    model = read_model(MODELS / f"{name}.onnx")
    pins = tuple(parse_pin(pin) for pin in PINS[name])
    options = PlanOptions(effort="quick", microbatches=4, constraints=pins, memory_limit_bytes=1 << 50)
    stages = f"stages: [{{runs: [{FIRST[name]}], mesh: 1x2}}, {{runs: ['*'], mesh: 1x2}}]"
    cut = 2 if "interleaved" in schedule else stages_in(stages, "stages.yaml")
    return model, plan_stages(model, cluster_of("2x2"), options, parse_schedule(schedule), cut)


@pytest.mark.parametrize(
    ("name", "schedule"),
    [("gpt2_small", "1f1b"), ("gpt2_small", "interleaved:2"), ("llama3_8b", "gpipe"), ("lstm_lm", "1f1b")],
)
def test_pipelines_are_verified_by_their_scaled_down_model(name, schedule):
    model, plan = pipeline(name, schedule)
    scaled, small = shrink(model, plan)
    elements = sum(tensor.elements for tensor in scaled.tensors.values())
    assert elements < 1e-3 * sum(tensor.elements for tensor in model.tensors.values())
    report = verify_plan(scaled, small)
    assert report.mismatch is None
    assert report.mispriced == []
    assert report.operators >= len(scaled.operators)
    assert report.moved_bytes == report.priced_bytes
    assert report.moved_bytes


def test_every_stage_keeps_its_first_second_and_last_layer_its_mesh_and_its_strategies():
    model, plan = pipeline("gpt2_small", "1f1b")
    _, small = shrink(model, plan)
    (block,) = model.blocks
    layer_of = {model.operators[index].name: number for number, copy in enumerate(block.copies) for index in copy}
    for before, after in zip(plan.pipeline.stages, small.pipeline.stages, strict=True):
        layers = sorted({layer_of[o.name] for o in before.plan.operators if o.name in layer_of})
        kept = sorted({layer_of[o.name] for o in after.plan.operators if o.name in layer_of})
        assert kept == [*layers[:2], layers[-1]]
        assert after.plan.mesh == before.plan.mesh
        splits = {o.name: [label.partition(";")[0] for label in o.split] for o in before.plan.operators}
        assert all([label.partition(";")[0] for label in o.split] == splits[o.name] for o in after.plan.operators)


@pytest.mark.parametrize("number", [0, 1])
def test_a_move_that_a_stage_lacks_is_found_in_the_scaled_down_model(number):
    scaled, small = shrink(*pipeline("gpt2_small", "1f1b"))
    stages = list(small.pipeline.stages)
    plan = stages[number].plan
    place = next(i for i, move in enumerate(plan.moves) if any(not s.collective.is_free for s in move.steps))
    moves = (*plan.moves[:place], *plan.moves[place + 1 :])
    stages[number] = replace(stages[number], plan=replace(plan, moves=moves))
    broken = replace(small, pipeline=replace(small.pipeline, stages=tuple(stages)))
    report = verify_plan(scaled, broken)
    assert report.mismatch is not None
    assert report.mismatch.tensor == plan.moves[place].tensor


def test_a_pipeline_that_is_too_large_to_run_is_refused_stage_by_stage():
    model, plan = pipeline("llama3_8b", "gpipe")
    with pytest.raises(ShardplanError) as raised:
        verify_plan(model, plan)
    assert str(raised.value).startswith("error[too-large]: 'llama3_8b")
    assert "hint: verify a scaled-down form of it: --shrink" in str(raised.value)


def test_the_plan_of_another_model_is_refused():
    with pytest.raises(ShardplanError, match=r"error\[stale-plan\]: the plan was made for another model"):
        shrink(pipeline("lstm_lm", "1f1b")[0], pipeline("gpt2_small", "1f1b")[1])
