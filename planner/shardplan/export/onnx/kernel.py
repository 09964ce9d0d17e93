"""What the writers of operators share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from onnx import TensorProto, numpy_helper

from shardplan.model.attributes import integer
from shardplan.model.types import AttributeValue
from shardplan.program.steps import Graph
from shardplan.program.types import Local, Site

Writer = Callable[[Graph, Site, Local, Sequence[str], Sequence[str]], None]
"""Appends the nodes of an operator: its operands by name (`""` where absent), its results by name."""
_NARROW = frozenset({"float16", "bfloat16"})


def operator_node(
    graph: Graph, site: Site, attributes: Mapping[str, AttributeValue], reads: Sequence[str], makes: Sequence[str]
) -> None:
    """The operator itself, under its own name if that is free."""
    given = {name: attribute_of(value) for name, value in attributes.items()}
    operator = site.operator
    name = graph.name(f"shardplan/{operator.name}") if operator.name in graph.operators else operator.name
    graph.operators.add(name)
    graph.node(operator.op_type, reads, makes, name=name, domain=operator.domain, **given)


def attribute_of(value: AttributeValue) -> object:
    """An attribute as `onnx.helper.make_node` takes it."""
    return numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value


def axis_of(site: Site, rank: int, default: int = 0) -> int:
    """The attribute `axis`, counted from the front."""
    axis = integer(site.operator.attributes, "axis", default)
    return axis % rank


def cast(graph: Graph, value: str, dtype: str, to: str = "") -> str:
    """`value` in another element type."""
    return graph.op("Cast", value, to_type=TensorProto.DataType.Value(dtype.upper()), to=to)


def number_as(graph: Graph, axes: Sequence[int], dtype: str) -> str:
    """Which of the devices along `axes` this one is, in an element type."""
    return graph.number(axes) if dtype == "int64" else cast(graph, graph.number(axes), dtype)


def working_type(dtype: str) -> str:
    """The element type in which statistics are computed: single precision at least."""
    return "float" if dtype in _NARROW else dtype


def widened(graph: Graph, value: str) -> tuple[str, str]:
    """`value` in its working type, and that type."""
    dtype = graph.dtype(value)
    wide = working_type(dtype)
    return (value if wide == dtype else cast(graph, value, wide)), wide


def finish(graph: Graph, value: str, to: str, wide: str) -> None:
    """Give the result its name and its own element type."""
    dtype = graph.dtype(to)
    if dtype == wide:
        graph.op("Identity", value, to=to)
    else:
        cast(graph, value, dtype, to)
