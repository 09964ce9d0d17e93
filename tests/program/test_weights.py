"""Values of weights and inputs: reproducible, in range, and such that nothing blows up or degenerates."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from small_models import GPT_BLOCK, MODELS, proto_of, small_model

from shardplan.errors import ShardplanError
from shardplan.model.read import read_model
from shardplan.model.types import Operator
from shardplan.program.machine.values import index_limits, random_values, stored_values
from shardplan.program.reference.evaluate import evaluate, reference, widen


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    return small_model("gpt", tmp_path_factory.mktemp("models"))


def test_values_depend_on_name_and_seed_alone(gpt):
    one, again, other = random_values(gpt, 0), random_values(gpt, 0), random_values(gpt, 1)
    assert one.keys() == again.keys() == other.keys()
    assert all(np.array_equal(one[name], again[name]) for name in one)
    differing = {name for name in one if not np.array_equal(one[name], other[name])}
    assert differing == {name for name in one if name not in gpt.constants}


def test_indices_lie_in_what_they_index(gpt):
    assert index_limits(gpt)["ids"] == 32
    ids = random_values(gpt)["ids"]
    assert ids.dtype == np.int64
    assert 0 <= ids.min() < ids.max() < 32


def test_every_loaded_tensor_has_its_shape(tmp_path):
    for name in MODELS:
        model = small_model(name, tmp_path)
        values = random_values(model)
        made = {value for operator in model.operators for value in operator.outputs}
        assert set(values) == set(model.tensors) - made
        assert all(values[value].shape == model.tensors[value].shape for value in values)


def test_depth_does_not_blow_up(tmp_path):
    """Twenty products after one another."""
    layers = 20
    weights = ", ".join(f"float[64,64] w{i}" for i in range(layers))
    lines = "\n".join(f"  h{i + 1} = MatMul (h{i}, w{i})" for i in range(layers)).replace("h0", "x", 1)
    text = f"deep (float[4,64] x) => (float[4,64] h{layers}) <{weights}> {{\n{lines}\n}}"
    path = tmp_path / "deep.onnx"
    onnx.save(proto_of(text), path)
    model = read_model(path)
    values = random_values(model)
    for operator in model.operators:
        values[operator.outputs[0]] = evaluate(operator, operator.attributes, [values[n] for n in operator.inputs])[0]
    assert 0.1 < values[f"h{layers}"].std() < 10


def with_data(proto: onnx.ModelProto) -> onnx.ModelProto:
    generator = np.random.default_rng(3)
    for place, tensor in enumerate(proto.graph.initializer):
        array = generator.standard_normal(tuple(tensor.dims)).astype(np.float32)
        proto.graph.initializer[place].CopyFrom(numpy_helper.from_array(array, tensor.name))
    return proto


@pytest.mark.parametrize("external", [False, True])
def test_weights_of_the_file_are_used_and_the_model_is_what_the_file_says(external, tmp_path):
    """Run operator by operator as read, the model gives what the evaluator makes of the file itself."""
    proto = with_data(proto_of(GPT_BLOCK))
    path = tmp_path / "gpt.onnx"
    ids = np.random.default_rng(0).integers(0, 32, (4, 8))
    expected = ReferenceEvaluator(proto).run(None, {"ids": ids})[0]
    onnx.save(proto, path, save_as_external_data=external, location="gpt.data", size_threshold=0)
    model = read_model(path)
    stored = stored_values(path, model)
    assert set(stored) == {parameter.tensor for parameter in model.parameters}
    values = {name: widen(array) for name, array in random_values(model, given={**stored, "ids": ids}).items()}
    for operator in model.operators:
        made = evaluate(operator, operator.attributes, [values[name] if name else None for name in operator.inputs])
        values.update(zip(operator.outputs, made, strict=True))
    np.testing.assert_allclose(values["logits"], expected, rtol=1e-3, atol=1e-4)


def test_absent_weights_are_absent(gpt, tmp_path):
    path = tmp_path / "gpt.onnx"
    onnx.save(proto_of(GPT_BLOCK), path)
    assert set(stored_values(path, gpt)) == {"mask"}, "which the graph itself holds"


def test_what_the_evaluator_cannot_run_is_said_of_the_operator_and_not_of_the_plan():
    operator = Operator("views", "Reshape", ("x", "shape"), ("y",), version=21)
    operands = [np.ones((2, 3)), np.array([4, 2])]
    with pytest.raises(ValueError, match="reshape"):
        evaluate(operator, {}, operands)
    with pytest.raises(ShardplanError) as raised:
        reference(operator, {}, operands)
    assert str(raised.value) == (
        "error[cannot-execute]: cannot run operator 'views' (Reshape): it makes the reference evaluator fail: "
        "ValueError: cannot reshape array of size 6 into shape (4,2)"
    )
