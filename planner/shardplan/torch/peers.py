"""A stage of torch's pipelining that is handed values by several processes and hands them on to several.

torch's own `PipelineStage` has one process before it and one behind it. Its schedules only ask a stage for what is to
be sent and received for a microbatch, so they run over these as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage

from shardplan.layout.layout import Layout
from shardplan.plan.types import CollectiveStep, Pipeline
from shardplan.torch.handover import Arrival, End, Handover
from shardplan.torch.places import Places
from shardplan.torch.stages import Part


@dataclass(frozen=True)
class Border:
    """Between two stages: a microbatch's value forward, its gradient, if it has one, backward."""

    forward: Handover
    backward: Handover | None


class PeersStage(PipelineStage):  # type: ignore[misc]
    """A piece of the model under torch's schedules; `places`: where this process and the others are."""

    def __init__(self, part: Part, pipeline: Pipeline, places: Places) -> None:
        count = len(pipeline.stages)
        super().__init__(
            part.module, part.number, count, places.device, _inputs(part), part.results, group=places.alone
        )
        self.entering, self.leaving = (_border(part, pipeline, part.number - step) for step in (1, 0))
        self.group_rank = places.firsts.index(places.firsts[part.number])
        self.group_size = len(set(places.firsts))
        self._values: dict[int, Arrival] = {}
        self._gradients: dict[int, Arrival] = {}

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Of the value that this stage is fed."""
        return _receives(self.entering.forward if self.entering else None, self._values, fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Of the gradient of the value that this stage hands on."""
        border = self.leaving if self.has_backward else None
        return _receives(border.backward if border else None, self._gradients, bwd_chunk_id)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Of the value that this stage hands on."""
        if self.leaving is None:
            return []
        (value,), _ = self.fwd_cache[fwd_chunk_id]
        return self.leaving.forward.sends(value.detach())

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Of the gradient of the value that this stage was fed."""
        if self.entering is None or self.entering.backward is None or not self.has_backward:
            return []
        (gradient,) = self.bwd_cache.pop(bwd_chunk_id)
        backward = self.entering.backward
        return backward.sends(backward.nothing() if gradient is None else gradient)

    def _retrieve_recv_activations(self, fwd_chunk_id: int) -> tuple[Tensor, ...]:
        value = self._values.pop(fwd_chunk_id).value()
        return (value.requires_grad_(self.has_backward and torch.is_grad_enabled() and value.is_floating_point()),)

    def _retrieve_recv_grads(self, bwd_chunk_id: int) -> tuple[Tensor | None, ...]:
        arrival = self._gradients.pop(bwd_chunk_id, None)
        return (None if arrival is None else arrival.value(),)

    def _warmup_forward_vote(self, has_backward: bool, received_acc: Tensor | None = None) -> Tensor:
        del has_backward, received_acc
        return torch.ones(1, dtype=torch.int32)  # all shapes are known: nothing has to be found out by running

    def _warmup_backward_result(self, received_result: Tensor | None = None) -> Tensor:
        del received_result
        return torch.ones(1, dtype=torch.int32)

    def _setup_forward_recv_info(self, num_microbatches: int, has_backward: bool) -> None:
        del has_backward
        self.args_recv_info = dict.fromkeys(range(num_microbatches), ())

    def _create_grad_recv_info(self, act_send_info: Any) -> tuple[()]:
        del act_send_info
        return ()


def _receives(handover: Handover | None, arrivals: dict[int, Arrival], chunk: int) -> list[dist.P2POp]:
    if handover is None:
        return []
    arrivals[chunk] = Arrival(handover)
    return arrivals[chunk].receives()


def _border(part: Part, pipeline: Pipeline, number: int) -> Border | None:
    """Border `number`, behind stage `number`, of which `part` is one side."""
    if not 0 <= number < len(pipeline.handed):
        return None
    transfer = pipeline.handed[number]
    here, there = pipeline.stages[number], pipeline.stages[number + 1]
    node = part.nodes.handed if part.number == number else part.nodes.fed
    assert node is not None
    example: Tensor = node.meta["val"]

    def way(source: End, target: End, steps: Sequence[CollectiveStep]) -> Handover:
        return Handover(source, target, tuple(example.shape), example.dtype, steps, part.applied.grid)

    def ends(source: Layout, target: Layout) -> tuple[End, End]:
        return End(source, here.plan.mesh, here.first_device), End(target, there.plan.mesh, there.first_device)

    out, back = (
        ends(transfer.source.forward, transfer.target.forward),
        ends(transfer.source.gradient, transfer.target.gradient),
    )
    gradient = way(back[1], back[0], transfer.backward) if transfer.backward else None
    return Border(way(*out, transfer.forward), gradient)


def _inputs(part: Part) -> tuple[Tensor, ...]:
    """Like what a piece is called with."""
    if part.received is not None:
        return (part.received,)
    metas = {node.name: node.meta["val"] for node in part.nodes.nodes if node.op == "placeholder"}
    return tuple(torch.empty(metas[n].shape, dtype=metas[n].dtype, device="meta") for n in part.nodes.arguments)
