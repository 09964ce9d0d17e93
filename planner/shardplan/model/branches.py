"""`If` nodes: a known condition selects one branch, which replaces the node; otherwise both branches do.

Exporters write nodes of the first kind for `squeeze` and the like, where the condition is a comparison of a shape with
a number. Of the second kind both branches are planned, and a `Choose` reads the results of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper

from shardplan.model.draft import Draft, Node
from shardplan.model.nested import fresh_nodes, graph_of, inner_values, is_plain, moved_out
from shardplan.model.types import CONTROL, Border

_BRANCHES = ("then_branch", "else_branch")


def taken_branch(node: Node, known: Mapping[str, np.ndarray[Any, Any]]) -> onnx.GraphProto | None:
    """The graph that an `If` node will run, when its condition is known and the graph can be spliced in."""
    if node.op_type != "If" or node.domain or node.inputs[0] not in known:
        return None
    wanted = _BRANCHES[0] if known[node.inputs[0]].reshape(-1)[0] else _BRANCHES[1]
    graph = graph_of(node.proto, wanted)
    return None if graph is None or graph.sparse_initializer else graph


def spliced(draft: Draft, node: Node, graph: onnx.GraphProto) -> list[Node]:
    """The nodes of `graph` in place of `node`: inner values under new names, initializers added to `draft`."""
    names = {name: f"{node.name}/{name}" for name in inner_values(graph)}
    made = {name for entry in graph.node for name in entry.output}
    results = {}
    for outer, inner in zip(node.proto.output, graph.output, strict=True):
        if outer and inner.name in made and inner.name not in results:
            names[inner.name] = results[inner.name] = outer
    nodes = moved_out(draft, node, graph, names)
    copies = [
        helper.make_node("Identity", [names.get(inner.name, inner.name)], [outer], f"{node.name}/{outer}")
        for outer, inner in zip(node.proto.output, graph.output, strict=True)
        if outer and results.get(inner.name) != outer
    ]
    return [*nodes, *fresh_nodes(node, copies)]


def both_branches(draft: Draft, node: Node) -> list[Node] | None:
    """The nodes of both branches of an `If`, and one `Choose` per result; None for anything else.

    Also None if the branches have values other than tensors: the node then stays as it is.
    """
    if node.op_type != "If" or node.domain:
        return None
    graphs = [graph_of(node.proto, name) for name in _BRANCHES]
    if any(graph is None or not is_plain(graph) for graph in graphs):
        return None
    nodes: list[Node] = []
    results: list[list[str]] = []
    for branch, graph in zip(_BRANCHES, graphs, strict=True):
        assert graph is not None
        names = {name: f"{node.name}/{branch}/{name}" for name in inner_values(graph)}
        nodes += moved_out(draft, node, graph, names, under=f"{node.name}/{branch}")
        results.append([names.get(value.name, value.name) for value in graph.output])
    choices = [
        helper.make_node(Border.CHOOSE, [node.inputs[0], then, other], [made], f"{node.name}/{made}", domain=CONTROL)
        for made, then, other in zip(node.proto.output, *results, strict=True)
        if made
    ]
    return [*nodes, *fresh_nodes(node, choices)]
