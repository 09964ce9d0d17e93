"""Weights read by rank: what each process holds, from a whole checkpoint and from one split before."""

import math

import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors")

from forced_plans import forced_plan
from safetensors.numpy import save_file
from tiny_models import tiny_gpt

from shardplan.layout.legal import local_shape
from shardplan.loading.assign import assign
from shardplan.loading.checkpoint import open_checkpoint
from shardplan.loading.split import split


@pytest.mark.parametrize("recipe", ["ZeRO-3", "Megatron + sequence"])
def test_every_rank_reads_its_part(four, tmp_path, recipe):
    tiny = tiny_gpt(fused=True)
    plan = forced_plan(tiny.model(tmp_path), "2x2", recipe=recipe)
    checkpoint = tmp_path / "model.safetensors"
    save_file(dict(tiny.weights), checkpoint)
    parameters = [tensor for tensor in plan.tensors if tensor.role == "parameter"]
    held = sum(math.prod(local_shape(t.layout.forward, plan.mesh, t.shape)) for t in parameters)
    assert held < sum(math.prod(tensor.shape) for tensor in parameters) / 1.5
    split(assign(plan, open_checkpoint(checkpoint)), tmp_path / "split")
    for path in (checkpoint, tmp_path / "split"):
        for elements, weight_error, loss_error in four.run("torch_cases", "load", tiny, plan, str(path)):
            assert elements == held
            assert weight_error == 0
            assert loss_error < 1e-6
