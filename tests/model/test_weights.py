"""Which tensors are weights, which of them train, what they are called, and in which order of dims."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

SCOPES = "pkg.torch.onnx.name_scopes"
FOLDED = "pkg.onnxscript.optimizer.folded_from"


def with_weights(proto, text, domains="", opset=21, **weights):
    """A model with initializers: arrays are embedded, (shape, type) pairs are external."""
    model = proto(text, domains=domains, opset=opset)
    for name, value in weights.items():
        if isinstance(value, np.ndarray):
            model.graph.initializer.append(numpy_helper.from_array(value, name))
        else:
            shape, elem_type = value
            external = TensorProto.EXTERNAL
            model.graph.initializer.append(
                TensorProto(name=name, dims=shape, data_type=elem_type, data_location=external)
            )
    return model


def fold(model, name, sources):
    info = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
    info.metadata_props.add(key=FOLDED, value=repr(sources))
    model.graph.value_info.append(info)


def scope(model, *scopes):
    for node, path in zip(model.graph.node, scopes, strict=True):
        node.metadata_props.add(key=SCOPES, value=repr(["", *path, "op"]))


def roles(model):
    trained = {parameter.tensor: parameter.trainable for parameter in model.parameters}
    return {
        name: {True: "trained", False: "frozen", None: "constant"}[trained.get(name)]
        for name, tensor in model.tensors.items()
        if tensor.role in ("parameter", "constant")
    }


W = np.arange(12, dtype=np.float32).reshape(4, 3)
B = np.arange(3, dtype=np.float32)
MATMUL = "g (float[2, 4] x) => (float[2, 3] y) { y = MatMul(x, w) }"
ADD = "g (float[2, 3] x) => (float[2, 3] y) { y = Add(x, b) }"


def rename(model, old, new):
    for node in model.graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
    for tensor in model.graph.initializer:
        tensor.name = new if tensor.name == old else tensor.name
    return model


@pytest.mark.parametrize("name", ["w", "val_7", "onnx::MatMul_12", "layer.weight"])
@pytest.mark.parametrize("value", [W, ((4, 3), TensorProto.BFLOAT16)], ids=["embedded", "external"])
def test_a_matrix_is_a_weight_whatever_its_name(read, proto, name, value):
    model = rename(
        with_weights(proto, MATMUL.replace("float[2, 4]", "bfloat16[2, 4]") if value is not W else MATMUL, w=value),
        "w",
        name,
    )
    assert list(roles(read(model)).values()) == ["trained"]
    assert not read(model).constants


@pytest.mark.parametrize(
    ("name", "role"),
    [("b", "trained"), ("fc.bias", "trained"), ("val_7", "constant"), ("onnx::Add_12", "constant"), ("17", "constant")],
)
def test_an_addend_is_a_weight_by_its_name(read, proto, name, role):
    assert list(roles(read(rename(with_weights(proto, ADD, b=B), "b", name))).values()) == [role]


@pytest.mark.parametrize("mask", [np.tril(np.ones((3, 3))), np.triu(np.full((3, 3), -1e30)), np.zeros((3, 3))])
def test_masks_are_constants(read, proto, mask):
    text = "g (float[3, 3] x) => (float[3, 3] y) { y = Add(x, m) }"
    assert roles(read(with_weights(proto, text, m=mask.astype(np.float32)))) == {"m": "constant"}


def test_scalars_are_constants_and_known(read, proto):
    model = read(with_weights(proto, ADD, b=np.array(2.5, np.float32)))
    assert roles(model) == {"b": "constant"}
    assert model.constants["b"] == np.float32(2.5)


def test_folded_values_are_weights_only_if_a_checkpoint_tensor_is_among_their_sources(read, proto):
    weight = with_weights(proto, MATMUL, w=W)
    fold(weight, "w", ["val_1", "blocks.0.fc.weight", "val_2"])
    table = with_weights(proto, MATMUL, w=W)
    fold(table, "w", ["arange", "val_2"])
    assert roles(read(weight)) == {"w": "trained"}
    assert roles(read(table)) == {"w": "constant"}


def test_statistics_of_batch_norm_are_not_trained(read, proto):
    text = "g (float[2, 3, 4, 4] x) => (float[2, 3, 4, 4] y) { y = BatchNormalization(x, s, b, m, v) }"
    model = read(with_weights(proto, text, s=B, b=B, m=B, v=B + 1))
    assert roles(model) == {"s": "trained", "b": "trained", "m": "frozen", "v": "frozen"}


@pytest.mark.parametrize("name", ["rope.inv_freq", "attn.cos_cached", "m.running_var", "net.image_mean", "m.attn_mask"])
def test_buffers_by_name(read, proto, name):
    text = "g (float[2, 3] x) => (float[2, 3] y) { y = Mul(x, b) }"
    assert roles(read(rename(with_weights(proto, text, b=B), "b", name))) == {name: "frozen"}


def test_what_no_live_node_reads_is_no_weight(read, proto):
    """Rotary tables: positions and frequencies are multiplied before any activation is met."""
    text = """g (float[2, 3] x) => (float[2, 3] y) <float[2, 1] val_2 = {0, 1}> {
        angles = Mul(val_2, val_3)  c = Cos(angles)  y = Mul(x, c) }"""
    model = read(with_weights(proto, text, val_3=B))
    assert roles(model)["c"] == "constant"
    assert [operator.op_type for operator in model.operators] == ["Mul"]


def test_sizes_of_inputs_do_not_make_a_value_live(read, proto):
    text = """g (float[n, 3] x) => (float[n, 3] y) <int64 zero = {0}, int64 one = {1}, int64[1] axis = {1}> {
        s = Shape(x)  n = Gather(s, zero)  r = Range(zero, n, one)  f = Cast <to = 1> (r)  p = Unsqueeze(f, axis)
        angles = MatMul(p, val_9)  y = Mul(x, angles) }"""
    model = read(with_weights(proto, text, val_9=B.reshape(1, 3)), {"n": 4})
    assert model.parameters == ()
    assert "angles" in model.constants


def test_integers_are_no_weights_but_quantised_ones_are(read, proto):
    text = """g (float[2, 4] x, int64[2] ids) => (float[2, 3] y, int64[2] z) {
        w = DequantizeLinear(q, scale)  y = MatMul(x, w)  z = Gather(table, ids) }"""
    model = read(
        with_weights(
            proto, text, q=W.astype(np.int8), scale=np.float32(0.1) * np.ones(1, np.float32), table=np.arange(9)
        )
    )
    assert roles(model) == {"q": "frozen", "scale": "constant", "table": "constant"}


def test_scales_of_channels_are_frozen_as_the_matrix_is(read, proto):
    text = "g (float[2, 4] x) => (float[2, 3] y) { w = DequantizeLinear <axis = 1> (q, scale)  y = MatMul(x, w) }"
    model = with_weights(proto, text, q=((4, 3), TensorProto.INT8), scale=((3,), TensorProto.FLOAT))
    assert roles(read(model)) == {"q": "frozen", "scale": "frozen"}


def test_quantised_matrix_of_onnx_runtime(read, proto):
    text = """g (float[2, 64] x) => (float[2, 8] y) {
        y = com.microsoft.MatMulNBits <K = 64, N = 8, bits = 4, block_size = 32> (x, b, s) }"""
    model = with_weights(
        proto, text, ', "com.microsoft" : 1', b=((8, 2, 16), TensorProto.UINT8), s=((8, 2), TensorProto.FLOAT)
    )
    assert roles(read(model)) == {"b": "frozen", "s": "frozen"}
    assert read(model).tensors["y"].shape == (2, 8)


def test_weights_pass_backwards_through_reordering(read, proto):
    text = """g (float[2, 4] x) => (float[2, 3] y) <int64[1] zero = {0}, int64[1] two = {2}, int64[1] three = {3}> {
        a = Slice(w, zero, two, zero)  b = Slice(w, two, three, zero)  c = Concat <axis = 0> (b, a)
        t = Transpose(c)  y = MatMul(x, t) }"""
    model = read(with_weights(proto, text, w=W.T.copy()))
    assert roles(model)["w"] == "trained"
    assert [operator.op_type for operator in model.operators] == ["Slice", "Slice", "Concat", "Transpose", "MatMul"]


def test_normalised_weight_keeps_both_its_factors(read, proto):
    text = "g (float[2, 4] x) => (float[2, 3] y) { n = ReduceL2(v)  u = Div(v, n)  w = Mul(gain, u)  y = MatMul(x, w) }"
    model = with_weights(proto, text, v=W, gain=B)
    rename(rename(model, "v", "fc.v"), "gain", "fc.g")
    assert roles(read(model)) == {"fc.v": "trained", "fc.g": "trained"}


def test_bounds_and_scales_are_never_weights(read, proto):
    text = """g (float[1, 1, 2, 2] x) => (float[1, 1, 4, 4] y) <float[4] scales = {1, 1, 2, 2}> {
        y = Resize(x, , scales) }"""
    assert roles(read(text)) == {"scales": "constant"}


def test_constant_node_in_a_weight_slot_is_a_weight(read):
    text = """g (float[2, 2] x) => (float[2, 2] y) {
        w = Constant <value = float[2, 2] {1, 2, 3, 4}> ()  k = Constant <value = float[2] {5, 6}> ()
        z = MatMul(x, w)  y = Max(z, k) }"""
    model = read(text)
    assert roles(model)["w"] == "trained"
    assert [operator.op_type for operator in model.operators] == ["MatMul", "Max"]


def test_large_constant_has_no_value(read, proto):
    text = "g (float[2, 70000] x) => (float[2, 70000] y) { y = Add(x, val_1) }"
    model = read(with_weights(proto, text, val_1=np.linspace(0, 1, 70000, dtype=np.float32)))
    assert model.tensors["val_1"].role == "constant"
    assert "val_1" not in model.constants


# --- names ---------------------------------------------------------------------------------------------------------


def only(model):
    (parameter,) = model.parameters
    return parameter


def test_transposed_weight_is_planned_as_it_is_read(read, proto):
    text = "g (float[2, 4] x) => (float[2, 3] y) { t = Transpose <perm = [1, 0]> (w)  y = MatMul(x, t) }"
    model = read(rename(with_weights(proto, text, w=W.T.copy()), "w", "fc.weight"))
    parameter = only(model)
    assert (parameter.name, parameter.onnx, parameter.tensor) == ("fc.weight", "fc.weight", "t")
    assert (parameter.perm, parameter.onnx_perm) == ((1, 0), (1, 0))
    assert model.tensors["t"].shape == (4, 3)
    assert [operator.op_type for operator in model.operators] == ["MatMul"]


def test_equal_transpositions_are_one_and_unequal_ones_stay(read, proto):
    text = """g (float[2, 4] x) => (float[2, 3] y, float[2, 3] z) {
        t = Transpose(w)  u = Transpose <perm = [1, 0]> (w)  y = MatMul(x, t)  z = MatMul(x, u) }"""
    model = read(with_weights(proto, text, w=W.T.copy()))
    assert [operator.inputs for operator in model.operators] == [("x", "t"), ("x", "t")]
    tied = """g (int64[2] i, float[2, 4] x) => (float[2, 4] e, float[2, 3] y) {
        e = Gather(w, i)  t = Transpose(w)  y = MatMul(x, t) }"""
    model = read(with_weights(proto, tied, w=W.T.copy()))
    assert [operator.op_type for operator in model.operators] == ["Gather", "Transpose", "MatMul"]
    assert only(model).perm == ()


@pytest.mark.parametrize("sources", [["model.rotary_emb.inv_freq"], ["model.rotary_emb.inv_freq", "val_3"]])
def test_table_folded_from_a_buffer_is_a_constant(read, proto, sources):
    """`cos` and `sin` of a rotary embedding: neither the checkpoint's buffer, whose shape they lack, nor trained."""
    model = with_weights(proto, ADD.replace("b)", "unsqueeze_15)"), unsqueeze_15=B)
    fold(model, "unsqueeze_15", sources)
    assert roles(read(model)) == {"unsqueeze_15": "constant"}


