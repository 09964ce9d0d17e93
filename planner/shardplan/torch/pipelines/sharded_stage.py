"""Pipeline stages for torch's schedules that receive from several processes and send to several.

torch's own `PipelineStage` has one process before it and one after it. Its schedules only ask a stage for the sends and
receives of a microbatch, so they run over these unchanged.
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
from shardplan.torch.pipelines.p2p import Endpoint, PendingReceive, SendReceive
from shardplan.torch.pipelines.stage import LocalStage
from shardplan.torch.pipelines.stage_meshes import StageMeshes


@dataclass(frozen=True)
class StageBoundary:
    """Between two stages: the transfer of a microbatch's activation, and of its gradient, if it has one."""

    forward: SendReceive
    backward: SendReceive | None


class ShardedStage(PipelineStage):  # type: ignore[misc]
    """A stage of this process under torch's schedules."""

    def __init__(self, stage: LocalStage, pipeline: Pipeline, meshes: StageMeshes) -> None:
        count = len(pipeline.stages)
        super().__init__(
            stage.module, stage.number, count, meshes.device, _inputs(stage), stage.results, group=meshes.self_group
        )
        self.before, self.after = (_boundary(stage, pipeline, stage.number - step) for step in (1, 0))
        self.group_rank = meshes.first_ranks.index(meshes.first_ranks[stage.number])
        self.group_size = len(set(meshes.first_ranks))
        self._activations: dict[int, PendingReceive] = {}
        self._gradients: dict[int, PendingReceive] = {}

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Receives of the activation of this stage."""
        return _receives(self.before.forward if self.before else None, self._activations, fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Receives of the gradient of the activation that this stage sends."""
        boundary = self.after if self.has_backward else None
        return _receives(boundary.backward if boundary else None, self._gradients, bwd_chunk_id)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Sends of the activation that this stage makes."""
        if self.after is None:
            return []
        (value,), _ = self.fwd_cache[fwd_chunk_id]
        return self.after.forward.sends(value.detach())

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Sends of the gradient of the activation that this stage received."""
        if self.before is None or self.before.backward is None or not self.has_backward:
            return []
        (gradient,) = self.bwd_cache.pop(bwd_chunk_id)
        backward = self.before.backward
        return backward.sends(backward.zeros() if gradient is None else gradient)

    def _retrieve_recv_activations(self, fwd_chunk_id: int) -> tuple[Tensor, ...]:
        value = self._activations.pop(fwd_chunk_id).value()
        return (value.requires_grad_(self.has_backward and torch.is_grad_enabled() and value.is_floating_point()),)

    def _retrieve_recv_grads(self, bwd_chunk_id: int) -> tuple[Tensor | None, ...]:
        pending = self._gradients.pop(bwd_chunk_id, None)
        return (None if pending is None else pending.value(),)

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


def _receives(transfer: SendReceive | None, pending: dict[int, PendingReceive], chunk: int) -> list[dist.P2POp]:
    if transfer is None:
        return []
    pending[chunk] = PendingReceive(transfer)
    return pending[chunk].receives()


def _boundary(stage: LocalStage, pipeline: Pipeline, number: int) -> StageBoundary | None:
    """Boundary `number`, between stages `number` and `number + 1`, one of which is `stage`."""
    if not 0 <= number < len(pipeline.handed):
        return None
    transfer = pipeline.handed[number]
    here, there = pipeline.stages[number], pipeline.stages[number + 1]
    node = stage.nodes.sent if stage.number == number else stage.nodes.received
    assert node is not None
    example: Tensor = node.meta["val"]

    def transfer_of(source: Endpoint, target: Endpoint, steps: Sequence[CollectiveStep]) -> SendReceive:
        return SendReceive(source, target, tuple(example.shape), example.dtype, steps, stage.applied.groups)

    def first(layout: Layout) -> Endpoint:
        return Endpoint(layout, here.plan.mesh, here.first_device)

    def second(layout: Layout) -> Endpoint:
        return Endpoint(layout, there.plan.mesh, there.first_device)

    source, target = transfer.source, transfer.target
    gradient = None
    if transfer.backward:
        gradient = transfer_of(second(target.gradient), first(source.gradient), transfer.backward)
    return StageBoundary(transfer_of(first(source.forward), second(target.forward), transfer.forward), gradient)


def _inputs(stage: LocalStage) -> tuple[Tensor, ...]:
    """Tensors of the shapes and dtypes of a stage's arguments."""
    if stage.received is not None:
        return (stage.received,)
    metas = {node.name: node.meta["val"] for node in stage.nodes.nodes if node.op == "placeholder"}
    return tuple(torch.empty(metas[n].shape, dtype=metas[n].dtype, device="meta") for n in stage.nodes.arguments)
