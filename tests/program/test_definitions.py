"""Operators that are defined in numpy, because ONNX's evaluator deviates or fails."""

from __future__ import annotations

import numpy as np
import pytest
from node_cases import NodeCase, collect
from node_reference import evaluate as by_onnx

from shardplan.model.types import Operator
from shardplan.program.reference.evaluate import evaluate, widen

DATA = np.arange(12.0).reshape(3, 4)


def run(kind, attributes, operands, version=21):
    names = tuple(f"i{place}" for place in range(len(operands)))
    return evaluate(Operator("n", kind, names, ("y",), attributes, version=version), attributes, operands)[0]


@pytest.mark.parametrize("module", ["pad", "convtranspose", "reduce_log_sum_exp"])
def test_the_cases_of_the_onnx_package(module):
    cases = [case for _, _, case in collect(module) if isinstance(case, NodeCase)]
    assert cases
    for case in cases:
        operands = [None if array is None else widen(array) for array in case.operands]
        for made, expected in zip(
            evaluate(case.operator, case.operator.attributes, operands), case.results, strict=True
        ):
            np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("pads", "mode", "expected"),
    [
        ([0, -1, 0, 1], "constant", np.pad(DATA[:, 1:], ((0, 0), (0, 1)), constant_values=7)),
        ([1, 0, -2, -3], "constant", np.pad(DATA[:1, :1], ((1, 0), (0, 0)), constant_values=7)),
        ([0, 2, -1, -1], "edge", np.pad(DATA[:2, :3], ((0, 0), (2, 0)), mode="edge")),
        ([-1, 0, 1, 0], "reflect", np.pad(DATA[1:], ((0, 1), (0, 0)), mode="reflect")),
    ],
)
def test_negative_pads_cut_entries_away(pads, mode, expected):
    found = run("Pad", {"mode": mode}, [DATA, np.array(pads), np.array(7.0)])
    np.testing.assert_array_equal(found, expected)


def test_pads_of_some_axes_and_of_old_opsets():
    cut = DATA[:, 1:]
    np.testing.assert_array_equal(run("Pad", {}, [DATA, np.array([-1, 0]), None, np.array([-1])]), cut)
    np.testing.assert_array_equal(run("Pad", {"pads": (0, -1, 0, 0)}, [DATA], version=2), cut)
    np.testing.assert_array_equal(run("Pad", {"paddings": (0, -1, 0, 0)}, [DATA], version=1), cut)


@pytest.mark.parametrize(
    ("attributes", "kernel", "space"),
    [
        ({"group": 2, "strides": (2, 2), "output_padding": (1, 1), "pads": (1, 1, 1, 1)}, (8, 2, 4, 4), (17, 17)),
        ({"group": 4, "strides": (2, 3), "pads": (0, 1, 2, 0)}, (8, 3, 3, 2), (15, 22)),
        ({"strides": (2, 1), "dilations": (1, 2), "pads": (1, 0, 1, 2)}, (8, 3, 3, 3), (15, 10)),
        ({}, (8, 3, 2, 2), (9, 9)),
    ],
)
def test_a_transposed_convolution_is_the_transpose_of_the_convolution(attributes, kernel, space):
    draw = np.random.default_rng(0).standard_normal
    weight, data = draw(kernel), draw((2, 8, 8, 8))
    made = run("ConvTranspose", attributes, [data, weight])
    assert made.shape == (2, kernel[1] * attributes.get("group", 1), *space)
    other = draw(made.shape)
    forward = {name: value for name, value in attributes.items() if name != "output_padding"}
    (back,) = by_onnx("Conv", 21, forward, [other, weight], 1)
    np.testing.assert_allclose((made * other).sum(), (back * data).sum(), rtol=1e-10)


@pytest.mark.parametrize(
    ("attributes", "starts"),
    [
        ({"output_shape": (16, 15)}, (1, 1)),
        ({"output_shape": (16, 15), "auto_pad": "SAME_LOWER"}, (1, 1)),
        ({"output_shape": (16, 15), "auto_pad": "SAME_UPPER"}, (0, 1)),
        ({"output_shape": (20, 17), "pads": (0, 0, 0, 0)}, (0, 0)),
    ],
)
def test_an_asked_shape_is_cut_out_of_the_whole(attributes, starts):
    draw = np.random.default_rng(0).standard_normal
    data, weight, bias = draw((2, 4, 8, 8)), draw((4, 3, 3, 3)), draw(3)
    whole = np.zeros((2, 3, 20, 20))
    whole[:, :, :17, :17] = run("ConvTranspose", {"strides": (2, 2)}, [data, weight])
    found = run("ConvTranspose", {"strides": (2, 2), **attributes}, [data, weight, bias])
    rows, columns = (slice(start, start + size) for start, size in zip(starts, attributes["output_shape"], strict=True))
    np.testing.assert_allclose(found, whole[:, :, rows, columns] + bias.reshape(-1, 1, 1))


def test_the_logarithm_of_a_sum_of_nothing_is_minus_infinity():
    """As a device has it whose whole part of a dim is padding."""
    data = np.array([[0.0, 1.0], [-np.inf, -np.inf], [np.inf, 0.0]])
    expected = [np.logaddexp(0.0, 1.0), -np.inf, np.inf]
    found = run("ReduceLogSumExp", {"keepdims": 0}, [data, np.array([-1])])
    np.testing.assert_allclose(found, expected)
    found = run("ReduceLogSumExp", {"axes": (1,)}, [data], version=13)
    np.testing.assert_allclose(found, np.reshape(expected, (3, 1)))
    assert run("ReduceLogSumExp", {}, [data[:1]]).shape == (1, 1)
    np.testing.assert_array_equal(run("ReduceLogSumExp", {"noop_with_empty_axes": 1}, [data]), data)
