"""Graphs that are wrong: exact texts. And what is made of graphs that are right but unusual."""

import onnx
import pytest
from onnx import TensorProto, helper


def test_cycle_names_its_nodes(refuse):
    text = "g (float[4] x) => (float[4] y) { a = Add(x, c)  b = Relu(a)  c = Sqrt(b)  d = Exp(x)  y = Neg(c) }"
    assert refuse(text) == (
        "m.onnx: error[cyclic-graph]: the graph has a cycle of 3 nodes\n"
        "  Add_0 -> Relu_1 -> Sqrt_2 -> Add_0\n"
        "hint: an ONNX graph must be acyclic"
    )


def test_node_that_reads_itself(refuse):
    assert refuse("g (float[4] x) => (float[4] y) { y = Add(x, y) }") == (
        "m.onnx: error[cyclic-graph]: the graph has a cycle of 1 node\n"
        "  Add_0 -> Add_0\n"
        "hint: an ONNX graph must be acyclic"
    )


def test_long_cycle_is_shortened(refuse):
    nodes = "".join(f"v{i} = Relu(v{i - 1}) " for i in range(1, 12))
    assert refuse(f"g (float[4] x) => (float[4] v11) {{ v0 = Add(x, v11) {nodes} }}") == (
        "m.onnx: error[cyclic-graph]: the graph has a cycle of 12 nodes\n"
        "  Add_0 -> Relu_1 -> Relu_2 -> Relu_3 -> Relu_4 -> Relu_5 -> Relu_6 -> Relu_7 -> ... -> Add_0\n"
        "hint: an ONNX graph must be acyclic"
    )


def test_missing_values_are_all_listed_with_the_nearest_name(refuse):
    text = "g (float[4] hidden) => (float[4] z) { y = Add(hiden, q)  w = Relu(y) }"
    assert refuse(text) == (
        "m.onnx: error[missing-value]: node 'Add_0' (Add) reads 'hiden', which no node, graph input or initializer "
        "makes\nhint: did you mean 'hidden'?\n"
        "m.onnx: error[missing-value]: node 'Add_0' (Add) reads 'q', which no node, graph input or initializer makes\n"
        "m.onnx: error[missing-value]: graph output 'z' is made by no node, graph input or initializer"
    )


def test_value_read_only_inside_a_branch_must_exist_too(refuse):
    text = """g (float[3] x, bool c) => (float[3] y) { y = If(c)
        <then_branch = t () => (float[3] a) { a = Relu(x) }, else_branch = e () => (float[3] b) { b = Neg(xx) }> }"""
    assert refuse(text) == (
        "m.onnx: error[missing-value]: node 'If_0' (If) reads 'xx', which no node, graph input or initializer makes\n"
        "hint: did you mean 'x'?"
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "g (float[4] x) => (float[4] y) { y = Relu(x)  y = Neg(x) }",
            "value 'y' is made twice: by node 'Relu_0' (Relu) and by node 'Neg_1' (Neg)",
        ),
        (
            "g (float[4] x) => (float[4] y) { x = Relu(x)  y = Neg(x) }",
            "value 'x' is made twice: as a graph input and by node 'Relu_0' (Relu)",
        ),
        (
            "g (float[4] x) => (float[4] y) <float[4] w = {1,2,3,4}> { w = Relu(x)  y = Neg(w) }",
            "value 'w' is made twice: as an initializer and by node 'Relu_0' (Relu)",
        ),
        ("g (float[4] x, float[4] x) => (float[4] y) { y = Neg(x) }", "graph input 'x' is declared twice"),
    ],
)
def test_duplicate_names(refuse, text, found):
    assert refuse(text) == f"m.onnx: error[duplicate-value]: {found}"


def test_initializer_stored_twice(refuse, proto):
    model = proto("g (float[2] x) => (float[2] y) { y = Add(x, w) }")
    model.graph.initializer.extend([helper.make_tensor("w", 1, [2], [1, 2])] * 2)
    assert refuse(model) == "m.onnx: error[duplicate-value]: initializer 'w' is stored twice"


