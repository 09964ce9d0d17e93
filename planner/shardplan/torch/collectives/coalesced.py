"""Coalesced collectives: the same collectives over the same axes for several tensors, each issued once for all.

What goes where within a tensor is as in `shardplan.torch.collectives.steps`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from shardplan.cost.coalesce import COALESCED
from shardplan.torch.collectives.routes import TensorSteps
from shardplan.torch.collectives.steps import Exchange, run_step, run_steps
from shardplan.torch.process_groups import ProcessGroups


@dataclass(frozen=True)
class Flight:
    """Tensors on their way. `works`: the collectives that were issued; `arrived`: what this process then holds;
    `sent`: what is kept until then."""

    works: tuple[dist.Work, ...]
    arrived: Callable[[], list[Tensor]]
    sent: tuple[Tensor, ...] = ()

    def wait(self) -> list[Tensor]:
        """What this process holds when all has been sent."""
        for work in self.works:
            work.wait()
        return self.arrived()


def run_coalesced(locals_: Sequence[Tensor], tensors: Sequence[TensorSteps], groups: ProcessGroups) -> list[Tensor]:
    """What this process holds after the steps of all `tensors`, which have the same collectives one by one; those of
    one dtype share a collective."""
    if len(locals_) == 1:
        return [run_steps(locals_[0], *tensors[0], groups)]
    return start_coalesced(locals_, tensors, groups).wait()


def start_coalesced(locals_: Sequence[Tensor], tensors: Sequence[TensorSteps], groups: ProcessGroups) -> Flight:
    """The same, without waiting for the last collective where that is one of `COALESCED`."""
    flights: list[tuple[list[int], Flight]] = []
    for dtype in dict.fromkeys(local.dtype for local in locals_):
        numbers = [number for number, local in enumerate(locals_) if local.dtype == dtype]
        own = _start([locals_[number] for number in numbers], [tensors[number] for number in numbers], groups)
        flights.append((numbers, own))

    def arrived() -> list[Tensor]:
        found = {n: made for numbers, own in flights for n, made in zip(numbers, own.arrived(), strict=True)}
        return [found[number] for number in range(len(locals_))]

    works = tuple(work for _, own in flights for work in own.works)
    return Flight(works, arrived, tuple(tensor for _, own in flights for tensor in own.sent))


def _start(locals_: list[Tensor], tensors: list[TensorSteps], groups: ProcessGroups) -> Flight:
    layouts = [tensor.source for tensor in tensors]
    flight = Flight((), lambda: locals_)
    for steps in zip(*(tensor.steps for tensor in tensors), strict=True):
        now, collective = flight.wait(), steps[0].collective
        shapes = [tensor.shape for tensor in tensors]
        if collective.kind not in COALESCED or groups.mesh.ways(collective.axes) == 1:
            alone = zip(now, layouts, steps, shapes, strict=True)
            flight = _arrived([run_step(local, layout, step, shape, groups) for local, layout, step, shape in alone])
        else:
            rows = zip(layouts, steps, shapes, strict=True)
            exchanges = [Exchange(groups, step.collective, layout, step.target, shape) for layout, step, shape in rows]
            flight = _ISSUE[collective.kind](now, exchanges, groups)
        layouts = [step.target for step in steps]
    return flight


def _arrived(made: list[Tensor]) -> Flight:
    return Flight((), lambda: made)


def _all_reduce(locals_: list[Tensor], exchanges: list[Exchange], groups: ProcessGroups) -> Flight:
    group, _ = groups.along(exchanges[0].collective.axes)
    flat = torch.cat([local.reshape(-1) for local in locals_])
    work = dist.all_reduce(flat, exchanges[0].combine, group, async_op=True)

    def arrived() -> list[Tensor]:
        pieces = flat.split([local.numel() for local in locals_])
        return [piece.view(local.shape) for piece, local in zip(pieces, locals_, strict=True)]

    return Flight((work,), arrived, (flat,))


def _all_gather(locals_: list[Tensor], exchanges: list[Exchange], groups: ProcessGroups) -> Flight:
    group, ranks = groups.along(exchanges[0].collective.axes)
    mine = torch.cat([local.reshape(-1) for local in locals_])
    flat = mine.new_empty(len(ranks) * mine.numel())
    work = dist.all_gather_single(flat, mine, group, async_op=True)

    def arrived() -> list[Tensor]:
        pieces = flat.view(len(ranks), -1).split([local.numel() for local in locals_], dim=1)
        rows = zip(pieces, locals_, exchanges, strict=True)
        return [exchange.joined(piece.reshape(len(ranks), *local.shape)) for piece, local, exchange in rows]

    return Flight((work,), arrived, (mine,))


def _reduce_scatter(locals_: list[Tensor], exchanges: list[Exchange], groups: ProcessGroups) -> Flight:
    group, _ = groups.along(exchanges[0].collective.axes)
    parts = [exchange.apart(local) for exchange, local in zip(exchanges, locals_, strict=True)]
    flat = torch.cat(parts, dim=1)
    made = flat.new_empty(flat.shape[1])
    work = dist.reduce_scatter_single(made, flat.view(-1), exchanges[0].combine, group, async_op=True)

    def arrived() -> list[Tensor]:
        pieces = made.split([part.shape[1] for part in parts])
        return [piece.view(exchange.wanted_shape) for piece, exchange in zip(pieces, exchanges, strict=True)]

    return Flight((work,), arrived, (flat,))


_ISSUE = {"all_reduce": _all_reduce, "all_gather": _all_gather, "reduce_scatter": _reduce_scatter}
