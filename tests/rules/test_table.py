"""From an operator to its rule: what is shared, what falls back, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from rule_cases import Case, f, i

from shardplan.errors import ShardplanError
from shardplan.model.types import Model, Operator, Tensor
from shardplan.rules import FAMILIES, family_of, model_rules, rule_for, signature


def model_of(*operators: Operator, **shapes: tuple[int, ...]) -> Model:
    tensors = {name: Tensor(name, shape, "float", "activation") for name, shape in shapes.items()}
    return Model("m", operators, tensors, (), (), (), {})


def matmul(name: str, left: str, right: str, made: str) -> Operator:
    return Operator(name, "MatMul", (left, right), (made,), version=13)


def test_equal_operators_share_one_rule():
    model = model_of(
        matmul("one", "a", "w", "b"), matmul("two", "b", "v", "c"), matmul("three", "c", "u", "d"),
        a=(2, 4, 8), w=(8, 8), b=(2, 4, 8), v=(8, 8), c=(2, 4, 8), u=(8, 16), d=(2, 4, 16),
    )  # fmt: skip
    one, two, three = (rule_for(operator, model) for operator in model.operators)
    assert one is two
    assert one is not three
    assert signature(model.operators[0], model) == signature(model.operators[1], model)
    assert signature(model.operators[0], model) != signature(model.operators[2], model)
    assert model_rules(model) == (one, two, three)


def test_a_constant_that_the_rule_reads_belongs_to_the_signature():
    first = Case("Slice", (f(4, 8), i(0), i(4), i(1)), constants=(1, 2, 3)).model()
    other = Case("Slice", (f(4, 8), i(4), i(8), i(1)), constants=(1, 2, 3)).model()
    assert signature(first.operators[0], first) != signature(other.operators[0], other)


def test_the_version_of_the_opset_decides():
    old = Case("Softmax", (f(4, 6, 8),), {"axis": 1}, opset=11).options()
    new = Case("Softmax", (f(4, 6, 8),), {"axis": 1}, opset=13).options()
    assert (list(old), list(new)) == (["x0", "k1", "k2"], ["x0", "k1", "x2"])


@pytest.mark.parametrize("kind", ["NoSuchOperator", "NonZero", "If"])
def test_what_no_rule_covers_is_replicated(kind):
    model = model_of(Operator("n", kind, ("a",), ("b",), version=23), a=(4,), b=(4,))
    rule = rule_for(model.operators[0], model)
    assert rule.fallback
    assert rule.options == ()


def test_bounds_that_depend_on_data_leave_other_dims_free():
    case = Case("Slice", (f(4, 8), i(2), i(6), i(1)), constants=(3,))
    assert list(case.options()) == ["x0"]
    unknown_axes = Case("Slice", (f(4, 8), i(2), i(6), i(1)))
    assert unknown_axes.rule().fallback


def test_families():
    assert family_of("MatMul") == "contraction"
    assert family_of("Attention") == "attention"
    assert family_of("NoSuchOperator") == "unknown"
    kinds = [kind for family in FAMILIES.values() for kind in family]
    assert len(kinds) == len(set(kinds)), "an operator belongs to one family"


def test_every_standard_operator_is_in_a_family():
    onnx = pytest.importorskip("onnx")
    known = {kind for family in FAMILIES.values() for kind in family}
    standard = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
    assert sorted(standard - known) == []


def test_shapes_that_contradict_the_operator_are_refused():
    model = model_of(matmul("layer.0", "a", "w", "b"), a=(2, 4, 8), w=(6, 8), b=(2, 4, 8))
    with pytest.raises(ShardplanError) as caught:
        rule_for(model.operators[0], model)
    assert str(caught.value) == (
        "error[shape-mismatch]: operator 'layer.0' (MatMul) cannot have operands of shape [2, 4, 8], [6, 8]\n"
        "  factor 'k' of 'b* m k, b* k n -> b* m n' is 8 and 6\n"
        "hint: check the model with onnx.checker, and the sizes given with --dim"
    )


@pytest.mark.parametrize(("kind", "given"), [("ArgMax", {"axis": 1}), ("ReduceSum", {"axes": (0, -2)})])
def test_an_axis_that_there_is_not_is_refused(kind, given):
    model = model_of(Operator("n", kind, ("a",), ("b",), given, version=11), a=(16,), b=(1,))
    with pytest.raises(ShardplanError, match=r"of shape \[16\]\n  axis (1|-2) is no dim of rank 1"):
        rule_for(model.operators[0], model)


def test_empty_tensors_have_nothing_to_split():
    case = Case("Reshape", (np.zeros((0, 4), np.float32), i(0, 2, 2)), constants=(1,))
    model = model_of(Operator("n", "Reshape", ("a", "s"), ("b",), version=13), a=(0, 4), s=(3,), b=(0, 2, 2))
    del case
    assert rule_for(model.operators[0], model).options == ()
