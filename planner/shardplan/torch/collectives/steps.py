"""One collective of a move on local tensors, given the layouts before and after it.

What goes where follows from the layouts before and after alone (`shardplan.runtime.shards.runs_of`): every member of a
group computes what each other member holds and wants. So a few functions handle every order of axes, fused dim and
group of several axes. Nothing here takes part in autograd: see `shardplan.torch.gradients.moves`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
import torch.distributed as dist
from torch import Tensor

from shardplan.layout.collective import Collective
from shardplan.layout.layout import Layout
from shardplan.layout.legal import local_shape
from shardplan.layout.lower import Step
from shardplan.layout.mesh import Mesh
from shardplan.runtime.shards import Run, Runs, runs_of
from shardplan.torch.process_groups import ProcessGroups

Box = tuple[slice, ...]
_COMBINE = {
    "sum": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
    "prod": dist.ReduceOp.PRODUCT,
}


def run_steps(
    local: Tensor, source: Layout, steps: Sequence[Step], shape: tuple[int, ...], groups: ProcessGroups
) -> Tensor:
    """The local tensor after all `steps` of a move of a tensor of global `shape` from the layout `source`."""
    layout = source.forward
    for step in steps:
        local = run_step(local, layout, step, shape, groups)
        layout = step.target
    return local


def shard_of_whole(tensor: Tensor, layout: Layout, groups: ProcessGroups) -> Tensor:
    """The shard of this process, in a plain layout, of a tensor that it has whole; nothing is sent."""
    exchange = Exchange(
        groups, Collective("slice", (), Fraction(0)), Layout.replicated(len(groups.mesh)), layout, tuple(tensor.shape)
    )
    return exchange.slice(tensor)


def run_step(local: Tensor, source: Layout, step: Step, shape: tuple[int, ...], groups: ProcessGroups) -> Tensor:
    """The local tensor after one step."""
    collective, target = step.collective, step.target
    if groups.mesh.ways(collective.axes) == 1:
        return local
    wire = local.to(torch.uint8) if local.dtype == torch.bool else local.resolve_conj().resolve_neg()
    exchange = Exchange(groups, collective, source, target, shape)
    match collective.kind:
        case "slice":
            result = exchange.slice(wire)
        case "mask":
            result = exchange.mask(wire)
        case "all_gather":
            result = exchange.all_gather(wire)
        case "all_reduce":
            result = exchange.all_reduce(wire)
        case "reduce_scatter":
            result = exchange.reduce_scatter(wire)
        case "all_to_all" | "permute":
            result = exchange.send(wire, whole=collective.kind == "permute")
    return result.to(local.dtype)


@dataclass(frozen=True)
class Exchange:
    """One collective; `held`, `wanted`: the index ranges of any rank before and after it."""

    groups: ProcessGroups
    collective: Collective
    source: Layout
    target: Layout
    shape: tuple[int, ...]

    def held(self, rank: int) -> Runs:
        return _runs(self.source, self.groups.mesh, self.shape, rank)

    def wanted(self, rank: int) -> Runs:
        return _runs(self.target, self.groups.mesh, self.shape, rank)

    @property
    def wanted_shape(self) -> tuple[int, ...]:
        return local_shape(self.target, self.groups.mesh, self.shape)

    @property
    def combine(self) -> dist.ReduceOp.RedOpType:
        return _COMBINE[next((p.reduction for p in self.source.placements if p.kind == "P"), "sum")]

    def slice(self, local: Tensor) -> Tensor:
        """Keeps the wanted part of the local tensor."""
        return self._part(local, self.held(self.groups.rank), self.wanted(self.groups.rank))

    def mask(self, local: Tensor) -> Tensor:
        """The local tensor among zeros; of several processes that hold the same, the first keeps it."""
        made = local.new_zeros(self.wanted_shape)
        axes, places = self.collective.axes, self.groups.coordinates
        if not any(places[axis] for axis in axes if not self.source.placements[axis].is_shard):
            for wanted, held in shared_boxes(self.wanted(self.groups.rank), self.held(self.groups.rank)):
                made[wanted] = local[held]
        return made

    def all_reduce(self, local: Tensor) -> Tensor:
        group, _ = self.groups.along(self.collective.axes)
        made = local.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(made, self.combine, group)
        return made

    def all_gather(self, local: Tensor) -> Tensor:
        group, ranks = self.groups.along(self.collective.axes)
        flat = local.new_empty(len(ranks) * local.numel())
        dist.all_gather_single(flat, local.contiguous().view(-1), group)
        return self.joined(flat.view(len(ranks), *local.shape))

    def joined(self, parts: Tensor) -> Tensor:
        """The wanted tensor, from those of all members, concatenated along a dim in front of the others."""
        _, ranks = self.groups.along(self.collective.axes)
        dim = self._joined_dim(ranks)
        if dim is not None:
            return parts.movedim(0, dim).reshape(self.wanted_shape)
        made, mine = parts.new_empty(self.wanted_shape), self.wanted(self.groups.rank)
        for part, rank in zip(parts, ranks, strict=True):
            for wanted, held in shared_boxes(mine, self.held(rank)):
                made[wanted] = part[held]
        return made

    def reduce_scatter(self, local: Tensor) -> Tensor:
        group, _ = self.groups.along(self.collective.axes)
        parts = self.apart(local)
        made = local.new_empty(parts.shape[1])
        dist.reduce_scatter_single(made, parts.view(-1), self.combine, group)
        return made.view(self.wanted_shape)

    def apart(self, local: Tensor) -> Tensor:
        """The part of a local tensor that every member wants, flattened, in rows."""
        _, ranks = self.groups.along(self.collective.axes)
        held = self.held(self.groups.rank)
        return torch.stack([self._part(local, held, self.wanted(rank)).view(-1) for rank in ranks])

    def send(self, local: Tensor, *, whole: bool) -> Tensor:
        """Every member sends every other what it wants (`all_to_all`), or its whole part to one other (`permute`)."""
        group, ranks = self.groups.along(self.collective.axes)
        senders = self._senders(ranks) if whole else None
        sent, received = self._plan_sending(ranks, senders)
        pieces = [torch.cat([local[held].reshape(-1) for _, held in boxes]) for boxes in sent if boxes]
        out = [sum(box_size(box) for box, _ in boxes) for boxes in received]
        arrived = local.new_empty(sum(out))
        outgoing = torch.cat(pieces) if pieces else local.new_empty(0)
        counts = [sum(box_size(box) for _, box in boxes) for boxes in sent]
        dist.all_to_all_single(arrived, outgoing, out, counts, group)
        made, start = local.new_empty(self.wanted_shape), 0
        for boxes in received:
            for box, _ in boxes:
                shape = tuple(part.stop - part.start for part in box)
                made[box] = arrived[start : start + box_size(box)].view(shape)
                start += box_size(box)
        return made

    def _plan_sending(
        self, ranks: tuple[int, ...], senders: dict[int, int] | None
    ) -> tuple[list[list[tuple[Box, Box]]], list[list[tuple[Box, Box]]]]:
        """For every member, (place in its tensor, place in mine) of what this process receives, and the reverse of what
        it sends."""
        me = self.groups.rank
        sent = [
            list(shared_boxes(self.wanted(rank), self.held(me))) if senders is None or senders[rank] == me else []
            for rank in ranks
        ]
        received = [
            list(shared_boxes(self.wanted(me), self.held(rank))) if senders is None or senders[me] == rank else []
            for rank in ranks
        ]
        return sent, received

    def _senders(self, ranks: tuple[int, ...]) -> dict[int, int]:
        """Receiver -> sender, so that every member sends once."""
        offers: dict[tuple[Runs, int], list[int]] = {}
        for rank in ranks:
            offers.setdefault((self.held(rank), self._partial(self.source, rank)), []).append(rank)
        return {rank: offers[self.wanted(rank), self._partial(self.target, rank)].pop(0) for rank in ranks}

    def _partial(self, layout: Layout, rank: int) -> int:
        places = _places(self.groups.mesh, rank)
        axes = [axis for axis in self.collective.axes if layout.placements[axis].kind == "P"]
        return self.groups.mesh.number(sorted(axes), places)

    def _part(self, local: Tensor, held: Runs, wanted: Runs) -> Tensor:
        """The part `wanted` of a local tensor that is `held`; a copy, so that the rest can be freed."""
        for dim, (have, want) in enumerate(zip(held, wanted, strict=True)):
            if have != want:
                runs = [(mine.start, mine.stop) for _, mine in _overlaps(want, have)]
                parts = [local.narrow(dim, start, stop - start) for start, stop in runs]
                local = parts[0] if len(parts) == 1 else torch.cat(parts, dim)
        return local.clone(memory_format=torch.contiguous_format)

    def _joined_dim(self, ranks: tuple[int, ...]) -> int | None:
        """The dim along which the parts are concatenated in the group's order, if there is one."""
        mine = self.wanted(self.groups.rank)
        changed = [dim for dim, runs in enumerate(self.held(self.groups.rank)) if runs != mine[dim]]
        if len(changed) != 1:
            return None
        dim = changed[0]
        parts = [self.held(rank)[dim] for rank in ranks]
        ends = [mine[dim][0][0], *(runs[0][1] for runs in parts)]
        simple = all(len(runs) == 1 and runs[0][0] == start for runs, start in zip(parts, ends, strict=False))
        return dim if simple and len(mine[dim]) == 1 else None


