"""The example of the documentation, as a user runs it: solve with the command that it names, then train."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

pytest.importorskip("jax")
pytest.importorskip("safetensors")

import numpy as np
from safetensors.numpy import save_file

import shardplan
from shardplan.cli import main
from shardplan.plan.orientation import checkpoint_shape

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "examples" / "train_jax.py"


def solve_command(plan: Path, constraints: str = "tensor_parallel.yaml") -> list[str]:
    """The arguments of `shardplan` in the script's first lines, with another plan's name and other constraints."""
    command = re.search(r"    shardplan (solve .*?)\n    python", SCRIPT.read_text(), re.DOTALL)
    args = shlex.split(command[1].replace("\\\n", " "))
    return [str(plan) if arg == "gpt.plan.json" else arg.replace("tensor_parallel.yaml", constraints) for arg in args]


@pytest.fixture(scope="module")
def printed(start, finish, tmp_path_factory):
    """What training prints: under tensor parallelism, and from a checkpoint with the weights cut over machines too."""
    folder = tmp_path_factory.mktemp("example")
    plans = {folder / f"{name}.plan.json": name for name in ("tensor_parallel.yaml", "zero_and_tensor_parallel.yaml")}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        commands = [solve_command(*plan) for plan in plans.items()]
        commands[1] += ["--equal-layers", "--cluster", "generic"]
        assert [main([*command, "--effort", "quick"]) for command in commands] == [0, 0]
    generator = np.random.default_rng(0)
    weights = {
        tensor.checkpoint: generator.normal(0, 0.05, checkpoint_shape(tensor.shape, tensor.perm)).astype(np.float32)
        for tensor in shardplan.load(next(iter(plans))).tensors
        if tensor.role == "parameter"
    }
    save_file(weights, folder / "model.safetensors")
    extras = (("--steps", "1"), ("--checkpoint", str(folder / "model.safetensors"), "--steps", "2"))
    first, second = [
        (str(SCRIPT), str(plan), "--heads", "8", *extra) for plan, extra in zip(plans, extras, strict=True)
    ]
    return [finish(process) for process in (start(*first, flags=None), start(*second))]


def test_it_learns(start, finish, tmp_path):
    plan = tmp_path / "gpt.plan.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        assert main([*solve_command(plan), "--effort", "quick"]) == 0
    told = finish(start(str(SCRIPT), str(plan), "--heads", "8", "--steps", "4"))
    losses = [float(loss) for loss in re.findall(r"^step \d+ loss (\S+)$", told, re.MULTILINE)]
    assert len(losses) == 4
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.9 * losses[0]


def test_it_sends_what_the_plan_says(printed):
    head, _, table = printed[0].partition("\n")
    assert head == "transformer on machine=4 x gpu=4: a forward pass as planned and as XLA compiled it"
    assert table.splitlines()[:3] == [
        "phase     collective      axes                    emitted      planned  bytes of one device",
        "forward   all_reduce      gpu                   1,572,864    1,572,864",
        "forward   total                                 1,572,864    1,572,864  x 1.00",
    ]
    assert printed[0].endswith(
        "layers.up.kernel (4, 256, 1024) is P(None, None, 'gpu'): a device holds (4, 256, 256)\n"
    )


def test_it_takes_a_checkpoint_and_gathers_one_layer_at_a_time(printed):
    losses = [float(loss) for loss in re.findall(r"^step \d+ loss (\S+)$", printed[1], re.MULTILINE)]
    assert len(losses) == 2
    assert losses[1] < losses[0]
    assert printed[1].splitlines()[2:5] == [
        "forward   all_gather      machine               2,359,296    2,359,296",
        "forward   all_reduce      gpu                   1,572,864    1,572,864",
        "forward   total                                 3,932,160    3,932,160  x 1.00",
    ]
    assert "is P(None, 'machine', 'gpu'): a device holds (4, 64, 256)\n" in printed[1]


def test_a_function_is_planned_and_trained(start, finish):
    """The other example: losses of four devices are those of one."""
    told = finish(start("docs/examples/plan_jax.py", "--mesh", "2x2", "--steps", "2", flags=None))
    losses = re.findall(r"loss (\d+\.\d+), on one device (\d+\.\d+)", told)
    assert len(losses) == 2
    assert all(abs(float(one) - float(other)) < 1e-3 for one, other in losses)
    assert "a device holds (4, 128, 256)" in told
    assert re.search(r"forward   total .* x 1\.00", told)