def test_domain_without_operator_set(refuse):
    assert refuse("g (float[4] x) => (float[4] y) { y = com.foo.Bar(x) }") == (
        "m.onnx: error[missing-opset]: the model imports no operator set for domain 'com.foo', but node 'Bar_0' "
        "(com.foo.Bar) needs one\n"
        "hint: export the model again, or add the domain to its opset_import"
    )


def test_no_operator_sets_at_all(refuse, proto):
    model = proto("g (float[4] x) => (float[4] y) { y = Relu(x) }")
    model.ClearField("opset_import")
    assert refuse(model) == (
        "m.onnx: error[missing-opset]: the model imports no operator set for domain 'ai.onnx', but node 'Relu_0' "
        "(Relu) needs one\n"
        "hint: export the model again, or add the domain to its opset_import"
    )


def test_unknown_operator_without_a_stored_shape(refuse):
    text = "g (float[4] x) => (float[4] y) { z = com.foo.Bar(x)  y = Relu(z) }"
    assert refuse(text, domains=', "com.foo" : 3') == (
        "m.onnx: error[unresolved-shape]: the shape of 'z' of node 'Bar_0' (com.foo.Bar) is unknown\n"
        "  no operator 'Bar' is known in operator set com.foo 3\n"
        "hint: store the shape in the file (value_info), or export the model with static shapes"
    )


def test_unknown_operator_with_a_stored_shape_is_read(read):
    model = read("g (float[4] x) => (float[5] y) { y = com.foo.Bar <gain = 2.0> (x) }", domains=', "com.foo" : 3')
    operator = model.operators[0]
    assert (operator.kind, operator.version, operator.attributes) == ("com.foo.Bar", 3, {"gain": 2.0})
    assert model.tensors["y"].shape == (5,)


def test_an_operator_whose_size_depends_on_values_that_it_lacks(refuse):
    said = refuse("g () => (y) { y = Unique() }", opset=7)
    assert "the shape of 'y' of node 'Unique_0' (Unique) is unknown" in said


def test_data_dependent_shape(refuse):
    assert refuse("g (float[4] x) => (int64[1, found] y) { y = NonZero(x) }") == (
        "m.onnx: error[unresolved-shape]: the shape of 'y' of node 'NonZero_0' (NonZero) is [1, ?]\n"
        "  the size depends on the values of 'x'\n"
        "hint: give --dim found=N"
    )
    assert refuse("g (float[4] x, bool[4] c) => (y) { y = Compress(x, c) }").endswith(
        "  the size depends on the values of 'x'\n"
        "hint: write it with sizes that do not: torch.where or masks in place of indices (x[mask], nonzero, unique)"
    )


def test_data_dependent_shape_can_be_bound(read):
    assert read("g (float[4] x) => (int64[1, found] y) { y = NonZero(x) }", {"found": 3}).tensors["y"].shape == (1, 3)


def test_only_the_first_unresolved_value_of_a_chain_is_reported(refuse):
    text = "g (float[4] x) => (int64[?, 1] y) { n = NonZero(x)  t = Transpose(n)  y = Neg(t) }"
    assert refuse(text).count("error[") == 1


def test_shape_that_depends_on_data_outside_the_file(refuse, proto):
    model = proto("g (float[4] x) => (float[?, ?] y) { y = Reshape(x, shape) }")
    shape = TensorProto(name="shape", dims=[2], data_type=TensorProto.INT64, data_location=TensorProto.EXTERNAL)
    model.graph.initializer.append(shape)
    assert refuse(model) == (
        "m.onnx: error[unresolved-shape]: the shape of 'y' of node 'Reshape_0' (Reshape) is [?, ?]\n"
        "  it depends on the data of 'shape', which is not in the file\n"
        "hint: store the shape in the file (value_info), or export the model with static shapes"
    )


def test_external_data_is_not_replaced_by_what_is_left_in_the_file(refuse, proto):
    model = proto("g (float[4] x) => (float[?, ?] y) { y = Reshape(x, shape) }")
    model.graph.initializer.append(
        TensorProto(
            name="shape", dims=[2], data_type=TensorProto.INT64, data_location=TensorProto.EXTERNAL, raw_data=bytes(16)
        )
    )
    assert "it depends on the data of 'shape', which is not in the file" in refuse(model)


