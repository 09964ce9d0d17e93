"""Compilation of the parts of a written graph between the moves.

Moves stay as they are, nodes that issue and await collectives in the plan's order. Every run of operations between two
of them becomes one module, compiled by `torch.compile`; what is read and returned are local tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from shardplan.torch.exported.compiled_gradients import Between, Ends, ends_of, reached_ends
from shardplan.torch.exported.compiled_runs import borders_of, runs_of
from shardplan.torch.exported.writer import pick

Compiler = str | Callable[..., Any]
"""A backend of `torch.compile`."""


def compile_between_moves(model: fx.GraphModule, backend: Compiler, first: int = 0) -> int:
    """Compiles every run of operations of the graph by `backend`, in place; returns their number. `first`: the number
    in the name of the first of them."""
    ends = ends_of(model.graph)
    runs = runs_of(model)
    for number, nodes in enumerate(runs, first):
        given, results = borders_of(nodes)
        module = fx.GraphModule(_Tensors(), _inner(nodes, given, results, ends), f"Between{number}")
        module.train(model.training)
        compiled = torch.compile(module, backend=backend, dynamic=False)
        model.add_module(f"between_{number}", Between(compiled, reached_ends(nodes, given, results, ends)))
        _replace(model.graph, nodes, f"between_{number}", given, results)
    model.graph.lint()
    model.recompile()
    return len(runs)


class _Tensors(nn.Module):  # type: ignore[misc]
    """A run of operations has no tensors of its own."""


def _inner(
    nodes: Sequence[fx.Node], given: Sequence[fx.Node], results: Sequence[fx.Node], ends: Mapping[fx.Node, Ends]
) -> fx.Graph:
    """A graph of these nodes. Results to which no gradient comes back take none."""
    inner = fx.Graph()
    copies = {node: inner.placeholder(node.name) for node in given}
    for node in nodes:
        copies[node] = inner.node_copy(node, copies.__getitem__)
    made = [
        copies[node] if ends[node] or not node.meta.get("trains") else inner.call_method("detach", (copies[node],))
        for node in results
    ]
    inner.output(tuple(made))
    return inner


def _replace(
    graph: fx.Graph, nodes: Sequence[fx.Node], name: str, given: Sequence[fx.Node], results: Sequence[fx.Node]
) -> None:
    """Replaces `nodes` by a call of the module `name`; views of results go behind it."""
    views = _views_before_last(nodes)
    with graph.inserting_after(nodes[-1]):
        place = call = graph.call_module(name, tuple(given))
    for number, node in enumerate(results):
        with graph.inserting_after(place):
            place = graph.call_function(pick, (call, number))
        node.replace_all_uses_with(place)
    for node in views:
        place.append(node)
        place = node
    for node in reversed(nodes):
        graph.erase_node(node)


def _views_before_last(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """The nodes outside of a run that read its results and stand before its last operation."""
    inside, found = set(nodes), dict[fx.Node, None]()
    node = nodes[0]
    while node is not nodes[-1]:
        node = node.next
        if node not in inside and any(each in inside or each in found for each in node.all_input_nodes):
            found[node] = None
    return list(found)
