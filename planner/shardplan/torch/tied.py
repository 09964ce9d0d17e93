"""Weights that several stages of a pipeline hold: once a step the first of them adds up their gradients for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from shardplan.plan.types import CollectiveStep, Pipeline, Transfer
from shardplan.runtime.names import Named
from shardplan.torch.handover import End, Handover
from shardplan.torch.stages import Part


class Holder(NamedTuple):
    """A piece of this process that holds the weight, and what it calls it."""

    part: Part
    name: str


@dataclass(frozen=True)
class Tied:
    """A weight of several stages. The first of `stages` adds up; `held`: by stage, where this process holds it;
    `there`, `back`: by stage but the first, how gradients go to the first and come back."""

    stages: tuple[int, ...]
    held: dict[int, Holder]
    there: dict[int, Handover]
    back: dict[int, Handover]

    def reduce(self) -> None:
        """Every gradient becomes the sum of all: the first stage is sent those of the others and sends back the sum."""
        first, *others = self.stages
        with torch.no_grad():
            mine = {stage: _gradient(holder) for stage, holder in self.held.items()}
            for other in others:
                arrived = self.there[other].carry(mine.get(other))
                if arrived is not None:
                    mine[first] = mine[first] + arrived
            for other in others:
                arrived = self.back[other].carry(mine.get(first))
                if arrived is not None:
                    mine[other] = arrived
            for stage, holder in self.held.items():
                _give(holder, mine[stage])


def _gradient(holder: Holder) -> Tensor:
    parameter = holder.part.module.get_parameter(holder.name)
    grad = parameter.grad
    return torch.zeros_like(parameter.to_local()) if grad is None else grad.to_local()


def _give(holder: Holder, total: Tensor) -> None:
    parameter = holder.part.module.get_parameter(holder.name)
    parameter.grad = DTensor.from_local(
        total,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def tied_weights(pipeline: Pipeline, named: Sequence[Mapping[str, Named]], parts: Sequence[Part]) -> list[Tied]:
    """The weights that this process holds together with other stages, in the plan's order. `named`: by stage."""
    sharing: dict[str, list[Transfer]] = {}
    for transfer in pipeline.transfers[len(pipeline.handed) :]:
        sharing.setdefault(transfer.tensor, []).append(transfer)
    found = []
    for tensor, transfers in sharing.items():
        stages = (transfers[0].sender, *(transfer.receiver for transfer in transfers))
        pieces = [part for part in parts if part.number in stages]
        held = {part.number: Holder(part, name) for part in pieces if (name := _name(part, tensor))}
        if held:
            ways = {transfer.receiver: _ways(transfer, pipeline, named, held) for transfer in transfers}
            there, back = ({stage: pair[way] for stage, pair in ways.items()} for way in (0, 1))
            found.append(Tied(stages, held, there, back))
    return found


def _ways(
    transfer: Transfer, pipeline: Pipeline, named: Sequence[Mapping[str, Named]], held: Mapping[int, Holder]
) -> tuple[Handover, Handover]:
    """How the gradient of the transfer's receiver goes to its sender, where it is added up, and how it comes back."""
    mine = next(iter(held.values()))
    like = mine.part.module.get_parameter(mine.name)

    def end(number: int) -> End:
        stage = pipeline.stages[number]
        entry = next(entry for entry in named[number].values() if entry.decision.name == transfer.tensor)
        return End(entry.layout.forward, stage.plan.mesh, stage.first_device)

    def way(source: int, target: int, steps: Sequence[CollectiveStep]) -> Handover:
        grid = held.get(target, mine).part.applied.grid
        return Handover(end(source), end(target), tuple(like.shape), like.dtype, steps, grid)

    first, other = transfer.sender, transfer.receiver
    return way(other, first, transfer.backward), way(first, other, transfer.forward)


def _name(part: Part, tensor: str) -> str:
    named = part.applied.named
    own = (name for name, _ in part.module.named_parameters() if name in named)
    return next((name for name in own if named[name].decision.name == tensor), "")
