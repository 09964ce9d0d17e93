"""Pieces that exporters put into a sequence and take out again are those of a `Split`."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from shardplan.model.read import read_model
from shardplan.model.sequences import without_sequences

DIMS = [2, 3, 8]


def cut(split, places, *, opset=18, constants="initializer", **attributes):
    """A model that cuts `x` and gives the pieces at `places`. `split`: an integer, a list, or None where left out."""
    given = {} if split is None else {"sizes": np.array(split, dtype=np.int64)}
    given |= {f"place_{number}": np.array(place, dtype=np.int64) for number, place in enumerate(places)}
    nodes, initializers = [], []
    for name, array in given.items():
        tensor = numpy_helper.from_array(array, name)
        if constants == "initializer":
            initializers.append(tensor)
        else:
            nodes.append(helper.make_node("Constant", [], [name], value=tensor))
    inputs = ["x"] if split is None else ["x", "sizes"]
    nodes.append(helper.make_node("SplitToSequence", inputs, ["pieces"], "cut", **attributes))
    rank = len(DIMS) - (split is None and not attributes.get("keepdims", 1))
    outputs = [f"y{number}" for number in range(len(places))]
    nodes += [
        helper.make_node("SequenceAt", ["pieces", f"place_{number}"], [f"y{number}"]) for number in range(len(places))
    ]
    graph = helper.make_graph(
        nodes,
        "cut",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, DIMS)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * rank) for name in outputs],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


CASES = {
    "chunks": cut(4, [0, 1], axis=-1),
    "a smaller one in the end": cut(3, [0, 1, 2], axis=2),
    "sizes": cut([1, 5, 2], [0, 1, 2], axis=2),
    "constants as nodes": cut([1, 5, 2], [2, 1], axis=2, constants="node"),
    "from the end, and one twice": cut(4, [-1, -2, -1], axis=2),
    "one unused": cut(2, [3], axis=2),
    "single rows": cut(None, [0, 2], axis=1),
    "rows without their dim": cut(None, [0, 2, 0], axis=1, keepdims=0),
    "keepdims means nothing beside sizes": cut([1, 1, 1], [0, 2], axis=1, keepdims=0),
    "sizes as attributes": cut([1, 5, 2], [0, 2], axis=2, opset=11),
    "axes as attributes": cut(None, [1], axis=1, keepdims=0, opset=12),
}


@pytest.mark.parametrize("name", CASES)
def test_it_computes_the_same(name, tmp_path):
    proto = CASES[name]
    found = without_sequences(proto)
    kinds = {node.op_type for node in found.graph.node}
    assert not kinds & {"SplitToSequence", "SequenceAt"}
    onnx.checker.check_model(found, full_check=True)
    x = np.random.default_rng(0).standard_normal(DIMS).astype(np.float32)
    for ours, theirs in zip(run(found, x), run(proto, x), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    onnx.save(proto, tmp_path / "cut.onnx")
    model = read_model(tmp_path / "cut.onnx")
    assert [model.tensor(output).shape for output in model.outputs] == [piece.shape for piece in run(proto, x)]


def run(proto, x):
    return ReferenceEvaluator(proto).run(None, {"x": x})


def placed_by_data():
    proto = cut(4, [0], axis=2)
    proto.graph.initializer.pop()
    proto.graph.input.append(helper.make_tensor_value_info("place_0", TensorProto.INT64, []))
    return proto


def given_back():
    proto = cut(4, [0], axis=2)
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    proto.graph.output.append(helper.make_value_info("pieces", kind))
    return proto


def of_unknown_size():
    proto = cut(4, [0], axis=2)
    proto.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, "n"]))
    return proto


@pytest.mark.parametrize("make", [placed_by_data, given_back, of_unknown_size, lambda: cut(4, [9], axis=2)])
def test_what_is_not_known_stays(make):
    proto = make()
    assert without_sequences(proto) is proto


def test_a_model_without_sequences_is_left_alone():
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "none", [], [])
    proto = helper.make_model(graph)
    assert without_sequences(proto) is proto
