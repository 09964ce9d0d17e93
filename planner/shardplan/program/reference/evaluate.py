"""Single operators run by ONNX's reference evaluator, in double precision so that only real differences show."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import RuntimeTypeError

from shardplan.errors import ShardplanError, error
from shardplan.model.attributes import integer
from shardplan.model.draft import CAPTURED
from shardplan.model.types import AttributeValue, Operator
from shardplan.program.reference.definitions import DEFINITIONS
from shardplan.program.reference.microsoft import DEFINITIONS as MICROSOFT
from shardplan.program.reference.microsoft import UnwrittenError
from shardplan.program.reference.old_opsets import modern
from shardplan.program.reference.onnx_runtime import DOMAINS, OPSET, NoRuntimeError, run_single
from shardplan.program.reference.pools import POOLS, pooled
from shardplan.program.reference.random import drawn_shape, draws, results

Array = NDArray[Any]
Dtypes = tuple[int, ...]
"""Element types as ONNX numbers them, 0 for absent operands."""
Held = tuple[tuple[str, "_Held"], ...]
_WIDENED_NUMBERS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16}
"""Element types that are computed in double precision; others keep what their rounding means."""
_OVER_ALL_BEHIND, _ONE_DIM_SINCE = frozenset({"Softmax", "Hardmax"}), 13
_TYPE_ATTRIBUTES = {"Cast": "to", "EyeLike": "dtype"}


def widen(array: Array) -> Array:
    """`array` in double precision if it holds floats of 16 bits or more."""
    return array.astype(np.float64) if array.dtype.name in {"float16", "bfloat16", "float32"} else array


def evaluate(
    operator: Operator, attributes: Mapping[str, AttributeValue], operands: Sequence[Array | None]
) -> list[Array]:
    """The results of `operator` with these attributes and operands (None: absent), in output order.

    In double precision; functions whose body has constants of single precision are run in that. Raises `ShardplanError`
    where the evaluator does not know the operator, or it holds a nested graph. Random operators draw numbers that
    depend on their names alone.
    """
    if CAPTURED in attributes or any(_is_opaque(value) for value in attributes.values()):
        raise _refusal(operator, "has a nested graph")
    if draws(operator, operands):
        return results(operator, operands, drawn_shape(operator, operands), lambda whole: whole)
    if operator.kind in DEFINITIONS:
        with np.errstate(all="ignore"):
            return [widen(made) for made in DEFINITIONS[operator.kind](operator, attributes, operands)]
    if operator.kind in POOLS and operands[0] is not None:
        made = pooled(operator, attributes, operands[0])
        if made is not None:
            return made
    if operator.domain in DOMAINS:
        return _elsewhere(operator, attributes, operands)
    return _by_evaluator(*modern(operator, attributes, operands))


def reference(
    operator: Operator, attributes: Mapping[str, AttributeValue], operands: Sequence[Array | None]
) -> list[Array]:
    """`evaluate` of an operator of the whole model. What fails here is no fault of a plan: `ShardplanError`."""
    try:
        return evaluate(operator, attributes, operands)
    except ShardplanError:
        raise
    except Exception as problem:  # the evaluator has gaps and raises anything
        reason = f"{type(problem).__name__}: {problem}".partition("\n")[0]
        raise _refusal(operator, f"makes the reference evaluator fail: {reason[:200]}") from problem


def _by_evaluator(
    operator: Operator, attributes: Mapping[str, AttributeValue], operands: Sequence[Array | None]
) -> list[Array]:
    if operator.kind in _OVER_ALL_BEHIND and operator.version < _ONE_DIM_SINCE and operands[0] is not None:
        return [_over_all_behind(operator, attributes, operands[0])]
    try:
        return _run(operator, attributes, operands)
    except RuntimeTypeError:
        narrow = [None if operand is None else _narrowed(operand) for operand in operands]
        return [widen(result) for result in _run(operator, attributes, narrow)]


def _run(operator: Operator, attributes: Mapping[str, AttributeValue], operands: Sequence[Array | None]) -> list[Array]:
    dtypes = _dtypes(operands)
    widened = tuple((name, _Held(_widened(operator.kind, name, value))) for name, value in sorted(attributes.items()))
    try:
        runner = _runner(operator.op_type, operator.domain, operator.version, dtypes, len(operator.outputs), widened)
    except (NotImplementedError, RuntimeError, TypeError) as problem:
        reason = str(problem).partition("\n")[0].partition(" in [")[0]
        raise _refusal(operator, f"is unknown to the reference evaluator: {reason[:200]}") from None
    feed = {f"i{position}": operand for position, operand in enumerate(operands) if operand is not None}
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [np.asarray(result) for result in runner.run(None, feed)]


def _dtypes(operands: Sequence[Array | None]) -> Dtypes:
    return tuple(0 if operand is None else helper.np_dtype_to_tensor_dtype(operand.dtype) for operand in operands)


def _over_all_behind(operator: Operator, attributes: Mapping[str, AttributeValue], data: Array) -> Array:
    """`Softmax` and its kin as they once were, over `axis` and all behind it; the evaluator knows the new form only."""
    axis = integer(attributes, "axis", 1)
    rows = data.reshape(math.prod(data.shape[: axis % data.ndim]), -1)
    return _run(replace(operator, version=_ONE_DIM_SINCE), {"axis": 1}, [rows])[0].reshape(data.shape)


def _narrowed(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _refusal(operator: Operator, why: str) -> ShardplanError:
    summary = f"cannot run operator '{operator.name}' ({operator.kind}): it {why}"
    return ShardplanError(error("cannot-execute", summary))


def _is_opaque(value: AttributeValue) -> bool:
    return isinstance(value, str) and value.startswith("sha256:")


def _widened(kind: str, name: str, value: AttributeValue) -> AttributeValue:
    if _TYPE_ATTRIBUTES.get(kind) == name and value in _WIDENED_NUMBERS:
        return int(TensorProto.DOUBLE)
    return widen(value) if isinstance(value, np.ndarray) else value


class _Held:
    """An attribute value with a hash: arrays by content."""

    def __init__(self, value: AttributeValue) -> None:
        self.value = value
        self.key: Hashable = (
            (value.dtype.str, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else (type(value), value)
        )

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and self.key == other.key


@functools.lru_cache(maxsize=2048)
def _runner(
    op_type: str, domain: str, version: int, dtypes: Dtypes, results: int, attributes: Held
) -> ReferenceEvaluator:
    return ReferenceEvaluator(_single(op_type, domain, version, dtypes, results, attributes))


def _single(op_type: str, domain: str, version: int, dtypes: Dtypes, results: int, attributes: Held) -> ModelProto:
    """The operator alone as a model with inputs `i0` ... of these element types and outputs `o0` ..."""
    names = [f"i{position}" if dtype else "" for position, dtype in enumerate(dtypes)]
    made = [f"o{position}" for position in range(results)]
    node = helper.make_node(op_type, names, made, domain=domain, **{name: _plain(held) for name, held in attributes})
    inputs = [
        helper.make_tensor_value_info(name, dtype, None) for name, dtype in zip(names, dtypes, strict=True) if name
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in made]
    graph = helper.make_graph([node], "operator", inputs, outputs)
    imports = [helper.make_opsetid(domain, version)]
    if domain in DOMAINS:
        imports.append(helper.make_opsetid("", OPSET))
    model: ModelProto = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return model


def _elsewhere(
    operator: Operator, attributes: Mapping[str, AttributeValue], operands: Sequence[Array | None]
) -> list[Array]:
    """By ONNX Runtime, in single precision; where it is not installed by our own definitions."""
    narrow = [None if operand is None else _narrowed(operand) for operand in operands]
    dtypes = _dtypes(narrow)
    held = tuple((name, _Held(value)) for name, value in sorted(attributes.items()))
    model = _single(operator.op_type, operator.domain, operator.version, dtypes, len(operator.outputs), held)
    for position, name in enumerate(operator.outputs):
        if not name:
            model.graph.node[0].output[position] = ""
    wanted = [info for info, name in zip(model.graph.output, operator.outputs, strict=True) if name]
    kept = [info.name for info in wanted]
    del model.graph.output[:]
    model.graph.output.extend([ValueInfoProto(name=name) for name in kept])
    try:
        results = iter(run_single(model, narrow))
    except NoRuntimeError as problem:
        made = _written(operator, attributes, operands)
        if made is None:
            raise _refusal(operator, f"is unknown to the reference evaluator, and {problem}") from None
        return made
    return [widen(next(results)) if name else np.zeros(0) for name in operator.outputs]


def _written(
    operator: Operator, attributes: Mapping[str, AttributeValue], operands: Sequence[Array | None]
) -> list[Array] | None:
    """By our own definition; None where there is none, or it knows too little."""
    definition = MICROSOFT.get(operator.op_type) if operator.domain in DOMAINS else None
    try:
        return None if definition is None else [widen(made) for made in definition(operator, attributes, operands)]
    except UnwrittenError:
        return None


def _plain(held: _Held) -> object:

    value = held.value
    return numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