def test_folded_weight_of_the_torch_exporter(read, proto):
    model = rename(with_weights(proto, MATMUL, w=W), "w", "val_41")
    fold(model, "val_41", ["layers.0.q.weight"])
    parameter = only(read(model))
    assert (parameter.name, parameter.onnx, parameter.perm) == ("layers.0.q.weight", "val_41", (1, 0))
    assert parameter.onnx_perm == ()


def test_folded_weight_whose_transposition_is_left_was_folded_otherwise(read, proto):
    text = "g (float[2, 4] x) => (float[2, 3] y) { t = Transpose(w)  y = MatMul(x, t) }"
    model = rename(with_weights(proto, text, w=W.T.copy()), "w", "val_41")
    fold(model, "val_41", ["layers.0.q.weight"])
    parameter = only(read(model))
    assert (parameter.name, parameter.perm, parameter.onnx_perm) == ("layers.0.q.weight", (1, 0), (1, 0))


@pytest.mark.parametrize(("name", "perm"), [("transpose_4", (0, 2, 1)), ("val_9", (0, 2, 1)), ("permute_3", ())])
def test_folded_stack_of_experts(read, proto, name, perm):
    """Of three dims the last two were swapped, unless the folded operation may have been another permutation."""
    text = "g (float[8, 2, 4] x) => (float[8, 2, 3] y) { y = MatMul(x, w) }"
    model = rename(with_weights(proto, text, w=((8, 4, 3), TensorProto.FLOAT)), "w", name)
    fold(model, name, ["mlp.experts.up"])
    parameter = only(read(model))
    assert (parameter.name, parameter.perm) == ("mlp.experts.up", perm)


