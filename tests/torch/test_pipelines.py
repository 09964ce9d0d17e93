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

import torch
from forced_plans import cluster_of
from safetensors.numpy import save_file
from small_models import FOUR_GEMMS, proto_of
from tiny_models import Sizes, megatron, tiny_gpt, tiny_llama, tiny_moe
from torch import nn
from torch.nn import functional
from torch_pipelines import Masked, Mlp, Moody

import shardplan.torch
from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.constraints.parse import parse_constraints
from shardplan.errors import ShardplanError
from shardplan.graph.options import PlanOptions
from shardplan.model.read import read_model
from shardplan.pipeline.manual.stages import read_stages
from shardplan.pipeline.plan import plan_stages
from shardplan.pipeline.schedule import parse_schedule

EIGHT, GROUPED = Sizes(batch=8), Sizes(batch=8, kv_heads=2)
TINIES = {
    "gpt tied": functools.partial(tiny_gpt, EIGHT, tied=True),
    "gpt packed": functools.partial(tiny_gpt, EIGHT, fused=True),
    "llama": functools.partial(tiny_llama, GROUPED),
    "moe": functools.partial(tiny_moe, GROUPED),
}


@functools.cache
def tiny_of(name):
    return TINIES[name]()


@functools.cache
def model_of(name):
    with tempfile.TemporaryDirectory() as folder:
        return tiny_of(name).model(pathlib.Path(folder))


@functools.cache
def plan_of(name, *, inside="", schedule="1f1b", micro=2, stages=2, mode="training", **options):
    """For two machines of two devices. `inside`: `Megatron`, with a layer in each of two stages, `anything` in those,
    or nothing: then the cut is solved for too."""
    text = megatron(tiny_of(name), sequence=True) if inside == "Megatron" else ""
    constraints = parse_constraints(text, "inside.yaml") if text else ()
    asked = PlanOptions(mode=mode, microbatches=micro, constraints=constraints, **options)
    cut = stages_by_hand([(runs, PAIR) for runs in HALVES[name]], "gpu: 1") if inside else stages
    return plan_stages(model_of(name), cluster_of("2x2"), asked, parse_schedule(schedule), cut)


def stages_by_hand(stages, handed):
    """`stages`: what each runs, with its mesh and layouts as lines of YAML. `handed`: which axis shards which dim of
    what is handed on, where a stage has it."""
    runs = [f"  - runs: [{what}]\n{textwrap.indent(lines, '    ')}\n" for what, lines in stages]
    with tempfile.NamedTemporaryFile("w+", suffix=".yaml") as file:
        file.write("stages:\n" + "".join(runs) + f"pipeline_intermediate_axes: {{{handed}}}\n")
        file.flush()
        return read_stages([file.name])


