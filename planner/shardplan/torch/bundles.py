"""Moves of several weights in one: the same collectives over the same axes, each of them run on all local tensors in a
row.

What goes where within a tensor is as in `shardplan.torch.steps`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from shardplan.cost.coalesce import COALESCED
from shardplan.layout.layout import Layout
from shardplan.layout.lower import Step
from shardplan.torch.grid import Grid
from shardplan.torch.steps import Exchange, run_step


class Path(NamedTuple):
    """The steps of a tensor of whole `shape` from the plain layout `source`."""

    source: Layout
    steps: Sequence[Step]
    shape: tuple[int, ...]


def run_together(locals_: Sequence[Tensor], paths: Sequence[Path], grid: Grid) -> list[Tensor]:
    """What this process holds after the steps of all `paths`, which have the same collectives one by one; where dtypes
    differ, those of one dtype go together."""
    found: dict[int, Tensor] = {}
    for dtype in dict.fromkeys(local.dtype for local in locals_):
        numbers = [number for number, local in enumerate(locals_) if local.dtype == dtype]
        made = _run([locals_[number] for number in numbers], [paths[number] for number in numbers], grid)
        found |= dict(zip(numbers, made, strict=True))
    return [found[number] for number in range(len(locals_))]


def _run(locals_: list[Tensor], paths: list[Path], grid: Grid) -> list[Tensor]:
    layouts = [path.source for path in paths]
    for steps in zip(*(path.steps for path in paths), strict=True):
        collective = steps[0].collective
        shapes = [path.shape for path in paths]
        if collective.kind not in COALESCED or grid.mesh.ways(collective.axes) == 1 or len(paths) == 1:
            alone = zip(locals_, layouts, steps, shapes, strict=True)
            locals_ = [run_step(local, layout, step, shape, grid) for local, layout, step, shape in alone]
        else:
            rows = zip(layouts, steps, shapes, strict=True)
            exchanges = [Exchange(grid, step.collective, layout, step.target, shape) for layout, step, shape in rows]
            locals_ = _ACTS[collective.kind](locals_, exchanges, grid)
        layouts = [step.target for step in steps]
    return locals_


def _all_reduce(locals_: list[Tensor], exchanges: list[Exchange], grid: Grid) -> list[Tensor]:
    group, _ = grid.group(exchanges[0].collective.axes)
    flat = torch.cat([local.reshape(-1) for local in locals_])
    dist.all_reduce(flat, exchanges[0].combine, group)
    pieces = flat.split([local.numel() for local in locals_])
    return [piece.view(local.shape) for piece, local in zip(pieces, locals_, strict=True)]


def _all_gather(locals_: list[Tensor], exchanges: list[Exchange], grid: Grid) -> list[Tensor]:
    group, ranks = grid.group(exchanges[0].collective.axes)
    mine = torch.cat([local.reshape(-1) for local in locals_])
    flat = mine.new_empty(len(ranks) * mine.numel())
    dist.all_gather_single(flat, mine, group)
    pieces = flat.view(len(ranks), -1).split([local.numel() for local in locals_], dim=1)
    rows = zip(pieces, locals_, exchanges, strict=True)
    return [exchange.joined(piece.reshape(len(ranks), *local.shape)) for piece, local, exchange in rows]


def _reduce_scatter(locals_: list[Tensor], exchanges: list[Exchange], grid: Grid) -> list[Tensor]:
    group, _ = grid.group(exchanges[0].collective.axes)
    parts = [exchange.apart(local) for exchange, local in zip(exchanges, locals_, strict=True)]
    flat = torch.cat(parts, dim=1)
    made = flat.new_empty(flat.shape[1])
    dist.reduce_scatter_single(made, flat.view(-1), exchanges[0].combine, group)
    pieces = made.split([part.shape[1] for part in parts])
    return [piece.view(exchange.wanted_shape) for piece, exchange in zip(pieces, exchanges, strict=True)]


_ACTS = {"all_reduce": _all_reduce, "all_gather": _all_gather, "reduce_scatter": _reduce_scatter}
