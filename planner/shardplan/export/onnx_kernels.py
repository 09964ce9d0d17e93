"""Which nodes stand for an operator on one device: the operator itself, or more where devices talk inside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from onnx import numpy_helper

from shardplan.errors import ShardplanError, error
from shardplan.export.onnx_graph import Graph
from shardplan.model.types import AttributeValue
from shardplan.spmd.program import Local, Site

Writer = Callable[[Graph, Site, Local, Sequence[str], Sequence[str]], None]
"""Appends the nodes of an operator: its operands by name (`""` where absent), its results by name."""


def kernel_writer(site: Site) -> Writer:
    """What writes the nodes of `site`. Raises `ShardplanError` (`cannot-export`) where nothing does."""
    if not site.communicates:
        return plain
    if site.kind not in WRITERS:
        split = ", ".join(site.options[axis].label for axis in site.communicates)  # type: ignore[union-attr]
        why = f"no ONNX program is known for this kind when {split} is split, because devices then talk inside it"
        summary = f"operator '{site.operator.name}' ({site.kind}) cannot be exported: {why}"
        raise ShardplanError(error("cannot-export", summary, hint="pin the operator to another split"))
    return WRITERS[site.kind]


def plain(graph: Graph, site: Site, local: Local, reads: Sequence[str], makes: Sequence[str]) -> None:
    """The operator on what the device holds; of a mean every device has its share."""
    shared = [
        local.shares > 1 and layout is not None and any(p.kind == "P" for p in layout.placements)
        for layout in site.result_layouts
    ]
    named = [graph.name(f"{name}/share") if share else name for name, share in zip(makes, shared, strict=True)]
    operator_node(graph, site, local.attributes, reads, named)
    for part, name, share in zip(named, makes, shared, strict=True):
        if share:
            count = graph.constant(local.shares, graph.dtype(name))
            graph.op("Div", part, count, to=name)


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


WRITERS: Mapping[str, Writer] = {}
