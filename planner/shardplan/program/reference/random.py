"""Random operators with results that do not depend on how a model is split.

The numbers of an operator are those of one generator, whose key is its name and its attribute `seed`; every device has
the part of them that belongs to what it holds, as a counter-based generator would give it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from shardplan.model.attributes import integer, number
from shardplan.model.types import AttributeValue, Operator

Array = NDArray[Any]
Piece = Callable[[Array], Array]
"""What a device has of the numbers that are drawn for the whole result."""
_Attributes = Mapping[str, AttributeValue]
_NEVER_DROPS_SINCE, _DROPS_BY_OPERAND_SINCE = 7, 12
DRAWING = frozenset(
    ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial")
)


def draws(operator: Operator, operands: Sequence[Array | None]) -> bool:
    """Whether the operator draws random numbers: a `Dropout` does while it trains, which opsets 7 to 11 never do."""
    if operator.kind != "Dropout":
        return operator.kind in DRAWING
    if operator.version < _DROPS_BY_OPERAND_SINCE:
        return operator.version < _NEVER_DROPS_SINCE and not operator.attributes.get("is_test", 0)
    switch = operands[2] if len(operands) > 2 else None
    return switch is not None and bool(switch)


def drawn_shape(operator: Operator, operands: Sequence[Array | None]) -> tuple[int, ...]:
    """The shape of the numbers that an operator draws for these operands."""
    if operator.kind in {"RandomNormal", "RandomUniform"}:
        shape = operator.attributes["shape"]
        assert isinstance(shape, tuple)
        return tuple(int(size) for size in shape)
    data = operands[0]
    assert data is not None
    if operator.kind == "Multinomial":
        return data.shape[0], integer(operator.attributes, "sample_size", 1)
    return data.shape


def results(operator: Operator, operands: Sequence[Array | None], shape: tuple[int, ...], piece: Piece) -> list[Array]:
    """What the operator makes of operands of which a device holds a part; `shape`: that of the whole draw."""
    attributes, kind = operator.attributes, operator.kind
    generator = np.random.default_rng(_key(operator))
    if kind.startswith("RandomNormal"):
        made = number(attributes, "mean", 0.0) + number(attributes, "scale", 1.0) * generator.standard_normal(shape)
        return [piece(made)]
    uniform = generator.random(shape)
    if kind.startswith("RandomUniform"):
        low, high = number(attributes, "low", 0.0), number(attributes, "high", 1.0)
        return [piece(low + (high - low) * uniform)]
    mine, data = piece(uniform), operands[0]
    assert data is not None
    if kind == "Bernoulli":
        return [_typed(attributes, mine < data, data.dtype)]
    if kind == "Multinomial":
        return [_typed(attributes, _picked(data, mine), np.dtype(np.int32))]
    return _dropped(attributes, operands, data, mine)[: len(operator.outputs)]


def _dropped(attributes: _Attributes, operands: Sequence[Array | None], data: Array, uniform: Array) -> list[Array]:
    """`Dropout`: what is kept grows, so that the mean stays."""
    given = operands[1] if len(operands) > 1 else None
    ratio = number(attributes, "ratio", 0.5) if given is None else float(given)
    kept = uniform >= ratio
    return [np.where(kept, data / (1.0 - ratio), np.zeros((), data.dtype)), kept]


def _picked(scores: Array, uniform: Array) -> Array:
    """The classes at which the running sum of probabilities passes the drawn numbers; `scores` are logarithms."""
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    bounds = np.cumsum(weights / weights.sum(axis=1, keepdims=True), axis=1)
    passed: Array = (uniform[:, :, None] >= bounds[:, None, :]).sum(axis=2)
    return np.asarray(np.minimum(passed, scores.shape[1] - 1))


def _typed(attributes: _Attributes, made: Array, usual: np.dtype[Any]) -> Array:
    """`made` in the element type that the attribute asks for; floats stay in double precision."""
    asked = integer(attributes, "dtype", 0)
    wanted = helper.tensor_dtype_to_np_dtype(asked) if asked else usual
    return made.astype(np.float64 if np.dtype(wanted).name in {"float16", "float32", "bfloat16"} else wanted)


def _key(operator: Operator) -> int:
    text = f"{operator.attributes.get('seed', '')}:{operator.name}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
