"""The graph of a plan by signatures: the layouts in which every value is kept and served, and read by each reader.

Plans name values as the ONNX file does. A program has other names, other views and fused operations; the signature
(see `shardplan.torch.propagation.signatures`) is what both share.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shardplan.layout.layout import Layout
from shardplan.plan.types import OperatorDecision, Plan, TensorDecision
from shardplan.torch.propagation.signatures import CONSTANT, Signatures

VIEWS = frozenset(
    ("Reshape", "Transpose", "Unsqueeze", "Squeeze", "Flatten", "Expand", "Tile", "Identity", "Cast", "CastLike",
     "Dropout")
)  # fmt: skip
_GUARDS = frozenset(("IsNaN", "IsInf"))
"""As `rules.elementwise.GUARDS`: a mask of what is no number says nothing of its own."""
_RESHAPES = frozenset(("Reshape", "Unsqueeze", "Squeeze", "Flatten", "Expand"))
"""Views that are nothing at all where they leave the shape as it is."""
_SAME_DIMS = frozenset(("Identity", "Cast", "CastLike", "Dropout")) | _GUARDS
_SUMS = frozenset(("Add", "Sub", "Sum", "Mean", "Neg", "Where", "Concat", "ReduceSum", "ReduceMean", "Trilu", "Pad"))
_SCALES = frozenset(("Mul", "Div"))
_PIECES = frozenset(("Split", "Slice"))
_LOOKUPS = frozenset(("Gather", "GatherND"))
_PRODUCTS = frozenset(("MatMul", "Einsum"))
BIASED = frozenset(("Gemm", "Conv", "ConvTranspose"))
"""A product, to which something is added."""


class Key(NamedTuple):
    """A value as plan and program both know it: its signature, its whole shape, the permutation of its dims since it
    was made, and its place in a chain of elementwise operators that change none of these."""

    signature: int
    shape: tuple[int, ...]
    perm: tuple[int, ...] = ()
    place: int = 0

    def chained(self, operands: Iterable[Key]) -> Key:
        """The key with its place behind those of `operands` that are of the same chain."""
        places = [operand.place for operand in operands if operand[:3] == self[:3]]
        return self._replace(place=max(places) + 1) if places else self


@dataclass(frozen=True, slots=True)
class Read:
    """How a reader of a value reads it."""

    tensor: str
    reader: str
    layout: Layout


@dataclass(frozen=True, slots=True)
class Anchor:
    """The value that the plan makes from a weight, and the other operand; None if there are several, or none."""

    result: Key
    partner: Key | None


@dataclass
class PlanGraph:
    """`values`: the plan's tensors by key, `keys`: the other way round; `ends`: the last key of every chain; `reads`:
    by key of the value and of the result; `readers`: the number of readers of each value; `steps`: how the next link of
    a chain reads a value, and its key; `alike`: (tensor, reader) with the key of an earlier one and the same moves,
    which stands for both; `tiles`: as `_tiles`; `anchors`: see `shardplan.torch.propagation.anchors`."""

    signatures: Signatures
    values: dict[Key, TensorDecision] = field(default_factory=dict)
    ends: dict[tuple[object, ...], Key] = field(default_factory=dict)
    reads: dict[tuple[Key, Key], Read] = field(default_factory=dict)
    readers: Counter[Key] = field(default_factory=Counter)
    keys: dict[str, Key] = field(default_factory=dict)
    steps: dict[Key, tuple[Read, Key]] = field(default_factory=dict)
    alike: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    tiles: Mapping[tuple[str, int], int] = field(default_factory=dict)
    anchors: Mapping[Key, Anchor] = field(default_factory=dict)


def permuted(perm: tuple[int, ...], by: Sequence[int]) -> tuple[int, ...]:
    """The permutation `perm` (identity when empty) followed by `by`; empty when that is the identity."""
    found = tuple(perm[dim] if perm else dim for dim in by)
    return () if found == tuple(range(len(found))) else found


def plan_graph(plan: Plan, constants: Container[str] = frozenset()) -> PlanGraph:
    """The graph of `plan`. `constants`: tensors of the plan that are none of it, but constants of the program."""
    tensors = {tensor.name: tensor for tensor in plan.tensors}
    graph = PlanGraph(Signatures(), tiles=_tiles(plan, tensors))
    for tensor in plan.tensors:
        leaf = {"parameter": ("weight", tensor.checkpoint), "input": ("input", tensor.name)}.get(tensor.role)
        if leaf is not None and tensor.name not in constants:
            key = Key(graph.signatures.leaf(*leaf), tensor.shape, permuted((), tensor.perm))
            _enter(graph, key, tensor)
    for operator in plan.operators:
        results = _results(graph, tensors, operator)
        _enter_reads(graph, operator, tuple(key for key in results if key is not None))
        for name, made in zip(operator.outputs, results, strict=True):
            if name in tensors and made is not None:
                _enter(graph, made, tensors[name])
    return graph


def _tiles(plan: Plan, tensors: Mapping[str, TensorDecision]) -> dict[tuple[str, int], int]:
    """(operator, result) -> its number among the pieces of one shape that together make up a value. A program that cuts
    two equal values in this way (rows of a rotary table, in every block) takes the same pieces of both."""
    taken: dict[tuple[str, tuple[int, ...]], list[tuple[str, int]]] = {}
    for operator in plan.operators:
        if operator.op_type in _PIECES or operator.op_type in _LOOKUPS:
            for position, name in enumerate(operator.outputs):
                if name in tensors and operator.inputs[0] in tensors:
                    shape = tuple(size for size in tensors[name].shape if size != 1)
                    taken.setdefault((operator.inputs[0], shape), []).append((operator.name, position))
    return {
        piece: number
        for (whole, shape), pieces in taken.items()
        if len(pieces) > 1 and len(pieces) * math.prod(shape) == math.prod(tensors[whole].shape)
        for number, piece in enumerate(pieces)
    }


def _enter(graph: PlanGraph, key: Key, tensor: TensorDecision) -> None:
    graph.keys[tensor.name] = key
    first = graph.values.setdefault(key, tensor)
    if (first.layout, first.served) == (tensor.layout, tensor.served):
        graph.alike[tensor.name, ""] = first.name, ""
    graph.ends[key[:3]] = max(graph.ends.get(key[:3], key), key)


def _enter_reads(graph: PlanGraph, operator: OperatorDecision, results: Sequence[Key]) -> None:
    for position, (name, layout) in enumerate(zip(operator.inputs, operator.reads, strict=True)):
        key = graph.keys.get(name)
        if key is None or layout is None:
            continue
        is_factor = operator.op_type in BIASED and position < 2
        for result in _made_of_factor(graph, operator, position, results) if is_factor else results:
            if key == result:
                continue
            if (key, result) not in graph.reads:
                graph.reads[key, result] = read = Read(name, operator.name, layout)
                graph.readers[key] += 1
                if key[:3] == result[:3]:
                    graph.steps.setdefault(key, (read, result))
            first = graph.reads[key, result]
            if first.layout == layout:
                graph.alike[name, operator.name] = first.tensor, first.reader


def _made_of_factor(graph: PlanGraph, operator: OperatorDecision, position: int, results: Sequence[Key]) -> list[Key]:
    """The value that a program makes from a factor, where it has a product followed by a sum: the product, or the
    factor's transpose first."""
    factor = factor_of(graph, operator, position)
    if factor is not None and factor != graph.keys[operator.inputs[position]]:
        return [factor]
    return [Key(product_of(graph, operator), result.shape) for result in results]


