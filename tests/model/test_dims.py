"""Symbolic dims: expressions, binding, and what is said when a name is wrong or missing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardplan.model.dims import evaluate, names_of

NAMES = {"batch": 7, "seq": 128, "s43": 3}


def expressions():
    leaves = st.one_of(st.sampled_from(sorted(NAMES)), st.integers(0, 9).map(str))
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner).map(
                lambda t: f"({t[0]} {t[1]} {t[2]})"
            ),
            inner.map(lambda text: f"(-{text})"),
            st.tuples(inner, inner).map(lambda t: f"max({t[0]}, {t[1]})"),
        ),
        max_leaves=8,
    )


@given(expressions())
def test_expressions_mean_what_python_says(text):
    try:
        expected = eval(text, {"max": max}, dict(NAMES))
    except ZeroDivisionError:
        expected = None
    assert evaluate(text, NAMES) == expected
    assert set(names_of(text)) <= set(NAMES)


@given(st.text(max_size=40))
def test_any_text_is_a_name_or_arithmetic_and_never_runs(text):
    evaluate(text, NAMES)
    assert all(isinstance(name, str) for name in names_of(text))


@pytest.mark.parametrize(
    "text",
    ["__import__('os').getcwd()", "batch.real", "[batch][0]", "batch if 1 else 2", "2**99", "f(batch)", "1.5", "True"],
)
def test_what_is_no_arithmetic_is_a_name(text):
    assert names_of(text) == (text,)
    assert evaluate(text, NAMES) is None


def test_deep_nesting_is_no_arithmetic():
    assert evaluate("(" * 5000 + "batch" + ")" * 5000, NAMES) is None
    assert evaluate("-" * 390 + "batch", NAMES) in (7, None)


def test_division_of_exporters():
    assert evaluate("seq/2", NAMES) == 64
    assert evaluate("floor(seq/3)", NAMES) == 42
    assert evaluate("CeilDiv(seq, 3)", NAMES) == 43


TEXT = "g (float[batch, seq, 4] x, int64[batch, {total}] m) => (float[batch, seq, 4] y) {{ y = Relu(x) }}"


def test_unbound_dims_are_listed_with_the_flags_to_give(refuse):
    assert refuse(TEXT.format(total="total")) == (
        "m.onnx: error[unbound-dim]: 3 symbolic dims have no size: batch, seq, total\n"
        "  batch: in input 'x', 'm'\n"
        "  seq: in input 'x'\n"
        "  total: in input 'm'\n"
        "hint: give --dim batch=N --dim seq=N --dim total=N"
    )


def test_names_that_a_shell_would_split_are_quoted(refuse, proto):
    model = proto("g (float[batch, 4] x) => (float[batch, 4] y) { y = Relu(x) }")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch size"
    assert refuse(model) == (
        "m.onnx: error[unbound-dim]: 1 symbolic dim has no size: batch size\n"
        "  batch size: in input 'x'\n"
        "hint: give --dim 'batch size=N'"
    )


def test_misspelt_dim(refuse):
    assert refuse(TEXT.format(total="total"), {"bacth": 4, "seq": 2, "total": 8}) == (
        "m.onnx: error[unknown-dim]: --dim bacth=4: no dim is called 'bacth'\n"
        "  symbolic dims of the model: batch, seq, total\n"
        "hint: did you mean 'batch'?"
    )


def test_several_dims_in_one_option(refuse):
    assert refuse(TEXT.format(total="total"), {"batch=4,seq": 2, "batch": 4, "seq": 2, "total": 8}) == (
        "m.onnx: error[unknown-dim]: --dim batch=4,seq=2: no dim is called 'batch=4,seq'\n"
        "  symbolic dims of the model: batch, seq, total\n"
        "hint: give --dim once for each dim"
    )


def test_dim_for_a_model_without_symbolic_dims(refuse):
    assert refuse("g (float[4] x) => (float[4] y) { y = Relu(x) }", {"batch": 4}) == (
        "m.onnx: error[unknown-dim]: --dim batch=4: no dim is called 'batch'\n"
        "  all shapes of the model are fixed; it has no symbolic dims"
    )


@pytest.mark.parametrize("size", [0, -3])
def test_sizes_below_one(refuse, size):
    assert refuse("g (float[batch] x) => (float[batch] y) { y = Relu(x) }", {"batch": size}) == (
        f"m.onnx: error[bad-dim]: --dim batch={size}: a dim must be a whole number of at least 1"
    )


def test_all_wrong_dims_are_reported_together(refuse):
    text = refuse(TEXT.format(total="total"), {"batch": 0, "sek": 2})
    assert text.count("error[bad-dim]") == 1
    assert text.count("error[unknown-dim]") == 1


def test_expression_below_zero(refuse, proto):
    model = proto("g (float[past, 4] x, float[past] p) => (float[?, 4] y) { y = Relu(x) }")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "past - 5"
    assert refuse(model, {"past": 3}) == "m.onnx: error[bad-dim]: dim 0 of input 'x' is past - 5 = -2, below zero"


def test_expression_without_a_value(refuse, proto):
    model = proto("g (float[a, 4] x, float[a] p) => (float[?, 4] y) { y = Relu(x) }")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "8 // (a - 2)"
    assert refuse(model, {"a": 2}) == "m.onnx: error[bad-dim]: dim 0 of input 'x' is 8 // (a - 2), which has no value"


def test_input_of_unknown_rank(refuse, proto):
    model = proto("g (float[4] x) => (float[4] y) { y = Relu(x) }")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    assert refuse(model) == (
        "m.onnx: error[unresolved-shape]: the shape of graph input 'x' is unknown\n"
        "hint: export the model with the rank of its inputs"
    )


def test_expressions_are_bound_by_their_names_or_whole(read, proto):
    def model():
        made = proto("g (float[a, 4] x) => (float[?, ?] y) { y = Relu(x) }")
        made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "s43*s53"
        return made

    assert read(model(), {"s43": 3, "s53": 5}).tensors["y"].shape == (15, 4)
    assert read(model(), {"s43*s53": 6}).tensors["y"].shape == (6, 4)


def test_dims_without_a_name_are_bound_by_place(read, refuse):
    text = "g (float[?, 4] x) => (float[?, 4] y) { y = Relu(x) }"
    assert refuse(text) == (
        "m.onnx: error[unbound-dim]: 1 symbolic dim has no size: x[0]\n  x[0]: in input 'x'\nhint: give --dim 'x[0]=N'"
    )
    assert read(text, {"x[0]": 3}).tensors["y"].shape == (3, 4)


def test_names_invented_by_shape_inference_are_no_symbols(refuse):
    assert "x[0]" in refuse("g (float[unk__7, 4] x) => (float[?, 4] y) { y = Relu(x) }")


def test_bound_dims_are_recorded_in_order(read):
    model = read("g (float[seq, batch] x) => (float[seq, batch] y) { y = Relu(x) }", {"seq": 2, "batch": 3})
    assert list(model.dims.items()) == [("batch", 3), ("seq", 2)]


def test_stored_expressions_give_what_inference_cannot(read):
    text = "g (float[b, s] x) => (float[tokens] y) { y = com.foo.Flat(x) }"
    model = read(text, {"b": 2, "s": 5, "tokens": 10}, domains=', "com.foo" : 1')
    assert model.tensors["y"].shape == (10,)


def test_shape_arithmetic_disappears(read):
    """What exporters write for `x.view(b, s, 2, h // 2)`: nothing of it is left but the reshape."""
    text = """g (float[batch, seq, 8] x) => (float[?, ?, ?, ?] y) <int64 zero = {0}, int64 one = {1},
        int64[1] axis = {0}, int64[1] two = {2}, int64[1] rest = {-1}> {
        s = Shape(x)  b = Gather <axis = 0> (s, zero)  t = Gather <axis = 0> (s, one)
        b1 = Unsqueeze(b, axis)  t1 = Unsqueeze(t, axis)
        target = Concat <axis = 0> (b1, t1, two, rest)  y = Reshape(x, target) }"""
    model = read(text, {"batch": 3, "seq": 5})
    assert [operator.op_type for operator in model.operators] == ["Reshape"]
    assert model.tensors["y"].shape == (3, 5, 2, 4)
    assert model.constants["target"].tolist() == [3, 5, 2, -1]
    assert model.tensors["target"].role == "constant"


def test_unread_data_behind_a_shape_is_no_reason_to_stop(read):
    """Sizes that depend on shapes only, over a range: Range, Where, Equal, ConstantOfShape, Expand."""
    text = """g (float[batch, seq] x) => (float[?, ?] y) <int64 zero = {0}, int64 one = {1}, int64[1] minus = {-1},
        int64[1] axis = {0}> {
        s = Shape(x)  n = Gather <axis = 0> (s, one)  places = Range(zero, n, one)  f = Cast <to = 1> (places)
        shape = ConstantOfShape <value = int64[1] {1}> (rank)  rank = Shape(s)
        minus1 = Mul(shape, minus)  same = Equal(s, minus1)  target = Where(same, shape, s)
        wide = Expand(f, target)  y = Add(x, wide) }"""
    model = read(text, {"batch": 2, "seq": 6})
    assert [operator.op_type for operator in model.operators] == ["Add"]
    assert model.constants["wide"].tolist() == [[0, 1, 2, 3, 4, 5]] * 2
