"""The runs of operations of a written graph that are compiled: those that stand between two nodes that are not.

Not compiled, beside moves, are
- operations that read what backward gathers again: autograd saves for them what the plan says, and a compiler saves
  what it likes, as a convolution's weight in another order of dims;
- what draws random numbers, since a compiler draws others than torch;
- attention: one kernel of torch, with a causal mask of its own on every process;
- views at both ends of a run: by them a move finds in autograd's graph what receives the gradient of a weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx

from shardplan.torch.exported.rewriter import write_back
from shardplan.torch.exported.writer import PlannedMove, ValuedWeight, pick
from shardplan.torch.rules.attention import attention_kernel
from shardplan.torch.rules.dropout import drop
from shardplan.torch.rules.function_names import draws, in_place
from shardplan.torch.rules.views import is_only_a_view, is_view


def runs_of(model: fx.GraphModule) -> list[list[fx.Node]]:
    """The runs; those of a single operation, beside views and copies, are left out, as nothing is gained."""
    runs: list[list[fx.Node]] = [[]]
    for node in model.graph.nodes:
        if node.op == "get_attr" or _is_picked_outside(node, runs[-1]):  # it is there before what reads it
            continue
        if node.op in {"call_function", "call_method"} and not _is_left(model, node):
            runs[-1].append(node)
        else:
            runs.append([])
    trimmed = map(_without_views_at_ends, runs)
    return [nodes for nodes in trimmed if sum(_computes(node) for node in nodes) > 1]


def _computes(node: fx.Node) -> bool:
    return node.target is not pick and not is_view(_function(node), ())


def _is_picked_outside(node: fx.Node, nodes: Sequence[fx.Node]) -> bool:
    """Whether a node is one of several results of a node that is not in this run."""
    return node.target is pick and node.args[0] not in nodes


def _is_left(model: fx.GraphModule, node: fx.Node) -> bool:
    if node.target in {drop, attention_kernel} or draws(_function(node)):
        return True
    return not _is_view(node) and any(_is_gathered_again(model, each) for each in node.all_input_nodes)


def _is_gathered_again(model: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a node, or that of whose result it is a view, is a move whose result backward gathers again."""
    while node.target is pick or _is_view(node):
        node = node.all_input_nodes[0]
    module = model.get_submodule(str(node.target)) if node.op == "call_module" else None
    return isinstance(module, PlannedMove | ValuedWeight) and module.route is not None and bool(module.route.regather)


def _is_view(node: fx.Node) -> bool:
    """Whether a node is one view."""
    if node.op not in {"call_function", "call_method"} or node.target is pick:
        return False
    is_one = len(node.all_input_nodes) == 1 and not any(user.target is pick for user in node.users)
    return is_one and is_only_a_view(_function(node), node.args[1:])


def _function(node: fx.Node) -> Any:
    return getattr(torch.Tensor, str(node.target)) if node.op == "call_method" else node.target


def _without_views_at_ends(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """A run without views of what it is given, and those of its results that nothing in it reads. One that changes
    tensors in place stays whole: a view is made before or after the change."""
    if any(map(changes_in_place, nodes)):
        return list(nodes)
    return _without_last(_without_first(nodes))


def _without_first(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    inside = dict.fromkeys(nodes)
    for node in nodes:
        if _is_view(node) and not any(each in inside for each in node.all_input_nodes):
            del inside[node]
    return list(inside)


def _without_last(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    inside = dict.fromkeys(nodes)
    for node in reversed(nodes):
        if _is_view(node) and not any(user in inside for user in node.users):
            del inside[node]
    return list(inside)


def changes_in_place(node: fx.Node) -> bool:
    """Whether an operation changes its first operand, which others read later."""
    is_operation = node.op in {"call_function", "call_method"}
    return is_operation and (node.target is write_back or in_place(_function(node)))


def borders_of(nodes: Iterable[fx.Node]) -> tuple[list[fx.Node], list[fx.Node]]:
    """The nodes that a run reads, in this order, and those of its nodes that others read."""
    inside = dict.fromkeys(nodes)
    given = dict.fromkeys(each for node in inside for each in node.all_input_nodes if each not in inside)
    return list(given), [node for node in inside if any(user not in inside for user in node.users)]
