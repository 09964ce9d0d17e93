"""Digest of everything in a model that a plan depends on; detects a changed model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from shardplan.model.types import AttributeValue, Model, Operator

_VERSION = "shardplan-structure-1"


def structure_digest(model: Model) -> str:
    """`sha256:` and hex digits: operators, shapes, types, attributes, constants and parameters, by name in the graph.

    Independent of the data of weights, of metadata and doc strings, of the file's name and producer, and of the
    process. Renaming a value changes it: plans speak of values by name.
    """
    digest = hashlib.sha256()
    for line in _lines(model):
        digest.update(line.encode("utf-8", errors="backslashreplace"))
        digest.update(b"\n")
    return "sha256:" + digest.hexdigest()


def _lines(model: Model) -> Iterator[str]:
    yield _VERSION
    yield f"inputs {model.inputs!r}"
    yield f"outputs {model.outputs!r}"
    for name in sorted(model.tensors):
        tensor = model.tensors[name]
        yield f"tensor {name!r} {tensor.shape!r} {tensor.dtype} {tensor.role}"
    for parameter in model.parameters:
        yield f"parameter {parameter.name!r} {parameter.tensor!r} {parameter.perm!r} {parameter.trainable}"
    for name in sorted(model.constants):
        yield f"constant {name!r} {array_digest(model.constants[name])}"
    for operator in model.operators:
        yield f"operator {operator.name!r} {operator_digest(operator)} {operator.inputs!r} {operator.outputs!r}"
        if operator.loops:
            yield f"loops {operator.name!r} {operator.loops!r}"
    for name in sorted(model.trips):
        yield f"trip {name!r} {model.trips[name]}"


def operator_digest(operator: Operator) -> str:
    """What an operator does: kind, version and attributes, without its name and values."""
    return f"{operator.kind} {operator.version} {attributes_digest(operator.attributes)}"


def attributes_digest(attributes: Mapping[str, AttributeValue]) -> str:
    """Attributes as one line, in the order of their names."""
    return " ".join(f"{name}={_value(attributes[name])}" for name in sorted(attributes))


def _value(value: AttributeValue) -> str:
    return array_digest(value) if isinstance(value, np.ndarray) else repr(value)


def array_digest(array: np.ndarray[Any, Any]) -> str:
    """Type, shape and content of an array."""
    content = repr(array.tolist()).encode() if array.dtype == object else np.ascontiguousarray(array).tobytes()
    return f"{array.dtype}{array.shape!r}:{hashlib.sha256(content).hexdigest()}"
