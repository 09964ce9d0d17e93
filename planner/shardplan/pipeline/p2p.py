"""Inter-stage send/receive (P2P): collectives and time to move a value between the devices of two stages.

Every receiving device gets the part that its layout needs. Either the whole part is sent to it, or every device of the
receiving stage is sent a different piece of the value and they all-gather the rest among themselves (Alpa's local
all-gather), whichever is faster. Senders with the same shard divide the sending. Stages are assumed to be in different
machines if the cluster has several; the overlapped share of a transfer is the profile's overlap `p2p`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from shardplan.cluster.types import Cluster
from shardplan.cost.collectives import CollectiveModel
from shardplan.layout.collective import Collective
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.pipeline.submeshes import Submesh
from shardplan.plan.step.buckets import shard_count
from shardplan.plan.types import CollectiveStep
from shardplan.units import NS_PER_S

_MOST_HIDDEN = 0.95
_Links: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class SendReceive:
    """The steps of one transfer of one microbatch: a send (a `permute` over all axes), perhaps a gather after it."""

    steps: tuple[CollectiveStep, ...]

    @property
    def time_ns(self) -> int:
        return sum(step.time_ns for step in self.steps)


class Transfers:
    """Prices transfers between parts of one cluster; equal ones once."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.hidden = min(cluster.overlap.p2p, _MOST_HIDDEN)
        self._whole = CollectiveModel(cluster)
        self._outermost = next(iter(cluster.mesh.real_axes), 0)
        self._inside: dict[_Links, CollectiveModel] = {}
        self._known: dict[tuple[object, ...], SendReceive] = {}

    def send_receive(self, sender: Submesh, receiver: Submesh, target: Layout, size_bytes: int) -> SendReceive:
        """The transfer of a value of `size_bytes` (of one microbatch) into the layout `target` on `receiver`.

        Neither `target` nor the sender's layout has partial values, so every part of the value exists somewhere.
        """
        key = (_links(sender), _links(receiver), target, size_bytes)
        if key not in self._known:
            whole = self._sent(sender.size, receiver.size, receiver, target, size_bytes)
            parts = self._gathered(sender.size, receiver, target, size_bytes)
            self._known[key] = min((whole, parts), key=lambda found: found.time_ns)
        return self._known[key]

    def least_ns(self, sender: Submesh, receiver: Submesh, size_bytes: int) -> int:
        """A lower bound over all layouts: every device of the larger side sends or receives an equal part."""
        return self._send(Fraction(1, min(sender.size, receiver.size)), receiver.mesh, size_bytes).time_ns

    def _sent(self, senders: int, receivers: int, receiver: Submesh, target: Layout, size_bytes: int) -> SendReceive:
        share = Fraction(1, shard_count(target, receiver.mesh))
        return SendReceive((self._send(max(share, share * receivers / senders), receiver.mesh, size_bytes),))

    def _gathered(self, senders: int, receiver: Submesh, target: Layout, size_bytes: int) -> SendReceive:
        axes = tuple(
            axis
            for axis, placement in enumerate(target.placements)
            if not placement.is_shard and receiver.mesh.shape[axis] > 1
        )
        send = self._send(max(Fraction(1, senders), Fraction(1, receiver.size)), receiver.mesh, size_bytes)
        if not axes:
            return SendReceive((send,))
        gather = Collective("all_gather", axes, Fraction(1, shard_count(target, receiver.mesh)))
        model = self._inside.setdefault(_links(receiver), CollectiveModel(receiver.cluster))
        payload = float(gather.share) * size_bytes
        return SendReceive((send, _step(gather, payload, model.seconds("all_gather", axes, payload))))

    def _send(self, share: Fraction, mesh: Mesh, size_bytes: int) -> CollectiveStep:
        payload = float(share) * size_bytes
        seconds = self._whole.seconds("permute", (self._outermost,), payload)
        return _step(Collective("permute", tuple(range(len(mesh))), share), payload, seconds)


def _links(part: Submesh) -> _Links:
    """The sizes of a mesh's axes and the links that they run over, which make parts alike."""
    return part.mesh.shape, part.cluster.axis_levels


def _step(collective: Collective, payload: float, seconds: float) -> CollectiveStep:
    return CollectiveStep(collective, math.ceil(payload), round(seconds * NS_PER_S))


def exposed_ns(transfer: SendReceive, hidden: float, microbatches: int) -> float:
    """The exposed time of a transfer in a step."""
    return (1.0 - hidden) * microbatches * transfer.time_ns
