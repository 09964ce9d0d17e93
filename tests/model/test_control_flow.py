"""`If`, `Loop` and `Scan` become operators of the graph around them, with a border that says what goes in and out."""

from __future__ import annotations

import pytest

from shardplan.errors import ShardplanError
from shardplan.model.digest import structure_digest

LOOP = """g (float[2, 3] x, float[3, 3] w{inputs}) => (float[2, 3] y, float[{turns}, 2, 3] ys) {{
    {limit} y, ys = Loop ({m}, {c}, x) <
        body = b (int64 i, bool go, float[2, 3] v) => (bool on, float[2, 3] o, float[2, 3] t)
        {{ {on}  o = MatMul(v, w)  t = Neg(o) }}> }}"""
AGAIN = "on = Identity(go)"
UNTIL = "top = ReduceMax <keepdims = 0> (v) zero = Constant <value_float = 0.0> () on = Greater (top, zero)"


def loop(limit="n = Constant <value_int = 5> ()", m="n", c="", on=AGAIN, turns="5", inputs=""):
    return LOOP.format(limit=limit, m=m, c=c, on=on, turns=turns, inputs=inputs)


def operators(model):
    return [(operator.kind, operator.inputs, operator.outputs, operator.loops) for operator in model.operators]


def refused(read, text, dims=None):
    with pytest.raises(ShardplanError) as caught:
        read(text, dims or {})
    return [str(entry) for entry in caught.value.diagnostics]


def test_a_loop_becomes_its_body_between_borders(read):
    model = read(loop())
    here = ("Loop_1",)
    assert operators(model) == [
        ("shardplan.Enter", ("x",), ("Loop_1/v",), here),
        ("MatMul", ("Loop_1/v", "w"), ("Loop_1/o",), here),
        ("Neg", ("Loop_1/o",), ("Loop_1/t",), here),
        ("shardplan.Leave", ("Loop_1/o",), ("y",), here),
        ("shardplan.Stack", ("Loop_1/t",), ("ys",), here),
    ]
    assert model.trips == {"Loop_1": 5}
    assert [model.iterations(operator.reads_in) for operator in model.operators] == [1, 5, 5, 5, 5]
    assert [model.iterations(operator.makes_in) for operator in model.operators] == [5, 5, 5, 1, 1]
    assert model.tensors["ys"].shape == (5, 2, 3)
    assert model.warnings == ()


def test_names_of_nodes_inside_begin_with_that_of_the_loop(read):
    assert [operator.name for operator in read(loop()).operators] == [
        "Loop_1/Enter:v",
        "Loop_1/MatMul_1",
        "Loop_1/Neg_2",
        "Loop_1/Leave:y",
        "Loop_1/Stack:ys",
    ]


@pytest.mark.parametrize("on", ["on = Identity(on)", "on = Identity(other) other = Identity(on)"])
def test_a_condition_that_is_made_of_itself_is_refused(read, on):
    assert refused(read, loop(on=on))


def test_a_loop_without_a_limit_needs_a_number(read):
    text = loop(limit="", m="", c="c", on=UNTIL, turns="k", inputs=", bool c")
    assert refused(read, text) == [
        (
            "m.onnx: error[unbound-trip]: the trip count of node 'Loop_0' (Loop) depends on data, so its cost is not"
            " known\nhint: give the trip count: --trip Loop_0=N"
        )
    ]
    model = read(text, {"trip:Loop_0": 7, "k": 7})
    assert model.tensors["ys"].shape == (7, 2, 3)
    leave = next(operator for operator in model.operators if operator.op_type == "Leave")
    assert leave.inputs == ("Loop_0/o", "Loop_0/on"), "all devices must know whether to go on"


def test_exporters_write_the_largest_integer_for_no_limit(read):
    text = loop(limit="n = Constant <value_int = 9223372036854775807> ()", on=UNTIL, turns="k")
    assert refused(read, text)[0].startswith(
        "m.onnx: error[unbound-trip]: the trip count of node 'Loop_1' (Loop) depends"
    )


