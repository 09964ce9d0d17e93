"""`If` nodes whose condition is known: the branch taken replaces the node.

Exporters write such nodes for `squeeze` and the like, where the condition is a comparison of a shape with a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper

from shardplan.model.draft import Draft, Node, draft_nodes


def taken_branch(node: Node, known: Mapping[str, np.ndarray[Any, Any]]) -> onnx.GraphProto | None:
    """The graph that an `If` node will run, when its condition is known and the graph can be spliced in."""
    if node.op_type != "If" or node.domain or node.inputs[0] not in known:
        return None
    wanted = "then_branch" if known[node.inputs[0]].reshape(-1)[0] else "else_branch"
    graph = next((entry.g for entry in node.proto.attribute if entry.name == wanted), None)
    if graph is None or graph.sparse_initializer:
        return None
    inner = {name for entry in graph.node for name in entry.output} | {entry.name for entry in graph.initializer}
    captured = {name for entry in draft_nodes(graph.node) for name in entry.captured}
    return None if captured & inner else graph


def spliced(draft: Draft, node: Node, graph: onnx.GraphProto) -> list[Node]:
    """The nodes of `graph` in place of `node`: inner values under new names, initializers added to `draft`."""
    names = {name: f"{node.name}/{name}" for entry in graph.node for name in entry.output if name}
    results = {}
    for outer, inner in zip(node.proto.output, graph.output, strict=True):
        if outer and inner.name in names and inner.name not in results:
            names[inner.name] = results[inner.name] = outer
    for tensor in graph.initializer:
        names[tensor.name] = f"{node.name}/{tensor.name}"
        copy = onnx.TensorProto()
        copy.CopyFrom(tensor)
        copy.name = names[tensor.name]
        draft.initializers[copy.name] = copy
    nodes = []
    for index, entry in enumerate(graph.node):
        proto = onnx.NodeProto()
        proto.CopyFrom(entry)
        proto.name = f"{node.name}/{entry.name or f'{entry.op_type}_{index}'}"
        proto.input[:] = [names.get(name, name) for name in entry.input]
        proto.output[:] = [names.get(name, name) for name in entry.output]
        nodes.append(proto)
    for outer, inner in zip(node.proto.output, graph.output, strict=True):
        if outer and results.get(inner.name) != outer:
            source = names.get(inner.name, inner.name)
            nodes.append(helper.make_node("Identity", [source], [outer], f"{node.name}/{outer}"))
    made = draft_nodes(nodes)
    for fresh in made:
        fresh.module = node.module
    return made
