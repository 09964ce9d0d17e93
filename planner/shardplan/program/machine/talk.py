"""Kernels as generators, and their lockstep on a mesh.

A kernel is what one device runs in place of an operator. It yields what it asks of the devices of its group and is sent
the answer. All devices run the same kernel, so all ask for the same thing at the same time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from shardplan.layout.mesh import Mesh
from shardplan.program.collectives import COMBINE
from shardplan.program.types import Array, Local, Site

Operands = list[Array | None]
Coordinates = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """`all_reduce` by `reduction`; `all_gather` along `dim`; `shift`: get the array of the neighbour `offset` places
    before in the group (None where there is none). `axes`: the group, major first.
    """

    kind: Literal["all_reduce", "all_gather", "shift"]
    array: Array
    axes: tuple[int, ...]
    reduction: str = "sum"
    dim: int = 0
    offset: int = 0


Running = Generator[Ask, "Array | None", list[Array]]
Kernel = Callable[[Site, Local, Operands, Coordinates], Running]
Asking = Generator[Ask, "Array | None", Array]


def all_reduce(array: Array, axes: tuple[int, ...], reduction: str = "sum") -> Asking:
    """Ask for the combined values of the group; used with `yield from`."""
    answer = yield Ask("all_reduce", array, axes, reduction)
    assert answer is not None
    return answer


def all_gather(array: Array, axes: tuple[int, ...], dim: int) -> Asking:
    """Ask for the arrays of the group, joined along `dim` in the order of the group."""
    answer = yield Ask("all_gather", array, axes, dim=dim)
    assert answer is not None
    return answer


class Talk:
    """Lockstep of kernels on all devices. `moved`: bytes received by all devices, added up by kind of collective."""

    def __init__(self, mesh: Mesh, moved: Counter[str]) -> None:
        self.mesh, self.moved = mesh, moved

    def hold(self, kernels: Sequence[Running]) -> list[list[Array]]:
        """Run all kernels, one per rank, to their end; results by rank."""
        answers: list[Array | None] = [None] * len(kernels)
        while True:
            asks: list[Ask] = []
            results: list[list[Array]] = []
            for kernel, answer in zip(kernels, answers, strict=True):
                try:
                    asks.append(kernel.send(answer))
                except StopIteration as stop:
                    results.append(stop.value)
            if results:
                assert not asks, "some devices wait for others that have ended"
                return results
            answers = self._answer(asks)

    def _answer(self, asks: Sequence[Ask]) -> list[Array | None]:
        first = asks[0]
        agreed = {(ask.kind, ask.axes, ask.reduction, ask.dim, ask.offset) for ask in asks}
        assert len(agreed) == 1, "devices ask for different collectives"
        answers: list[Array | None] = [None] * len(asks)
        places = tuple(self.mesh.coordinates())
        for members in self.mesh.groups(first.axes):
            ordered = sorted(members, key=lambda rank: self.mesh.number(first.axes, places[rank]))
            arrays = [asks[rank].array for rank in ordered]
            if first.kind == "shift":
                for number, rank in enumerate(ordered):
                    answers[rank] = self._neighbour(first, arrays, number)
            else:
                joined = self._joined(first, arrays)
                for rank in ordered:
                    answers[rank] = joined
        return answers

    def _joined(self, ask: Ask, arrays: Sequence[Array]) -> Array:
        foreign = (len(arrays) - 1) * arrays[0].nbytes
        if ask.kind == "all_gather":
            self.moved["all_gather"] += foreign * len(arrays)
            return np.concatenate(arrays, axis=ask.dim)
        self.moved["all_reduce"] += 2 * foreign
        combined = arrays[0]
        for array in arrays[1:]:
            combined = COMBINE[ask.reduction](combined, array)
        return combined

    def _neighbour(self, ask: Ask, arrays: Sequence[Array], number: int) -> Array | None:
        sender = number - ask.offset
        if not 0 <= sender < len(arrays):
            return None
        self.moved["permute"] += arrays[sender].nbytes
        return arrays[sender]
