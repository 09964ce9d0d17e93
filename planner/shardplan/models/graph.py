"""A model graph under construction: operators are added in execution order, with explicit shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from shardplan.errors import ShardplanError, error
from shardplan.model.blocks import find_blocks
from shardplan.model.limits import Budget, beyond
from shardplan.model.types import AttributeValue, Model, Operator, Parameter, Role, Tensor

OPSET = 23
_MOST_WRITTEN = 1 << 24
"""Elements of the longest constant that is written out."""
Shape = Sequence[int]


Linear = Callable[[str, str, int, int], str]
"""A product with the weight of a module: (value, module, inner size, outer size) -> value."""


class GraphWriter:
    """Collects operators, tensors and parameters under their final names."""

    def __init__(self, dtype: str, opset: int = OPSET) -> None:
        self.dtype, self.opset = dtype, opset
        self.tensors: dict[str, Tensor] = {}
        self.operators: list[Operator] = []
        self.parameters: list[Parameter] = []
        self.constants: dict[str, np.ndarray[Any, Any]] = {}
        self.inputs: list[str] = []
        self._budget = Budget.of_environment()

    def input(self, name: str, shape: Shape, dtype: str) -> str:
        """A graph input; its name."""
        self.inputs.append(name)
        return self._tensor(name, shape, dtype, "input")

    def weight(self, name: str, shape: Shape, *, transposed: bool = False) -> str:
        """A trainable parameter of `shape` in graph order; `transposed`: checkpoints hold it the other way round. The
        same name may be asked for again."""
        if name in self.tensors:
            assert self.tensors[name].shape == tuple(shape), name
            return name
        perm = tuple(reversed(range(len(shape)))) if transposed else ()
        self.parameters.append(Parameter(name, name, name, perm=perm, onnx_perm=perm))
        return self._tensor(name, shape, self.dtype, "parameter")

    def constant(self, name: str, value: np.ndarray[Any, Any], dtype: str = "int64") -> str:
        """A small known value; the same name may be asked for again."""
        if name not in self.constants:
            self.constants[name] = value
            self._tensor(name, value.shape, dtype, "constant")
        return name

    def long_constant(
        self, name: str, shape: Shape, values: Callable[[], np.ndarray[Any, Any]], dtype: str = "int64"
    ) -> str:
        """A known value as long as a dim of the model. It is only written out up to a size that anybody computes with:
        plans do not depend on it."""
        if name in self.tensors or math.prod(shape) > _MOST_WRITTEN:
            return self.unknown_constant(name, shape, dtype)
        return self.constant(name, values().reshape(shape), dtype)

    def unknown_constant(self, name: str, shape: Shape, dtype: str) -> str:
        """A constant whose content does not matter to a plan; the same name may be asked for again."""
        return name if name in self.tensors else self._tensor(name, shape, dtype, "constant")

    def integers(self, *values: int) -> str:
        """A constant list of integers, for shapes, axes and sizes."""
        return self.constant(f"int64.{'x'.join(map(str, values))}", np.array(values, dtype=np.int64))

    def reshape(self, x: str, shape: Shape, module: str) -> str:
        """`x` in another shape."""
        return self.apply("Reshape", [x, self.integers(*shape)], shape, module)

    def apply(
        self,
        op_type: str,
        inputs: Sequence[str],
        shape: Shape,
        module: str,
        *,
        dtype: str = "",
        name: str = "",
        **attributes: AttributeValue,
    ) -> str:
        """An operator with one result of `shape`; the result's name."""
        return self.apply_many(op_type, inputs, [(shape, dtype or self.dtype)], module, name, attributes)[0]

    def apply_many(
        self,
        op_type: str,
        inputs: Sequence[str],
        results: Sequence[tuple[Shape, str]],
        module: str,
        name: str = "",
        attributes: Mapping[str, AttributeValue] | None = None,
    ) -> tuple[str, ...]:
        """An operator with several results, each a shape and a type; their names."""
        node = self._fresh(f"{module}.{name or op_type}" if module else name or op_type)
        outputs = [node, *(f"{node}.{place}" for place in range(1, len(results)))]
        for output, (shape, dtype) in zip(outputs, results, strict=True):
            self._tensor(output, shape, dtype, "activation")
        self.operators.append(
            Operator(
                node, op_type, tuple(inputs), tuple(outputs), dict(attributes or {}), version=self.opset, module=module
            )
        )
        return tuple(outputs)

    def split(self, x: str, shape: Shape, sizes: Sequence[int], module: str, axis: int = -1) -> tuple[str, ...]:
        """The pieces of a value of `shape` along a dim, by default the last one."""
        axis %= len(shape)
        results = [((*shape[:axis], size, *shape[axis + 1 :]), self.dtype) for size in sizes]
        return self.apply_many("Split", [x, self.integers(*sizes)], results, module, attributes={"axis": axis})

    def model(self, name: str, outputs: Sequence[str], dims: Mapping[str, int]) -> Model:
        """The finished model, with its repeated blocks found."""
        operators = tuple(self.operators)
        return Model(
            name=name,
            operators=operators,
            tensors=self.tensors,
            parameters=tuple(self.parameters),
            inputs=tuple(self.inputs),
            outputs=tuple(outputs),
            constants=self.constants,
            blocks=find_blocks(operators, self.tensors, self.constants),
            dims=dict(sorted(dims.items())),
            opset=self.opset,
            producer="shardplan transformer",
        )

    def _tensor(self, name: str, shape: Shape, dtype: str, role: Role) -> str:
        if found := beyond(shape, self._budget):
            raise ShardplanError(error("too-large", f"the described model cannot be planned: in '{name}' {found}"))
        self.tensors[name] = Tensor(name, tuple(shape), dtype, role)
        return name

    def _fresh(self, name: str) -> str:
        count, chosen = 1, name
        while chosen in self.tensors:
            count += 1
            chosen = f"{name}_{count}"
        return chosen