def test_different_transpositions_of_one_weight_stay(read, proto):
    text = """g (float[2, 3, 4] x) => (float[2, 3, 4] y, float[4, 2, 4] z) {
        t = Transpose <perm = [0, 2, 1]> (w)  u = Transpose <perm = [1, 0, 2]> (w)
        y = MatMul(x, t)  z = Identity(u) }"""
    model = read(with_weights(proto, text, w=((2, 4, 4), TensorProto.FLOAT)))
    assert [operator.op_type for operator in model.operators] == ["Transpose", "Transpose", "MatMul", "Identity"]


def test_name_from_the_module_that_reads_it(read, proto):
    model = rename(with_weights(proto, MATMUL, w=W), "w", "val_41")
    scope(model, ["layers.0", "layers.0.q"])
    parameter = only(read(model))
    assert (parameter.name, parameter.perm) == ("layers.0.q.weight", (1, 0))


def test_name_from_the_older_exporters_node_names(read, proto):
    model = rename(with_weights(proto, MATMUL, w=W), "w", "onnx::MatMul_591")
    model.graph.node[0].name = "/model/layers.0/self_attn/q_proj/MatMul"
    parameter = only(read(model))
    assert (parameter.name, parameter.perm) == ("model.layers.0.self_attn.q_proj.weight", (1, 0))
    assert read(model).operators[0].module == "model.layers.0.self_attn.q_proj"


