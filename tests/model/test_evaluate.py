"""The table of numpy functions says what ONNX's reference evaluator says."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from shardplan.model import evaluate
from shardplan.model.attributes import attributes_of

OPSET = 21
INTS = st.integers(-6, 6)


def both(node, inputs, opset=OPSET):
    """The table's result and the reference's."""
    function = evaluate._TABLE[node.op_type]
    mine = function(inputs, attributes_of(node), opset)
    feeds = dict(zip(node.input, inputs, strict=True))
    theirs = ReferenceEvaluator(node, opsets={"": opset}).run(None, feeds)
    return np.asarray(mine[0]), np.asarray(theirs[0])


def same(node, inputs, opset=OPSET):
    mine, theirs = both(node, inputs, opset)
    assert mine.dtype == theirs.dtype
    assert mine.shape == theirs.shape
    np.testing.assert_array_equal(mine, theirs)


def arrays(dtype, rank=2):
    return st.lists(st.integers(1, 4), min_size=rank, max_size=rank).flatmap(
        lambda shape: st.lists(INTS, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))).map(
            lambda values: np.array(values, dtype).reshape(shape)
        )
    )


@pytest.mark.parametrize("name", ["Identity", "Neg", "Abs", "Floor", "Ceil", "Not"])
@settings(max_examples=10)
@given(data=st.data())
def test_unary(name, data):
    dtype = np.bool_ if name == "Not" else np.float32 if name in ("Floor", "Ceil") else np.int64
    same(helper.make_node(name, ["x"], ["y"]), [data.draw(arrays(dtype))])


def test_square_root():
    same(helper.make_node("Sqrt", ["x"], ["y"]), [np.array([0.0, 1.0, 2.5], np.float32)])


@pytest.mark.parametrize(
    "name", ["Add", "Sub", "Mul", "Div", "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Max", "Min"]
)
@pytest.mark.parametrize("dtype", [np.int64, np.float32])
@settings(max_examples=15)
@given(data=st.data())
def test_binary(name, dtype, data):
    left, right = data.draw(arrays(dtype)), data.draw(arrays(dtype, rank=0))
    if name == "Div":
        right = right + (right == 0).astype(dtype)
    same(helper.make_node(name, ["x", "z"], ["y"]), [left, right])


def test_integer_division_truncates_towards_zero():
    """By the standard; ONNX's own evaluator floors, so it is no judge here."""
    node = helper.make_node("Div", ["x", "z"], ["y"])
    left, right = np.array([7, -7, 7, -7]), np.array([2, 2, -2, -2])
    assert evaluate.value_of(node, {}, [left, right], OPSET)[0].tolist() == [3, -3, -3, 3]


@pytest.mark.parametrize("name", ["And", "Or"])
def test_logic(name):
    left, right = np.array([[True], [False]]), np.array([True, False])
    same(helper.make_node(name, ["x", "z"], ["y"]), [left, right])


@settings(max_examples=80)
@given(arrays(np.int64), st.data())
def test_slice(array, data):
    bound = st.integers(-7, 7) | st.sampled_from([2**63 - 1, -(2**63) + 1])
    axes = data.draw(st.lists(st.integers(-2, 1), min_size=1, max_size=2, unique_by=lambda axis: axis % 2))
    lists = [data.draw(st.lists(bound, min_size=len(axes), max_size=len(axes))) for _ in range(2)]
    steps = data.draw(st.lists(st.sampled_from([1, 2, -1, -2]), min_size=len(axes), max_size=len(axes)))
    # Beyond the start, backwards: the standard clamps the start (one element), the evaluator does what Python does.
    assume(
        all(step > 0 or start >= -array.shape[axis] for start, step, axis in zip(lists[0], steps, axes, strict=True))
    )
    inputs = [array, *(np.array(entry, np.int64) for entry in (*lists, axes, steps))]
    same(helper.make_node("Slice", ["x", "starts", "ends", "axes", "steps"], ["y"]), inputs)


def test_slice_before_opset_10():
    node = helper.make_node("Slice", ["x"], ["y"], starts=[1], ends=[-1], axes=[1])
    assert evaluate.value_of(node, attributes_of(node), [np.arange(8).reshape(2, 4)], 9)[0].tolist() == [[1, 2], [5, 6]]


