"""`shardplan.make_plan` and `shardplan.save`: what the command line does, for programs."""

import doctest
import inspect
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from small_models import proto_of

import shardplan
from shardplan.cli import main
from shardplan.errors import InfeasibleError
from shardplan.model.read import read_model
from shardplan.plan.format.encode import dumps

MLP = """mlp (float[64,64] x) => (float[64,64] y) <float[64,256] up, float[256,64] down> {
  h = MatMul (x, up)
  a = Relu (h)
  y = MatMul (a, down)
}"""
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def mlp(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(proto_of(MLP), "mlp.onnx")
    return tmp_path


def test_a_plan_is_that_of_the_command_line_to_the_byte(mlp):
    assert main(["solve", "mlp.onnx", "--mesh", "2x2", "--memory-limit", "300 KiB", "--pin", "h=S(1)@gpu", "-q"]) == 0
    plan = shardplan.make_plan("mlp.onnx", "2x2", memory_limit="300 KiB", pins=["h=S(1)@gpu"])
    assert shardplan.save(plan, "plans/mlp.2x2.plan.json") is False
    assert shardplan.save(plan, "elsewhere/mlp.plan.json") is True
    assert dumps(shardplan.load("elsewhere/mlp.plan.json")) == dumps(plan)


def test_a_model_is_a_file_a_description_or_what_was_read(mlp):
    by_file, by_value = shardplan.make_plan("mlp.onnx", "2x2"), shardplan.make_plan(read_model("mlp.onnx"), "2x2")
    assert by_file.sources == {"model": "mlp.onnx", **by_value.sources}
    assert dumps(by_file) == dumps(replace(by_value, sources=by_file.sources))
    described = shardplan.make_plan("transformer:llama3-8b,layers=1", "1x2", mode="inference")
    assert str(described.model["name"]).startswith("llama3-8b")


def test_no_module_has_the_name_of_what_the_package_exports():
    """Python binds an imported module to its name in the package, where it would hide the function for good."""
    folder = Path(shardplan.__file__).parent
    modules = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    assert modules & set(shardplan.__all__) == set()


def test_constraints_are_mappings_files_and_plans(mlp):
    Path("fixed.yaml").write_text("parameters: {up: [null, gpu]}\n")
    by_file = shardplan.make_plan("mlp.onnx", "1x4", constraints=["fixed.yaml"])
    by_mapping = shardplan.make_plan("mlp.onnx", "1x4", constraints=[{"parameters": {"up": [None, "gpu"]}}])
    by_plan = shardplan.make_plan("mlp.onnx", "1x4", constraints=[by_file])
    (kept,) = {
        tensor.layout for plan in (by_file, by_mapping, by_plan) for tensor in plan.tensors if tensor.name == "up"
    }
    assert shardplan.slices(by_plan, "up", 1)[0].source == (slice(0, 64, None), slice(64, 128, None)), kept


def test_all_that_is_wrong_is_said_at_once(mlp):
    with pytest.raises(shardplan.ShardplanError) as caught:
        shardplan.make_plan("mlb.onnx", "2y2", mode="inferense")
    assert str(caught.value) == (
        "error[bad-argument]: mode 'inferense' is none of training, inference\n"
        "hint: did you mean 'inference'?\n"
        "error[bad-mesh]: mesh '2y2' cannot be read\n"
        "hint: a mesh is sizes such as 4x4, outermost first, or names such as machine=4,gpu=4\n"
        "mlb.onnx: error[no-such-file]: there is no such file\n"
        "hint: did you mean 'mlp.onnx'?"
    )


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"optimizer": "adam"}, "error[bad-argument]: optimizer 'adam' is none of adam-mixed, adam-fp32, sgd, none"),
        ({"remat": "some"}, "error[bad-argument]: remat 'some' is none of none, selective, alternate, full, auto"),
        ({"microbatches": 0}, "error[bad-argument]: microbatches is 0; a whole number of at least 1 is expected"),
        ({"memory_limit": "1 XB"}, "error[bad-quantity]: memory_limit: expected the unit of a size such as 80 GB"),
        ({"pins": ["up"]}, "error[bad-constraint]: --pin 'up' is not PATTERN=SPEC"),
        ({"constraints": [{"weights": {}}]}, "constraints[0]:1:1: error[unknown-key]: unknown key 'weights'"),
        ({"cost_model": "alps"}, "error[bad-cost-model]: there is no cost model 'alps'"),
    ],
)
def test_what_is_refused(mlp, asked, said):
    with pytest.raises(shardplan.ShardplanError) as caught:
        shardplan.make_plan("mlp.onnx", "2x2", **asked)
    assert str(caught.value).startswith(said)


def test_no_plan_fits(mlp):
    with pytest.raises(InfeasibleError, match="no plan fits in memory"):
        shardplan.make_plan("mlp.onnx", "1x1", memory_limit=10_000)


def test_warnings_are_pythons(mlp):
    with pytest.warns(UserWarning, match="axis 'gpu' uses 3 of 8 devices"):
        shardplan.make_plan("mlp.onnx", "1x3")


def test_plans_and_models_are_printed_in_a_line(mlp):
    plan = shardplan.make_plan("mlp.onnx", "2x2", mode="inference")
    assert repr(plan).startswith("<Plan of mlp, inference, on h100-dgx (machine=2 x gpu=2): step ")
    assert repr(plan).endswith(" KiB per device>")
    assert repr(read_model("mlp.onnx")) == "<Model mlp: 3 operators, 2 parameters, 1 input, 1 output>"


def test_what_there_is_can_be_found():
    assert {"ShardplanError", "load", "make_plan", "save", "slices", "torch", "jax"} <= set(dir(shardplan))
    for name in set(shardplan.__all__) - {"__version__"}:
        assert inspect.getdoc(getattr(shardplan, name))
        assert f"`{name}`" in (shardplan.__doc__ or "")


def test_importing_loads_nothing():
    code = "import sys, shardplan; dir(shardplan); print(*sorted(m for m in sys.modules if m.startswith('shardplan')))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "planner", capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["shardplan"]


def test_the_documented_session(monkeypatch, tmp_path):
    """Every line of `docs/python.md` that has a result, on the model that it names."""
    monkeypatch.chdir(tmp_path)
    Path("tests").symlink_to(ROOT / "tests")
    session = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    *sessions, refused = re.findall(r"```pycon\n(.*?)```", session, re.DOTALL)
    examples = doctest.DocTestParser().get_doctest("\n".join(sessions), {}, "python.md", None, 0)
    assert doctest.DocTestRunner().run(examples).failed == 0
    call, said = refused.removeprefix(">>> ").split("\n", 1)
    with pytest.raises(shardplan.ShardplanError) as caught:
        eval(call)
    assert said == f"shardplan.errors.ShardplanError: {caught.value}\n"
