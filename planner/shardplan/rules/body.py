"""The function body of an operator's schema, as a model of operators with known shapes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from shardplan.errors import ShardplanError
from shardplan.model.types import Model
from shardplan.rules.signature import Shaped, Signature

if TYPE_CHECKING:
    import onnx

RESULTS = "result{}"
"""Names of the results in the body."""


@dataclass(frozen=True)
class Body:
    """The body of an operator; operands are called as `operand_name` says, results as `RESULTS`."""

    model: Model


def operand_name(position: int) -> str:
    """The name of an operand in the body."""
    return f"operand{position}"


@lru_cache(maxsize=1024)
def has_body(kind: str, version: int) -> bool:
    """Whether the schema of the operator has a function body."""
    import onnx

    domain, _, op_type = kind.rpartition(".")
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def body_of(signature: Signature) -> Body | None:
    """The body for these shapes, attributes and constants; None where there is none or its shapes stay unknown."""
    if not has_body(signature.kind, signature.version) or not _is_plain(signature):
        return None
    from onnx import inliner

    from shardplan.model.build import build_model, needed_nodes
    from shardplan.model.dims import bind
    from shardplan.model.draft import draft_graph
    from shardplan.model.infer import infer
    from shardplan.model.weights import find_weights

    domain, _, op_type = signature.kind.rpartition(".")
    try:
        proto = inliner.inline_selected_functions(
            _proto(signature), [(domain, op_type)], exclude=False, inline_schema_functions=True
        )
        if any(node.op_type == op_type and node.domain == domain for node in proto.graph.node):
            return None
        draft = draft_graph(proto)
        draft.nodes = needed_nodes(draft.nodes, draft.outputs)
        binding, weights = bind(draft, {}), find_weights(draft)
        inferred = infer(draft, binding, weights)
        if inferred.problems:
            return None
        return Body(build_model(op_type, draft, binding, weights, inferred))
    except (ShardplanError, RuntimeError, TypeError, ValueError):
        return None  # onnx cannot inline it, or it does not fit these shapes


def _is_plain(signature: Signature) -> bool:
    """Whether the attributes are numbers, texts and lists of them: neither graphs nor tensors."""
    for _, value in signature.attributes:
        entries = value if isinstance(value, tuple) else (value,)
        if not all(isinstance(entry, int | float | str) for entry in entries):
            return False
        if any(isinstance(entry, str) and entry.startswith("sha256:") for entry in entries):
            return False
    return True


def _proto(signature: Signature) -> onnx.ModelProto:
    """A model of the one operator."""
    from onnx import TensorProto, defs, helper, numpy_helper

    domain, _, op_type = signature.kind.rpartition(".")
    names = [operand_name(i) if operand is not None else "" for i, operand in enumerate(signature.operands)]
    made = [RESULTS.format(i) if result is not None else "" for i, result in enumerate(signature.results)]
    while names and not names[-1]:
        names.pop()
    node = helper.make_node(op_type, names, made, domain=domain, **dict(signature.attributes))
    given = dict(signature.attributes)
    for name, attribute in defs.get_schema(op_type, signature.version, domain).attributes.items():
        if name not in given and attribute.default_value.name:
            node.attribute.append(attribute.default_value)  # inlining takes an absent attribute for none

    def typed(name: str, tensor: Shaped | None) -> onnx.ValueInfoProto:
        assert tensor is not None
        return helper.make_tensor_value_info(name, TensorProto.DataType.Value(tensor.dtype.upper()), tensor.shape)

    inputs = [typed(name, tensor) for name, tensor in zip(names, signature.operands, strict=False) if name]
    initializers = [
        numpy_helper.from_array(_array(signature.operand(i), values), names[i]) for i, values in signature.constants
    ]
    outputs = [typed(name, tensor) for name, tensor in zip(made, signature.results, strict=True) if name]
    graph = helper.make_graph([node], op_type, inputs, outputs, initializers)
    opsets = [helper.make_opsetid(domain, _newest(op_type, signature.version, domain))]
    if domain:
        opsets.append(helper.make_opsetid("", defs.onnx_opset_version()))
    return helper.make_model(graph, opset_imports=opsets)


def _newest(op_type: str, version: int, domain: str) -> int:
    """The newest opset in which the operator is what it is in `version`: bodies are written for one of those."""
    from onnx import defs

    if domain:
        return version
    since = defs.get_schema(op_type, version, domain).since_version
    newer = range(defs.onnx_opset_version(), version, -1)
    return next((v for v in newer if defs.get_schema(op_type, v, domain).since_version == since), version)


def _array(tensor: Shaped, values: tuple[float, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    from onnx import TensorProto, helper

    dtype = helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(tensor.dtype.upper()))
    assert len(values) == math.prod(tensor.shape)
    return np.array(values, dtype=dtype).reshape(tensor.shape)