GPT, LLAMA = "transformer.wte, transformer.wpe, transformer.h.0", "model.embed_tokens, model.layers.0"
REST = "transformer.h.1, transformer.ln_f, lm_head", "model.layers.1, model.norm, lm_head"
HALVES = {"gpt tied": (GPT, REST[0]), "gpt packed": (GPT, REST[0]), "llama": (LLAMA, REST[1]), "moe": (LLAMA, REST[1])}
PAIR = "mesh: 1x2"
CASES = {
    "weights of two stages": ("gpt tied", {"inside": "anything"}),
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
    results = four.run("torch_pipelines", "train", tiny_of(name), plan, 2 if "tied" in name else 1)
    for seen in results:
        assert seen.loss_error < 1e-5
        assert seen.gradient_error < 1e-5
        assert {key: pair for key, pair in seen.differences.items() if key[0] == "backward"} == {}
    assert results[0].differences == {}
    whole = len(tiny_of(name).weights)
    assert 0 < results[0].parameters < whole


def test_functions_of_the_program_run_their_own_backward(four):
    plan = plan_of("gpt packed", inside="Megatron")
    for seen in four.run("torch_pipelines", "train", tiny_of("gpt packed"), plan, 1, True, 3.0):
        assert seen.gradient_error < 1e-5


def by_hand(model, stages, micro=2, schedule="1f1b"):
    """A plan for four devices of one machine."""
    cluster = make_cluster(load_profile("h100-dgx"), "1x4")
    asked = PlanOptions(microbatches=micro)
    axis = "data" if any("data" in lines for _, lines in stages) else "dummy"
    return plan_stages(model, cluster, asked, parse_schedule(schedule), stages_by_hand(stages, f"{axis}: 0"))


@functools.cache
def mlp():
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "mlp.onnx"
        onnx.save(proto_of(FOUR_GEMMS.replace("BATCH", "64")), path)
        return read_model(path)


def mlp_plan(runs, first, second):
    """Two stages, the first of which runs `runs`."""
    return by_hand(mlp(), [(runs, first), ("'*'", second)])


COLUMNS = "mesh: 1x2\nmesh_axis_names: [dummy, model]\nparameters: {w1: [null, model], b1: [model]}"
ROWS = "mesh: 1x2\nmesh_axis_names: [dummy, data]\nparameters: {'*': replicate}\noutputs: {y: [data, null]}"


@pytest.mark.parametrize(
    "runs", ["Gemm_0", "Gemm_0, Relu_1", "Gemm_0, Relu_1, Gemm_2", "Gemm_0, Relu_1, Gemm_2, Gemm_3"]
)
def test_stages_by_hand_end_where_the_plan_ends_them(four, runs):
    """A stage that could end before or behind an activation ends where the plan says."""
    plan = mlp_plan(runs, COLUMNS, ROWS)
    for seen in four.run("torch_pipelines", "train_mlp", plan):
        assert seen.loss_error < 1e-6
        assert seen.gradient_error < 1e-6


UNUSED = (
    "error[unused-input]: the plan has the input 'target', which the model does not take\n"
    "hint: a plan made with loss= is for both: pipeline(shardplan.torch.with_loss(model, loss), example_inputs, plan,"
    " mesh), with the targets among the inputs, and step(*inputs)"
)


def test_a_plan_with_its_loss_is_for_the_model_with_its_loss(four):
    pytest.importorskip("onnxscript")
    inputs = torch.zeros(64, 6), torch.zeros(64, 14)
    options = {"cluster": "generic", "stages": 2, "microbatches": 2, "pins": ["w4=[gpu, null]"]}
    plan = shardplan.torch.plan(Mlp(), inputs, "2x2", loss=functional.mse_loss, **options)
    for loss_error, gradient_error, said in four.run("torch_pipelines", "train_with_loss", plan):
        assert loss_error < 1e-6
        assert gradient_error < 1e-6
        assert said == UNUSED


def test_a_pipeline_is_evaluated_and_trained_as_its_model_is(four):
    pytest.importorskip("onnxscript")
    plan = shardplan.torch.plan(Moody(), (torch.zeros(16, 16),), "2x2", cluster="generic", stages=2, microbatches=2)
    for errors, so, said in four.run("torch_pipelines", "in_both_modes", plan):
        assert max(errors) < 1e-5
        assert all(so)
        assert said == (
            "error[fixed-mode]: a stage of a pipeline has no mode of its own\n"
            "hint: call train() and eval() of the pipeline, on all processes"
        )


@pytest.mark.parametrize("norm_type", [2.0, float("inf")])
def test_gradients_are_clipped_by_their_norm_over_all_stages(four, norm_type):
    plan = plan_of("gpt tied", inside="anything")
    sums = set()
    for errors, of_tied in four.run("torch_pipelines", "clipped", tiny_of("gpt tied"), plan, norm_type):
        assert max(errors) < 1e-5
        sums |= set(of_tied)
    assert len(sums) == 1


@pytest.mark.parametrize("case", ["weights of two stages", "Megatron inside", "interleaved"])
def test_a_pipeline_is_saved_whole_and_goes_on_from_a_checkpoint(four, case, tmp_path):
    name, options = CASES[case]
    for errors, so in four.run("torch_pipelines", "kept", tiny_of(name), plan_of(name, **options), str(tmp_path)):
        assert max(errors) < 1e-5
        assert all(so)


NOT_LOADED = (
    "FOLDER/weights: error[missing-state]: the checkpoint has no state of an optimizer\n"
    "hint: save it as well: save_checkpoint(folder, model, optimizer), or load the model alone"
)
NOT_SAVED = (
    "error[foreign-parameter]: the optimizer has a parameter of shape [2] that is none of the model's\n"
    "hint: make the optimizer of model.parameters(), after the plan has been applied"
)


def test_trained_weights_without_gradients_have_no_state_in_checkpoints(four, tmp_path):
    plan = mlp_plan("Gemm_0, Relu_1, Gemm_2", COLUMNS, ROWS)
    for errors, so, (without, another, foreign) in four.run("torch_pipelines", "kept_aside", plan, str(tmp_path)):
        assert max(errors) < 1e-6
        assert all(so)
        assert (without, foreign) == (NOT_LOADED, NOT_SAVED)
        assert "error[another-state]" in another
        assert "the checkpoint has exp_avg, exp_avg_sq, step; SGD keeps momentum_buffer" in another


def test_an_input_of_one_row_is_that_of_every_microbatch(four):
    pytest.importorskip("onnxscript")
    inputs = torch.zeros(64, 6), torch.zeros(1, 14), torch.zeros(64, 14)
    options = {"cluster": "generic", "stages": 2, "microbatches": 2, "pins": ["w4=[gpu, null]"]}
    plan = shardplan.torch.plan(Masked(), inputs, "2x2", loss=functional.mse_loss, **options)
    for loss_error, gradient_error in four.run("torch_pipelines", "train_masked", plan):
        assert loss_error < 1e-6
        assert gradient_error < 1e-6


def test_stages_may_lay_their_devices_out_differently(four):
    plan = mlp_plan("Gemm_0, Relu_1", "mesh: 1x2\nparameters: {w1: [null, gpu], b1: [gpu]}", TURNED)
    assert [stage.plan.mesh.shape for stage in plan.pipeline.stages] == [(1, 2), (2, 1)]
    for seen in four.run("torch_pipelines", "train_mlp", plan):
        assert seen.loss_error < 1e-6
        assert seen.gradient_error < 1e-6


TURNED = "mesh: 2x1\nmesh_axis_names: [data, dummy]\nparameters: {'*': replicate}\noutputs: {y: [data, null]}"


ONE, DATA = "mesh: 1x1", "mesh: 1x2\nmesh_axis_names: [dummy, data]"
TENSOR = "mesh: 1x2\nmesh_axis_names: [dummy, model]\nparameters: {'*.up_proj.weight': [model, null]}"
THREE = "mesh: 1x3\nmesh_axis_names: [dummy, model]\nparameters: {w3: [null, model], b3: [model]}"
UNEVEN = {
    "gpt tied 1+2+1": ("gpt tied", [(GPT, ONE), ("transformer.h.1", DATA), ("'*'", ONE)], {"micro": 4}),
    "gpt packed 2+1+1": ("gpt packed", [(GPT, DATA), ("transformer.h.1", ONE), ("'*'", ONE)], {"schedule": "gpipe"}),
    "llama 1+1+2": ("llama", [(LLAMA, ONE), ("model.layers.1", ONE), ("'*'", DATA)], {"micro": 4}),
    "llama 2+1+1": ("llama", [(LLAMA, TENSOR), ("model.layers.1", ONE), ("'*'", ONE)], {"micro": 4}),
}


@pytest.mark.parametrize("case", UNEVEN)
def test_stages_of_unequal_numbers_of_devices_train_as_one_process(four, case):
    name, stages, options = UNEVEN[case]
    plan = by_hand(model_of(name), stages, **options)
    for seen in four.run("torch_pipelines", "train", tiny_of(name), plan, 2 if "tied" in name else 1):
        assert seen.loss_error < 1e-5
        assert seen.gradient_error < 1e-5
        assert seen.differences == {} or seen.is_last  # the loss sends too


def test_one_device_and_three(four):
    plan = mlp_plan("Gemm_0, Relu_1, Gemm_2", ONE, THREE)
    for seen in four.run("torch_pipelines", "train_mlp", plan):
        assert seen.loss_error < 1e-6
        assert seen.gradient_error < 1e-6


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


EXAMPLE = (
    "error[wrong-shape]: 'x' of example_inputs has shape {}, each of the plan's 2 microbatches has [32, 6]\nhint: "
)
SMALL = (
    "error[wrong-shape]: 'x' has shape [32, 6], the pipeline is for [64, 6], 2 microbatches of [32, 6]\n"
    "hint: give all processes the whole batch of a step: pad a smaller one, or solve again for its size"
)
INPUTS = (
    "error[pipeline-plan]: the plan is a pipeline of 2 stages, which take their inputs themselves\n"
    "hint: call step and forward of shardplan.torch.pipeline(...) with the whole batch on every process"
)
TEXTS = {
    "parallelize": "error[pipeline-plan]: the plan is a pipeline of 2 stages\n"
    "hint: run it with shardplan.torch.pipeline(model, example_inputs, plan, mesh, loss=...)",
    "skips": "error[cannot-cut]: the model has no place where stage 0 can end as the plan says, with 'h2'\n"
    "  behind add_1 2 values go on: relu [32, 8], add_1 [32, 10]\n"
    "hint: is the model the one that was planned? solve again for it, with --stages or stages: by hand",
    "common buffer": "error[cannot-cut]: stage 1 changes the buffer 'scale' by what it computes of weights, stage 0 "
    "reads it\nhint: end the stages elsewhere (stages: by hand), or apply a plan without stages with parallelize",
    "whole example": EXAMPLE.format("[64, 6]")
    + "give one microbatch as example_inputs, x[:32], and the whole batch to step",
    "wide example": EXAMPLE.format("[32, 5]") + "solve again for a batch of such inputs, or give others",
    "narrow example": EXAMPLE.format("[32, 3]") + "solve again for a batch of such inputs, or give others",
    "small batch": SMALL,
    "small batch, forward": SMALL,
    "inputs": INPUTS,
    "loader": INPUTS,
    "no loss": "error[no-loss]: a pipeline without a loss cannot take a training step\n"
    "hint: give the loss to shardplan.torch.pipeline(..., loss=...), or let the model return it alone",
    "batch without targets": "error[missing-target]: the loss needs target beside what the model returns, and the step "
    "has no target\nhint: give all processes the target of the whole batch: step(..., target=...)",
}


@pytest.mark.parametrize("what", TEXTS)
def test_refusal(four, what):
    plan = mlp_plan("Gemm_0, Relu_1, Gemm_2", COLUMNS, ROWS)
    assert four.run("torch_pipelines", "refused", plan, what) == [TEXTS[what]] * 4


def test_a_missing_target_is_said(four):
    pytest.importorskip("onnxscript")
    inputs, options = (torch.zeros(64, 6), torch.zeros(64, 14)), {"cluster": "generic", "stages": 2, "microbatches": 2}
    plan = shardplan.torch.plan(Mlp(), inputs, "2x2", loss=functional.mse_loss, **options)
    given = (
        "error[wrong-inputs]: the graph is of the model called with x, target; it is given x\n"
        "hint: give it target too, by place or by name"
    )
    said = [
        "error[missing-target]: the loss needs target, behind the arguments of the model or by name",
        given,
        "error[missing-target]: the loss needs target, behind the arguments of the model or by name",
    ]
    assert four.run("torch_pipelines", "without_target", plan) == [said] * 4


def test_plans_that_torch_cannot_run_are_refused_at_once():
    def said(plan):
        with pytest.raises(ShardplanError) as caught:
            shardplan.torch.pipeline(nn.Linear(1, 1), (), plan, None)
        return str(caught.value)

    plan = plan_of("gpt packed", inside="Megatron")
    assert said(replace(plan, pipeline=None)) == (
        "error[no-stages]: the plan has no stages\nhint: use shardplan.torch.parallelize, or solve with --stages"
    )
    odd = replace(plan, model={**plan.model, "microbatches": 5})
    assert said(replace(odd, pipeline=replace(odd.pipeline, schedule="interleaved:2"))) == (
        "error[uneven-rounds]: torch runs interleaved stages in 2 rounds, into which 5 microbatches do not go\n"
        "hint: solve with --microbatches 4"
    )
