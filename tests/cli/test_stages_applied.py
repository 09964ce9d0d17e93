"""`split` and `export` of plans with stages, with optimizer state of its own, and with microbatches."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors_files import write_safetensors
from small_plans import plan_of

import shardplan as library
from shardplan.errors import ShardplanError
from shardplan.export.notes import left_to_programs
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import R, S
from shardplan.loading.presharded import load_presharded
from shardplan.plan.file import write_plan
from shardplan.plan.types import Pipeline, Stage

REFUSED = (
    "error[pipeline-plan]: the plan is a pipeline of 2 stages, of which each has a mesh and a plan of its own\n"
    "hint: take one of them: plan.pipeline.stages[0].plan, or --stage 0 of split and export (to 1)\n"
)
WEIGHTS = {name: np.arange(64, dtype=np.float32).reshape(8, 8) + n for n, name in enumerate(("table", "a.w", "b.w"))}


@pytest.fixture
def inputs(folder: Path) -> Path:
    """A pipeline of two stages that both hold `table`, and a checkpoint with buffers beside the weights."""
    mesh, columns, rows = Mesh.of(tp=2), Layout.of(S(0)), Layout.of(S(1))
    first = plan_of(mesh, {"table": ((8, 8), columns), "a.w": ((8, 8), columns)})
    second = plan_of(mesh, {"table": ((8, 8), columns), "b.w": ((8, 8), rows)})
    stages = tuple(
        Stage(f"stage {number}", 2 * number, ("a", "b")[number : number + 1], 1, plan)
        for number, plan in enumerate((first, second))
    )
    whole = replace(plan_of(Mesh.of(tp=4), {}), pipeline=Pipeline("1f1b", stages, (), 0.0))
    write_plan(whole, "stages.json")
    buffers = {name: np.zeros(2, np.float32) for name in ("a.mean", "b.mean", "other")}
    write_safetensors(folder / "m.safetensors", WEIGHTS | buffers)
    return folder


@pytest.mark.parametrize(
    "name", ["jax", "shardy", "torchtitan", "tp-plan", "tp-plan-portable", "deepspeed", "shard-info"]
)
def test_no_format_takes_a_pipeline_for_an_empty_plan(name, shardplan, inputs):
    run = shardplan("export", "stages.json", "--to", name, "-o", "made")
    assert (run.code, run.out, run.err) == (2, "", REFUSED)
    assert not Path("made").exists()


def test_a_stage_is_exported(shardplan, inputs):
    run = shardplan("export", "stages.json", "--to", "shard-info", "--stage", "1")
    assert (run.code, run.err) == (0, "")
    assert json.loads(run.out) == {
        "table": [["shard_dim_0", [[2, 4, 8], "float32"], 2]],
        "b.w": [["shard_dim_1", [[2, 8, 4], "float32"], 2]],
    }


def test_stages_that_are_not_there(shardplan, inputs):
    run = shardplan("export", "stages.json", "--to", "jax", "--stage", "2")
    assert (run.code, run.err) == (2, "error[unknown-stage]: there is no stage 2: the plan has stages 0 to 1\n")
    write_plan(plan_of(Mesh.of(tp=2), {}), "plain.json")
    run = shardplan("split", "m.safetensors", "plain.json", "-o", "out", "--stage", "0")
    assert (run.code, run.err) == (2, "error[no-stages]: the plan has no stages\nhint: leave --stage out\n")
    run = shardplan("export", "stages.json", "nothing.onnx", "--to", "onnx", "--stage", "0", "-o", "made.onnx")
    assert run.code == 2
    assert run.err.startswith(
        "error[whole-model]: the format 'onnx' is made from a whole model, not from a stage of it\n"
        "hint: leave --stage out, with a plan without stages\n"
    )


def test_a_split_for_a_stage_leaves_out_what_others_hold(shardplan, inputs):
    """Weights and buffers of other stages are not there; what no stage names is copied, with a warning."""
    assert shardplan("split", "m.safetensors", "stages.json", "-o", "out").err == REFUSED
    for stage, (module, rows) in enumerate((("a", slice(4, 8)), ("b", slice(0, 8)))):
        run = shardplan("split", "m.safetensors", "stages.json", "-o", f"out{stage}", "--stage", str(stage))
        assert run.code == 0
        assert "the checkpoint has 2 tensors that the plan does not name; every rank gets a whole copy" in run.err
        found = load_presharded(f"out{stage}", 1, ranks=2)
        assert set(found) == {"table", f"{module}.w", f"{module}.mean", "other"}
        columns = slice(0, 8) if stage == 0 else slice(4, 8)
        assert found[f"{module}.w"].array.tobytes() == WEIGHTS[f"{module}.w"][rows, columns].tobytes()
        assert found["table"].array.tobytes() == WEIGHTS["table"][4:].tobytes()


def test_the_library_refuses_too(inputs):
    plan = library.load("stages.json")
    with pytest.raises(ShardplanError) as caught:
        library.slices(plan, "a.w", 0)
    assert f"{caught.value}\n" == REFUSED


def test_numbers_for_floats_are_told(shardplan, inputs):
    write_safetensors(inputs / "m.safetensors", {**WEIGHTS, "a.w": WEIGHTS["a.w"].astype(np.int32)})
    run = shardplan("split", "m.safetensors", "stages.json", "-o", "out", "--stage", "0")
    assert run.code == 0
    assert run.err.startswith(
        "warning[other-type]: the checkpoint has a weight of another kind of type than the plan; the bits are taken as "
        "they are\n"
        "  a.w: I32, float in the plan\n"
    )


@pytest.fixture
def zero_one(folder: Path) -> Path:
    """ZeRO-1 in four microbatches: weights whole, the state of one of them cut."""
    weights = {"a.w": ((8, 8), Layout.of(R), (1, 0)), "b.w": ((8, 8), Layout.of(R))}
    plan = plan_of(Mesh.of(dp=2), weights)
    tensors = (replace(plan.tensors[0], optimizer=Layout.of(S(0))), plan.tensors[1])
    write_plan(replace(plan, tensors=tensors, model={**plan.model, "microbatches": 4}), "zero.json")
    return folder


MICROBATCHES = (
    "warning[not-said]: the plan is for a step of 4 microbatches, which the program that runs it has to make\n"
)


def test_formats_that_have_no_word_for_optimizer_state_say_so(shardplan, zero_one):
    run = shardplan("export", "zero.json", "--to", "shardy")
    assert run.code == 0
    assert run.err == (
        "warning[not-said]: the optimizer state of a.w is sharded apart from the weights (ZeRO-1); 'shardy' says "
        "weights\n" + MICROBATCHES
    )


def test_formats_that_say_microbatches_are_not_warned_about():
    plan = plan_of(Mesh.of(dp=2), {"a.w": ((8, 8), Layout.of(R))})
    plan = replace(plan, model={**plan.model, "microbatches": 4})
    apart = replace(plan, tensors=(replace(plan.tensors[0], optimizer=Layout.of(S(0))),))
    said = {
        name: [str(each) for each in left_to_programs(apart, name)] for name in ("megatron", "maxtext", "deepspeed")
    }
    assert said["megatron"] == []
    (states,) = said["maxtext"]
    assert states.endswith("is sharded apart from the weights (ZeRO-1); 'maxtext' says weights")
    assert said["deepspeed"][1:] == [MICROBATCHES.strip()]


def test_partition_specs_of_optimizer_state(shardplan, zero_one):
    run = shardplan("export", "zero.json", "--to", "jax")
    assert (run.code, run.err) == (0, MICROBATCHES)
    assert (
        'PARAMETERS = {\n    "a.w": P(),\n    "b.w": P(),\n}\n\nOPTIMIZER = {\n    "a.w": P(None, "dp"),\n}\n'
        in run.out
    )
