"""Fused weights that torch has no placement for whole: parts of unequal sizes, or cut by several axes."""

import itertools
import math

import numpy as np
import onnx
import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors")

import torch
from forced_plans import cluster_of, forced_plan
from safetensors.numpy import save_file
from small_models import proto_of
from torch.distributed.checkpoint import FileSystemReader
from torch_fused import GATED, Gated
from torch_resumed import OPTIMIZERS

from shardplan.constraints.parse import parse_constraints
from shardplan.layout.layout import Layout
from shardplan.layout.legal import tile
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import R, S
from shardplan.model.read import read_model
from shardplan.pipeline.manual.stages import read_stages
from shardplan.pipeline.plan import plan_stages
from shardplan.pipeline.schedule import parse_schedule
from shardplan.planning import PlanOptions, plan_model
from shardplan.torch.parameters.fused import Parts, parts_of

SPLIT = "tensors: {{p: [{rows}, {columns}], q: [{rows}, {columns}]}}\nparameters: {{w: [null, {columns}]}}\n"
LAYOUTS = {"unequal parts": ("machine", "gpu"), "several axes": ("null", "[machine, gpu]")}
PARTS = [f"parametrizations.{name}.original{number}" for name in "wb" for number in range(3)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("gated") / "gated.onnx"
    onnx.save(proto_of(GATED), path)
    return read_model(path)


def plan_of(model, rows, columns):
    text = SPLIT.format(rows=rows, columns=columns)
    return plan_model(model, cluster_of("2x2"), PlanOptions(constraints=parse_constraints(text, "split.yaml")))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", ["eager", "exported"])
def test_they_are_trained_in_parts(four, model, mode, layout):
    plan = plan_of(model, *LAYOUTS[layout])
    for error, names in four.run("torch_fused", "train", plan, mode, ""):
        assert error < 1e-6
        assert set(names) == {"w0", "w1", "w2", *PARTS}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_they_may_be_changed_in_place(four, model, layout):
    """What the program changed was lost with the joined weight."""
    from torch_fused import Shrinking

    for error, _ in four.run("torch_fused", "train", plan_of(model, *LAYOUTS[layout]), "eager", "", Shrinking):
        assert error < 1e-6


def test_they_are_changed_whole_between_steps(four, model):
    for error, is_kept, said in four.run("torch_fused", "changed", plan_of(model, *LAYOUTS["unequal parts"])):
        assert error == 0
        assert is_kept
        assert "error[unknown-parameter]: the plan of this model has no parameter 'w9'\nhint: did you mean" in said


def test_what_is_assigned_between_steps_is_kept_or_said(four, model):
    """Torch dropped it in silence: adapters are merged into weights so."""
    for errors, (said, *lost) in four.run("torch_fused", "assigned", plan_of(model, *LAYOUTS["unequal parts"])):
        assert max(errors) < 1e-5
        assert "error[wrong-shape]: the data of a parameter of shape [32, 16] is set to a tensor of [16, 16]" in said
        *parts, grown, gone = lost
        assert "error[lost-change]: parameter 'w2' has become [64, 64] on this process, which is to hold [" in grown
        assert "error[changed-model]: the model has no 'w1' any more, which it had when the plan was applied" in gone
        for text, shape in zip(parts, ([8], [5, 8], [16, 64]), strict=True):
            assert f"error[lost-change]: a part of a parameter, of shape {shape}, has been changed in place" in text


def test_they_are_read_in_parts(four, model, tmp_path):

    path = tmp_path / "gated.safetensors"
    save_file({name: weight.detach().numpy() for name, weight in Gated().named_parameters()}, path)
    plan = plan_of(model, *LAYOUTS["unequal parts"])
    for error, _ in four.run("torch_fused", "train", plan, "eager", str(path)):
        assert error < 1e-6


WHOLE = {"whole": ("machine", "null"), **LAYOUTS}
IN_PARTS = (
    "error[state-in-parts]: the state of 'w' cannot be read: the optimizer sees each part of this weight by itself\n"
    "  plans keep a fused weight whole, or in parts; what was saved is of other parts than this plan's\n"
    "hint: load it under a plan that keeps the weight as the saved one did, or the weights alone, without an optimizer"
)


@pytest.mark.parametrize(("saved", "read"), [
    ("whole", "unequal parts"), ("unequal parts", "whole"), ("several axes", "unequal parts"),
    ("unequal parts", "unequal parts"),
])  # fmt: skip
def test_training_goes_on_whatever_the_parts(four, model, tmp_path, saved, read):
    """Also with a trained layer that gets no gradient, and so has no state."""
    plans = [plan_of(model, *WHOLE[name]) for name in (saved, read)]
    for found in four.run("torch_resumed", "goes_on", *plans, list(OPTIMIZERS), tmp_path):
        assert found.pop("L-BFGS").startswith("error[refused-optimizer]: the state of torch.optim.LBFGS is of all")
        adafactor = found.pop("Adafactor")
        assert adafactor == IN_PARTS if "whole" in (saved, read) else adafactor < 1e-6
        assert not {name: error for name, error in found.items() if not error < 1e-6}


def test_stages_have_them_in_parts(four, model, tmp_path):
    mesh = "    mesh: 1x2\n    mesh_axis_names: [dummy, model]\n"
    split = SPLIT.format(rows="null", columns="model").replace("\n", "\n    ")
    path = tmp_path / "stages.yaml"
    path.write_text(f"stages:\n  - runs: [MatMul_0]\n{mesh}  - runs: ['*']\n{mesh}    {split}")
    options = PlanOptions(microbatches=2)
    plan = plan_stages(model, cluster_of("2x2"), options, parse_schedule("1f1b"), read_stages([str(path)]))
    results = four.run("torch_fused", "train", plan, "pipeline", "", Gated, str(tmp_path / "saved"))
    assert max(error for error, _ in results) < 1e-6
    assert [set(names) for _, names in results] == [{"w0"}] * 2 + [{"w1", "w2", *PARTS}] * 2
    saved = FileSystemReader(tmp_path / "saved").read_metadata().state_dict_metadata
    names = {f"optimizer.state.{name}.exp_avg" for name in Gated().state_dict()}
    assert {key for key in saved if key.endswith("exp_avg")} == names


def test_what_has_no_parts():
    mesh = Mesh.of(machine=2, gpu=2)
    whole = (16, 16, 16)
    assert parts_of(Layout.of(R, S(0, whole)), mesh) is None
    assert parts_of(Layout.of(S(1), S(0, (32, 8, 8))), mesh) == Parts(((0, (32, 8, 8)),), (), Layout.of(S(1), S(0)))
    assert parts_of(Layout.of(S(0, whole), S(0, whole)), mesh) == Parts(((0, whole),), (), Layout.of(S(0), S(0)))
    assert parts_of(Layout.of(S(0, (12,) * 4), S(0)), mesh) == Parts((), ((0, 4, 2),), Layout.of(S(1), S(0)))
    both = Layout.of(S(0, whole), S(2, (32, 8, 8)))
    assert parts_of(both, mesh) == Parts(((2, (32, 8, 8)),), (), Layout.of(S(0, whole), S(2)))


PACKED = """
packed (float[8,16] x) => (float[8,16] y) <float[16,64] w, float[64] b, float[16,16] w1> {
  g = MatMul (x, w)
  h = Add (g, b)
  p, q, r, s = Split <axis = 1, num_outputs = 4> (h)
  t = Mul (p, q)
  u = Mul (r, s)
  v = Add (t, u)
  y = MatMul (v, w1)
}"""


@pytest.mark.parametrize("mode", ["eager", "exported"])
def test_parts_that_one_axis_distributes_and_another_cuts(four, tmp_path, mode):
    """Refused once: no placement of torch is of them."""
    onnx.save(proto_of(PACKED), tmp_path / "packed.onnx")
    plan = forced_plan(read_model(tmp_path / "packed.onnx"), "2x2", seed=0)
    layouts = {tensor.checkpoint: tensor.layout.forward for tensor in plan.tensors if tensor.role == "parameter"}
    assert layouts["w"] == Layout.of(S(1, (16,) * 4), S(1))
    for errors, shapes in four.run("torch_fused", "packed", plan, mode, str(tmp_path)):
        assert max(errors) < 1e-5
        assert shapes["parametrizations.w.original0"] == (16, 4, 16)


@pytest.mark.parametrize("mode", ["eager", "exported"])
def test_a_result_in_such_parts_is_gathered(four, tmp_path, mode):
    onnx.save(proto_of(PACKED), tmp_path / "packed.onnx")
    plan = forced_plan(read_model(tmp_path / "packed.onnx"), "2x2", seed=42)
    assert Layout.of(S(1, (16,) * 4), S(1)) in {tensor.layout for tensor in plan.tensors if tensor.name == "h"}
    assert max(four.run("torch_fused", "shown", plan, mode)) < 1e-5


@pytest.mark.parametrize(("seed", "parts"), {0: 1, 14: 4}.items())
def test_a_tied_weight_in_parts_stays_one(four, tmp_path, seed, parts):
    onnx.save(
        proto_of(PACKED.replace("MatMul (v, w1)", "MatMul (v, w)").replace("16] y", "64] y")), tmp_path / "x.onnx"
    )
    plan = forced_plan(read_model(tmp_path / "x.onnx"), "2x2", seed=seed)
    for errors, names in four.run("torch_fused", "tied", plan):
        assert max(errors) < 1e-5
        assert [name[-9:] for name in sorted(names)] == ["b", *(f"original{number}" for number in range(parts))]


LAID_OUT = [
    ((8, 3), Layout.of(S(0, (2,) * 4), S(0))),
    ((3, 16), Layout.of(S(1), S(1, (4,) * 4), S(1, (4,) * 4))),
    ((8, 3, 16), Layout.of(S(0, (2,) * 4), S(0), S(2, (8, 4, 4)))),
    ((12, 16), Layout.of(S(0, (4, 8)), S(1, (8, 4, 4)), S(1, (8, 4, 4)))),
    ((16, 8), Layout.of(S(0, (2,) * 8), S(0), S(0), order=(0, 2, 1))),
]


@pytest.mark.parametrize(("shape", "layout"), LAID_OUT)
def test_parts_are_what_a_process_holds_of_the_whole(shape, layout):
    """By the definition of layouts alone; the parts are sharded as torch does it."""
    mesh = Mesh.of(**dict(zip("abc", [2] * len(layout), strict=False)))
    parts, whole = parts_of(layout, mesh), torch.arange(math.prod(shape)).view(shape)
    assert parts.count == len(parts.split(whole))
    assert torch.equal(parts.join(parts.split(whole)), whole)
    for place in itertools.product(*map(range, mesh.shape)):
        local = whole[np.ix_(*(indices(runs) for runs in tile(layout, mesh, shape, place)))]
        assert torch.equal(parts.join(parts.split_local(local)), local)
        for number, (piece, held) in enumerate(zip(parts.split(whole), parts.split_local(local), strict=True)):
            ranges = tile(parts.layout, mesh, piece.shape, place)
            assert torch.equal(piece[np.ix_(*(indices(runs) for runs in ranges))], held)
            for offsets, block in parts.blocks(number, tuple(runs[0][0] for runs in ranges), held, piece.shape):
                there = tuple(slice(at, at + size) for at, size in zip(offsets, block.shape, strict=True))
                assert torch.equal(whole[there], block)


def indices(runs):
    return [index for start, stop in runs for index in range(start, stop)]
