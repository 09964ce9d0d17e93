"""Inter-stage send/receive: the messages that bring a tensor from the layout of one stage to that of another.

They follow from the layouts at both endpoints alone. Every process receives its part from the processes that hold it;
replicas share the sending. Where the plan has an all-gather after the send, each receiver is sent a different part, and
the receivers gather the rest among themselves. Stages may have any numbers of devices and meshes of any shapes.
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
from shardplan.torch.collectives.executor import MoveExecutor
from shardplan.torch.collectives.order import Label
from shardplan.torch.collectives.routes import TensorSteps
from shardplan.torch.collectives.steps import Box, box_size, shared_boxes
from shardplan.torch.process_groups import ProcessGroups

Boxes = tuple[tuple[Box, Box], ...]
"""Pairs of equal boxes: one in the receiver's local tensor, one in the sender's."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One side of a transfer: a plain layout without partial sums, on the processes of a stage from `first_rank` on."""

    layout: Layout
    mesh: Mesh
    first_rank: int

    def parts(self, shape: tuple[int, ...]) -> dict[Runs, list[int]]:
        """The processes by what they hold of a tensor of global `shape`."""
        found: dict[Runs, list[int]] = {}
        for rank, place in enumerate(self.mesh.coordinates(), self.first_rank):
            found.setdefault(runs_of(self.layout, self.mesh, shape, place), []).append(rank)
        return found


@dataclass(frozen=True, slots=True)
class Message:
    """Elements `start` to `stop` of the concatenated `boxes` that two processes share, sent from one to the other."""

    sender: int
    receiver: int
    boxes: Boxes
    start: int
    stop: int


def messages(source: Endpoint, target: Endpoint, shape: tuple[int, ...]) -> tuple[Message, ...]:
    """All messages of a transfer. Each of n replicas sends one n-th of what receivers need of their part, in the order
    of receivers."""
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


class SendReceive:
    """The transfer of one tensor from the processes of a stage to those of another; constructed alike on all of them.

    `steps`: of the plan: a send, perhaps followed by an all-gather. `groups`: of this process (of the receiving stage
    where it is part of it).
    """

    def __init__(
        self,
        source: Endpoint,
        target: Endpoint,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        steps: Sequence[CollectiveStep],
        groups: ProcessGroups,
    ) -> None:
        self.wire, self.gather = wire_endpoint(target, steps, shape)
        self.source, self.shape, self.dtype, self.groups = source, shape, dtype, groups
        rank, sent = dist.get_rank(), messages(source, self.wire, shape)
        self.outgoing = [message for message in sent if message.sender == rank]
        self.incoming = [message for message in sent if message.receiver == rank]

    def sends(self, local: Tensor) -> list[dist.P2POp]:
        """The sends of this process, which holds `local`."""
        others = [message for message in self.outgoing if message.receiver != dist.get_rank()]
        return [dist.P2POp(dist.isend, _payload(message, local), message.receiver) for message in others]

    def zeros(self) -> Tensor:
        """Zeros in the shape that a sender holds."""
        shape = local_shape(self.source.layout, self.source.mesh, self.shape)
        return torch.zeros(shape, dtype=self.dtype, device=self.groups.device)

    def run(self, local: Tensor | None) -> Tensor | None:
        """Send and receive, by all processes of both stages: `local` on senders; returns what this process receives."""
        pending = PendingReceive(self)
        if local is not None:
            pending.keep_local(local)
        ops = [*([] if local is None else self.sends(local)), *pending.receives()]
        for work in dist.batch_isend_irecv(ops) if ops else ():
            work.wait()
        return pending.value() if self.incoming else None


def _payload(message: Message, local: Tensor) -> Tensor:
    parts = [local[box].reshape(-1) for _, box in message.boxes]
    return (parts[0] if len(parts) == 1 else torch.cat(parts))[message.start : message.stop]


class PendingReceive:
    """The buffers of one process that receives."""

    def __init__(self, transfer: SendReceive) -> None:
        self.transfer, device = transfer, transfer.groups.device
        self._parts: list[tuple[Boxes, Tensor]] = []
        self._slices: list[tuple[Message, Tensor]] = []
        for boxes, sharing in itertools.groupby(transfer.incoming, lambda message: message.boxes):
            flat = torch.empty(sum(box_size(box) for box, _ in boxes), dtype=transfer.dtype, device=device)
            self._parts.append((boxes, flat))
            self._slices += [(message, flat[message.start : message.stop]) for message in sharing]

    def receives(self) -> list[dist.P2POp]:
        """The receives of this process; wait for them before `value`."""
        others = [(message, part) for message, part in self._slices if message.sender != dist.get_rank()]
        return [dist.P2POp(dist.irecv, part, message.sender) for message, part in others]

    def keep_local(self, local: Tensor) -> None:
        """Copy what this process has itself."""
        for message, part in self._slices:
            if message.sender == dist.get_rank():
                part.copy_(_payload(message, local))

    def value(self) -> Tensor:
        """The received local tensor, gathered where the plan does so."""
        transfer = self.transfer
        made = self._parts[0][1].new_empty(local_shape(transfer.wire.layout, transfer.wire.mesh, transfer.shape))
        for boxes, flat in self._parts:
            start = 0
            for box, _ in boxes:
                part = made[box]
                part.copy_(flat[start : start + part.numel()].view(part.shape))
                start += part.numel()
        if transfer.gather is None:
            return made
        move = TensorSteps(transfer.wire.layout, (transfer.gather,), transfer.shape)
        return MoveExecutor(transfer.groups).run([made], [move], Label(), "p2p")[0]


def wire_endpoint(
    target: Endpoint, steps: Sequence[CollectiveStep], shape: tuple[int, ...]
) -> tuple[Endpoint, Step | None]:
    """The layout in which receivers are sent a tensor, and the gather from there to `target`, if the plan has one."""
    gather = next((step.collective for step in steps if step.collective.kind == "all_gather"), None)
    if gather is None:
        return target, None
    layout = _before_gather(target, gather, shape)
    return replace(target, layout=layout), None if layout == target.layout else Step(gather, target.layout)


def _before_gather(target: Endpoint, gather: Collective, shape: tuple[int, ...]) -> Layout:
    """The layout of a tensor before an all-gather along some axes: each receiver has a different part; `target`'s own
    layout where no dim can be sharded so, or one of the axes shards it already."""
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