@pytest.mark.parametrize(
    ("node", "inputs"),
    [
        (helper.make_node("Unsqueeze", ["x", "a"], ["y"]), [np.arange(3), np.array([0, -1])]),
        (helper.make_node("Squeeze", ["x", "a"], ["y"]), [np.ones((1, 3, 1)), np.array([0])]),
        (helper.make_node("Squeeze", ["x"], ["y"]), [np.ones((1, 3, 1))]),
        (helper.make_node("Reshape", ["x", "s"], ["y"]), [np.arange(6).reshape(2, 3), np.array([0, -1, 1])]),
        (helper.make_node("Reshape", ["x", "s"], ["y"], allowzero=1), [np.ones((0, 3)), np.array([3, 0])]),
        (helper.make_node("Concat", ["x", "z"], ["y"], axis=-1), [np.arange(3), np.arange(2)]),
        (helper.make_node("Gather", ["x", "i"], ["y"]), [np.arange(6).reshape(3, 2), np.array([[-1, 0]])]),
        (helper.make_node("Gather", ["x", "i"], ["y"], axis=1), [np.arange(6).reshape(3, 2), np.array(1)]),
        (helper.make_node("Transpose", ["x"], ["y"]), [np.ones((2, 3, 4))]),
        (helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0, 2]), [np.ones((2, 3, 4))]),
        (helper.make_node("Expand", ["x", "s"], ["y"]), [np.arange(3).reshape(3, 1), np.array([2, 1, 4])]),
        (helper.make_node("Range", ["a", "b", "c"], ["y"]), [np.array(2), np.array(9), np.array(3)]),
        (helper.make_node("Range", ["a", "b", "c"], ["y"]), [np.array(9), np.array(2), np.array(-3)]),
        (helper.make_node("Range", ["a", "b", "c"], ["y"]), [np.array(2), np.array(1), np.array(3)]),
        (helper.make_node("Range", ["a", "b", "c"], ["y"]), [np.float32(0), np.float32(1), np.float32(0.25)]),
        (helper.make_node("ConstantOfShape", ["s"], ["y"]), [np.array([2, 3])]),
        (
            helper.make_node("ConstantOfShape", ["s"], ["y"], value=numpy_helper.from_array(np.array([7]))),
            [np.array([2, 3])],
        ),
        (helper.make_node("NonZero", ["x"], ["y"]), [np.array([[1, 0], [1, 1]])]),
        (helper.make_node("NonZero", ["x"], ["y"]), [np.zeros((2, 3))]),
        (helper.make_node("Where", ["c", "x", "z"], ["y"]), [np.array([True, False]), np.array(1), np.array([5, 6])]),
        (helper.make_node("Cast", ["x"], ["y"], to=7), [np.array([1.7, -1.7], np.float32)]),
        (helper.make_node("Cast", ["x"], ["y"], to=9), [np.array([0, 2])]),
        (helper.make_node("ReduceProd", ["x"], ["y"], keepdims=0), [np.arange(1, 5)]),
        (helper.make_node("ReduceSum", ["x", "a"], ["y"]), [np.arange(6).reshape(2, 3), np.array([1])]),
        (helper.make_node("ReduceMax", ["x", "a"], ["y"], keepdims=0), [np.arange(6).reshape(2, 3), np.array([-1])]),
        (helper.make_node("ReduceMin", ["x"], ["y"]), [np.arange(6).reshape(2, 3)]),
    ],
    ids=lambda value: getattr(value, "op_type", ""),
)
def test_structure(node, inputs):
    same(node, inputs)


def test_axes_in_attributes_before_opset_13():
    node = helper.make_node("Unsqueeze", ["x"], ["y"], axes=[0])
    assert evaluate.value_of(node, attributes_of(node), [np.arange(3)], 11)[0].shape == (1, 3)


def test_the_reference_evaluator_covers_the_rest():
    node = helper.make_node("CumSum", ["x", "a"], ["y"])
    assert evaluate.value_of(node, {}, [np.arange(4), np.array(0)], OPSET)[0].tolist() == [0, 1, 3, 6]


def test_what_cannot_be_computed_is_left_alone():
    node = helper.make_node("Reshape", ["x", "s"], ["y"])
    assert evaluate.value_of(node, {}, [np.arange(4), np.array([3])], OPSET) is None


@pytest.mark.filterwarnings("error")
def test_numbers_that_are_not_finite_warn_nobody():
    """Positions relative to a query, as T5 has them: the logarithm of zero is cast, and then replaced."""
    node = helper.make_node("Log", ["x"], ["y"])
    assert evaluate.value_of(node, {}, [np.zeros(1, np.float32)], OPSET)[0].tolist() == [-math.inf]
    node = helper.make_node("Cast", ["x"], ["y"], to=7)
    assert evaluate.value_of(node, attributes_of(node), [np.full(1, -math.inf)], OPSET)[0].dtype == np.int64


def test_results_are_read_only():
    node = helper.make_node("Neg", ["x"], ["y"])
    with pytest.raises(ValueError, match="read-only"):
        evaluate.value_of(node, {}, [np.arange(4)], OPSET)[0][0] = 1


def test_every_entry_of_the_table_is_tested():
    import pathlib

    text = pathlib.Path(__file__).read_text()
    assert [name for name in evaluate._TABLE if f'"{name}"' not in text] == []
