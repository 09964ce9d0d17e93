"""Gradients of compiled runs of operations: a run gives each of its tensors a gradient where its operations would.

A compiled run is one function of autograd. Where a gradient comes back to some of its results alone, as when the loss
is of one of several results of the program, torch takes zeros for the others, and so makes gradients of zeros for what
only those depend on: weights would decay that torch alone leaves as they are, and moves would send zeros.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from shardplan.torch.exported.compiled_runs import changes_in_place
from shardplan.torch.gradients.flights import send_in_order

Ends = frozenset[fx.Node]
"""Results of the program."""


def ends_of(graph: fx.Graph) -> dict[fx.Node, Ends]:
    """For every node, the results of the program from which a gradient may come back to it: all of them where it is
    written into a tensor, whose readers need not come behind it in the graph."""
    (output,) = graph.find_nodes(op="output")
    every = frozenset(output.all_input_nodes)
    found: dict[fx.Node, Ends] = {output: frozenset()}
    for node in reversed(graph.nodes):
        if node is not output:
            own = every if changes_in_place(node) else every & {node}
            found[node] = own.union(*(found[user] for user in node.users)) if _trains(node) else frozenset()
    return found


def _trains(node: fx.Node) -> bool:
    return bool(node.meta.get("trains", True))


def reached_ends(
    nodes: Sequence[fx.Node], given: Sequence[fx.Node], results: Sequence[fx.Node], ends: Mapping[fx.Node, Ends]
) -> list[frozenset[int]] | None:
    """For each of `given`, which of the results of a run have gradients for it; None where a gradient that comes back
    to one of the results comes back to all that is given, or where the run changes tensors in place."""
    if any(map(changes_in_place, nodes)):
        return None
    reached: dict[fx.Node, frozenset[int]] = {}
    for node in reversed([*given, *nodes]):
        own = {results.index(node)} if node in results and ends[node] else set()
        later = (reached.get(user, frozenset()) for user in node.users)
        reached[node] = frozenset(own.union(*later)) if _trains(node) else frozenset()
    numbers = [reached[node] for node in given]
    every = frozenset().union(*(ends[node] for node in results))
    asked = [frozenset().union(*(ends[results[number]] for number in each)) for each in numbers if each]
    return None if all(each == every for each in asked) else numbers


class Between(nn.Module):  # type: ignore[misc]
    """A run of operations that is compiled, and given what it reads in the order in which it does. `reached`: as
    `reached_ends`."""

    def __init__(self, compiled: nn.Module, reached: Sequence[frozenset[int]] | None) -> None:
        super().__init__()
        self.compiled, self.reached = compiled, reached

    def forward(self, *given: Any) -> Sequence[Tensor]:
        """The results."""
        if not torch.is_grad_enabled():
            return self.compiled(*given)  # type: ignore[no-any-return]
        for each in given:
            send_in_order(each)
        if self.reached is None:
            return self.compiled(*given)  # type: ignore[no-any-return]
        asked: set[int] = set()
        places = [place for place, each in enumerate(given) if each.requires_grad]
        taken = _Given.apply(asked, [self.reached[place] for place in places], *(given[place] for place in places))
        operands = dict(enumerate(given)) | dict(zip(places, taken, strict=True))
        results = dict(enumerate(self.compiled(*operands.values())))
        numbers = [number for number, each in results.items() if each.requires_grad]
        made = _Results.apply(asked, numbers, *(results[number] for number in numbers))
        return [*(results | dict(zip(numbers, made, strict=True))).values()]


class _Results(torch.autograd.Function):  # type: ignore[misc]
    """The results of a run; notes to which of them a gradient comes back."""

    @staticmethod
    def forward(ctx: Any, asked: set[int], numbers: Sequence[int], *results: Tensor) -> tuple[Tensor, ...]:
        ctx.asked, ctx.numbers = asked, numbers
        ctx.set_materialize_grads(False)
        return tuple(result.detach() for result in results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.asked.clear()
        ctx.asked.update(number for number, each in zip(ctx.numbers, gradients, strict=True) if each is not None)
        return None, None, *gradients


class _Given(torch.autograd.Function):  # type: ignore[misc]
    """What a run is given; of the gradients that it makes, those pass that come from results with a gradient."""

    @staticmethod
    def forward(ctx: Any, asked: set[int], reached: Sequence[frozenset[int]], *given: Tensor) -> tuple[Tensor, ...]:
        ctx.asked, ctx.reached = asked, reached
        ctx.set_materialize_grads(False)
        return tuple(tensor.detach() for tensor in given)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        wanted = zip(ctx.reached, gradients, strict=True)
        return None, None, *(each if reached & ctx.asked else None for reached, each in wanted)