def test_a_stored_limit_that_is_too_large_is_said(read):
    text = loop(limit="n = Constant <value_int = 1099511627776> ()", turns="k")
    assert refused(read, text) == [
        (
            "m.onnx: error[unbound-trip]: the trip count of node 'Loop_1' (Loop) is stored as 1,099,511,627,776; a loop"
            " that is planned has fewer than 2,147,483,648 iterations\n"
            "hint: give the trip count to plan for: --trip Loop_1=N"
        )
    ]
    assert read(text, {"trip:Loop_1": 3, "k": 3}).trips == {"Loop_1": 3}


def test_a_number_that_the_file_contradicts_is_refused(read):
    assert refused(read, loop(), {"trip:Loop_1": 4}) == [
        "m.onnx: error[bad-trip]: --trip Loop_1=4: node 'Loop_1' (Loop) has 5 iterations\nhint: leave the option away"
    ]
    assert refused(read, loop(on=UNTIL), {"trip:Loop_1": 6}) == [
        (
            "m.onnx: error[bad-trip]: --trip Loop_1=6: node 'Loop_1' (Loop) has at most 5 iterations\n"
            "hint: leave the option away"
        )
    ]
    assert read(loop(on=UNTIL, turns="k"), {"trip:Loop_1": 3, "k": 3}).trips == {"Loop_1": 3}


def test_a_loop_that_the_model_does_not_have_is_refused(read):
    assert refused(read, loop(), {"trip:Loop_2": 4}) == [
        (
            "m.onnx: error[unknown-trip]: --trip Loop_2=4: no loop is called 'Loop_2'\n  loops of the model: Loop_1\n"
            "hint: did you mean 'Loop_1'?"
        )
    ]
    assert refused(read, loop(), {"trip:Loop_1": 0}) == [
        "m.onnx: error[bad-trip]: --trip Loop_1=0: a trip count is a whole number, at least 1"
    ]


def test_a_value_that_grows_from_turn_to_turn_is_refused(read):
    text = """g (float[2, 3] x) => (float[k, 3] y) { n = Constant <value_int = 4> ()
        y = Loop (n, , x) <body = b (int64 i, bool go, float[p, 3] v) => (bool on, float[q, 3] o)
            { on = Identity(go)  o = Concat <axis = 0> (v, x) }> }"""
    assert refused(read, text)[0] == (
        "m.onnx: error[incompatible-dims]: an iteration hands a value on that it got with shape [2, 3] in node"
        " 'Loop_1', and with shape [4, 3]: 'Loop_1/o'"
    )


def test_branches_of_different_shapes_are_refused(read):
    text = """g (float[2, 3] x, bool c) => (float[k, 3] y) { y = If(c)
        <then_branch = t () => (float[4, 3] a) { a = Concat <axis = 0> (x, x) },
         else_branch = e () => (float[2, 3] b) { b = Neg(x) }> }"""
    assert refused(read, text)[0] == (
        "m.onnx: error[incompatible-dims]: the branches make a value with shape [4, 3], and with shape [2, 3]:"
        " 'If_0/else_branch/b'"
    )


def test_both_branches_are_planned_where_the_condition_is_not_known(read):
    text = """g (float[3] x, float[3] k, bool c) => (float[3] y) { y = If(c)
        <then_branch = t () => (float[3] a) { a = Add(x, k) }, else_branch = e () => (float[3] b) { b = Neg(x) }> }"""
    model = read(text)
    assert operators(model) == [
        ("Add", ("x", "k"), ("If_0/then_branch/a",), ()),
        ("Neg", ("x",), ("If_0/else_branch/b",), ()),
        ("shardplan.Choose", ("c", "If_0/then_branch/a", "If_0/else_branch/b"), ("y",), ()),
    ]
    assert [operator.name for operator in model.operators] == [
        "If_0/then_branch/Add_0",
        "If_0/else_branch/Neg_0",
        "If_0/y",
    ]


def test_weights_that_only_a_body_reads_are_weights(read):
    model = read(
        """g (float[2, 3] x) => (float[2, 3] y) <float[3, 3] onnx__MatMul_7 = {1,2,3,4,5,6,7,8,9}> {
        n = Constant <value_int = 2> ()
        y = Loop (n, , x) <body = b (int64 i, bool go, float[2, 3] v) => (bool go, float[2, 3] o)
            { o = MatMul(v, onnx__MatMul_7) }> }"""
    )
    assert [(p.name, p.trainable) for p in model.parameters] == [("onnx__MatMul_7", True)]


