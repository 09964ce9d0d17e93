"""Models whose arguments and results are dictionaries, and records of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_cases import _gradient_error, mesh_of
from torch_steps import exported_once

import shardplan.torch
from shardplan.plan.types import Plan


@dataclass
class Rows:
    """A batch."""

    x: Tensor
    goals: dict[str, Tensor]


@dataclass(frozen=True)
class Scored:
    """A result."""

    loss: Tensor
    scores: Tensor
    count: int


torch.export.register_dataclass(Rows)
torch.export.register_dataclass(Scored)


class OfMapping(nn.Module):
    """One layer, of a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.a = nn.Linear(8, 8)
        with torch.no_grad():
            self.a.weight.copy_(torch.randn(8, 8, generator=generator))
            self.a.bias.zero_()

    def forward(self, batch: Mapping[str, Any], shift: Tensor, *, kind: str = "l2") -> Any:
        return self.scored(batch["x"], batch["goals"]["y"], shift).loss

    def scored(self, x: Tensor, y: Tensor, shift: Tensor) -> Scored:
        scores = self.a(x) + shift
        return Scored(functional.mse_loss(scores, y), scores, 1)


class OfRecord(OfMapping):
    """The same, of a record, with a record as result."""

    def forward(self, batch: Rows, shift: Tensor) -> Scored:
        return self.scored(batch.x, batch.goals["y"], shift)


def batch_of(kind: type[OfMapping], given: Mapping[str, Any] | None = None) -> tuple[Any, ...]:
    """Arguments, of tensors by the names that plans have for them."""
    drawn = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(1))
    tensors = given or dict(zip(("batch_x", "batch_goals_y", "shift"), drawn, strict=True))
    x, goals = tensors["batch_x"], {"y": tensors["batch_goals_y"]}
    return Rows(x, goals) if kind is OfRecord else {"x": x, "goals": goals}, tensors["shift"]


def train(kind: type[OfMapping], plan: Plan, mode: str) -> tuple[float, bool]:
    """The largest error of loss and gradients, of a batch that is whole and of one that is sharded; and whether results
    are DTensors."""
    mesh, errors, local = mesh_of(plan), list[float](), True
    for sharded in (False, True):
        model, reference = kind(), kind()
        if mode == "exported":
            with exported_once(kind):
                model = shardplan.torch.parallelize_exported(model, batch_of(kind), plan, mesh)
        else:
            shardplan.torch.parallelize(model, plan, mesh)
        batch = batch_of(kind)
        if sharded:
            names = ("batch_x", "batch_goals_y", "shift")
            x, shift = batch
            whole = (x.x, x.goals["y"], shift) if isinstance(x, Rows) else (x["x"], x["goals"]["y"], shift)
            batch = batch_of(kind, shardplan.torch.inputs(plan, mesh, dict(zip(names, whole, strict=True))))
        ours, theirs = model(*batch), reference(*batch_of(kind))
        if isinstance(theirs, Scored):
            errors.append(float((ours.scores.full_tensor() - theirs.scores).abs().max()))
            ours, theirs = ours.loss, theirs.loss
        local = local and hasattr(ours, "full_tensor")
        ours.backward()
        theirs.backward()
        errors += [abs(float(ours.full_tensor() - theirs)), _gradient_error(model, reference)]
    return max(errors), local
