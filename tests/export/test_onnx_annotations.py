"""`--to onnx`: annotations say what the plan says, read back by a decoder of its own; malformed ones are found."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from control_models import COUNTED
from forced_plans import INFERENCE, TRAINING, forced_plan
from onnx import TensorProto, helper
from small_models import proto_of, small_model

from shardplan.errors import ShardplanError
from shardplan.export.onnx.annotations import export_annotations, sharding_spec
from shardplan.export.onnx.validate import validate_annotations
from shardplan.export.types import Source
from shardplan.layout.layout import Layout
from shardplan.layout.legal import tile
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import R, S
from shardplan.model.read import read_model


def held_by_device(spec, shape):
    """Device -> the entries it holds of each dim, as docs/IR.md numbers shards: row-major, first dim outermost."""
    groups = {entry.key: list(entry.value) for entry in spec.index_to_device_group_map}
    cuts = [(entry.axis, simple) for entry in spec.sharded_dim for simple in entry.simple_sharding]
    held = {}
    for number, digits in enumerate(itertools.product(*(range(simple.num_shards) for _, simple in cuts))):
        kept = [np.arange(size) for size in shape]
        for axis in dict.fromkeys(axis for axis, _ in cuts):
            mine = [(simple, digit) for (at, simple), digit in zip(cuts, digits, strict=True) if at == axis]
            block = np.arange(shape[axis]).reshape([simple.dim_value for simple, _ in mine])
            for place, (simple, digit) in enumerate(mine):
                block = np.split(block, simple.num_shards, axis=place)[digit]
            kept[axis] = block.reshape(-1)
        key = spec.device[number]
        for device in groups.get(key, [key]):
            held[device] = kept
    return held


def assert_says(spec, layout, mesh, shape):
    held = held_by_device(spec, shape)
    assert sorted(held) == list(range(mesh.size))
    for device, at in enumerate(mesh.coordinates()):
        for entries, pieces in zip(held[device], tile(layout, mesh, shape, at), strict=True):
            assert entries.tolist() == [entry for start, stop in pieces for entry in range(start, stop)]


def with_weights_as_inputs(proto):
    """The same without initializers, whose data is in no file."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    made.graph.input.extend(helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in proto.graph.initializer)
    del made.graph.initializer[:]
    return made


