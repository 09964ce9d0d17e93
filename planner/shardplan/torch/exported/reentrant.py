"""Reentrant checkpoints (`use_reentrant=True`) in exported graphs: written as what they compute.

Torch runs the backward of such a checkpoint as a pass of its own, which calls the hooks of the weights that it reads
with their gradients in it. A graph has one pass, in which a hook is called once, with the whole gradient.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx, nn
from torch._ops import _get_dispatch_mode_pre_dispatch
from torch.export import ExportedProgram

from shardplan.torch.exported.untraceable import untraceable

_PROXIES = torch._C._TorchDispatchModeKey.PROXY  # noqa: SLF001 - torch has no public name for it
_META = "reentrant_checkpoint"
_NUMBERS = itertools.count()
_REGION = torch.ops.higher_order.wrap_with_set_grad_enabled


def written_checkpoint(args: tuple[Any, ...]) -> Any:
    """What a checkpoint returns; `args`: the function that it runs, whether to restore generators, and arguments. All
    nodes that are written meanwhile bear its number."""
    function, _, *given = args
    graph, number = _get_dispatch_mode_pre_dispatch(_PROXIES).tracer.graph, next(_NUMBERS)
    before = len(graph.nodes)
    made = function(*given)
    for node in itertools.islice(reversed(graph.nodes), len(graph.nodes) - before):
        node.meta.setdefault(_META, number)  # the innermost one's
    return made


def refuse_pieces_of_hooked_weights(program: ExportedProgram, model: nn.Module) -> None:
    """Raises `ShardplanError` (`cannot-export`) for a weight with a hook of which several passes have a part."""
    hooked = {name for name, each in model.named_parameters(remove_duplicate=False) if each._backward_hooks}  # noqa: SLF001
    names = program.graph_signature.inputs_to_parameters
    for node in program.graph.nodes if hooked else ():
        if node.op == "placeholder" and names.get(node.name) in hooked and len(set(_passes(node))) > 1:
            raise untraceable(
                f"the weight '{names[node.name]}' has a hook on its gradient, which reentrant checkpoints compute in "
                "several passes",
                "pass use_reentrant=False to torch.utils.checkpoint, or change the gradient after backward",
            )


def _passes(weight: fx.Node) -> Iterator[int | None]:
    """The backward passes in which a weight gets a gradient: None is that of the whole program."""
    for user in weight.users:
        if user.target is not _REGION or user.args[0]:  # else gradients are off
            yield user.meta.get(_META)
