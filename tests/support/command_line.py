"""A model small enough to be planned in a blink, and one way to run the command line."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from shardplan.cli import main
from shardplan.plan.file import read_plan


@dataclass(frozen=True)
class Run:
    """What one call of the command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def shardplan(capsys: pytest.CaptureFixture[str]) -> Callable[..., Run]:
    def run(*arguments: str) -> Run:
        capsys.readouterr()
        code = main(arguments)
        captured = capsys.readouterr()
        return Run(code, captured.out, captured.err)

    return run


def unproven(plan: str, gap: float = 0.005) -> str:
    """What `solve` warns of where more than `gap` of the step of the plan in a file is left unproven."""
    slack = read_plan(plan).summary.slack
    said = f"warning[not-optimal]: the plan is not proven optimal; its optimality gap is {100 * slack:.1f} %\n"
    return said if slack > gap else ""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and no setting from the environment."""
    monkeypatch.chdir(tmp_path)
    for name in ("SHARDPLAN_MESH", "SHARDPLAN_CLUSTER", "SHARDPLAN_MODE", "NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def mlp(folder: Path) -> Path:
    """`mlp.onnx` in the working directory."""
    return write_mlp(folder / "mlp.onnx")


def write_mlp(path: Path) -> Path:
    """Two products with a symbolic batch, weights as initializers without data."""
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "up.weight"], ["hidden"], "up"),
            helper.make_node("Relu", ["hidden"], ["active"], "relu"),
            helper.make_node("MatMul", ["active", "down.weight"], ["y"], "down"),
        ],
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 64])],
        [_absent("up.weight", (64, 256)), _absent("down.weight", (256, 64))],
    )
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    )
    return path


def _absent(name: str, shape: tuple[int, ...]) -> onnx.TensorProto:
    """A weight whose data lies in a file that is not there."""
    tensor = onnx.TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "absent.data"), ("offset", "0")):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    return tensor