LAYOUTS = [
    Layout.of(R, R, R),
    Layout.of(S(0), R, S(1)),
    Layout.of(S(1), S(1), R),
    Layout.of(S(1), S(1), S(0), order=(1, 0, 2)),
    Layout.of(S(1, (8, 8, 8)), R, S(0)),
    Layout.of(R, S(1, (8, 8, 8)), S(1, (8, 8, 8))),
    Layout.of(S(1), S(1, (6,) * 4), R),
    Layout.of(S(0), S(0), S(0), order=(2, 0, 1)),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_sharding_says_what_the_layout_says(layout):
    mesh, shape = Mesh.of(a=2, b=2, c=2), (16, 24)
    assert_says(sharding_spec("x", shape, layout, mesh), layout, mesh, shape)


def test_the_example_of_two_axes():
    mesh = Mesh.of(data=2, model=4)
    spec = sharding_spec("x", (8, 4), Layout.of(S(0), R), mesh)
    assert list(spec.device) == [-1, -2]
    assert {entry.key: list(entry.value) for entry in spec.index_to_device_group_map} == {
        -1: [0, 1, 2, 3],
        -2: [4, 5, 6, 7],
    }
    assert [(d.axis, d.simple_sharding[0].dim_value, d.simple_sharding[0].num_shards) for d in spec.sharded_dim] == [
        (0, 8, 2)
    ]
    spec = sharding_spec("w", (4, 256), Layout.of(R, S(1)), mesh)
    assert [list(entry.value) for entry in spec.index_to_device_group_map] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    spec = sharding_spec("y", (8, 4, 256), Layout.of(S(0), S(2)), mesh)
    assert list(spec.device) == list(range(8))
    assert not spec.index_to_device_group_map


@pytest.mark.parametrize(
    ("name", "options"), [("gpt", {"recipe": "Megatron"}), ("conv", {"seed": 3}), ("moe", {"seed": 1})]
)
def test_every_node_says_what_the_plan_says(name, options, tmp_path):
    model = small_model(name, tmp_path)
    path = tmp_path / f"{name}.onnx"
    plan = forced_plan(model, "2x2", TRAINING, **options)
    exported = export_annotations(plan, Source(model, path), tmp_path / "annotated.onnx")
    proto = onnx.load(tmp_path / "annotated.onnx", load_external_data=False)
    onnx.checker.check_model(with_weights_as_inputs(proto))
    assert proto.ir_version >= 11
    assert validate_annotations(proto) == []
    assert exported.files == ("annotated.onnx",)
    nodes = {output: node for node in proto.graph.node for output in node.output if output}
    unsaid = " ".join(diagnostic.detail for diagnostic in exported.refused)
    stated = 0
    for decision in plan.operators:
        (entry,) = nodes[next(filter(None, decision.outputs))].device_configurations
        specs = {spec.tensor_name: spec for spec in entry.sharding_spec}
        for tensor, layout in zip(decision.inputs, decision.reads, strict=True):
            plain = layout and layout.forward
            if (
                layout is None
                or tensor not in specs
                or any(p.kind == "P" for p in plain.placements)
                or f"'{tensor}'" in unsaid
            ):
                continue
            assert_says(specs[tensor], plain, plan.mesh, model.tensors[tensor].shape)
            stated += 1
    assert stated > len(plan.operators) / 2


def test_a_loop_says_how_its_results_are_split_and_nothing_of_what_it_reads(tmp_path):
    """Its operands are read by operators of the body: the number of turns is not what the first of them reads."""
    text = COUNTED.replace("(float[8,16] x)", "(int64 n, float[8,16] x)").replace(
        "n = Constant <value = int64 {5}> ()", ""
    )
    onnx.save(proto_of(text), tmp_path / "loop.onnx")
    model = read_model(tmp_path / "loop.onnx", {"trip:Loop_1": 5})
    plan = forced_plan(model, "2x2", INFERENCE)
    export_annotations(plan, Source(model, tmp_path / "loop.onnx"), tmp_path / "annotated.onnx")
    proto = onnx.load(tmp_path / "annotated.onnx", load_external_data=False)
    assert validate_annotations(proto) == []
    (entry,) = next(node for node in proto.graph.node if node.op_type == "Loop").device_configurations
    specs = {spec.tensor_name: spec for spec in entry.sharding_spec}
    assert sorted(specs) == ["all", "y"]
    made = {name: layout for o in plan.operators for name, layout in zip(o.outputs, o.makes, strict=True)}
    for name, spec in specs.items():
        assert_says(spec, made[name].forward, plan.mesh, model.tensors[name].shape)


def test_partial_sums_are_stated_as_added_up(tmp_path):
    model = small_model("gpt", tmp_path)
    plan = forced_plan(model, "2x2", TRAINING, seed=0, bucket_bytes=0.0)
    export_annotations(plan, Source(model, tmp_path / "gpt.onnx"), tmp_path / "annotated.onnx")
    nodes = {
        node.output[0]: node for node in onnx.load(tmp_path / "annotated.onnx", load_external_data=False).graph.node
    }

    def is_partial(layout):
        return any(placement.kind == "P" for placement in layout.placements)

    kept = {decision.name: decision.layout.forward for decision in plan.tensors}
    partial = [o for o in plan.operators if o.makes[0] and is_partial(o.makes[0].forward)]
    added_up = [o for o in partial if not is_partial(kept[o.outputs[0]])]
    assert added_up
    for decision in added_up:
        (entry,) = nodes[decision.outputs[0]].device_configurations
        spec = next(spec for spec in entry.sharding_spec if spec.tensor_name == decision.outputs[0])
        assert_says(spec, kept[decision.outputs[0]], plan.mesh, model.tensors[decision.outputs[0]].shape)


def test_unequal_segments_are_said_to_be_left_out(tmp_path):
    from dataclasses import replace

    model = small_model("mlp", tmp_path)
    plan = forced_plan(model, "2x2", INFERENCE)
    odd = Layout.of(S(1, (8, 8, 16)), R)
    first = plan.operators[0]
    plan = replace(plan, operators=(replace(first, reads=(odd, *first.reads[1:])), *plan.operators[1:]))
    exported = export_annotations(plan, Source(model, tmp_path / "mlp.onnx"), tmp_path / "annotated.onnx")
    (said,) = exported.refused
    assert str(said) == (
        "warning[not-stated]: shards of unequal segments cannot be stated; they are stated as replicated\n"
        f"  '{first.inputs[0]}'"
    )


def test_a_described_model_has_no_file(tmp_path):
    model = small_model("mlp", tmp_path)
    with pytest.raises(ShardplanError, match="'mlp' is described; there is no file to annotate"):
        export_annotations(forced_plan(model, "2x2"), Source(model, None), tmp_path / "annotated.onnx")


def test_weights_that_lie_elsewhere_are_said(tmp_path):
    value = helper.make_tensor_value_info
    weight = onnx.numpy_helper.from_array(np.ones((16, 16), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "mm")], "one", [value("x", TensorProto.FLOAT, [8, 16])],
        [value("y", TensorProto.FLOAT, [8, 16])], [weight],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    path = tmp_path / "one.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="one.data", size_threshold=0)
    model = read_model(path)
    plan = forced_plan(model, "2x2")
    exported = export_annotations(plan, Source(model, path), tmp_path / "far" / "annotated.onnx")
    assert [(d.code, d.detail) for d in exported.refused] == [("data-elsewhere", "one.data")]
    assert export_annotations(plan, Source(model, path), tmp_path / "annotated.onnx").refused == ()
    onnx.checker.check_model(str(tmp_path / "annotated.onnx"))


def annotated():
    """One product whose rows and columns are sharded over 2 x 4 devices."""
    mesh = Mesh.of(data=2, model=4)
    value = helper.make_tensor_value_info
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "mm")
    graph = helper.make_graph(
        [node], "one", [value("x", TensorProto.FLOAT, [8, 16]), value("w", TensorProto.FLOAT, [16, 32])],
        [value("y", TensorProto.FLOAT, [8, 32])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=11)
    model.configuration.add(name="mesh", num_devices=8)
    entry = model.graph.node[0].device_configurations.add(configuration_id="mesh")
    for name, shape, layout in [
        ("x", (8, 16), Layout.of(S(0), R)),
        ("w", (16, 32), Layout.of(R, S(1))),
        ("y", (8, 32), Layout.of(S(0), S(1))),
    ]:
        entry.sharding_spec.append(sharding_spec(name, shape, layout, mesh))
    return model


def specs(model):
    return model.graph.node[0].device_configurations[0].sharding_spec


X, W, Y = range(3)
IN = "node 'mm' (MatMul): "
MALFORMED = {
    "version": (
        lambda m: setattr(m, "ir_version", 10),
        "the model has IR version 10; annotations are part of ONNX from 11 on",
    ),
    "nameless configuration": (lambda m: m.configuration.add(num_devices=8), "configuration 1 has no name"),
    "configuration twice": (
        lambda m: m.configuration.add(name="mesh", num_devices=8),
        "configuration 'mesh' is there twice",
    ),
    "no devices": (
        lambda m: m.configuration.add(name="none"),
        "configuration 'none' has 0 devices; there is at least 1",
    ),
    "device names": (
        lambda m: m.configuration[0].device.extend(["a", "b"]),
        "configuration 'mesh' names 2 devices and has num_devices 8",
    ),
    "device named twice": (
        lambda m: m.configuration[0].device.extend("abcdefgg"),
        "configuration 'mesh' names device 'g' twice",
    ),
    "unknown configuration": (
        lambda m: setattr(m.graph.node[0].device_configurations[0], "configuration_id", "mash"),
        IN + "there is no configuration 'mash'",
    ),
    "annotated twice": (
        lambda m: m.graph.node[0].device_configurations.add(configuration_id="mesh"),
        IN + "it is annotated twice for configuration 'mesh'",
    ),
    "pipeline stage": (
        lambda m: setattr(m.graph.node[0].device_configurations[0], "pipeline_stage", -1),
        IN + "pipeline stage -1 is negative",
    ),
    "unknown tensor": (
        lambda m: setattr(specs(m)[X], "tensor_name", "z"),
        IN + "it neither reads nor makes 'z'",
    ),
    "stated twice": (
        lambda m: specs(m).append(specs(m)[X]),
        IN + "the sharding of 'x' is stated twice",
    ),
    "unknown device": (
        lambda m: specs(m)[Y].device.__setitem__(7, 8),
        IN + "sharding of 'y': there is no device 8; there are 8",
    ),
    "unknown group": (
        lambda m: specs(m)[X].device.__setitem__(1, -9),
        IN + "sharding of 'x': there is no group -9",
    ),
    "unused group": (
        lambda m: specs(m)[X].index_to_device_group_map.add(key=-3, value=[0]),
        IN + "sharding of 'x': group -3 holds no shard",
    ),
    "empty group": (
        lambda m: specs(m)[X].index_to_device_group_map[0].ClearField("value"),
        IN + "sharding of 'x': group -1 is empty",
    ),
    "group twice": (
        lambda m: specs(m)[X].index_to_device_group_map.add(key=-1, value=[0]),
        IN + "sharding of 'x': group -1 is there twice",
    ),
    "device with two shards": (
        lambda m: specs(m)[Y].device.__setitem__(7, 0),
        IN + "sharding of 'y': device 0 holds two shards",
    ),
    "axis outside": (
        lambda m: setattr(specs(m)[W].sharded_dim[0], "axis", 77),
        IN + "sharding of 'w': axis 77 is outside of its 2 dims",
    ),
    "axis twice": (
        lambda m: setattr(specs(m)[Y].sharded_dim[1], "axis", -2),
        IN + "sharding of 'y': axis 0 is sharded twice",
    ),
    "no sharding": (
        lambda m: specs(m)[W].sharded_dim[0].ClearField("simple_sharding"),
        IN + "sharding of 'w': axis 1 states no sharding",
    ),
    "no shards": (
        lambda m: setattr(specs(m)[W].sharded_dim[0].simple_sharding[0], "num_shards", 0),
        IN + "sharding of 'w': axis 1 is cut into 0 shards; there is at least 1",
    ),
    "indivisible": (
        lambda m: setattr(specs(m)[W].sharded_dim[0].simple_sharding[0], "num_shards", 5),
        IN + "sharding of 'w': axis 1: 32 does not divide into 5 shards",
    ),
    "another size": (
        lambda m: setattr(specs(m)[W].sharded_dim[0].simple_sharding[0], "dim_value", 64),
        IN + "sharding of 'w': axis 1 is stated to have 64 elements and has 32",
    ),
    "number of devices": (
        lambda m: specs(m)[Y].device.pop(),
        IN + "sharding of 'y': it has 8 shards and lists 7 devices",
    ),
}  # fmt: skip


def test_a_right_annotation_is_right():
    assert validate_annotations(annotated()) == []


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_annotations_are_found(name):
    spoil, summary = MALFORMED[name]
    model = annotated()
    spoil(model)
    assert summary in [diagnostic.summary for diagnostic in validate_annotations(model)]


def test_hints_name_what_there_is():
    model = annotated()
    specs(model)[X].tensor_name = "ww"
    model.graph.node[0].device_configurations[0].configuration_id = "mash"
    hints = [diagnostic.hint for diagnostic in validate_annotations(model)]
    assert hints[0] == "did you mean 'mesh'?"
    assert hints[1] == "did you mean 'w'?"


def test_nodes_of_nested_graphs_are_looked_at():
    model = annotated()
    inner = helper.make_graph([model.graph.node[0]], "inner", [], [helper.make_tensor_value_info("y", 1, [8, 32])])
    inner.node[0].device_configurations[0].sharding_spec[W].sharded_dim[0].axis = 2
    branch = helper.make_node("If", ["c"], ["z"], "choose", then_branch=inner, else_branch=inner)
    del model.graph.node[:]
    model.graph.node.append(branch)
    found = [diagnostic.summary for diagnostic in validate_annotations(model)]
    assert found == [IN + "sharding of 'w': axis 2 is outside of its 2 dims"] * 2


def test_unknown_dims_are_not_compared():
    model = annotated()
    model.graph.input[1].type.tensor_type.shape.dim[1].dim_param = "n"
    assert validate_annotations(model) == []
