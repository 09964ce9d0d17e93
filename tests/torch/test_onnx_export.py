"""Plans made from what torch's own exporter writes, applied to the model that it was exported from."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from forced_plans import forced_plan
from tiny_models import tiny_gpt, tiny_llama

from shardplan.model.read import read_model

FOLDER = Path(__file__).parent / "models"
TINIES = {"gpt": tiny_gpt(), "llama_tied": tiny_llama(tied=True)}


@pytest.mark.parametrize("name", TINIES)
@pytest.mark.parametrize("recipe", ["ZeRO-3", "Megatron + sequence"])
def test_exported_graphs_plan_their_own_models(four, name, recipe):
    plan = forced_plan(read_model(FOLDER / f"{name}.onnx"), "2x2", recipe=recipe)
    for seen in four.run("torch_cases", "train", TINIES[name], plan):
        assert seen.loss_error < 1e-5
        assert seen.gradient_error < 1e-5
        assert seen.record == ({}, {})
        for (phase, kind, _), (told, sent) in seen.differences.items():  # what autograd does not keep
            assert (phase, kind) == ("backward", "all_gather")
            assert told.wire_bytes - sent.wire_bytes <= 1024


@pytest.mark.parametrize("recipe", ["ZeRO-3", "Megatron", "Megatron + sequence"])
def test_idioms_of_programs(four, recipe):
    plan = forced_plan(read_model(FOLDER / "vision.onnx"), "2x2", recipe=recipe)
    for error, gradient_error, differences in four.run("torch_vision", "step", plan):
        assert error < 1e-5
        assert gradient_error < 1e-5
        assert not differences
