"""What a file may hold is said before anything is computed from it, and budgets can be raised."""

import onnx
import pytest
from onnx import TensorProto, helper

from shardplan.errors import ShardplanError
from shardplan.model.limits import Budget, guard

LAUGHS = 12


def doubling(depth):
    """A model of 2^depth operators: every function calls the one below it twice."""
    functions = []
    for level in range(depth):
        kind, domain = ("Relu", "") if level == 0 else (f"f{level - 1}", "local")
        nodes = [
            helper.make_node(kind, ["x"], ["h"], domain=domain),
            helper.make_node(kind, ["h"], ["y"], domain=domain),
        ]
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)]
        functions.append(helper.make_function("local", f"f{level}", ["x"], ["y"], nodes, opsets))
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    graph = helper.make_graph(
        [helper.make_node(f"f{depth - 1}", ["x"], ["y"], domain="local")], "g", value[:1], value[1:]
    )
    return helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=10)


def test_operators_are_counted_as_inlined_without_inlining():
    guard(doubling(LAUGHS), Budget(operators=1 << LAUGHS))
    with pytest.raises(ShardplanError) as caught:
        guard(doubling(LAUGHS), Budget(operators=(1 << LAUGHS) - 1))
    assert str(caught.value) == (
        "error[too-many-operators]: the model has 4096 operators when its functions are inlined, and 4095 are allowed\n"
        "hint: --budget operators=N or SHARDPLAN_MAX_OPERATORS=N allows more"
    )


def test_functions_that_call_themselves_are_told():
    model = doubling(2)
    model.functions[0].node[0].op_type, model.functions[0].node[0].domain = "f1", "local"
    with pytest.raises(ShardplanError) as caught:
        guard(model, Budget())
    assert str(caught.value) == "error[bad-function]: local function 'f1' calls itself\n  f1 -> f0"


def test_names_with_one_fault_are_one_error():
    """An exporter that writes one such name writes many, and a reader wants to know that once."""
    model = doubling(2)
    model.graph.node[0].name = "a\nb"
    for name in ("\x1b[31mred", "\u202eltr", "日本\t語", "\x00", "\x7f", "plain"):
        model.graph.initializer.add(name=name)
    with pytest.raises(ShardplanError) as caught:
        guard(model, Budget())
    assert str(caught.value) == (
        "error[bad-name]: the model has 6 names with characters that control what is printed\n"
        "  '\\x1b[31mred'\n  '\\u202eltr'\n  '日本\\t語'\n  '\\x00'\n  '\\x7f'\n  and 1 more\n"
        "hint: export the model again with other names"
    )


def test_depth_has_a_budget():
    with pytest.raises(ShardplanError) as caught:
        guard(doubling(LAUGHS), Budget(nesting=LAUGHS - 1))
    assert str(caught.value) == (
        "error[nested-too-deep]: graphs and functions are nested more than 11 deep\n"
        "hint: --budget nesting=N or SHARDPLAN_MAX_NESTING=N allows more"
    )


def test_the_environment_changes_budgets():
    assert Budget.of_environment({}) == Budget()
    assert Budget.of_environment({"SHARDPLAN_MAX_RANK": "40"}) == Budget(rank=40)
    with pytest.raises(ShardplanError) as caught:
        Budget.of_environment({"SHARDPLAN_MAX_RANK": "-1", "SHARDPLAN_MAX_ELEMENTS": "many"})
    assert str(caught.value) == (
        "error[bad-budget]: SHARDPLAN_MAX_RANK is '-1'\nhint: give a positive whole number\n"
        "error[bad-budget]: SHARDPLAN_MAX_ELEMENTS is 'many'\nhint: give a positive whole number"
    )


def test_a_model_that_is_newer_than_onnx_is_told(read):
    text = "g (float[4] x) => (float[4] y) { y = Relu(x) }"
    opset, ir = onnx.defs.onnx_opset_version(), onnx.IR_VERSION
    assert read(text, opset=opset, ir_version=ir).warnings == ()
    said = f"which onnx {onnx.__version__}, installed here, does not know\n"
    hint = "hint: update onnx, or export for a version that it knows"
    for versions, parts in (
        ({"opset": 99}, f"version 99 of the operator set (up to {opset})"),
        ({"ir_version": 99}, f"version 99 of the IR (up to {ir})"),
    ):
        (told,) = read(text, **versions).warnings
        assert str(told) == f"m.onnx: warning[newer-than-onnx]: the model has {parts}, {said}{hint}"