def test_incompatible_dims_name_the_node_and_its_inputs(refuse):
    text = "g (float[batch, seq, 4] x, float[1, 512, 4] positions) => (float[?, ?, 4] y) { y = Add(x, positions) }"
    assert refuse(text, {"batch": 2, "seq": 600}) == (
        "m.onnx: error[incompatible-dims]: Incompatible dimensions at node 'Add_0' (Add)\n"
        "  x: [2, 600, 4]\n"
        "  positions: [1, 512, 4]\n"
        "hint: check --dim batch=2 --dim seq=600"
    )


def test_reshape_to_another_number_of_elements(refuse):
    text = "g (float[batch, 12] x) => (float[?, ?] y) <int64[2] s = {8, 6}> { y = Reshape(x, s) }"
    assert refuse(text, {"batch": 8}) == (
        "m.onnx: error[incompatible-dims]: Incompatible dimensions at node 'Reshape_0' (Reshape)\n"
        "  x: [8, 12]\n"
        "  s: [2]\n"
        "  96 elements cannot be reshaped to [8, 6]\n"
        "hint: check --dim batch=8"
    )


def test_product_of_matrices_that_do_not_fit(refuse):
    assert refuse("g (float[4, 3] x, float[5, 2] w) => (float[4, 2] y) { y = MatMul(x, w) }") == (
        "m.onnx: error[incompatible-dims]: Incompatible dimensions at node 'MatMul_0' (MatMul)\n"
        "  x: [4, 3]\n"
        "  w: [5, 2]\n"
        "  Incompatible dimensions for matrix multiplication"
    )


def test_node_without_its_required_attribute(refuse):
    assert refuse("g (float[4] x) => (float[?] y) { y = Concat(x, x) }") == (
        "m.onnx: error[invalid-node]: node 'Concat_0' (Concat) is not valid ONNX\n"
        "  x: [4]\n"
        "  Required attribute 'axis' is missing."
    )


def test_constant_whose_data_does_not_fill_its_dims(refuse, proto):
    model = proto("g (float[4] x) => (float[4] y) { y = Reshape(x, s) }")
    model.graph.initializer.append(TensorProto(name="s", dims=[2], data_type=TensorProto.INT64, raw_data=bytes(8)))
    first = refuse(model).splitlines()[0]
    assert first == "m.onnx: error[bad-tensor]: constant 's' is stored with dims [2], which its data does not fill"


def test_sequences_are_refused_where_they_start(refuse):
    text = """g (float[4] x) => (float[4] y) {
        s = SequenceConstruct(x)  i = Constant <value_int = 0> ()  y = SequenceAt(s, i) }"""
    assert refuse(text) == (
        "m.onnx: error[not-a-tensor]: 's' of node 'SequenceConstruct_0' (SequenceConstruct) is a sequence; "
        "only tensors can be planned"
    )


def test_sequence_input(refuse):
    text = "g (seq(float[4]) s) => (float[4] y) { i = Constant <value_int = 0> ()  y = SequenceAt(s, i) }"
    assert refuse(text) == "m.onnx: error[not-a-tensor]: graph input 's' is a sequence; only tensors can be planned"


def test_an_optional_value(refuse):
    text = "g (float[4] x) => (float[4] y) { o = Optional(x)  y = OptionalGetElement(o) }"
    assert refuse(text) == (
        "m.onnx: error[not-a-tensor]: 'o' of node 'Optional_0' (Optional) is an optional; only tensors can be planned"
    )
    text = "g (optional(float[4]) o) => (float[4] y) { y = OptionalGetElement(o) }"
    assert refuse(text) == "m.onnx: error[not-a-tensor]: graph input 'o' is an optional; only tensors can be planned"


def test_graph_without_outputs(refuse):
    assert refuse("g (float[4] x) => () { y = Relu(x) }") == (
        "m.onnx: error[no-outputs]: the graph has no outputs, so nothing in it is needed"
    )


def test_nodes_out_of_order_are_put_in_order(read):
    model = read("g (float[4] x) => (float[4] z) { z = Neg(y)  y = Relu(x) }")
    assert [operator.name for operator in model.operators] == ["Relu_1", "Neg_0"]