@functools.lru_cache(maxsize=8192)
def _runs(layout: Layout, mesh: Mesh, shape: tuple[int, ...], rank: int) -> Runs:
    return runs_of(layout, mesh, shape, _places(mesh, rank))


@functools.lru_cache(maxsize=4096)
def _places(mesh: Mesh, rank: int) -> tuple[int, ...]:
    return next(itertools.islice(mesh.coordinates(), rank, None))


def box_size(box: Box) -> int:
    """How many elements there are in a box."""
    size = 1
    for part in box:
        size *= part.stop - part.start
    return size


def _overlaps(one: Sequence[Run], other: Sequence[Run]) -> list[tuple[slice, slice]]:
    """What two lists of runs of a dim share: its places in either local tensor, in the order of the first."""
    found, offset = [], 0
    for start, stop in one:
        at = 0
        for begin, end in other:
            low, high = max(start, begin), min(stop, end)
            if low < high:
                found.append(
                    (slice(offset + low - start, offset + high - start), slice(at + low - begin, at + high - begin))
                )
            at += end - begin
        offset += stop - start
    return found


def shared_boxes(one: Runs, other: Runs) -> list[tuple[Box, Box]]:
    """Boxes that two local tensors share, as places in either, in row-major order of the first."""
    dims = [_overlaps(mine, theirs) for mine, theirs in zip(one, other, strict=True)]
    return [
        (tuple(pair[0] for pair in chosen), tuple(pair[1] for pair in chosen)) for chosen in itertools.product(*dims)
    ]
