"""Normalisations and attention of a model, as one operator or as the several that exporters write for one.

A normalisation multiplies a value by a function of a mean over its last dim, or divides it by one; a scale and a shift
by weights belong to it. Attention is a softmax over a product of two activations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from shardplan.graph.flow import weightlike_of
from shardplan.model.types import Model, Operator

_FUSED = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
"""What the names of normalisations of the last dim end with."""
_MEANS = frozenset({"ReduceMean", "ReduceL2", "ReduceSumSquare"})
_BEFORE_MEANS = frozenset({"Cast", "Identity", "Mul", "Pow", "Sub"})
"""What is done to a value before the mean: squares, casts, and subtraction of another mean."""
_SCALES = frozenset({"Add", "Cast", "Identity", "Mul"})
_PRODUCTS = frozenset({"Einsum", "FusedMatMul", "Gemm", "MatMul"})
_ON_QUERIES = frozenset({"Cast", "Div", "Identity", "Mul", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""What is done to queries between their projection and the scores; rotations are not followed."""


@dataclass(frozen=True, slots=True)
class Norm:
    """A normalisation of `source` over its last dim, and the `values` of its shape that its operators make."""

    source: str
    values: tuple[str, ...]


def norms_of(model: Model) -> tuple[Norm, ...]:
    """The normalisations of `model`, in graph order."""
    return tuple(_Parts.of(model).norms())


def heads_of(model: Model) -> frozenset[int]:
    """Numbers of query heads of the attention of `model`, as far as shapes and attributes tell them."""
    parts = _Parts.of(model)
    return frozenset(heads for operator in model.operators if (heads := parts.heads(operator)))


@dataclass(frozen=True)
class _Parts:
    """A model; by value, the operators that make it and that read it; and the values computed from weights only."""

    model: Model
    makers: Mapping[str, int]
    readers: Mapping[str, Sequence[int]]
    weightlike: Set[str]

    @classmethod
    def of(cls, model: Model) -> _Parts:
        makers: dict[str, int] = {}
        readers: dict[str, list[int]] = {}
        for index, operator in enumerate(model.operators):
            makers |= dict.fromkeys(filter(None, operator.outputs), index)
            for name in operator.inputs:
                readers.setdefault(name, []).append(index)
        return cls(model, makers, readers, weightlike_of(model))

    def norms(self) -> Iterator[Norm]:
        scaled: set[int] = set()
        for index, operator in enumerate(self.model.operators):
            if operator.op_type.endswith(_FUSED):
                yield self._norm(operator.inputs[0], {index})
            elif operator.op_type in {"Div", "Mul"} and (norm := self._decomposed(index, scaled)):
                scaled.add(index)
                yield norm

    def heads(self, operator: Operator) -> int:
        """The number of query heads, if `operator` is attention or its softmax; 0 if it is not, or does not tell."""
        if operator.op_type == "Softmax":
            product = self._product_before(operator)
            return self._heads_of_scores(product, self._shape(operator.outputs[0])) if product else 0
        if not operator.op_type.endswith("Attention"):
            return 0
        shape, named = self._shape(operator.inputs[0]), operator.attributes
        heads = shape[1] if len(shape) == 4 else named.get("q_num_heads", named.get("num_heads"))
        return heads if isinstance(heads, int) else 0

    def _norm(self, source: str, operators: Set[int]) -> Norm:
        made = (name for index in sorted(operators) for name in self.model.operators[index].outputs if name)
        shape = self._shape(source)
        return Norm(source, tuple(name for name in made if self._shape(name) == shape))

    def _decomposed(self, end: int, scaled: Set[int]) -> Norm | None:
        """The normalisation that ends with this product or quotient, `scaled` being those before; if it is one."""
        operator = self.model.operators[end]
        shape = self._shape(operator.outputs[0])
        for value, factor in (operator.inputs[:2], operator.inputs[1::-1]):
            if len(shape) > 1 and self._shape(value) == shape and value not in self.weightlike:
                source, before = self._source(value, scaled)
                if statistics := self._statistics(factor, source, scaled):
                    return self._norm(source, {end} | before | statistics | self._scales(end))
        return None

    def _source(self, name: str, scaled: Set[int]) -> tuple[str, set[int]]:
        """The value that `name` is a function of, apart from means of that value, and the operators between."""
        between: set[int] = set()
        while (index := self.makers.get(name, -1)) >= 0 and index not in scaled:
            operator, shape = self.model.operators[index], self._shape(name)
            wide = {each for each in operator.inputs if self._shape(each)[-1:] == shape[-1:]}
            if operator.op_type not in _BEFORE_MEANS or len(wide) != 1 or self._shape(min(wide)) != shape:
                break
            between.add(index)
            name = wide.pop()
        return name, between

    def _statistics(self, factor: str, source: str, scaled: Set[int]) -> set[int]:
        """The operators from `source` to `factor`, one number per row that depends on a mean of it; else empty."""
        rows = (*self._shape(source)[:-1], 1)
        on_way: set[int] = set()
        front, has_mean = [factor], False
        while front:
            name = front.pop()
            index = self.makers.get(name, -1)
            if index < 0 or index in on_way or name in self.weightlike:
                continue
            operator = self.model.operators[index]
            if operator.op_type in _MEANS:
                read, before = self._source(operator.inputs[0], scaled)
                has_mean |= read == source and self._shape(name) in (rows, rows[:-1])
                on_way |= {index} | before
            elif self._shape(name) in (rows, rows[:-1]) or operator.op_type == "Expand":
                on_way.add(index)
                front += filter(None, operator.inputs)
        return on_way if has_mean else set()

    def _scales(self, end: int) -> set[int]:
        """The operators that scale, shift or cast what operator `end` makes."""
        found: set[int] = set()
        front = [end]
        while front:
            made = self.model.operators[front.pop()].outputs[0]
            for reader in self.readers.get(made, ()):
                operator = self.model.operators[reader]
                is_like = self._shape(operator.outputs[0]) == self._shape(made)
                others = {*operator.inputs} - {made}
                if operator.op_type in _SCALES and is_like and others <= self.weightlike and reader not in found:
                    found.add(reader)
                    front.append(reader)
        return found

    def _product_before(self, softmax: Operator) -> Operator | None:
        """The product of two activations of whose result `softmax` is one, through operators that keep the number of
        its elements."""
        scores = self.model.tensor(softmax.outputs[0]).elements
        front, seen = [softmax], {softmax.name}
        while front:
            for name in front.pop().inputs:
                operator = self.model.operators[self.makers[name]] if name in self.makers else softmax
                if operator.name in seen or self.model.tensor(name).elements != scores:
                    continue
                seen.add(operator.name)
                if operator.op_type not in _PRODUCTS:
                    front.append(operator)
                elif not self.weightlike & {*operator.inputs}:
                    return operator
        return None

    def _heads_of_scores(self, product: Operator, shape: tuple[int, ...]) -> int:
        """Heads of scores [batch, heads, ..., queries, keys], or [batch * heads, queries, keys]: these tell them by
        the width of the projection of the queries."""
        if len(shape) > 3:
            return math.prod(shape[1:-2])
        name, heads = product.inputs[0], 0
        size = self._shape(name)[-1]
        while len(shape) == 3:
            heads = max(heads, self._shape(name)[-1] // size)
            if name not in self.makers or self.model.operators[self.makers[name]].op_type not in _ON_QUERIES:
                break
            name = self.model.operators[self.makers[name]].inputs[0]
        return heads

    def _shape(self, name: str) -> tuple[int, ...]:
        return self.model.tensors[name].shape if name else ()