def test_dead_nodes_and_their_weights_are_dropped(read):
    model = read("g (float[4] x) => (float[4] y) <float[4] w = {1,2,3,4}> { y = Relu(x)  z = Mul(x, w) }")
    assert [operator.op_type for operator in model.operators] == ["Relu"]
    assert set(model.tensors) == {"x", "y"}
    assert model.parameters == ()


def test_names_are_made_unique(read, proto):
    model = proto("g (float[4] x) => (float[4] z) { y = Relu(x)  w = Relu(y)  z = Relu(w) }")
    for node, name in zip(model.graph.node, ("act", "act", ""), strict=True):
        node.name = name
    assert [operator.name for operator in read(model).operators] == ["act", "act_2", "Relu_2"]


def test_unread_optional_results_are_not_made(read):
    model = read(
        "g (float[1, 1, 4, 4] x) => (float[1, 1, 2, 2] y) {"
        "  p, i = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)  y, mask = Dropout(p) }"
    )
    assert [operator.outputs for operator in model.operators] == [("p",), ("y",)]


def test_stored_shapes_that_no_longer_hold_are_ignored_with_a_warning(read):
    model = read("g (float[8] x) => (float[4] y) { y = Relu(x) }")
    assert model.tensors["y"].shape == (8,)
    assert [str(entry) for entry in model.warnings] == [
        (
            "m.onnx: warning[stale-shape]: 1 stored shape does not follow from the model's inputs, and is ignored\n"
            "  'y' of node 'Relu_0' (Relu): stored [4], inferred [8]"
        )
    ]


def test_initializers_repeated_as_inputs_are_weights(read):
    text = "g (float[2, 4] x, float[4, 3] w) => (float[2, 3] y) <float[4, 3] w = {1,2,3,4,5,6,7,8,9,10,11,12}>"
    model = read(text + " { y = MatMul(x, w) }", opset=8, ir_version=3)
    assert model.inputs == ("x",)
    assert [parameter.name for parameter in model.parameters] == ["w"]


@pytest.mark.parametrize(
    ("nodes", "size"),
    [
        ("some = Cast <to = 7> (some_i)  t = NonZero(some)  f = Squeeze(t, zero)", 3),
        ("c = Cast <to = 9> (some_i)  f = Compress(some_i, c)", 3),
        ("f = Unique(some_i)", 2),
    ],
)
def test_a_size_that_depends_on_known_values_is_known(nodes, size, read):
    text = f"""g (float[8, 4] x) => (float[8, n] y)
        <int64[4] some_i = {{1, 0, 1, 1}}, int64[1] zero = {{0}}> {{ {nodes}  y = Gather <axis = 1> (x, f) }}"""
    model = read(text, {"n": size})
    assert [operator.op_type for operator in model.operators] == ["Gather"]
    assert model.tensors["y"].shape == (8, size)
    assert model.constants["f"].shape == (size,)


def test_a_sparse_initializer_is_one_error(refuse, proto):
    model = proto("g (float[4] x, float[4] w) => (float[4] y) { y = Add(x, w) }")
    del model.graph.input[1]
    sparse = model.graph.sparse_initializer.add()
    sparse.values.CopyFrom(onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [1], [1.0]))
    sparse.dims.append(4)
    assert refuse(model) == (
        "m.onnx: error[sparse-tensor]: initializer 'w' is a sparse tensor, which cannot be planned\n"
        "hint: store it as a dense tensor"
    )


