"""The examples of the documentation: solve with the command in them, then train. torchrun starts such a program in a
tutorial and under `shardplan launch`, which have tests of their own."""

import re
import runpy
import shlex
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors")

import numpy as np
import torch
from safetensors.numpy import save_file

import shardplan
from shardplan.cli import main
from shardplan.plan.orientation import checkpoint_shape

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "examples" / "train_torch.py"
PIPELINE = ROOT / "docs" / "examples" / "train_torch_pipeline.py"


def solved(script, folder):
    """The plan that the command in a script's docstring makes."""
    command = re.search(r"    shardplan (solve .*?--mesh 2x2 .*?)\n    torchrun", script.read_text(), re.DOTALL)[1]
    args = shlex.split(command.replace("\\\n", " "))
    path = folder / args[-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        assert main([*args[:-1], str(path)]) == 0
    return path


def losses_in(printed):
    return [float(loss) for loss in re.findall(r"^step \d+ loss (\S+)$", printed, re.MULTILINE)]


def first_loss(plan):
    """Of the script's model as it is made, in one process."""
    torch.manual_seed(0)
    model = runpy.run_path(str(SCRIPT))["build"](shardplan.load(plan), 4, "cpu")
    ids = torch.randint(0, 256, (8, 32))
    return torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.roll(-1, 1).flatten()).item()


def test_it_trains_on_four_processes_from_a_checkpoint(four, tmp_path):
    plan = solved(SCRIPT, tmp_path)
    generator = np.random.default_rng(0)
    weights = {
        tensor.checkpoint: generator.normal(0, 0.05, checkpoint_shape(tensor.shape, tensor.perm)).astype(np.float32)
        for tensor in shardplan.load(plan).tensors
        if tensor.role == "parameter"
    }
    checkpoint = plan.with_name("model.safetensors")
    save_file(weights, checkpoint)
    args = (str(plan), "--checkpoint", str(checkpoint), "--steps", "4")
    printed = "".join(four.run("torch_cases", "script", str(SCRIPT), *args))
    losses = losses_in(printed)
    assert losses[0] == pytest.approx(loss_of_one_process(plan, weights), abs=2e-4)
    assert losses == sorted(losses, reverse=True)
    assert re.search(r"^forward +all_reduce +gpu +4 +131,072 +4 +131,072$", printed, re.MULTILINE)
    beside = re.findall(r"([\d,]+) +\d+ +([\d,]+)  differs$", printed, re.MULTILINE)
    for planned, sent in beside:  # the loss is beside the plan, and small
        assert 0 < number(sent) - number(planned) <= 512
    assert len(beside) <= 2


def number(text):
    return int(text.replace(",", ""))


def loss_of_one_process(path, weights):
    """Of the script's own model, with the same weights and the same first batch."""
    script = runpy.run_path(str(SCRIPT))
    plan = shardplan.load(path)
    torch.manual_seed(0)
    model = script["build"](plan, 4, "cpu")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            called = script["in_checkpoint"](name)
            stored = torch.tensor(weights[called if isinstance(called, str) else called[0]])
            parameter.copy_(stored if isinstance(called, str) else stored.T)
    torch.manual_seed(0)
    ids = torch.randint(0, 256, (8, 32))
    logits = model(ids)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.roll(-1, 1).flatten()).item()


def test_a_pipeline_of_two_stages_begins_where_one_process_does(four, tmp_path):
    path = solved(PIPELINE, tmp_path)
    printed = four.run("torch_cases", "script", str(PIPELINE), str(path), "--steps", "3")
    losses = losses_in("".join(printed))
    assert losses[0] == pytest.approx(first_loss(path), abs=2e-4)
    assert losses == sorted(losses, reverse=True)