def test_an_old_scan_and_a_loop_that_never_turns_are_kept_whole(read):
    model = read(loop(limit="n = Constant <value_int = 0> ()", turns="0"))
    assert [operator.kind for operator in model.operators] == ["Loop"]
    assert [entry.code for entry in model.warnings] == ["control-flow"]


def test_what_a_loop_that_never_turns_makes_has_the_shape_of_what_goes_in(read):
    """The file says no shape of `h` and `rows`, which others read."""
    model = read(
        """g (float[2, 3] x) => (float[2, 3] y, float[3] z) <float[3] k = {1,2,3}> {
        n = Constant <value_int = 0> ()
        h, rows = Loop (n, , x) <body = b (int64 i, bool go, float[2, 3] v) => (bool go, float[2, 3] o, float r)
            { o = Neg(v)  r = ReduceMax<keepdims = 0> (v) }>
        y = Abs(h)
        z = Concat<axis = 0> (rows, k) }"""
    )
    assert {name: model.tensors[name].shape for name in ("h", "rows")} == {"h": (2, 3), "rows": (0,)}


def test_a_name_inside_may_hide_one_outside(read):
    """Graphs inside may call their own values as they please, also in graphs inside of those."""
    model = read(
        """g (float[2, 3] x, bool c) => (float[2, 3] y) { n = Constant <value_int = 2> ()
        y = Loop (n, , x) <body = b (int64 i, bool go, float[2, 3] v) => (bool go, float[2, 3] o) {
            a = Neg(v)
            o = If(c) <then_branch = t () => (float[2, 3] a1) { a1 = Add(a, v) },
                       else_branch = e () => (float[2, 3] a2) { v2 = Abs(x)  a2 = Mul(v2, v) }> }> }"""
    )
    reads = {operator.op_type: operator.inputs for operator in model.operators}
    assert reads["Add"] == ("Loop_1/a", "Loop_1/v")
    assert reads["Mul"] == ("Loop_1/If_1/else_branch/v2", "Loop_1/v")
    assert reads["Abs"] == ("x",)


def test_the_number_of_turns_belongs_to_the_structure(read):
    text = loop(on=UNTIL, turns="k")
    digests = {structure_digest(read(text, {"trip:Loop_1": turns, "k": turns})) for turns in (3, 4)}
    assert len(digests) == 2


def test_scan_over_any_dim_and_backwards(read):
    model = read(
        """g (float[2, 3] x, float[2, 4, 3] xs) => (float[2, 3] y, float[2, 3, 4] zs) {
        y, zs = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1], scan_output_axes = [-1],
            body = s (float[2, 3] v, float[2, 3] e) => (float[2, 3] w, float[2, 3] o) { w = Add(v, e) o = Neg(w) }>
            (x, xs) }"""
    )
    each, stack = model.operators[1], model.operators[-1]
    assert (each.op_type, dict(each.attributes)) == ("Each", {"axis": 1, "backwards": 1})
    assert (stack.op_type, dict(stack.attributes)) == ("Stack", {"axis": -1, "backwards": 0, "turns": 4})
    assert model.tensors["zs"].shape == (2, 3, 4)


def test_a_body_whose_shapes_change_from_turn_to_turn_is_kept_whole(read):
    model = read(
        """g (float[2, 3] x) => (float[2, 3] y) { n = Constant <value_int = 2> ()
        y = Loop (n, , x) <body = b (int64 i, bool go, float[2, 3] v) => (bool go, float[2, 3] o) {
            one = Constant <value_ints = [1]> ()  zero = Constant <value_ints = [0]> ()
            j = Reshape(i, one)  part = Slice(v, zero, j)  s = ReduceSum(part)  o = Add(v, s) }> }"""
    )
    assert [operator.kind for operator in model.operators] == ["Loop"]
    assert [str(entry) for entry in model.warnings] == [
        "m.onnx: warning[control-flow]: 1 control-flow node is planned as one piece, not split\n  Loop_1"
    ]
