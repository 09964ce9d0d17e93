"""torchtitan's initialisation of a model under a plan, with the random numbers of a single process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from shardplan.torch.applied_plan import AppliedPlan, applied_to
from shardplan.torch.collectives.steps import shard_of_whole
from shardplan.torch.parameters.distribution import owner_of, stored_tensors
from shardplan.torch.parameters.fused import parts_of


def initialise_whole(model: nn.Module, classes: Mapping[nn.Module, type[nn.Module]]) -> None:
    """Let every module with parameters of the plan draw them whole, one module at a time, and keep its part.

    Drawn part by part, weights that several processes hold would differ wherever these have drawn unequally much
    before. `classes`: of every module, before the plan was applied.
    """
    applied = applied_to(model)
    owned: dict[nn.Module, list[tuple[str, str]]] = {}
    for name in applied.named:
        owner, attribute = owner_of(model, name)
        owned.setdefault(owner, []).append((attribute, name))
    for owner, pairs in owned.items():
        if hasattr(owner, "_init_self_parameters"):
            owner._init_self_parameters = _drawing(owner, classes[owner], pairs, applied)  # noqa: SLF001 - torchtitan's


def _drawing(owner: nn.Module, kind: type[nn.Module], pairs: list[tuple[str, str]], applied: AppliedPlan) -> Any:
    def draw() -> None:
        whole = object.__new__(kind)
        whole.__dict__.update(owner.__dict__)
        del whole.__dict__["_init_self_parameters"]
        drawn = {
            attribute: nn.Parameter(
                torch.empty(applied.named[name].shape, dtype=_dtype(owner, attribute), device=applied.groups.device)
            )
            for attribute, name in pairs
        }
        whole._parameters = {**owner._parameters, **drawn}  # noqa: SLF001 - a module with whole ones in place of DTensors
        whole._init_self_parameters()
        for attribute, name in pairs:
            if drawn[attribute]._version:  # noqa: SLF001 - one of two tied weights may be left to the other
                _keep(owner, attribute, drawn[attribute].detach(), applied, name)

    return draw


def _dtype(owner: nn.Module, attribute: str) -> torch.dtype:
    return stored_tensors(owner, attribute)[0].dtype


def _keep(owner: nn.Module, attribute: str, whole: torch.Tensor, applied: AppliedPlan, name: str) -> None:
    layout = applied.named[name].layout
    parts = parts_of(layout, applied.groups.mesh)
    pieces = [whole] if parts is None else parts.split(whole)
    forward = layout.forward if parts is None else parts.layout.forward
    for stored, piece in zip(stored_tensors(owner, attribute), pieces, strict=True):
        stored.to_local().copy_(shard_of_whole(piece, forward, applied.groups))
