"""`--to onnx-spmd`: the program of every rank is valid ONNX, and all ranks together compute what the model computes."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from exported import assert_program_right
from forced_plans import INFERENCE, TRAINING, forced_plan
from onnx import TensorProto, helper, numpy_helper
from small_models import MODELS, small_model

from shardplan.errors import ShardplanError
from shardplan.export.onnx.folder import export_spmd
from shardplan.export.types import Source
from shardplan.model.read import read_model
from shardplan.program.nodes import COORDINATES, DOMAIN

LARGE = Path(__file__).parents[1] / "models"


@pytest.fixture(scope="module")
def model_of(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return cache(lambda name: small_model(name, folder))


@pytest.mark.parametrize("name", sorted(MODELS))
def test_the_fastest_plan(name, model_of, tmp_path):
    assert_program_right(model_of(name), forced_plan(model_of(name), "2x2"), tmp_path / "out")


@pytest.mark.parametrize("recipe", ["data parallel", "ZeRO-3", "Megatron", "Megatron + sequence"])
def test_plans_that_people_write(recipe, model_of, tmp_path):
    model = model_of("gpt")
    assert_program_right(model, forced_plan(model, "2x2", recipe=recipe), tmp_path / "out")


@pytest.mark.parametrize("mesh", ["2x2", "2x2x2"])
@pytest.mark.parametrize("name", ["conv", "gpt", "llama", "lstm", "mlp", "moe", "views"])
def test_plans_at_random(name, mesh, model_of, tmp_path):
    assert_program_right(model_of(name), forced_plan(model_of(name), mesh, INFERENCE, seed=5), tmp_path / "out")


@pytest.fixture
def stored(tmp_path) -> Path:
    """Two products whose weights are in the file, one of them to be transposed."""
    draw = np.random.default_rng(0)
    up, down = (numpy_helper.from_array(draw.standard_normal((16, 16)).astype(np.float32), n) for n in ("up", "down"))
    nodes = [
        helper.make_node("MatMul", ["x", "up"], ["h"], "first"),
        helper.make_node("Transpose", ["down"], ["down_t"], "turn"),
        helper.make_node("MatMul", ["h", "down_t"], ["y"], "second"),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "two", [value("x", TensorProto.FLOAT, [8, 16])], [value("y", TensorProto.FLOAT, [8, 16])], [up, down]
    )
    path = tmp_path / "two.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def test_weights_are_cut_for_every_rank(stored, tmp_path):
    model = read_model(stored)
    plan = forced_plan(model, "2x2", TRAINING, recipe="Megatron")
    given = {p.tensor: np.asarray(a) for p in model.parameters for a in [initializer(stored, p.onnx, p.onnx_perm)]}
    programs = assert_program_right(model, plan, tmp_path / "out", stored, given)
    assert [entry.name for entry in programs[0].graph.input] == ["x"]
    manifest = json.loads((tmp_path / "out" / "shardplan-spmd.json").read_text())
    assert all(weight["present"] for weight in manifest["weights"])
    for weight in manifest["weights"]:
        assert weight["local_shape"] != weight["shape"]
        found = {entry.name: entry for entry in programs[0].graph.initializer}[weight["name"]]
        assert list(found.dims) == weight["local_shape"]
    sizes = [(tmp_path / "out" / f"rank-{rank}" / "rank.data").stat().st_size for rank in range(4)]
    assert len(set(sizes)) == 1
    assert sizes[0] == 64 + 2 * 16 * 16 * 4 // 2


def initializer(path, name, perm):
    found = {entry.name: entry for entry in onnx.load(path).graph.initializer}[name]
    array = numpy_helper.to_array(found)
    return array.transpose(perm) if perm else array


def test_the_program_is_the_same_for_all_ranks_but_for_its_data(stored, tmp_path):
    model = read_model(stored)
    out = tmp_path / "out"
    exported = export_spmd(forced_plan(model, "2x2", recipe="Megatron"), Source(model, stored), out)
    assert len({(out / f"rank-{rank}" / "program.onnx").read_bytes() for rank in range(4)}) == 1
    assert len({(out / f"rank-{rank}" / "rank.data").read_bytes() for rank in range(4)}) == 4
    assert exported.files[:2] == ("rank-0/program.onnx", "rank-0/rank.data")
    for rank, place in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        program = onnx.load(out / f"rank-{rank}" / "program.onnx")
        here = {entry.name: entry for entry in program.graph.initializer}[COORDINATES]
        assert tuple(numpy_helper.to_array(here)) == place


@pytest.mark.parametrize("recipe", ["data parallel", "Megatron"])
def test_onnx_loads_the_data_of_every_rank(recipe, stored, tmp_path):
    """Weights that every device holds whole lie in a file of each rank: ONNX refuses links."""
    model = read_model(stored)
    out = tmp_path / "out"
    export_spmd(forced_plan(model, "2x2", TRAINING, recipe=recipe), Source(model, stored), out)
    manifest = json.loads((out / "shardplan-spmd.json").read_text())
    wholes = {p.tensor: np.asarray(initializer(stored, p.onnx, p.onnx_perm)) for p in model.parameters}
    for rank in range(4):
        program = onnx.load(out / f"rank-{rank}" / "program.onnx")
        found = {entry.name: numpy_helper.to_array(entry) for entry in program.graph.initializer}
        for weight in manifest["weights"]:
            whole, held = wholes[weight["name"].removesuffix("/loaded")], found[weight["name"]]
            assert list(held.shape) == weight["local_shape"]
            assert (whole.shape == held.shape) == (recipe == "data parallel")
            assert np.array_equal(held, whole) if recipe == "data parallel" else np.isin(held, whole).all()


def test_collectives_say_what_they_are(model_of, tmp_path):
    model = model_of("gpt")
    plan = forced_plan(model, "2x2", recipe="Megatron")
    (program, *_) = assert_program_right(model, plan, tmp_path / "out")
    nodes = {node.name: node for node in program.graph.node if node.domain == DOMAIN}
    manifest = json.loads((tmp_path / "out" / "shardplan-spmd.json").read_text())
    assert [entry["node"] for entry in manifest["collectives"]] == list(nodes)
    for node in nodes.values():
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        axes = [plan.mesh.index(name.decode()) for name in attributes["axis"]]
        groups = np.array(attributes["groups"]).reshape(-1, attributes["group_size"])
        assert groups.tolist() == [list(group) for group in plan.mesh.groups(axes)]
        assert "reduction" in attributes or node.op_type in {"AllGather", "AllToAll"}
    forward = [step for move in plan.moves if move.phase == "forward" and not move.regather for step in move.steps]
    payloads = sorted(step.payload_bytes for step in forward if not step.collective.is_free)
    assert sorted(entry["payload_bytes"] for entry in manifest["collectives"]) == payloads


def test_equal_input_gives_equal_bytes(model_of, tmp_path):
    model = model_of("moe")
    plan = forced_plan(model, "2x2")
    for name in ("one", "two"):
        export_spmd(plan, Source(model, None), tmp_path / name)
    files = [sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file())]
    for path in files[0]:
        assert (tmp_path / "one" / path).read_bytes() == (tmp_path / "two" / path).read_bytes()


def test_an_export_is_replaced_and_nothing_else_is(model_of, tmp_path):
    model = model_of("mlp")
    plan = forced_plan(model, "2x2")
    out = tmp_path / "out"
    export_spmd(plan, Source(model, None), out)
    (out / "rank-9").mkdir()
    export_spmd(plan, Source(model, None), out)
    assert sorted(path.name for path in out.iterdir()) == [
        "rank-0",
        "rank-1",
        "rank-2",
        "rank-3",
        "shardplan-spmd.json",
    ]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    with pytest.raises(ShardplanError) as raised:
        export_spmd(plan, Source(model, None), tmp_path / "mine")
    (diagnostic,) = raised.value.diagnostics
    assert diagnostic.summary == (
        "cannot write the export: the folder holds something else than an export (no shardplan-spmd.json)"
    )
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["file"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "out"]


def test_a_plan_of_another_model_is_refused(model_of, tmp_path):
    with pytest.raises(ShardplanError, match="the plan was made for another model than 'gpt'"):
        export_spmd(forced_plan(model_of("mlp"), "2x2"), Source(model_of("gpt"), None), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["gpt2_small", "llama3_8b", "resnet50"])
def test_large_models_are_valid(name, tmp_path):
    model = read_model(LARGE / f"{name}.onnx")
    plan = forced_plan(model, "2x2", TRAINING)
    export_spmd(plan, Source(model, LARGE / f"{name}.onnx"), tmp_path / "out")
    onnx.checker.check_model(str(tmp_path / "out" / "rank-3" / "program.onnx"), full_check=True)
