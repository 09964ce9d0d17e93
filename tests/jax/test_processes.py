"""Two processes with eight devices each: the mesh spans both, each reads its own half of the weights, XLA follows."""

from __future__ import annotations

import json
import socket

import pytest

pytest.importorskip("jax")
pytest.importorskip("safetensors")

import numpy as np
from forced_plans import forced_plan
from onnx.reference import ReferenceEvaluator
from safetensors.numpy import save_file
from tiny_models import tiny_llama

from shardplan.plan.file import write_plan


@pytest.fixture(scope="module")
def found(start, finish, tmp_path_factory):
    """What both processes found."""
    folder = tmp_path_factory.mktemp("processes")
    tiny = tiny_llama()
    write_plan(forced_plan(tiny.model(folder), "4x4", recipe="ZeRO-3"), folder / "plan.json")
    save_file(dict(tiny.weights), folder / "model.safetensors")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    for rank in range(2):
        (folder / str(rank)).mkdir()
    running = [start("tests/support/jax_process.py", str(rank), address, str(folder)) for rank in range(2)]
    for process in running:
        finish(process)
    places = [folder / str(rank) for rank in range(2)]
    return [{**json.loads((at / "found.json").read_text()), "out": np.load(at / "out.npy")} for at in places]


def test_machines_are_the_outer_axis(found):
    assert found[0]["devices"] == found[1]["devices"] == [[0] * 4, [0] * 4, [1] * 4, [1] * 4]


def test_each_reads_its_half(found):
    assert [2 * row["read"] for row in found] == [row["of"] for row in found]


def test_the_program_is_the_planned_one(found):
    assert all(row["agrees"] for row in found), found[0]["text"]


def test_both_hold_the_result_of_one_device(found):
    tiny = tiny_llama()
    (expected,) = ReferenceEvaluator(tiny.proto).run(None, dict(tiny.inputs))
    for row in found:
        np.testing.assert_allclose(row["out"], expected, atol=2e-5)