def factor_of(graph: PlanGraph, operator: OperatorDecision, position: int) -> Key | None:
    """A factor of a product to which something is added, in the program's orientation; None for a constant."""
    key = graph.keys.get(operator.inputs[position])
    if key is None or operator.op_type != "Gemm":
        return key
    is_turned = operator.equation.split("->")[0].split(",")[position].split()[1 - position] != "k"
    return Key(key.signature, key.shape[::-1], permuted(key.perm, (1, 0))) if is_turned else key


def product_of(graph: PlanGraph, operator: OperatorDecision) -> int:
    """The signature of the product of the first two operands."""
    known = [graph.keys[name].signature if name in graph.keys else CONSTANT for name in operator.inputs[:2]]
    return product(graph.signatures, known)


def _results(
    graph: PlanGraph, tensors: Mapping[str, TensorDecision], operator: OperatorDecision
) -> tuple[Key | None, ...]:
    """Keys of the results; None for those that are absent or constant."""
    inputs = [graph.keys[name].signature if name in graph.keys else CONSTANT for name in operator.inputs]
    found: list[Key | None] = []
    for position, name in enumerate(operator.outputs):
        if name not in tensors:
            found.append(None)
            continue
        shape = tensors[name].shape
        signature = _signature(graph, operator, inputs, position, shape)
        if signature == CONSTANT:
            found.append(None)
            continue
        source = graph.keys.get(operator.inputs[0])
        if source is not None and source.shape == shape and operator.op_type in _RESHAPES:
            found.append(source)
            continue
        key = Key(signature, shape, _perm(graph, operator, signature, shape))
        found.append(key.chained(graph.keys[name] for name in operator.inputs if name in graph.keys))
    return tuple(found)


