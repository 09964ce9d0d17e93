"""Tied weights across stages: once a step the first stage that has one sums its gradients for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from shardplan.plan.types import CollectiveStep, Pipeline, Transfer
from shardplan.runtime.names import Named
from shardplan.torch.pipelines.p2p import Endpoint, SendReceive
from shardplan.torch.pipelines.stage import LocalStage
from shardplan.torch.placements import like


class WeightHolder(NamedTuple):
    """A stage of this process that has the weight, and its name there."""

    stage: LocalStage
    name: str


@dataclass(frozen=True)
class TiedWeight:
    """A weight of several `stages`, the first of which sums its gradients. `held`: the weight in this process, by
    stage; `to_first`, `from_first`: by stage except the first, the transfers of its gradient and of the sum."""

    stages: tuple[int, ...]
    held: dict[int, WeightHolder]
    to_first: dict[int, SendReceive]
    from_first: dict[int, SendReceive]

    def copies(self) -> list[nn.Parameter]:
        """The weight in the stages of this process other than the first that has it."""
        return [_parameter(holder) for number, holder in self.held.items() if number != self.stages[0]]

    def reduce(self) -> None:
        """Every gradient becomes the sum over all stages, computed by the first of them."""
        first, *others = self.stages
        with torch.no_grad():
            mine = {stage: _gradient(holder) for stage, holder in self.held.items()}
            for other in others:
                arrived = self.to_first[other].run(mine.get(other))
                if arrived is not None:
                    mine[first] = mine[first] + arrived
            for other in others:
                arrived = self.from_first[other].run(mine.get(first))
                if arrived is not None:
                    mine[other] = arrived
            for stage, holder in self.held.items():
                _set_gradient(holder, mine[stage])


def _parameter(holder: WeightHolder) -> nn.Parameter:
    return holder.stage.module.get_parameter(holder.name)


def _gradient(holder: WeightHolder) -> Tensor:
    parameter = _parameter(holder)
    grad = parameter.grad
    return torch.zeros_like(parameter.to_local()) if grad is None else grad.to_local()


def _set_gradient(holder: WeightHolder, total: Tensor) -> None:
    parameter = _parameter(holder)
    parameter.grad = like(parameter, total)


def tied_weights(
    pipeline: Pipeline, named: Sequence[Mapping[str, Named]], local_stages: Sequence[LocalStage]
) -> list[TiedWeight]:
    """The weights that this process holds together with other stages, in the plan's order. `named`: by stage."""
    sharing: dict[str, list[Transfer]] = {}
    for transfer in pipeline.transfers[len(pipeline.handed) :]:
        sharing.setdefault(transfer.tensor, []).append(transfer)
    found = []
    for tensor, transfers in sharing.items():
        stages = (transfers[0].sender, *(transfer.receiver for transfer in transfers))
        sharing_here = [stage for stage in local_stages if stage.number in stages]
        held = {stage.number: WeightHolder(stage, name) for stage in sharing_here if (name := _name(stage, tensor))}
        if held:
            both_ways = {transfer.receiver: _transfers(transfer, pipeline, named, held) for transfer in transfers}
            to_first, from_first = ({stage: pair[way] for stage, pair in both_ways.items()} for way in (0, 1))
            found.append(TiedWeight(stages, held, to_first, from_first))
    return found


def _transfers(
    transfer: Transfer, pipeline: Pipeline, named: Sequence[Mapping[str, Named]], held: Mapping[int, WeightHolder]
) -> tuple[SendReceive, SendReceive]:
    """The gradient from the transfer's receiver to its sender, where it is summed, and the sum back."""
    mine = next(iter(held.values()))
    weight = _parameter(mine)

    def endpoint(number: int) -> Endpoint:
        stage = pipeline.stages[number]
        entry = next(entry for entry in named[number].values() if entry.decision.name == transfer.tensor)
        return Endpoint(entry.layout.forward, stage.plan.mesh, stage.first_device)

    def transfer_of(source: int, target: int, steps: Sequence[CollectiveStep]) -> SendReceive:
        groups = held.get(target, mine).stage.applied.groups
        return SendReceive(endpoint(source), endpoint(target), tuple(weight.shape), weight.dtype, steps, groups)

    first, other = transfer.sender, transfer.receiver
    return transfer_of(other, first, transfer.backward), transfer_of(first, other, transfer.forward)


def _name(stage: LocalStage, tensor: str) -> str:
    named = stage.applied.named
    own = (name for name, _ in stage.module.named_parameters() if name in named)
    return next((name for name in own if named[name].decision.name == tensor), "")
