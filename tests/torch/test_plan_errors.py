"""The exact words about plans, models and launches that do not go together, before anything runs."""

from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors")

import torch_twins
from forced_plans import forced_plan
from tiny_models import tiny_gpt
from torch import nn

import shardplan.torch
from shardplan.errors import ShardplanError
from shardplan.layout.layout import Layout
from shardplan.layout.placement import R, S
from shardplan.torch.parameters.naming import name_parameters

TIED = tiny_gpt(tied=True)


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return forced_plan(TIED.model(tmp_path_factory.mktemp("plan")), "2x2", recipe="Megatron")


def said(action, *args, **kwargs):
    with pytest.raises(ShardplanError) as caught:
        action(*args, **kwargs)
    return str(caught.value)


def changed(plan, name, **values):
    tensors = (replace(t, **values) if t.checkpoint == name else t for t in plan.tensors)
    return replace(plan, tensors=tuple(tensors))


def named(plan, model=None):
    return said(name_parameters, model or torch_twins.twin(TIED), plan, rename=None, ignore=("*.mask",), strict=True)


EXPORT = "hint: export with torch.onnx.export(..., dynamo=True, optimize=False), and solve again"


def test_weights_that_an_exporter_has_made(plan):
    looked_up = changed(plan, "transformer.wpe.weight", shape=(1, 16, 32))
    assert named(changed(looked_up, "transformer.h.0.mlp.c_fc.weight", checkpoint="val_7")) == (
        "error[folded-weight]: the plan has weights that the exporter has computed from others: the model has none "
        "like them\n  transformer.wpe.weight [1, 16, 32]\n  val_7 [32, 128]\n" + EXPORT
    )


def test_a_tied_weight_that_an_exporter_has_copied(plan):
    head = next(tensor for tensor in plan.tensors if tensor.checkpoint == "transformer.wte.weight")
    copy = replace(head, name="copy", checkpoint="lm_head.weight")
    assert named(replace(plan, tensors=(*plan.tensors, copy))) == (
        "error[tied-apart]: lm_head.weight and transformer.wte.weight are one parameter of the model, but 2 weights "
        "of the plan\n" + EXPORT + ", or untie them"
    )


def test_a_weight_that_the_model_has_twice(plan):
    model = torch_twins.twin(TIED)
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    assert named(changed(plan, "transformer.wte.weight", aliases=("lm_head.weight",)), model) == (
        "error[not-tied]: transformer.wte.weight and lm_head.weight are one weight in the plan, but 2 parameters of "
        "the model\nhint: tie them: model.lm_head.weight = model.transformer.wte.weight"
    )


def test_shards_that_do_not_divide(plan):
    layout = Layout.of(S(0, (3,) * 10 + (2,)), R)
    assert named(changed(plan, "transformer.h.0.mlp.c_fc.weight", layout=layout)) == (
        "error[indivisible]: 'transformer.h.0.mlp.c_fc.weight' cannot be sharded as the plan says: a segment of 3 in "
        "dim 1 does not divide by machine=2\nhint: was the plan file changed by hand? solve again"
    )


LAUNCHES = {
    (): "error[no-world]: there is no process group, and the environment names no WORLD_SIZE\n"
    "hint: start the program with torchrun --nproc-per-node N (in all 4 processes), or call init_process_group; "
    "srun and mpirun do as well, and shardplan launch-env writes the line",
    (("WORLD_SIZE", "1"),): "error[wrong-world]: the plan is for 4 devices (machine=2 x gpu=2), this job has 1 "
    "process\nhint: start 4 processes, or solve again for 1 device",
    (("WORLD_SIZE", "4"), ("LOCAL_WORLD_SIZE", "1")): "error[wrong-host]: the plan places 2 devices on a machine, this "
    "job runs 1 process on one\n  axis machine=2 over net, axis gpu=2 over up\n"
    "hint: start 2 processes per machine (torchrun --nproc-per-node 2)",
}


@pytest.mark.parametrize("environment", LAUNCHES)
def test_launches(plan, monkeypatch, environment):
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment:
        monkeypatch.setenv(name, value)
    assert said(shardplan.torch.mesh, plan, "cpu") == LAUNCHES[environment]


TEXTS = {
    "inputs of the model": "error[wrong-inputs]: the model is called with the tensors input_ids, labels; the plan's "
    "inputs are input_ids\nhint: solve again for a model with these inputs",
    "placements of a batch": "error[unknown-placement]: input 'input_ids' has placements [Partial(avg), Replicate()], "
    "which no plan can name\nhint: make it with shardplan.torch.inputs(plan, mesh, batch)",
    "missing input": "error[missing-input]: the batch has no 'input_ids'\nhint: the plan's inputs are input_ids",
    "shape of a part": "error[wrong-shape]: a process's part of input 'input_ids' has shape [4, 16], the plan is for "
    "[2, 16]\nhint: solve again for this batch, or pad it",
    "export": "error[cannot-export]: torch.export cannot write this model as a graph: a shape or a branch of it "
    "depends on the values of tensors\n  Could not guard on data-dependent expression Eq(u0, 1) (unhinted: Eq(u0, 1))."
    "  (Size-like symbols: none)\nhint: apply a plan without stages with parallelize: it needs no graph; or write it "
    "with shapes that do not: torch.where in place of `if`, masks in place of indices; experts as batched products "
    "(Hugging Face: model.set_experts_implementation('batched_mm')); sizes that it reads from tensors (int(...), "
    "tolist()) as numbers that the module keeps",
    "missing weight": "FOLDER/model.safetensors: error[missing-weight]: the checkpoint has no tensor "
    "'transformer.ln_f.bias'\nhint: did you mean 'transformer.h.1.ln_2.bias'?",
    "shape of a weight": "FOLDER/model.safetensors: error[wrong-weight-shape]: 'lm_head.weight' has shape [7, 32] in "
    "the checkpoint, the plan has [96, 32]",
    "left on meta": "error[not-loaded]: still on the meta device: transformer.mask\nhint: make buffers that are "
    "computed and not stored on a real device, or put them into the checkpoint",
}


@pytest.mark.parametrize("what", TEXTS)
def test_calls_batches_and_checkpoints(four, plan_untied, what):
    assert four.run("torch_errors", "refused", tiny_gpt(), plan_untied, what) == [TEXTS[what]] * 4


@pytest.fixture(scope="module")
def plan_untied(tmp_path_factory):
    return forced_plan(tiny_gpt().model(tmp_path_factory.mktemp("plan")), "2x2", recipe="Megatron")
