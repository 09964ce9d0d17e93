"""Plans with stages in torch: two stages of two processes, or four of one, train as one process does."""

import functools
import pathlib
import tempfile
import textwrap
from dataclasses import replace

import onnx
import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors")

from forced_plans import cluster_of
from safetensors.numpy import save_file
from small_models import proto_of
from tiny_models import Sizes, megatron, tiny_gpt, tiny_llama, tiny_moe
from torch import nn

import shardplan.torch
from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.constraints.parse import parse_constraints
from shardplan.errors import ShardplanError
from shardplan.graph.options import PlanOptions
from shardplan.layout.mesh import Mesh
from shardplan.model.read import read_model
from shardplan.stages.manual import read_stages
from shardplan.stages.plan import plan_stages
from shardplan.stages.schedule import parse_schedule

EIGHT, GROUPED = Sizes(batch=8), Sizes(batch=8, kv_heads=2)
TINIES = {
    "gpt tied": functools.partial(tiny_gpt, EIGHT, tied=True),
    "gpt packed": functools.partial(tiny_gpt, EIGHT, fused=True),
    "llama": functools.partial(tiny_llama, GROUPED),
    "moe": functools.partial(tiny_moe, GROUPED),
}
BATCH = "axes:\n  gpu: {inputs: 0}\n"


@functools.cache
def tiny_of(name):
    return TINIES[name]()


@functools.cache
def model_of(name):
    with tempfile.TemporaryDirectory() as folder:
        return tiny_of(name).model(pathlib.Path(folder))


def plan_of(name, *, inside="", schedule="1f1b", micro=2, stages=2, mode="training", **options):
    text = {"": "", "batch": BATCH}.get(inside) if inside in {"", "batch"} else megatron(tiny_of(name), sequence=True)
    constraints = parse_constraints(text, "inside.yaml") if text else ()
    asked = PlanOptions(mode=mode, microbatches=micro, constraints=constraints, **options)
    return plan_stages(model_of(name), cluster_of("2x2"), asked, parse_schedule(schedule), stages)


CASES = {
    "weights of two stages": ("gpt tied", {}),
    "Megatron inside": ("gpt packed", {"inside": "Megatron"}),
    "more microbatches than stages": ("llama", {"inside": "Megatron", "micro": 4}),
    "gpipe": ("moe", {"inside": "Megatron", "schedule": "gpipe"}),
    "interleaved": ("gpt tied", {"schedule": "interleaved:2", "micro": 4}),
    "four stages of one device": ("gpt tied", {"stages": 4, "micro": 4}),
}


@pytest.mark.parametrize("case", CASES)
def test_trains_as_one_process_and_sends_what_its_stages_say(four, case):
    name, options = CASES[case]
    plan = plan_of(name, **options)
    results = four.run("torch_pipelines", "train", tiny_of(name), plan)
    for seen in results:
        assert seen.loss_error < 1e-5
        assert seen.gradient_error < 1e-5
        assert {key: pair for key, pair in seen.differences.items() if key[0] == "backward"} == {}
    assert results[0].differences == {}
    whole = len(tiny_of(name).weights)
    assert 0 < results[0].parameters < whole


MLP = """
mlp (float[64,6] x) => (float[64,14] y)
<float[6,8] w1, float[8] b1, float[8,10] w2, float[10] b2, float[10,12] w3, float[12] b3, float[12,14] w4,
 float[14] b4> {
  h1 = Gemm (x, w1, b1)
  a1 = Relu (h1)
  h2 = Gemm (a1, w2, b2)
  h3 = Gemm (h2, w3, b3)
  a3 = Relu (h3)
  y = Gemm (a3, w4, b4)
}"""


def mlp_plan(folder, runs, first, second):
    """Two stages, the first of which runs `runs`, with axes and layouts as lines of YAML."""
    path = folder / "mlp.onnx"
    onnx.save(proto_of(MLP), path)
    model, cluster = read_model(path), make_cluster(load_profile("h100-dgx"), "1x4")
    text = f"stages:\n  - runs: [{runs}]\n{indent(first)}\n  - runs: ['*']\n{indent(second)}\n"
    asked = PlanOptions(microbatches=2)
    file = folder / "stages.yaml"
    file.write_text(text)
    return plan_stages(model, cluster, asked, parse_schedule("1f1b"), read_stages([str(file)]))


def indent(text):
    return textwrap.indent(textwrap.dedent(text).strip(), "    ")


