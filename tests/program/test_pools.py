"""Pooling over all windows at once is what ONNX's evaluator does window by window."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from shardplan.model.types import Operator
from shardplan.program.reference.pools import pooled

FORMS = {
    "plain": {"kernel_shape": (2, 3)},
    "strides": {"kernel_shape": (3, 2), "strides": (2, 1)},
    "pads": {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)},
    "uneven pads": {"kernel_shape": (3, 2), "strides": (1, 3), "pads": (1, 0, 2, 1)},
}
COUNTED = {name: {**attributes, "count_include_pad": 1} for name, attributes in FORMS.items()}
DATA = np.random.default_rng(3).standard_normal((2, 3, 7, 8)) - 2.0


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        *(("MaxPool", form) for form in FORMS.values()),
        *(("AveragePool", form) for form in (*FORMS.values(), *COUNTED.values())),
    ],
)
def test_pools_are_those_of_the_evaluator(kind, attributes):
    node = helper.make_node(kind, ["x"], ["y"], **attributes)
    infos = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, None) for name in "xy"]
    model = helper.make_model(
        helper.make_graph([node], "g", infos[:1], infos[1:]), opset_imports=[helper.make_opsetid("", 22)]
    )
    (expected,) = ReferenceEvaluator(model).run(None, {"x": DATA})
    found = pooled(Operator("n", kind, ("x",), ("y",), attributes, version=22), attributes, DATA)
    assert found is not None
    np.testing.assert_allclose(found[0], expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("outputs", "more", "data"),
    [
        (("y", "i"), {}, DATA),
        (("y",), {"ceil_mode": 1}, DATA),
        (("y",), {"auto_pad": "SAME_UPPER"}, DATA),
        (("y",), {"dilations": (2, 1)}, DATA),
        (("y",), {}, DATA[0]),
        (("y",), {}, DATA.astype(np.int8)),
    ],
)
def test_other_forms_are_left_to_the_evaluator(outputs, more, data):
    attributes = {"kernel_shape": (2, 2), **more}
    assert pooled(Operator("n", "MaxPool", ("x",), outputs, attributes), attributes, data) is None
