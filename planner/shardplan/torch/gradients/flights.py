"""Asynchronous gradient reductions: issued when the gradients are made, awaited when no compute is left.

Whoever sends a gradient hands on a blank in its place. A function between the sender and the weight, older than all
that computes, waits for what was sent: autograd runs backward functions that are ready in the reverse order of their
making, so that this one comes last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from shardplan.torch.collectives.executor import Flight


class Flights:
    """The gradients of some weights from when they are sent to when they are waited for. What autograd hands on
    meanwhile in place of each is `blank`: a zero, expanded."""

    def __init__(self) -> None:
        self._flights: list[tuple[Flight, Sequence[int]]] = []
        self._blank = torch.zeros(())

    def depart(
        self, flight: Flight, numbers: Sequence[int], shapes: Sequence[torch.Size], like: Tensor
    ) -> list[Tensor]:
        """Blanks for gradients `numbers`, which are on their way to tensors of these shapes."""
        if not self._flights:
            self._blank = torch.zeros((), dtype=like.dtype, device=like.device)
        self._flights.append((flight, numbers))
        return [self._blank.expand(shapes[number]) for number in numbers]

    def arrive(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The gradients, with what was on its way, in the order in which it was sent, and what else came beside."""
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
    """The local parts of weights, whose gradients are waited for after all that is computed from here on, and where
    whoever sends them is to say so."""
    flights = Flights()
    return flights, list(_Awaited.apply(flights, *locals_))
