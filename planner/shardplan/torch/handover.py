"""What one stage of a pipeline hands to another: which process sends which part to whom.

It follows from the layouts at both ends alone. Every process gets what it wants from those that hold it; processes that
hold the same share the sending. Where the plan says so, every receiver is sent a different part, and they gather what
they want among themselves. Stages may have any numbers of devices, meshes of any shapes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor

from shardplan.layout.collective import Collective
from shardplan.layout.layout import Layout
from shardplan.layout.legal import is_legal, local_shape
from shardplan.layout.lower import Step
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import S
from shardplan.plan.types import CollectiveStep
from shardplan.runtime.shards import Runs, runs_of
from shardplan.torch.grid import Grid
from shardplan.torch.steps import Box, box_size, run_step, shared_boxes

Boxes = tuple[tuple[Box, Box], ...]
"""Places in a receiver's tensor and in a sender's, that are the same."""


@dataclass(frozen=True, slots=True)
class End:
    """One side of a handover: a plain layout, nothing partial, on the processes of a stage, from `first` on."""

    layout: Layout
    mesh: Mesh
    first: int

    def parts(self, shape: tuple[int, ...]) -> dict[Runs, list[int]]:
        """The processes by what they hold of a tensor of whole `shape`."""
        found: dict[Runs, list[int]] = {}
        for rank, place in enumerate(self.mesh.coordinates(), self.first):
            found.setdefault(runs_of(self.layout, self.mesh, shape, place), []).append(rank)
        return found


@dataclass(frozen=True, slots=True)
class Message:
    """One process sends another elements `start` to `stop` of what their parts share, `boxes`, one after the other."""

    sender: int
    receiver: int
    boxes: Boxes
    start: int
    stop: int


def messages(source: End, target: End, shape: tuple[int, ...]) -> tuple[Message, ...]:
    """Everything that is sent. Of n processes that hold the same, each sends one n-th of all that is wanted of it,
    receiver after receiver."""
    wanting = target.parts(shape)
    found = []
    for held, senders in source.parts(shape).items():
        asked = [(ranks, tuple(shared_boxes(wanted, held))) for wanted, ranks in wanting.items()]
        receivers = sorted((rank, boxes) for ranks, boxes in asked if boxes for rank in ranks)
        sizes = [sum(box_size(box) for box, _ in boxes) for _, boxes in receivers]
        cuts = [number * sum(sizes) // len(senders) for number in range(len(senders) + 1)]
        for (receiver, boxes), size, end in zip(receivers, sizes, itertools.accumulate(sizes), strict=True):
            begin = end - size
            for sender, (low, high) in zip(senders, itertools.pairwise(cuts), strict=True):
                start, stop = max(low, begin) - begin, min(high, end) - begin
                if start < stop:
                    found.append(Message(sender, receiver, boxes, start, stop))
    return tuple(found)


class Handover:
    """A value on its way from the processes of one stage to those of another; made alike on all of them.

    `steps`: how the plan hands it on, a send and perhaps a gather after it; `grid`: this process's, among the receivers
    where it is one of them.
    """

    def __init__(
        self,
        source: End,
        target: End,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        steps: Sequence[CollectiveStep],
        grid: Grid,
    ) -> None:
        self.wire, self.gather = first_end(target, steps, shape)
        self.source, self.shape, self.dtype, self.grid = source, shape, dtype, grid
        rank, sent = dist.get_rank(), messages(source, self.wire, shape)
        self.outgoing = [message for message in sent if message.sender == rank]
        self.incoming = [message for message in sent if message.receiver == rank]

    def sends(self, local: Tensor) -> list[dist.P2POp]:
        """What this process, a sender, sends to others of what it holds."""
        others = [message for message in self.outgoing if message.receiver != dist.get_rank()]
        return [dist.P2POp(dist.isend, _content(message, local), message.receiver) for message in others]

    def nothing(self) -> Tensor:
        """Zeros, for what a sender holds."""
        shape = local_shape(self.source.layout, self.source.mesh, self.shape)
        return torch.zeros(shape, dtype=self.dtype, device=self.grid.device)

    def carry(self, local: Tensor | None) -> Tensor | None:
        """The whole handover at once, by all processes of both sides: `local` on senders; on receivers, what they
        get."""
        arrival = Arrival(self)
        if local is not None:
            arrival.keep(local)
        ops = [*([] if local is None else self.sends(local)), *arrival.receives()]
        for work in dist.batch_isend_irecv(ops) if ops else ():
            work.wait()
        return arrival.value() if self.incoming else None


def _content(message: Message, local: Tensor) -> Tensor:
    parts = [local[box].reshape(-1) for _, box in message.boxes]
    return (parts[0] if len(parts) == 1 else torch.cat(parts))[message.start : message.stop]


class Arrival:
    """What one process is sent, under way."""

    def __init__(self, handover: Handover) -> None:
        self.handover, device = handover, handover.grid.device
        self._parts: list[tuple[Boxes, Tensor]] = []
        self._room: list[tuple[Message, Tensor]] = []
        for boxes, sharing in itertools.groupby(handover.incoming, lambda message: message.boxes):
            flat = torch.empty(sum(box_size(box) for box, _ in boxes), dtype=handover.dtype, device=device)
            self._parts.append((boxes, flat))
            self._room += [(message, flat[message.start : message.stop]) for message in sharing]

    def receives(self) -> list[dist.P2POp]:
        """To be waited for before `value`."""
        others = [(message, room) for message, room in self._room if message.sender != dist.get_rank()]
        return [dist.P2POp(dist.irecv, room, message.sender) for message, room in others]

    def keep(self, local: Tensor) -> None:
        """What this process would send itself."""
        for message, room in self._room:
            if message.sender == dist.get_rank():
                room.copy_(_content(message, local))

    def value(self) -> Tensor:
        """What this process wants, of all that has arrived."""
        handover = self.handover
        made = self._parts[0][1].new_empty(local_shape(handover.wire.layout, handover.wire.mesh, handover.shape))
        for boxes, flat in self._parts:
            start = 0
            for box, _ in boxes:
                part = made[box]
                part.copy_(flat[start : start + part.numel()].view(part.shape))
                start += part.numel()
        if handover.gather is None:
            return made
        with handover.grid.sending("handover"):
            return run_step(made, handover.wire.layout, handover.gather, handover.shape, handover.grid)


def first_end(target: End, steps: Sequence[CollectiveStep], shape: tuple[int, ...]) -> tuple[End, Step | None]:
    """How receivers are sent a value, and the gather that brings it to `target` from there, if the plan has one."""
    gather = next((step.collective for step in steps if step.collective.kind == "all_gather"), None)
    if gather is None:
        return target, None
    layout = _in_pieces(target, gather, shape)
    return replace(target, layout=layout), None if layout == target.layout else Step(gather, target.layout)


def _in_pieces(target: End, gather: Collective, shape: tuple[int, ...]) -> Layout:
    """The layout in which receivers get what they gather along some axes: each a different part; `target`'s where no
    dim can be cut so, or one of the axes cuts it already."""
    layout = target.layout
    if any(layout.placements[axis].is_shard for axis in gather.axes):
        return layout
    order = [axis for axis in layout.order if axis not in gather.axes] + list(gather.axes)
    sharded = {dim for dim, _ in layout.dims()}
    for dim in sorted(range(len(shape)), key=lambda dim: (dim in sharded, dim)):
        pieces = [S(dim) if axis in gather.axes else p for axis, p in enumerate(layout.placements)]
        made = Layout.of(*pieces, order=order)
        if is_legal(made, target.mesh, shape):
            return made
    return layout
