"""Weights that several stages of a pipeline hold: once a step the first of them adds up their gradients for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from shardplan.layout.layout import Layout
from shardplan.plan.types import Pipeline
from shardplan.runtime.names import Named
from shardplan.torch.places import Places
from shardplan.torch.stages import Part
from shardplan.torch.steps import run_steps


class Holder(NamedTuple):
    """A piece of this process that holds the weight, and what it calls it."""

    part: Part
    name: str


@dataclass(frozen=True)
class Tied:
    """A weight of several stages. The first of `stages` adds up; `held`: by stage, where this process holds it;
    `common`: the layout in which gradients travel (None: whole)."""

    stages: tuple[int, ...]
    held: dict[int, Holder]
    common: Layout | None
    places: Places

    def reduce(self) -> None:
        """Every gradient becomes the sum of all: the first stage is sent those of the others and sends back the sum."""
        first, *others = self.stages
        with torch.no_grad():
            mine = {stage: self._out(holder) for stage, holder in self.held.items()}
            if first in mine:
                for other in others:
                    mine[first] = mine[first] + (mine[other] if other in mine else self._received(mine[first], other))
            else:
                for other in sorted(mine):
                    dist.send(mine[other], self.places.peer(first), self.places.group)
            for other in others:
                if first in mine and other in mine:
                    mine[other] = mine[first]
                elif first in mine:
                    dist.send(mine[first], self.places.peer(other), self.places.group)
                elif other in mine:
                    mine[other] = self._received(mine[other], first)
            for stage, holder in self.held.items():
                self._back(holder, mine[stage])

    def _received(self, like: Tensor, stage: int) -> Tensor:
        made = torch.empty_like(like)
        dist.recv(made, self.places.peer(stage), self.places.group)
        return made

    def _out(self, holder: Holder) -> Tensor:
        """A stage's own gradient, as it travels."""
        parameter = holder.part.module.get_parameter(holder.name)
        grad = parameter.grad
        local = torch.zeros_like(parameter.to_local()) if grad is None else grad.to_local()
        return self._moved(holder, local, out=True).contiguous()

    def _back(self, holder: Holder, total: Tensor) -> None:
        parameter = holder.part.module.get_parameter(holder.name)
        parameter.grad = DTensor.from_local(
            self._moved(holder, total, out=False),
            parameter.device_mesh,
            parameter.placements,
            run_check=False,
            shape=parameter.shape,
            stride=parameter.stride(),
        )

    def _moved(self, holder: Holder, local: Tensor, *, out: bool) -> Tensor:
        applied = holder.part.applied
        named = applied.named[holder.name]
        common = self.common or Layout.replicated(len(applied.grid.mesh))
        ends = (named.layout.forward, common) if out else (common, named.layout.forward)
        route = applied.engine.router.route(*ends, named.shape, has_gradient=False)
        return run_steps(local, ends[0], route.forward, named.shape, applied.grid)


def tied_weights(
    pipeline: Pipeline, named: Sequence[Mapping[str, Named]], parts: Sequence[Part], places: Places
) -> list[Tied]:
    """The weights that this process holds together with other stages, in the plan's order. `named`: by stage."""
    sharing: dict[str, list[int]] = {}
    for transfer in pipeline.transfers[len(pipeline.handed) :]:
        sharing.setdefault(transfer.tensor, [transfer.sender]).append(transfer.receiver)
    found = []
    for tensor, stages in sharing.items():
        pieces = [part for part in parts if part.number in stages]
        held = {part.number: Holder(part, name) for part in pieces if (name := _name(part, tensor))}
        if held:
            shapes = {pipeline.stages[stage].plan.mesh.shape for stage in stages}
            first = next(entry for entry in named[stages[0]].values() if entry.decision.name == tensor)
            common = first.layout.forward if len(shapes) == 1 else None
            found.append(Tied(tuple(stages), held, common, places))
    return found


def _name(part: Part, tensor: str) -> str:
    named = part.applied.named
    own = (name for name, _ in part.module.named_parameters() if name in named)
    return next((name for name in own if named[name].decision.name == tensor), "")
