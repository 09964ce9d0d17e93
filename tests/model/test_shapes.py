"""Shapes where ONNX itself has no function, against the operators' documented contracts."""

import pytest
from onnx import TensorProto, helper

from shardplan.model.shapes import shapes_of

MS = "com.microsoft."


def inferred(read, proto, node, inputs, outputs, opset=21):
    """The shapes that the reader finds for the outputs of `node`; the graph's last Relu keeps them alive."""
    values = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    model = helper.make_model(
        helper.make_graph([node], "g", values, results),
        opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)],
        ir_version=10,
    )
    tensors = read(model).tensors
    return [tensors[name].shape for name in outputs]


F = TensorProto.FLOAT


def test_group_normalization(read, proto):
    node = helper.make_node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=2)
    inputs = {"x": (F, [2, 4, 8, 8]), "s": (F, [4]), "b": (F, [4])}
    assert inferred(read, proto, node, inputs, ["y"]) == [(2, 4, 8, 8)]


def test_mean_variance_normalization(read, proto):
    node = helper.make_node("MeanVarianceNormalization", ["x"], ["y"])
    assert inferred(read, proto, node, {"x": (F, [2, 4, 8, 8])}, ["y"]) == [(2, 4, 8, 8)]


def test_simplified_layer_norm_of_the_default_domain(read, proto):
    node = helper.make_node("SimplifiedLayerNormalization", ["x", "s"], ["y"], axis=-1)
    assert inferred(read, proto, node, {"x": (F, [2, 4, 8]), "s": (F, [8])}, ["y"]) == [(2, 4, 8)]


def test_half_precision_where_the_standard_forgot_it(read, proto):
    """Einsum does not list bfloat16, yet exporters write it."""
    kind = TensorProto.BFLOAT16
    node = helper.make_node("Einsum", ["x", "w"], ["y"], equation="bij,jk->bik")
    model = helper.make_model(
        helper.make_graph(
            [node],
            "g",
            [helper.make_tensor_value_info("x", kind, ["b", 4, 8]), helper.make_tensor_value_info("w", kind, [8, 3])],
            [helper.make_tensor_value_info("y", kind, None)],
        ),
        opset_imports=[helper.make_opsetid("", 21)],
        ir_version=10,
    )
    tensor = read(model, {"b": 2}).tensors["y"]
    assert (tensor.shape, tensor.dtype) == ((2, 4, 3), "bfloat16")


@pytest.mark.parametrize(
    ("kind", "attributes", "inputs", "outputs"),
    [
        (MS + "BiasGelu", {}, [(2, 8, 16), (16,)], [(2, 8, 16)]),
        (MS + "BiasSplitGelu", {}, [(2, 8, 16), (16,)], [(2, 8, 8)]),
        (MS + "SkipLayerNormalization", {}, [(2, 8, 16)] * 2, [(2, 8, 16), (2, 8, 1), (2, 8, 1), (2, 8, 16)]),
        (
            MS + "EmbedLayerNormalization",
            {},
            [(2, 8), (2, 8), (100, 16), (512, 16), (2, 16), (16,), (16,)],
            [(2, 8, 16), (2,), (2, 8, 16)],
        ),
        (MS + "Attention", {"num_heads": 4}, [(2, 8, 16), (16, 48), (48,)], [(2, 8, 16), (2, 2, 4, 8, 4)]),
        (
            MS + "Attention",
            {"num_heads": 4, "qkv_hidden_sizes": (16, 16, 8)},
            [(2, 8, 16), (16, 40), (40,), None, (2, 2, 4, 5, 2)],
            [(2, 8, 8), (2, 2, 4, 13, 2)],
        ),
        (
            MS + "MultiHeadAttention",
            {"num_heads": 4},
            [(2, 8, 16), (2, 6, 16), (2, 6, 32)],
            [(2, 8, 32), (2, 4, 6, 4), (2, 4, 6, 8)],
        ),
        (
            MS + "MultiHeadAttention",
            {"num_heads": 4},
            [(2, 1, 16), (2, 1, 16), (2, 1, 16), None, None, None, (2, 4, 9, 4), (2, 4, 9, 4)],
            [(2, 1, 16), (2, 4, 10, 4), (2, 4, 10, 4)],
        ),
        (
            MS + "MultiHeadAttention",
            {"num_heads": 4},
            [(2, 8, 16), (2, 4, 6, 4), (2, 4, 6, 4)],
            [(2, 8, 16), (2, 4, 6, 4), (2, 4, 6, 4)],
        ),
        (MS + "MultiHeadAttention", {"num_heads": 4}, [(2, 8, 4, 3, 5)], [(2, 8, 20), None, None]),
        (
            MS + "GroupQueryAttention",
            {"num_heads": 8, "kv_num_heads": 2},
            [(2, 1, 64), (2, 1, 16), (2, 1, 16), (2, 2, 128, 8), (2, 2, 128, 8)],
            [(2, 1, 64), (2, 2, 128, 8), (2, 2, 128, 8)],
        ),
        (
            MS + "GroupQueryAttention",
            {"num_heads": 8, "kv_num_heads": 2},
            [(2, 5, 96), None, None],
            [(2, 5, 64), (2, 2, 5, 8), (2, 2, 5, 8)],
        ),
        (MS + "MatMulNBits", {"N": 32, "K": 64}, [(2, 8, 64), (32, 2, 16)], [(2, 8, 32)]),
        (MS + "FusedMatMul", {"transB": 1}, [(2, 8, 16), (2, 4, 16)], [(2, 8, 4)]),
        (MS + "FusedMatMul", {"transA": 1}, [(2, 16, 8), (16, 4)], [(2, 8, 4)]),
        (MS + "FusedMatMul", {"transBatchA": 1}, [(8, 2, 16), (2, 16, 4)], [(2, 8, 4)]),
        (MS + "QLinearAdd", {}, [(2, 1, 4), (8, 1)], [(2, 8, 4)]),
        (MS + "RotaryEmbedding", {}, [(2, 4, 8, 16)], [(2, 4, 8, 16)]),
        (MS + "GatherBlockQuantized", {"gather_axis": 0}, [(100, 64), (2, 8)], [(2, 8, 64)]),
    ],
)
def test_operators_of_onnx_runtime(kind, attributes, inputs, outputs):
    assert shapes_of(kind, attributes, inputs) == outputs


def test_nothing_is_invented():
    assert shapes_of("NoSuchOperator", {}, []) is None
    assert shapes_of(MS + "MatMulNBits", {}, [(2, 8, 64)]) is None
    assert shapes_of(MS + "FusedMatMul", {}, [None, (2, 2)]) is None
    assert shapes_of(MS + "BiasSplitGelu", {}, [(2, None)]) == [(2, None)]


@pytest.mark.parametrize(("attributes", "frequencies"), [({}, 9), ({"onesided": 1}, 9), ({"onesided": 0}, 16)])
def test_a_spectrum_is_one_sided_unless_it_is_asked_for_whole(attributes, frequencies, read):
    """By the standard, whose default ONNX's own shape function does not take."""
    node = helper.make_node("STFT", ["x", "step", "window"], ["y"], **attributes)
    inputs = {"x": (F, [4, 256, 1]), "window": (F, [16])}
    values = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()]
    stored = helper.make_tensor_value_info("y", F, [4, 13, frequencies, 2])
    step = helper.make_tensor("step", TensorProto.INT64, [], [20])
    graph = helper.make_graph([node], "g", values, [stored], [step])
    model = read(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    assert model.tensors["y"].shape == (4, 13, frequencies, 2)
    assert model.warnings == ()
