"""Coalesced collectives: the same collectives over the same axes for several tensors, each issued once for all.

What goes where within a tensor is as in `shardplan.torch.collectives.steps`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from shardplan.cost.coalesce import COALESCED
from shardplan.torch.collectives.routes import TensorSteps
from shardplan.torch.collectives.steps import Exchange, run_step
from shardplan.torch.process_groups import ProcessGroups


def run_coalesced(locals_: Sequence[Tensor], tensors: Sequence[TensorSteps], groups: ProcessGroups) -> list[Tensor]:
    """The local tensors after the steps of all `tensors`, which have the same collectives one by one; those of one
    dtype share a collective."""
    made = list(locals_)
    for place in range(len(tensors[0].steps) if tensors else 0):
        made = run_coalesced_step(made, tensors, place, groups)
    return made


def run_coalesced_step(
    locals_: Sequence[Tensor], tensors: Sequence[TensorSteps], place: int, groups: ProcessGroups
) -> list[Tensor]:
    """The local tensors after the step at `place`, from those before it."""
    found: dict[int, Tensor] = {}
    for dtype in dict.fromkeys(local.dtype for local in locals_):
        numbers = [number for number, local in enumerate(locals_) if local.dtype == dtype]
        own = _step([locals_[number] for number in numbers], [tensors[number] for number in numbers], place, groups)
        found |= zip(numbers, own, strict=True)
    return [found[number] for number in range(len(locals_))]


def _step(locals_: list[Tensor], tensors: list[TensorSteps], place: int, groups: ProcessGroups) -> list[Tensor]:
    steps = [tensor.steps[place] for tensor in tensors]
    layouts = [tensor.steps[place - 1].target if place else tensor.source.forward for tensor in tensors]
    rows = list(zip(layouts, steps, (tensor.shape for tensor in tensors), strict=True))
    collective = steps[0].collective
    if len(tensors) == 1 or collective.kind not in COALESCED or groups.mesh.ways(collective.axes) == 1:
        return [run_step(local, *row, groups) for local, row in zip(locals_, rows, strict=True)]
    exchanges = [Exchange(groups, step.collective, layout, step.target, shape) for layout, step, shape in rows]
    return _JOINT[collective.kind](locals_, exchanges, groups)


def _all_reduce(locals_: list[Tensor], exchanges: list[Exchange], groups: ProcessGroups) -> list[Tensor]:
    group, _ = groups.along(exchanges[0].collective.axes)
    flat = torch.cat([local.reshape(-1) for local in locals_])
    dist.all_reduce(flat, exchanges[0].combine, group)
    pieces = flat.split([local.numel() for local in locals_])
    return [piece.view(local.shape) for piece, local in zip(pieces, locals_, strict=True)]


def _all_gather(locals_: list[Tensor], exchanges: list[Exchange], groups: ProcessGroups) -> list[Tensor]:
    group, ranks = groups.along(exchanges[0].collective.axes)
    mine = torch.cat([local.reshape(-1) for local in locals_])
    flat = mine.new_empty(len(ranks) * mine.numel())
    dist.all_gather_single(flat, mine, group)
    pieces = flat.view(len(ranks), -1).split([local.numel() for local in locals_], dim=1)
    rows = zip(pieces, locals_, exchanges, strict=True)
    return [exchange.joined(piece.reshape(len(ranks), *local.shape)) for piece, local, exchange in rows]


def _reduce_scatter(locals_: list[Tensor], exchanges: list[Exchange], groups: ProcessGroups) -> list[Tensor]:
    group, _ = groups.along(exchanges[0].collective.axes)
    parts = [exchange.apart(local) for exchange, local in zip(exchanges, locals_, strict=True)]
    flat = torch.cat(parts, dim=1)
    made = flat.new_empty(flat.shape[1])
    dist.reduce_scatter_single(made, flat.view(-1), exchanges[0].combine, group)
    pieces = made.split([part.shape[1] for part in parts])
    return [piece.view(exchange.wanted_shape) for piece, exchange in zip(pieces, exchanges, strict=True)]


_JOINT = {"all_reduce": _all_reduce, "all_gather": _all_gather, "reduce_scatter": _reduce_scatter}
