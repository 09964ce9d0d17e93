"""Asynchronous gradient reductions: issued when the gradients are made, awaited when no compute is left.

The sender of a gradient returns a placeholder. A function between the sender and the weight, created before all
computing functions, waits for what was sent: autograd runs ready backward functions in the reverse order of their
creation, so this one comes last. If the gradient moves on before it reaches the weight, as to the shard of its
optimizer, the function that moves it on takes it in flight and issues its own collectives behind it.

A sender finds the function that receives its gradient in autograd's graph, through permutations of dims (a product
reads its weight transposed) and through functions that pass on the gradient of their first operand (`passes_on`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shardplan.torch.collectives.executor import Flight

Order = tuple[int, ...]
"""Of dims, by which a tensor is permuted."""


class _Part(NamedTuple):
    """The tensor at `place` of what is in flight, with its dims permuted by each of `orders`."""

    flight: Flight
    place: int
    orders: tuple[Order, ...]

    def of(self, made: Sequence[Tensor]) -> Tensor:
        """The tensor, from all that has arrived."""
        tensor = made[self.place]
        for order in self.orders:
            tensor = tensor.permute(order)
        return tensor


class Flights:
    """The gradients of some tensors between sending and waiting. `blank`: the placeholder that autograd passes on
    meanwhile, an expanded zero. `is_open`: gradients may be in flight when autograd passes them on."""

    def __init__(self) -> None:
        self.is_open = True
        self._parts: list[tuple[int, _Part]] = []
        self._blank = torch.zeros(())

    def depart(self, number: int, part: _Part, shape: torch.Size, like: Tensor) -> Tensor:
        """A placeholder of this shape for the gradient of tensor `number`, which is in flight."""
        if not self._parts:
            self._blank = torch.zeros((), dtype=like.dtype, device=like.device)
        self._parts.append((number, part))
        return self._blank.expand(shape)

    def arrive(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The gradients, with those that were in flight, in the order in which they were sent, and further ones that
        came beside."""
        sums: dict[int, Tensor] = {}
        arrived: dict[int, Sequence[Tensor]] = {}
        parts, self._parts = self._parts, []
        for number, part in parts:
            if id(part.flight) not in arrived:
                arrived[id(part.flight)] = part.flight.wait()
            made = part.of(arrived[id(part.flight)])
            sums[number] = sums[number] + made if number in sums else made
        found = list(gradients)
        for number, made in sums.items():
            beside = found[number]
            found[number] = made if beside is None or self._is_blank(beside) else made + beside
        return found

    def moving_on(self, gradients: Sequence[Tensor | None]) -> Flight | None:
        """Those of the gradients that there are as one flight, for a lane to wait for; None if some are not in
        flight."""
        present = [number for number, gradient in enumerate(gradients) if gradient is not None]
        parts = [[part for other, part in self._parts if other == number] for number in present]
        if not present or not all(parts) or not all(self._is_blank(gradients[number]) for number in present):
            return None
        self._parts = []
        return Flight(_Joined(parts))

    def _is_blank(self, gradient: Tensor | None) -> bool:
        return gradient is not None and gradient.data_ptr() == self._blank.data_ptr()


class _Joined:
    """For each of several tensors, the sum of its parts."""

    def __init__(self, parts: Sequence[Sequence[_Part]]) -> None:
        self._parts = parts

    def wait(self) -> list[Tensor]:
        """As `Pending.wait`."""
        parts, self._parts = self._parts, ()
        flights = {id(part.flight): part.flight for each in parts for part in each}
        arrived = {number: flight.pending.wait() for number, flight in flights.items()}
        sums = []
        for each in parts:
            first, *others = (part.of(arrived[id(part.flight)]) for part in each)
            sums.append(sum(others, first))
        return sums


@dataclass(frozen=True)
class Receiver:
    """What a gradient goes to: tensor `number` of `flights`, with its dims permuted by each of `orders`."""

    flights: Flights
    number: int
    orders: tuple[Order, ...]

    @property
    def is_open(self) -> bool:
        """Whether the gradient may be in flight."""
        return self.flights.is_open


def receiver_of(local: Tensor) -> Receiver | None:
    """What the gradient of a tensor goes to, if it may be in flight meanwhile."""
    node, number, orders = local.grad_fn, local.output_nr, list[Order]()
    while node is not None:
        flights = getattr(node, "receives", None)
        if isinstance(flights, Flights):
            return Receiver(flights, number, tuple(orders))
        if type(node).__name__ == "PermuteBackward0":
            orders.append(_inverse(node._saved_dims))  # noqa: SLF001 - as torch documents what a node has saved
        elif not getattr(node, "passes_on", False):
            return None
        node, number = node.next_functions[0]
    return None


def _inverse(dims: Sequence[int]) -> Order:
    """The permutation that undoes another one, whose negative numbers torch shows as those of 64 bits."""
    order = [dim if dim < len(dims) else dim - 2**64 + len(dims) for dim in dims]
    return tuple(order.index(place) for place in range(len(order)))


def send_early(node: Any) -> None:
    """Lets autograd run the backward of a node, which sends what others wait for later, as soon as its gradients are
    there: before the nodes that the program has made behind it. A torch without priorities runs it after those."""
    if hasattr(node, "_set_sequence_nr"):
        node.sends_early = True
        _number(node)


def send_in_order(local: Tensor) -> None:
    """Operations that are compiled into one give their gradients at once. Of what sends these early, that of the
    operand comes first that is read last: as if they were given one by one. To be called for one operand after the
    other, in the order in which they are read."""
    node = local.grad_fn
    while type(node).__name__ == "PermuteBackward0":
        node = node.next_functions[0][0]
    while getattr(node, "sends_early", False):
        node.sends_early = False  # a bucket is complete when its weight that is read first has its gradient
        _number(node)
        node = node.next_functions[0][0] if getattr(node, "passes_on", False) else None


def _number(node: Any) -> None:
    """Lets autograd run the backward of a node before that of those that were numbered earlier."""
    node._set_sequence_nr(next(_numbers))  # noqa: SLF001 - there is no public way


_numbers = itertools.count(2**62)
"""Of nodes that precede those of any program; autograd's own, of what adds up gradients, is 2**64 - 1."""


def close(local: Tensor) -> None:
    """The gradient of this tensor is looked at as autograd passes it on: what is sent to it is awaited at once."""
    receiver = receiver_of(local)
    if receiver is not None:
        receiver.flights.is_open = False


def placeholders(
    flight: Flight, receivers: Sequence[Receiver], shapes: Sequence[torch.Size], like: Tensor
) -> list[Tensor]:
    """Placeholders for the gradients in `flight` to tensors of these shapes, one for each receiver."""
    return [
        receiver.flights.depart(receiver.number, _Part(flight, place, receiver.orders), shape, like)
        for place, (receiver, shape) in enumerate(zip(receivers, shapes, strict=True))
    ]


class _Awaited(torch.autograd.Function):  # type: ignore[misc]
    """Weights unchanged; their gradients are what is in flight to them, waited for here."""

    @staticmethod
    def forward(ctx: Any, *locals_: Tensor) -> tuple[Tensor, ...]:
        ctx.receives = Flights()
        ctx.set_materialize_grads(False)
        return tuple(tensor.detach() for tensor in locals_)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return tuple(ctx.receives.arrive(gradients))


def await_gradients(locals_: Sequence[Tensor]) -> list[Tensor]:
    """The local parts of weights whose gradients are awaited after everything that is computed from here on."""
    return list(_Awaited.apply(*locals_))
