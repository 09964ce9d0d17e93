"""Operators as the reference evaluator has them, run whole: what the simulated mesh of the package is compared with."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping, Sequence

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from shardplan.errors import ShardplanError

AS_STORED = frozenset({"BitCast"})
"""Operators that look at bits; all others are run in double precision, so that only real differences show."""
DOUBLE = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16}
PROBLEMS = (ValueError, IndexError, TypeError, RuntimeError, AttributeError, AssertionError, ShardplanError)
"""What the evaluator raises for operands that do not fit."""


def widen(kind: str, array: np.ndarray) -> np.ndarray:
    """`array` in double precision where it holds numbers of 16 or 32 bits."""
    is_float = array.dtype.name in {"float16", "bfloat16", "float32"} and kind not in AS_STORED
    return array.astype(np.float64) if is_float else array


def evaluate(
    kind: str, version: int, attributes: Mapping[str, object], operands: Sequence[np.ndarray | None], outputs: int
) -> list[np.ndarray]:
    """The results of one operator; functions whose body has constants of single precision are run in that."""
    given = [None if array is None else widen(kind, array) for array in operands]
    try:
        return _run(kind, version, attributes, given, outputs)
    except Exception:
        if all(array is None or array.dtype != np.float64 for array in given):
            raise
        narrow = [a.astype(np.float32) if a is not None and a.dtype == np.float64 else a for a in given]
        return [widen(kind, made) for made in _run(kind, version, attributes, narrow, outputs)]


def _run(kind: str, version: int, attributes, operands, outputs: int) -> list[np.ndarray]:
    dtypes = tuple(None if array is None else array.dtype for array in operands)
    key = repr(sorted((name, _attribute(kind, name, value)) for name, value in attributes.items()))
    runner = _runner(kind, version, dtypes, outputs, _Attributes(kind, attributes, key))
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        feed = {f"i{place}": array for place, array in enumerate(operands) if array is not None}
        return [np.asarray(made) for made in runner.run(None, feed)]


class _Attributes:
    """Attributes of an operator, equal when they read alike."""

    def __init__(self, kind: str, values: Mapping[str, object], key: str) -> None:
        self.values = {name: _attribute(kind, name, value) for name, value in values.items()}
        self.key = key

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Attributes) and self.key == other.key


def _attribute(kind: str, name: str, value: object) -> object:
    if kind == "Cast" and name == "to" and value in DOUBLE:
        return int(TensorProto.DOUBLE)
    return numpy_helper.from_array(widen(kind, value)) if isinstance(value, np.ndarray) else value


@functools.lru_cache(maxsize=4096)
def _runner(kind: str, version: int, dtypes: tuple, outputs: int, attributes: _Attributes) -> ReferenceEvaluator:
    domain, _, op_type = kind.rpartition(".")
    names = ["" if dtype is None else f"i{place}" for place, dtype in enumerate(dtypes)]
    made = [f"o{place}" for place in range(outputs)]
    node = helper.make_node(op_type, names, made, domain=domain, **attributes.values)
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), None)
        for name, dtype in zip(names, dtypes, strict=True)
        if name
    ]
    results = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in made]
    graph = helper.make_graph([node], "operator", inputs, results)
    return ReferenceEvaluator(helper.make_model(graph, opset_imports=[helper.make_opsetid(domain, version)]))
