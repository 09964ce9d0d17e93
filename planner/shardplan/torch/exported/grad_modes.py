"""Parts of an exported program that take no gradients (`torch.no_grad`), as operations of the graph that they are in.

An exporter hands such a part, a graph of its own, to an operator that decompositions drop. Here its operations stand in
the graph itself, on detached operands, so that whatever is done to the graph later keeps what has a gradient.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import fx
from torch.export import ExportedProgram

from shardplan.errors import ShardplanError
from shardplan.torch.exported.untraceable import untraceable
from shardplan.torch.rules.function_names import in_place
from shardplan.torch.rules.views import is_view

_REGION, _DETACH = torch.ops.higher_order.wrap_with_set_grad_enabled, torch.ops.aten.detach.default


def inline_grad_modes(program: ExportedProgram) -> None:
    """Write the operations of all parts into the graph, in place.

    Raises `ShardplanError` (`cannot-export`) where one changes what is made of weights, which keeps its gradient then.
    """
    graph, weights = program.graph, _weights(program)
    regions = [node for node in graph.nodes if node.target is _REGION]
    for region in regions:
        with_gradient = _with_gradient(weights, graph.nodes)
        _refuse_changes(region, program, with_gradient)
        _inline(region, program.graph_module, with_gradient)
    if regions:
        graph.lint()
        program.graph_module.recompile()


def refuse_changed_weights(program: ExportedProgram) -> None:
    """Raises `ShardplanError` (`cannot-export`) for a program that changes a weight: a graph has it as it was."""
    weights = set(_weights(program))
    for node in program.graph.nodes:
        if node.op == "call_function" and in_place(node.target) and _root(node) in weights:
            raise _changed(_root(node), program)


_HINT = "apply a plan without stages with parallelize, or change weights between steps"


def _weights(program: ExportedProgram) -> list[fx.Node]:
    names = program.graph_signature.inputs_to_parameters
    return [node for node in program.graph.nodes if node.op == "placeholder" and node.name in names]


def _with_gradient(weights: Iterable[fx.Node], nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """Weights, and what is computed of them and not detached."""
    found = set(weights)
    for node in nodes:
        stops = node.target is _DETACH or (node.target is _REGION and not node.args[0])
        if not stops and any(source in found for source in node.all_input_nodes):
            found.add(node)
    return found


def _root(node: fx.Node) -> fx.Node:
    """What an operator changes in the end, which its first operand may be a view of."""
    while node.op == "call_function" and (in_place(node.target) or is_view(node.target, ())) and node.args:
        if not isinstance(node.args[0], fx.Node):
            break
        node = node.args[0]
    return node


def _refuse_changes(region: fx.Node, program: ExportedProgram, with_gradient: set[fx.Node]) -> None:
    takes, part, *operands = region.args
    inner = program.graph_module.get_submodule(part.target).graph
    given = dict(zip((node for node in inner.nodes if node.op == "placeholder"), operands, strict=True))
    for node in () if takes else inner.nodes:
        if node.op == "call_function" and in_place(node.target) and given.get(_root(node)) in with_gradient:
            raise _changed(given[_root(node)], program)


def _changed(node: fx.Node, program: ExportedProgram) -> ShardplanError:
    weight = program.graph_signature.inputs_to_parameters.get(node.name)
    if weight is not None:
        return untraceable(f"it changes the weight '{weight}' in place while it runs", _HINT)
    return untraceable(f"it changes '{node.name}' in place where gradients are off (torch.no_grad)", _HINT)


def _inline(region: fx.Node, root: fx.GraphModule, with_gradient: set[fx.Node]) -> None:
    takes, part, *operands = region.args
    inner = root.get_submodule(part.target).graph
    placeholders = [node for node in inner.nodes if node.op == "placeholder"]
    detached = {
        place for place, operand in zip(placeholders, operands, strict=True) if operand in with_gradient and not takes
    }
    with region.graph.inserting_before(region):
        copies = {place: _detach(operand) if place in detached else operand
                  for place, operand in zip(placeholders, operands, strict=True)}  # fmt: skip
        for node in inner.nodes:
            if node.op == "call_function":
                copies[node] = region.graph.node_copy(node, copies.__getitem__)
    results = fx.map_arg(next(node for node in inner.nodes if node.op == "output").args[0], copies.__getitem__)
    for user in list(region.users):  # they pick the results
        user.replace_all_uses_with(results[user.args[1]])
        region.graph.erase_node(user)
    region.graph.erase_node(region)
    if not part.users:
        region.graph.erase_node(part)


def _detach(operand: fx.Node) -> fx.Node:
    made = operand.graph.call_function(_DETACH, (operand,))
    made.meta.update(operand.meta)
    return made
