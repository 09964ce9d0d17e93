"""The positions of a model's entries in the same model with a larger size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from shardplan.model.types import Model
from shardplan.program.shrink.classes import Classes, Node, Place, carried, spread_equation
from shardplan.rules.equation import Dim
from shardplan.rules.types import Rule

Real = NDArray[np.bool_]
"""By position along a padded dim: whether an entry of the model is there."""


LONGEST = 1 << 24
"""Maximum size of a padded dim: its real positions are listed one by one."""


class UnclearError(ValueError):
    """The equations do not determine which entries of a dim are padding; the dim is its argument."""

    def __init__(self, node: Node) -> None:
        where = f"dim {node[1]} of '{node[0]}'" if isinstance(node[0], str) else f"factor '{node[1]}'"
        super().__init__(f"which entries of {where} are padding does not follow from the operators")


def real_positions(
    model: Model, before: Sequence[Rule], larger: Model, after: Sequence[Rule], classes: Classes, root: Node
) -> dict[Node, Real]:
    """By place, and by factor of an operator, the positions of the grown dims that are entries of `model`.

    `larger`: the model in which class `root` is larger, padded at its end; `before`, `after`: the rules of both. A
    product of factors is padded if one of them is, a concatenation in every part. Raises `UnclearError` if that is
    incomplete or contradictory.
    """
    grown: dict[Node, tuple[int, int]] = {}
    for name, tensor in model.tensors.items():
        both = enumerate(zip(tensor.shape, larger.tensors[name].shape, strict=True))
        grown |= {(name, dim): sizes for dim, sizes in both if sizes[0] != sizes[1]}
    for number, (rule, other) in enumerate(zip(before, after, strict=True)):
        found = ((factor, (size, other.sizes[factor])) for factor, size in rule.sizes.items())
        grown |= {(number, factor): sizes for factor, sizes in found if sizes[0] != sizes[1]}
    for node, (_, new) in grown.items():
        if new > LONGEST:
            raise UnclearError(node)
    known = {node: np.arange(new) < old for node, (old, new) in grown.items() if classes.find(node) == root}
    dims = [entry for entry in _dims(model, before, after) if entry[0] in grown]
    told = _KnownPositions({node: new for node, (_, new) in grown.items()}, known)
    while any([told.by(*entry) for entry in dims]):  # noqa: C419 - every dim is looked at in every turn
        pass
    for node, (old, _) in grown.items():
        if node not in known or np.count_nonzero(known[node]) != old:
            raise UnclearError(node)
    _check_carried(model, known)
    return known


def _check_carried(model: Model, known: Mapping[Node, Real]) -> None:
    """Raises `UnclearError` where an iteration of a loop ends with other positions than it begins with."""
    for begins, ends in carried(model):
        for dim in range(len(model.tensors[begins].shape)):
            if not np.array_equal(known.get((begins, dim), ()), known.get((ends, dim), ())):
                raise UnclearError((ends, dim))


def _dims(model: Model, before: Sequence[Rule], after: Sequence[Rule]) -> Iterator[tuple[Place, Dim, int, Rule]]:
    """Every dim around every operator, with its number and its rule in the larger model."""
    for number, (operator, rule, larger) in enumerate(zip(model.operators, before, after, strict=True)):
        equation = spread_equation(model, operator, rule)
        patterns = () if equation is None else (*equation.operands, *equation.results)
        for name, pattern in zip((*operator.inputs, *operator.outputs), patterns, strict=False):
            yield from (((name, place), dim, number, larger) for place, dim in enumerate(pattern.dims if name else ()))


class _KnownPositions:
    """What is `known` so far of the dims and factors that are larger, by their new sizes."""

    def __init__(self, sizes: Mapping[Node, int], known: dict[Node, Real]) -> None:
        self.sizes, self.known = sizes, known

    def by(self, place: Place, dim: Dim, number: int, rule: Rule) -> bool:
        """Learn of a dim from its factors, or of these from it; whether anything was new. Raises `UnclearError`."""
        if not dim.factors:
            raise UnclearError(place)
        is_single = len(dim.factors) == 1
        names = [factor for factor in dim.factors if dim.joined or is_single or rule.sizes.get(factor, 1) > 1]
        sizes = [rule.sizes.get(factor, 1) for factor in names]
        nodes: list[Node] = [(number, factor) for factor in names]
        parts = [self._of(node, size) for node, size in zip(nodes, sizes, strict=True)]
        found = [part for part in parts if part is not None]
        if len(found) == len(parts):
            return self._learn(place, np.concatenate(found) if dim.joined else product(found))
        whole = self.known.get(place)
        if whole is None:
            return False
        if len(whole) != (sum(sizes) if dim.joined else math.prod(sizes)):
            raise UnclearError(place)
        pieces = np.split(whole, np.cumsum(sizes)[:-1]) if dim.joined else _factors(whole, sizes)
        unknown = [pair for pair in zip(nodes, pieces, strict=True) if pair[0] not in self.known]
        return any([self._learn(*pair) for pair in unknown])  # noqa: C419 - all of them are learnt

    def _of(self, node: Node, size: int) -> Real | None:
        return self.known.get(node) if node in self.sizes else np.ones(size, bool)

    def _learn(self, node: Node, real: Real) -> bool:
        """Note what is real along a dim or factor; whether that is new. Raises `UnclearError` where it cannot be."""
        is_new = node in self.sizes and node not in self.known
        before = self.known.get(node, real) if node in self.sizes else np.ones(len(real), bool)
        if len(real) != self.sizes.get(node, len(real)) or not np.array_equal(before, real):
            raise UnclearError(node)
        if is_new:
            self.known[node] = real
        return is_new


def product(parts: Sequence[Real]) -> Real:
    """Of a dim that is the product of factors, the major one first."""
    made = np.ones(1, np.bool_)
    for part in parts:
        made = np.logical_and.outer(made, part).reshape(-1)
    return made


def _factors(whole: Real, sizes: Sequence[int]) -> list[Real]:
    """Of the factors of a dim, what is real of each at all."""
    table = whole.reshape(sizes)
    axes = range(len(sizes))
    return [np.asarray(table.any(axis=tuple(other for other in axes if other != axis)), np.bool_) for axis in axes]