def test_local_functions_are_inlined(read):
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
        g (float[2, 4] x) => (float[2, 4] y) { y = local.twice(x) }
        <domain: "local", opset_import: ["" : 21]> twice (a) => (c) { b = Relu(a)  c = Add(b, b) }"""
    )
    assert [operator.op_type for operator in read(model).operators] == ["Relu", "Add"]


def test_branch_with_a_known_condition_is_taken(read):
    text = """g (float[1, 3] x) => (float[3] y) {
        s = Shape <start = 0, end = 1> (x)  one = Constant <value_ints = [1]> ()  c = Equal(s, one)
        y = If(c) <then_branch = t () => (float[3] a) { axes = Constant <value_ints = [0]> ()  a = Squeeze(x, axes) },
                   else_branch = e () => (float[1, 3] b) { b = Identity(x) }> }"""
    model = read(text)
    assert [(operator.op_type, operator.outputs) for operator in model.operators] == [("Squeeze", ("y",))]
    assert model.warnings == ()


def test_branch_that_returns_outer_values_and_one_value_twice(read):
    text = """g (float[3] x) => (float[3] y, float[3] z, float[3] w) <bool[1] c = {1}> {
        y, z, w = If(c) <then_branch = t () => (float[3] a, float[3] a, float[3] x) { a = Relu(x) },
                         else_branch = e () => (float[3] b, float[3] b, float[3] b) { b = Neg(x) }> }"""
    model = read(text)
    assert [(operator.op_type, operator.inputs, operator.outputs) for operator in model.operators] == [
        ("Relu", ("x",), ("y",)),
        ("Identity", ("y",), ("z",)),
        ("Identity", ("x",), ("w",)),
    ]


def test_control_flow_with_sequences_is_kept_whole_and_said_so(read):
    text = """g (float[3] x, float[3] k, bool c) => (float[3] y) { y = If(c)
        <then_branch = t () => (float[3] a) { s = SequenceConstruct(x, k)  i = Constant <value_int = 1> ()
                                              a = SequenceAt(s, i) },
         else_branch = e () => (float[3] b) { b = Neg(x) }> }"""
    model = read(text)
    operator = model.operators[0]
    assert (operator.inputs, operator.attributes["captured"]) == (("c", "k", "x"), 2)
    assert str(operator.attributes["then_branch"]).startswith("sha256:")
    assert model.tensors["y"].shape == (3,)
    assert [str(entry) for entry in model.warnings] == [
        "m.onnx: warning[control-flow]: 1 control-flow node is planned as one piece, not split\n  If_0"
    ]


def test_loop_and_scan_results_are_typed(read):
    text = """g (float[2, 3] x, float[4, 2, 3] xs) => (float[2, 3] y, float[5, 2, 3] ys, float[4, 2, 3] zs)
        <int64 n = {5}> {
        y, ys = Loop (n, , x) <body = b (int64 i, bool c, float[2, 3] v) => (bool d, float[2, 3] w, float[2, 3] o)
            { d = Identity(c)  w = Relu(v)  o = Neg(v) }>
        last, zs = Scan <num_scan_inputs = 1, body = s (float[2, 3] v, float[2, 3] e) => (float[2, 3] w, float[2, 3] o)
            { w = Add(v, e)  o = Neg(w) }> (x, xs) }"""
    model = read(text)
    assert model.tensors["ys"].shape == (5, 2, 3)
    assert model.tensors["zs"].shape == (4, 2, 3)


def test_known_outer_values_are_known_inside_a_body(read):
    text = """g (float[2, 3] x, float[4, 2, 3] xs) => (float[?, ?, ?, ?] zs) <int64[1] axis = {0}> {
        last, zs = Scan <num_scan_inputs = 1,
            body = s (float[2, 3] v, float[2, 3] e) => (float[2, 3] w, float[?, ?, ?] o)
            { w = Add(v, e)  o = Unsqueeze(e, axis) }> (x, xs) }"""
    assert read(text).tensors["zs"].shape == (4, 1, 2, 3)


def test_a_value_whose_type_alone_is_read_is_not_waited_for(read):
    """Exporters write constants `like` activations: they are constants, and need not have the activation moved."""
    model = read(
        "g (float16[4] x, float[4] z) => (float16[4] y, float16[4] w) {"
        " c = Constant <value_float: float = 0.5>() h = CastLike (c, x) y = Mul (x, h) w = CastLike (z, x) }"
    )
    assert [(operator.kind, operator.inputs) for operator in model.operators] == [("Mul", ("x", "h")), ("Cast", ("z",))]
    assert model.constants["h"].dtype == "float16"
    assert [model.tensors[name].dtype for name in model.outputs] == ["float16", "float16"]


def test_a_tensor_that_no_cluster_holds(refuse):
    assert refuse("g (float[batch, 64] x) => (float[batch, 64] y) { y = Relu(x) }", {"batch": 2**62}) == (
        "m.onnx: error[too-large]: graph input 'x' has the shape [4611686018427387904, 64], which is more than any "
        "cluster holds"
    )