def _perm(graph: PlanGraph, operator: OperatorDecision, signature: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A value that is only scaled, or moved by a constant, is the same value."""
    if operator.op_type == "Transpose":
        source = graph.keys[operator.inputs[0]]
        old, new = (side.split() for side in operator.equation.split("->"))
        return permuted(source.perm, [old.index(factor) for factor in new])
    if operator.op_type in _SAME_DIMS or operator.op_type not in VIEWS:
        varying = [graph.keys[name] for name in operator.inputs if name in graph.keys]
        if len(varying) == 1 and varying[0].signature == signature and varying[0].shape == shape:
            return varying[0].perm
    return ()


def _signature(
    graph: PlanGraph, operator: OperatorDecision, inputs: list[int], position: int, shape: tuple[int, ...]
) -> int:
    terms, kind = graph.signatures, operator.op_type
    if all(signature == CONSTANT for signature in inputs) or 0 in shape:
        return CONSTANT
    if kind in VIEWS or kind in _GUARDS:
        return inputs[0]
    if kind in _SUMS or (kind in _SCALES and sum(signature != CONSTANT for signature in inputs) == 1):
        return terms.linear(inputs)
    if kind in _PIECES or (kind in _LOOKUPS and _is_piece(graph, operator, inputs, shape)):
        source = graph.keys.get(operator.inputs[0])
        whole = source is not None and source.shape == shape
        piece = operator.name, position
        return inputs[0] if whole else terms.part(inputs[0], shape, graph.tiles.get(piece, piece), "plan")
    if kind in _PRODUCTS:
        return product(terms, inputs)
    special = _SPECIAL.get(kind)
    return special(terms, inputs) if special else terms.nonlinear(inputs)


def _is_piece(graph: PlanGraph, operator: OperatorDecision, inputs: list[int], shape: tuple[int, ...]) -> bool:
    """Whether a lookup takes one index of a dim, as a program does that selects it; tables of weights are looked up."""
    source = graph.values.get(graph.keys[operator.inputs[0]]) if operator.inputs[0] in graph.keys else None
    if source is None or source.role == "parameter" or inputs[1] != CONSTANT:
        return False
    return any(
        shape in {(*source.shape[:dim], *source.shape[dim + 1 :]), (*source.shape[:dim], 1, *source.shape[dim + 1 :])}
        for dim in range(len(source.shape))
    )


def product(terms: Signatures, factors: Sequence[int]) -> int:
    """A product that sums over dims: of matrices, an einsum, a convolution."""
    return terms.leaf("product", *sorted(factors))


def affine(terms: Signatures, inputs: Sequence[int]) -> int:
    """A product of the first two, and what is added."""
    return terms.linear([product(terms, inputs[:2]), *inputs[2:]])


def lookup(terms: Signatures, inputs: Sequence[int]) -> int:
    """Rows of a table by index."""
    return terms.leaf("lookup", *inputs[:2])


def softmax(terms: Signatures, inputs: Sequence[int]) -> int:
    """A normalised exponential of one value."""
    return terms.leaf("softmax", inputs[0])


def attention(terms: Signatures, inputs: Sequence[int]) -> int:
    """Queries, keys, values and perhaps a mask, as the products and the softmax that it consists of."""
    scores = terms.linear([product(terms, inputs[:2]), *inputs[3:4]])
    return product(terms, [softmax(terms, [scores]), inputs[2]])


_SPECIAL: Mapping[str, Callable[[Signatures, Sequence[int]], int]] = {
    **dict.fromkeys(BIASED, affine),
    **dict.fromkeys(_LOOKUPS, lookup),
    "Softmax": softmax,
    "LogSoftmax": softmax,
    "Attention": attention,
}