def test_convolution_fused_with_its_norm(read, proto):
    text = "g (float[1, 2, 4, 4] x) => (float[1, 3, 4, 4] y) { y = Conv <kernel_shape = [1, 1]> (x, w, b) }"
    model = with_weights(proto, text, w=np.ones((3, 2, 1, 1), np.float32), b=B)
    rename(rename(model, "w", "onnx::Conv_1"), "b", "onnx::Conv_2")
    model.graph.node[0].name = "/stem/conv/Conv"
    assert [(entry.name, entry.perm) for entry in read(model).parameters] == [
        ("stem.conv.weight", ()),
        ("stem.conv.bias", ()),
    ]


def test_two_weights_of_one_module_keep_their_own_names(read, proto):
    text = "g (float[2, 4] x) => (float[2, 3] y) { a = MatMul(x, val_1)  b = MatMul(x, val_2)  y = Add(a, b) }"
    model = with_weights(proto, text, val_1=W, val_2=W)
    scope(model, ["fc"], ["fc"], ["fc"])
    assert [parameter.name for parameter in read(model).parameters] == ["fc.weight", "val_2"]


def test_vectors_merged_by_the_exporter_are_each_modules_own(read, proto):
    """`torch.onnx.export` stores equal vectors once, under the first name."""
    text = """g (float[2, 3] x) => (float[2, 3] y) {
        a = RMSNormalization(x, s)  b = RMSNormalization(a, s)  c = Mul(b, s)  d = Mul(c, s)  y = Add(d, s) }"""
    model = rename(with_weights(proto, text, opset=23, s=B), "s", "layers.0.norm.gain")
    scope(model, ["layers.0.norm"], ["layers.1.norm"], ["layers.1.q_norm"], ["layers.0"], ["layers.1.fc"])
    found = read(model)
    assert [(each.name, each.onnx, each.aliases) for each in found.parameters] == [
        ("layers.0.norm.gain", "layers.0.norm.gain", ()),  # which the module that contains the norm reads, too
        ("layers.1.norm.gain", "layers.0.norm.gain", ()),
        ("layers.1.q_norm.gain", "layers.0.norm.gain", ()),
        ("layers.1.fc.bias", "layers.0.norm.gain", ()),
    ]
    assert [operator.inputs[1] for operator in found.operators][3] == "layers.0.norm.gain"


