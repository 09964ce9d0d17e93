"""Classes of dims that are one size: scaled by the same factor, or products and concatenations of others."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from shardplan.model.types import CONTROL, Border, Model, Operator
from shardplan.rules.equation import Dim, Equation, parse, spread
from shardplan.rules.types import Rule

Place = tuple[str, int]
"""A tensor and one of its dims."""
Node = tuple[str, int] | tuple[int, str]
"""A place, or (operator number, factor)."""
_SET_BY_ATTRIBUTES = re.compile(r"w\d*|copies\d+|step.*|[pq]|gates|biases|peepholes|block|f?\d+")
_SCANS = frozenset({"CumSum", "CumProd"})
_RECURRENT = frozenset({"RNN", "LSTM", "GRU"})


@dataclass
class Classes:
    """Union-find over places and factors whose exponents are equal, with what is known of each class."""

    parent: dict[Node, Node] = field(default_factory=dict)
    fixed: set[Node] = field(default_factory=set)
    bound: set[Node] = field(default_factory=set)
    """Classes that take part in products or concatenations, so that only divisors will do."""
    products: list[tuple[Node, tuple[Node, ...]]] = field(default_factory=list)

    def find(self, node: Node) -> Node:
        while self.parent.setdefault(node, node) != node:
            self.parent[node] = self.parent[self.parent[node]]
            node = self.parent[node]
        return node

    def join(self, one: Node, other: Node) -> None:
        self.parent[self.find(one)] = self.find(other)


def relate(model: Model, rules: Sequence[Rule]) -> Classes:
    """Which dims scale alike, from the equation of every operator."""
    classes = Classes()
    for number, (operator, rule) in enumerate(zip(model.operators, rules, strict=True)):
        if operator.kind in _RECURRENT:
            classes.join((number, "h"), (number, "j"))  # the state that is made is the state that is read
        for place, dim, is_scan in _dims(model, operator, rule):
            if is_scan:
                classes.join(place, (operator.inputs[0], place[1]))
            elif dim is None or not dim.factors:
                classes.fixed.add(place)
            else:
                _relate_dim(classes, model, rule, number, operator, place, dim)
    for begins, ends in carried(model):
        for number in range(len(model.tensors[begins].shape)):
            classes.join((begins, number), (ends, number))
    classes.fixed = {classes.find(node) for node in classes.fixed}
    classes.bound = {classes.find(node) for node in classes.bound}
    return classes


def carried(model: Model) -> Iterator[tuple[str, str]]:
    """Of each value that a loop carries, what an iteration begins with and what it ends with: the next begins so."""
    borders = [operator for operator in model.operators if operator.domain == CONTROL]
    ends = {(one.loops, one.attributes["carry"]): one.inputs[0] for one in borders if one.op_type == Border.LEAVE}
    for one in borders:
        if one.op_type == Border.ENTER:
            yield one.outputs[0], ends[one.loops, one.attributes["carry"]]


def alike_in_copies(model: Model, classes: Classes) -> Classes:
    """The same where every copy of a repeated block has the sizes of the first: heads of all layers are one size."""
    factors: dict[int, set[str]] = defaultdict(set)
    for node in list(classes.parent):
        if isinstance(node[0], int):
            factors[node[0]].add(str(node[1]))
    for block in model.blocks:
        for copy in block.copies[1:]:
            for index, first in zip(copy, block.copies[0], strict=True):
                for factor in sorted(factors[index] & factors[first]):
                    classes.join((index, factor), (first, factor))
    classes.fixed = {classes.find(node) for node in classes.fixed}
    classes.bound = {classes.find(node) for node in classes.bound}
    return classes


def _relate_dim(
    classes: Classes, model: Model, rule: Rule, number: int, operator: Operator, place: Place, dim: Dim
) -> None:
    factors = [factor for factor in dim.factors if rule.sizes.get(factor, 1) > 1 or f"^{factor}" in rule.equation]
    nodes: list[Node] = [(number, factor) for factor in factors]
    size = model.tensors[place[0]].shape[place[1]]
    for factor, node in zip(factors, nodes, strict=True):
        if _is_fixed(operator, rule, factor, size, place[1]):
            classes.fixed.add(node)
    if dim.joined:
        for node in nodes:
            classes.join(place, node)
            classes.bound.add(node)
        classes.bound.add(place)
    elif len(nodes) == 1:
        classes.join(place, nodes[0])
        if f"^{factors[0]}" in rule.equation:
            classes.bound.add(place)
    elif nodes:
        classes.products.append((place, tuple(nodes)))
        classes.bound.update((place, *nodes))


def _is_fixed(operator: Operator, rule: Rule, factor: str, size: int, dim: int) -> bool:
    """Whether a factor has its size from an attribute that does not scale: kernels, repeats, directions; windows whose
    steps do not fill the space."""
    if (operator.kind in _RECURRENT or operator.kind == "RotaryEmbedding") and factor == "d":
        return True
    if f"^{factor}" in rule.equation:
        strides = operator.attributes.get("strides", ())
        stride = strides[dim - 2] if isinstance(strides, tuple) and len(strides) > dim - 2 else 1
        made = rule.sizes[factor]
        return size not in {made, made * int(stride)} or (made == 1 and size == 1)
    views = operator.kind in {"Reshape", "Flatten", "Squeeze", "Unsqueeze"}
    return f"!{factor}" in rule.equation and not views and _SET_BY_ATTRIBUTES.fullmatch(factor) is not None


def _dims(model: Model, operator: Operator, rule: Rule) -> Iterator[tuple[Place, Dim | None, bool]]:
    """Every dim larger than 1 around an operator: its part of the equation (None without a rule), and whether it is
    the dim of a scan, which is as long before as after."""
    names = (*operator.inputs, *operator.outputs)
    equation = spread_equation(model, operator, rule)
    patterns = [None] * len(names) if equation is None else [*equation.operands, *equation.results]
    for position, (name, pattern) in enumerate(zip(names, patterns, strict=True)):
        for place, size in enumerate(model.tensors[name].shape if name else ()):
            if size > 1:
                dim = None if pattern is None else pattern.dims[place]
                scans = operator.kind in _SCANS and position != 1 and dim is not None and not dim.factors
                yield (name, place), dim, scans


def spread_equation(model: Model, operator: Operator, rule: Rule) -> Equation | None:
    """The equation of an operator with its stars written out for the ranks around it; None where it has none."""
    if not rule.equation:
        return None
    ranks = [
        [len(model.tensors[name].shape) if name else None for name in names]
        for names in (operator.inputs, operator.outputs)
    ]
    return spread(parse(rule.equation), ranks[0], ranks[1])
