"""Shared parts of operator descriptions: the operator itself as a node, positions of shards, working precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from onnx import TensorProto, helper

from shardplan.layout.placement import S
from shardplan.model.attributes import integer
from shardplan.model.types import AttributeValue
from shardplan.program.nodes import Graph, Node
from shardplan.program.types import Local, Site

Describe = Callable[[Graph, Site, Local, Sequence[str], Sequence[str]], None]
"""Appends the nodes of an operator on one device: its operands by name (`""` where absent), its results by name."""
FAR = np.iinfo(np.int64).max
_NARROW = frozenset({"float16", "bfloat16"})


def operator_node(
    graph: Graph, site: Site, attributes: Mapping[str, AttributeValue], reads: Sequence[str], makes: Sequence[str]
) -> None:
    """The operator itself, under its own name if that is free."""
    operator = site.operator
    name = graph.name(f"shardplan/{operator.name}") if operator.name in graph.operators else operator.name
    graph.operators.add(name)
    graph.nodes.append(
        Node(operator.op_type, tuple(reads), tuple(makes), name, operator.domain, operator.version, attributes)
    )


def axis_of(site: Site, rank: int, default: int = 0) -> int:
    """The attribute `axis`, counted from the front."""
    return integer(site.operator.attributes, "axis", default) % rank


def index_axes(site: Site, dim: int) -> tuple[int, ...]:
    """Mesh axes that cut dim `dim` of operand 0 and need offsets for it."""
    return tuple(axis for axis in site.communicates if (o := site.options[axis]) and o.operands[0] == S(dim))


def first_of_part(graph: Graph, axes: tuple[int, ...], length: int, dtype: str = "int64") -> str:
    """Where the device's part of a dim begins, when all parts are `length` long."""
    return graph.op("Mul", graph.number(axes, dtype), graph.constant(length, dtype))


def positions(graph: Graph, axes: tuple[int, ...], length: int, shape: Sequence[int] = (-1,)) -> str:
    """The positions in the whole dim of the device's part, which is `length` long, in a shape."""
    counted = graph.constant(np.arange(length).reshape(shape))
    return graph.op("Add", counted, first_of_part(graph, axes, length))


def within(graph: Graph, place: str, length: int, dtype: str) -> str:
    """Whether 0 <= place < length."""
    above = graph.op("Not", graph.op("Less", place, graph.constant(0, dtype)))
    return graph.op("And", above, graph.op("Less", place, graph.constant(length, dtype)))


def working_type(dtype: str) -> str:
    """The element type in which statistics are computed: single precision at least."""
    return "float" if dtype in _NARROW else dtype


def in_type(graph: Graph, value: str, has: str, wanted: str) -> str:
    """`value`, of type `has`, in the wanted one."""
    return value if has == wanted else graph.cast(value, wanted)


def widened(graph: Graph, value: str) -> tuple[str, str]:
    """`value` in its working type, and that type."""
    wide = working_type(graph.dtype(value))
    return in_type(graph, value, graph.dtype(value), wide), wide


def finish(graph: Graph, value: str, to: str, wide: str) -> None:
    """Give the result its name and its own element type; nothing where it is not wanted."""
    if to and graph.dtype(to) == wide:
        graph.op("Identity", value, to=to)
    elif to:
        graph.cast(value, graph.dtype(to), to)


def finite(graph: Graph, value: str, wide: str) -> str:
    """`value`, 0 where it is infinite: the row of a mask that lets nothing through."""
    largest = np.finfo(helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(wide.upper()))).max
    infinite = graph.op("Greater", graph.op("Abs", value), graph.constant(largest, wide))
    return graph.op("Where", infinite, graph.constant(0, wide), value)