def test_a_vector_of_no_reader_stays_one(read, proto):
    """`scale` belongs to a module that reads nothing itself: two readers share it."""
    text = "g (float[2, 3] x) => (float[2, 3] y) { a = Mul(x, s)  y = Mul(a, s) }"
    model = rename(with_weights(proto, text, s=B), "s", "shared.scale")
    scope(model, ["one"], ["two"])
    assert [each.name for each in read(model).parameters] == ["shared.scale"]


def test_matrices_of_two_modules_are_tied(read, proto):
    text = "g (float[2, 3] x) => (float[2, 3] y) { a = MatMul(x, w)  y = MatMul(a, w) }"
    model = rename(with_weights(proto, text, w=np.eye(3, dtype=np.float32)), "w", "one.weight")
    scope(model, ["one"], ["two"])
    assert only(read(model)).aliases == ("two.weight",)


def test_a_module_that_contains_the_weight_is_no_other_owner(read, proto):
    model = rename(with_weights(proto, MATMUL, w=W), "w", "attn.q.weight")
    scope(model, ["attn"])
    assert only(read(model)).aliases == ()


def test_identity_of_a_weight_is_the_weight(read, proto):
    text = """g (float[2, 3] x) => (float[2, 3] y) { other = Identity(s)  again = Identity(other)
        a = RMSNormalization(x, s)  y = RMSNormalization(a, again) }"""
    model = rename(with_weights(proto, text, opset=23, s=B), "s", "norm1.weight")
    rename(model, "other", "norm2.weight").graph.node[0].output[0] = "norm2.weight"
    found = read(model)
    assert [operator.inputs for operator in found.operators] == [("x", "norm1.weight"), ("a", "norm1.weight")]
    assert only(found).aliases == ("norm2.weight", "again")


def test_weight_that_is_a_graph_output(read, proto):
    text = "g (float[2, 4] x) => (float[2, 3] y, float[4, 3] out) { y = MatMul(x, w)  out = Identity(w) }"
    model = read(with_weights(proto, text, w=W))
    assert [operator.op_type for operator in model.operators] == ["MatMul", "Identity"]


def test_names_in_metadata_are_never_executed(read, proto):
    model = with_weights(proto, MATMUL, w=W)
    model.graph.node[0].metadata_props.add(key=SCOPES, value="__import__('os').system('false')")
    assert read(model).operators[0].module == ""
    quoted = with_weights(proto, MATMUL, w=W)
    quoted.graph.node[0].metadata_props.add(key=SCOPES, value="['', \"it's\", 'op']")
    assert read(quoted).operators[0].module == "it's"
