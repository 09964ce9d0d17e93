"""Compilation of the parts of a written graph between the moves.

Moves stay as they are, nodes that issue and await collectives in the plan's order. Every run of operations between two
of them becomes one module, compiled by `torch.compile`; what is read and returned are local tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn

from shardplan.torch.exported.writer import pick

Compiler = str | Callable[..., Any]
"""A backend of `torch.compile`."""


def compile_between_moves(model: fx.GraphModule, backend: Compiler) -> int:
    """Compiles every run of operations of the graph by `backend`, in place; returns their number."""
    runs = _runs(model.graph)
    for number, nodes in enumerate(runs):
        inner, given, results = _part(nodes)
        module = fx.GraphModule(_Tensors(), inner, f"Between{number}")
        module.train(model.training)
        model.add_module(f"between_{number}", torch.compile(module, backend=backend, dynamic=False))
        _replace(model.graph, nodes, f"between_{number}", given, results)
    model.graph.lint()
    model.recompile()
    return len(runs)


class _Tensors(nn.Module):  # type: ignore[misc]
    """A run of operations has no tensors of its own."""


def _runs(graph: fx.Graph) -> list[list[fx.Node]]:
    """The runs of operations between two moves; single operations are left out, as nothing is gained."""
    runs: list[list[fx.Node]] = [[]]
    for node in graph.nodes:
        if node.op == "get_attr" or _is_of_a_move(node):  # it is there before what reads it
            continue
        if node.op in {"call_function", "call_method"}:
            runs[-1].append(node)
        else:
            runs.append([])
    return [nodes for nodes in runs if len(nodes) > 1]


def _is_of_a_move(node: fx.Node) -> bool:
    """Whether a node is one of several results of a move."""
    return node.target is pick and node.args[0].op == "call_module"


def _part(nodes: Sequence[fx.Node]) -> tuple[fx.Graph, list[fx.Node], list[fx.Node]]:
    """A graph of these nodes, the nodes that it reads, and those of its nodes that others read."""
    inside = set(nodes)
    given = list(dict.fromkeys(each for node in nodes for each in node.all_input_nodes if each not in inside))
    results = [node for node in nodes if any(user not in inside for user in node.users)]
    inner = fx.Graph()
    copies = {node: inner.placeholder(node.name) for node in given}
    for node in nodes:
        copies[node] = inner.node_copy(node, copies.__getitem__)
    inner.output(tuple(copies[node] for node in results))
    return inner, given, results


def _replace(
    graph: fx.Graph, nodes: Sequence[fx.Node], name: str, given: Sequence[fx.Node], results: Sequence[fx.Node]
) -> None:
    """Replaces `nodes` by a call of the module `name`."""
    with graph.inserting_after(nodes[-1]):
        call = graph.call_module(name, tuple(given))
    place = call
    for number, node in enumerate(results):
        with graph.inserting_after(place):
            place = graph.call_function(pick, (call, number))
        node.replace_all_uses_with(place)
    for node in reversed(nodes):
        graph.erase_node(node)