COLUMNS = "mesh: 1x2\nmesh_axis_names: [dummy, model]\nparameters: {w1: [null, model], b1: [model]}"
ROWS = "mesh: 1x2\nmesh_axis_names: [dummy, data]\nparameters: {'*': replicate}\noutputs: {y: [data, null]}"


@pytest.mark.parametrize(
    "runs", ["Gemm_0", "Gemm_0, Relu_1", "Gemm_0, Relu_1, Gemm_2", "Gemm_0, Relu_1, Gemm_2, Gemm_3"]
)
def test_stages_by_hand_end_where_the_plan_ends_them(four, tmp_path, runs):
    """A stage that could end before or behind an activation ends where the plan says."""
    plan = mlp_plan(tmp_path, runs, COLUMNS, ROWS)
    for seen in four.run("torch_pipelines", "train_mlp", plan):
        assert seen.loss_error < 1e-6
        assert seen.gradient_error < 1e-6


def test_meshes_of_different_shapes_hand_whole_values_over(four, tmp_path):
    plan = mlp_plan(tmp_path, "Gemm_0, Relu_1", "mesh: 1x2\nparameters: {w1: [null, gpu], b1: [gpu]}", TURNED)
    assert [stage.plan.mesh.shape for stage in plan.pipeline.stages] == [(1, 2), (2, 1)]
    for seen in four.run("torch_pipelines", "train_mlp", plan):
        assert seen.loss_error < 1e-6
        assert seen.gradient_error < 1e-6


TURNED = "mesh: 2x1\nmesh_axis_names: [data, dummy]\nparameters: {'*': replicate}\noutputs: {y: [data, null]}"


def test_weights_of_a_pipeline_are_read_by_stage(four, tmp_path):
    tiny = tiny_of("gpt packed")
    checkpoint = tmp_path / "model.safetensors"
    save_file(dict(tiny.weights), checkpoint)
    plan = plan_of("gpt packed", inside="Megatron", mode="inference")
    results = four.run("torch_pipelines", "load", tiny, plan, str(checkpoint))
    assert [len(errors) for _, errors in results] == [0, 0, 2, 2]
    for wrong, errors in results:
        assert wrong == 0
        assert max(errors, default=0) < 1e-5


TEXTS = {
    "parallelize": "error[pipeline-plan]: the plan is a pipeline of 2 stages\n"
    "hint: run it with shardplan.torch.pipeline(model, example_inputs, plan, mesh, loss=...)",
    "skips": "error[cannot-cut]: the model has no place where stage 0 can end as the plan says, with 'h2'\n"
    "  behind add_1 2 values go on: relu [32, 8], add_1 [32, 10]\n"
    "hint: is the model the one that was planned? solve again for it, with --stages or stages: by hand",
    "no loss": "error[no-loss]: a pipeline without a loss cannot take a training step\n"
    "hint: give the loss to shardplan.torch.pipeline(..., loss=...)",
}


@pytest.mark.parametrize("what", TEXTS)
def test_refusal(four, tmp_path, what):
    plan = mlp_plan(tmp_path, "Gemm_0, Relu_1, Gemm_2", COLUMNS, ROWS)
    assert four.run("torch_pipelines", "refused", plan, what) == [TEXTS[what]] * 4


def test_plans_that_torch_cannot_run_are_refused_at_once():
    def said(plan):
        with pytest.raises(ShardplanError) as caught:
            shardplan.torch.pipeline(nn.Linear(1, 1), (), plan, None)
        return str(caught.value)

    plan = plan_of("gpt packed")
    first, *others = plan.pipeline.stages
    small = replace(first, plan=replace(first.plan, mesh=Mesh.of(machine=1, gpu=1)))
    assert said(replace(plan, pipeline=None)) == (
        "error[no-pipeline]: the plan has no stages\nhint: use shardplan.torch.parallelize, or solve with --stages"
    )
    assert said(replace(plan, pipeline=replace(plan.pipeline, stages=(small, *others)))) == (
        "error[unequal-stages]: the stages have 1, 2 devices; torch's pipelining needs as many in each\n"
        "hint: fix stages of equal size by hand (stages: in the constraints file, each with its mesh:)"
    )
    odd = replace(plan, model={**plan.model, "microbatches": 5})
    assert said(replace(odd, pipeline=replace(odd.pipeline, schedule="interleaved:2"))) == (
        "error[uneven-rounds]: torch runs interleaved stages in 2 rounds, into which 5 microbatches do not go\n"
        "hint: solve with --microbatches 4"
    )
