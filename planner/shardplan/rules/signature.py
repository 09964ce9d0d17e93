"""The signature of an operator: everything that a rule may depend on, as one hashable value."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import cast

import numpy as np

from shardplan.model.types import DTYPE_BITS, FLOAT_DTYPES, Model, Operator


@dataclass(frozen=True, slots=True)
class Shaped:
    """Shape and type of one operand or result. `is_constant`: its value never changes, so it takes no gradient."""

    shape: tuple[int, ...]
    dtype: str
    is_constant: bool = False

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def item_bytes(self) -> float:
        """Bytes of one element; a fraction where several share a byte."""
        return DTYPE_BITS[self.dtype] / 8

    @property
    def size_bytes(self) -> int:
        return -(-self.elements * DTYPE_BITS[self.dtype] // 8)

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOAT_DTYPES


@dataclass(frozen=True, slots=True)
class Signature:
    """Kind and opset version of an operator, its operands and results (None: absent), attributes and the values of
    those small constant operands that its rule reads. Operators with equal signatures share one rule."""

    kind: str
    version: int
    operands: tuple[Shaped | None, ...]
    results: tuple[Shaped | None, ...]
    attributes: tuple[tuple[str, Hashable], ...] = ()
    constants: tuple[tuple[int, tuple[float, ...]], ...] = ()

    def has(self, position: int) -> bool:
        """Whether the operand is present."""
        return position < len(self.operands) and self.operands[position] is not None

    def made(self, position: int) -> bool:
        """Whether the result is present."""
        return position < len(self.results) and self.results[position] is not None

    def operand(self, position: int) -> Shaped:
        """The operand; `LookupError` when it is absent."""
        found = self.operands[position]
        if found is None:
            raise LookupError(f"{self.kind} has no operand {position}")
        return found

    def result(self, position: int = 0) -> Shaped:
        """The result; `LookupError` when it is absent."""
        found = self.results[position]
        if found is None:
            raise LookupError(f"{self.kind} has no result {position}")
        return found

    def shape(self, position: int = 0) -> tuple[int, ...]:
        return self.operand(position).shape

    def rank(self, position: int = 0) -> int:
        return self.operand(position).rank

    @property
    def rest(self) -> str:
        """`, _*` for every operand after the first: shapes, axes, scalars."""
        return ", _*" * (len(self.operands) - 1)

    def integer(self, name: str, default: int = 0) -> int:
        """An integer attribute."""
        return int(cast("int", self._attribute(name, default)))

    def text(self, name: str, default: str = "") -> str:
        """A string attribute."""
        return str(self._attribute(name, default))

    def number(self, name: str, default: float = 0.0) -> float:
        """A float attribute."""
        return float(cast("float", self._attribute(name, default)))

    def floats(self, name: str) -> tuple[float, ...] | None:
        """An attribute that is a list of floats."""
        found = self._attribute(name, None)
        return None if found is None else tuple(float(value) for value in cast("tuple[float, ...]", found))

    def integers(self, name: str, default: tuple[int, ...] | None = None) -> tuple[int, ...] | None:
        """An attribute that is a list of integers."""
        found = self._attribute(name, default)
        return None if found is None else tuple(int(value) for value in cast("tuple[int, ...]", found))

    def constant(self, position: int) -> tuple[int, ...] | None:
        """The integers of a small constant operand, flat; None when its value is not known."""
        values = dict(self.constants).get(position)
        return None if values is None else tuple(int(value) for value in values)

    def numbers(self, position: int) -> tuple[float, ...] | None:
        """The values of a small constant operand, flat; None when they are not known."""
        return dict(self.constants).get(position)

    def axis(self, default: int = 0, name: str = "axis", rank: int | None = None) -> int:
        """An attribute that names a dim, counted from the front."""
        axis = self.integer(name, default)
        return axis % (self.rank() if rank is None else rank) if axis < 0 else axis

    def _attribute(self, name: str, default: Hashable) -> Hashable:
        return next((value for key, value in self.attributes if key == name), default)


def sign(operator: Operator, model: Model, reads: tuple[int, ...]) -> Signature:
    """The signature of `operator`; `reads` are the operand positions whose constant values belong to it."""
    tensors, constants = model.tensors, model.constants
    operands: list[Shaped | None] = []
    known: list[tuple[int, tuple[float, ...]]] = []
    for position, name in enumerate(operator.inputs):
        if not name:
            operands.append(None)
            continue
        tensor = tensors[name]
        operands.append(Shaped(tensor.shape, tensor.dtype, tensor.role == "constant"))
        if position in reads and name in constants:
            known.append((position, tuple(constants[name].ravel().tolist())))
    results = (tensors[name] if name else None for name in operator.outputs)
    attributes = operator.attributes
    return Signature(
        operator.kind,
        operator.version,
        tuple(operands),
        tuple(None if made is None else Shaped(made.shape, made.dtype) for made in results),
        tuple((name, _frozen(attributes[name])) for name in sorted(attributes)),
        tuple(known),
    )


def _frozen(value: object) -> Hashable:
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list):
        return tuple(value)
    assert isinstance(value, Hashable)
    return value
