"""Asynchronous gradient reductions: issued when the gradients are made, awaited when no compute is left.

The sender of a gradient returns a placeholder. A function between the sender and the weight, created before all
computing functions, waits for what was sent: autograd runs ready backward functions in the reverse order of their
creation, so this one comes last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from shardplan.torch.collectives.executor import Flight


class Flights:
    """The gradients of some weights between sending and waiting. `blank`: the placeholder that autograd passes on
    meanwhile, an expanded zero."""

    def __init__(self) -> None:
        self._flights: list[tuple[Flight, Sequence[int]]] = []
        self._blank = torch.zeros(())

    def depart(
        self, flight: Flight, numbers: Sequence[int], shapes: Sequence[torch.Size], like: Tensor
    ) -> list[Tensor]:
        """Placeholders for gradients `numbers`, which are in flight to tensors of these shapes."""
        if not self._flights:
            self._blank = torch.zeros((), dtype=like.dtype, device=like.device)
        self._flights.append((flight, numbers))
        return [self._blank.expand(shapes[number]) for number in numbers]

    def arrive(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The gradients, with those that were in flight, in the order in which they were sent, and further ones that
        came beside."""
        sums: dict[int, Tensor] = {}
        flights, self._flights = self._flights, []
        for flight, numbers in flights:
            for number, made in zip(numbers, flight.wait(), strict=True):
                sums[number] = sums[number] + made if number in sums else made
        found = list(gradients)
        for number, made in sums.items():
            beside = found[number]
            is_blank = beside is None or beside.data_ptr() == self._blank.data_ptr()
            found[number] = made if is_blank else made + beside
        return found


class _Awaited(torch.autograd.Function):  # type: ignore[misc]
    """Weights unchanged; their gradients are what `flights` bring, waited for here."""

    @staticmethod
    def forward(ctx: Any, flights: Flights, *locals_: Tensor) -> tuple[Tensor, ...]:
        ctx.flights = flights
        ctx.set_materialize_grads(False)
        return tuple(tensor.detach() for tensor in locals_)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return (None, *ctx.flights.arrive(gradients))


def await_gradients(locals_: Sequence[Tensor]) -> tuple[Flights, list[Tensor]]:
    """The local parts of weights whose gradients are awaited after everything that is computed from here on, and the
    object to which the senders report."""
    flights = Flights()
    return flights, list(_Awaited.apply(flights, *locals_))
