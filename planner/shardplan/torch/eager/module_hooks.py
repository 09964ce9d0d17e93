"""Module hooks of a forward pass: while a module runs, its parameters are planned tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.distributed.tensor import DTensor

from shardplan.torch.applied_plan import AppliedPlan
from shardplan.torch.eager.planned_tensor import Planned
from shardplan.torch.parameters.distribution import fused_weight, local_weight, parameter_value, stored_tensors


def enter_module(applied: AppliedPlan, parameters: Sequence[tuple[str, str]]) -> Callable[..., None]:
    """A forward pre-hook that replaces parameters, (attribute, name), by planned tensors."""

    def enter(module: nn.Module, args: Any) -> None:
        del args
        stores = module.__dict__.setdefault("_shardplan_stores", [])
        stores.append((dict(module._parameters), dict(module._buffers)))  # noqa: SLF001 - restored when it has run
        for attribute, name in parameters:
            fused = fused_weight(module, attribute)
            if fused is not None:
                fused.running.append(_planned(applied, name, stored_tensors(module, attribute)))
                continue
            store = module._parameters if attribute in module._parameters else module._buffers  # noqa: SLF001
            if isinstance(store[attribute], DTensor):
                store[attribute] = _planned(applied, name, [store[attribute]])

    return enter


def leave_module(parameters: Sequence[tuple[str, str]]) -> Callable[..., None]:
    """A forward hook that restores them."""

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        del args, output
        stores = module.__dict__.get("_shardplan_stores")
        if stores:
            own, buffers = stores.pop()
            module._parameters.update(own)  # noqa: SLF001 - as above
            module._buffers.update(buffers)  # noqa: SLF001
            for fused in filter(None, (fused_weight(module, attribute) for attribute, _ in parameters)):
                fused.running.pop()

    return leave


def _planned(applied: AppliedPlan, name: str, stored: Sequence[DTensor]) -> Planned:
    """A parameter as a planned tensor; the same one for all modules that share it in one forward pass."""
    named = applied.named[name]
    decision = named.decision
    if applied.depth and decision.name in applied.planned:
        found: Planned = applied.planned[decision.name]
        return found
    weights = applied.weights
    if weights is not None:
        _, local = weights.shards[decision.name]
    else:
        local = local_weight(named, stored, applied.groups, trains=applied.trains)
    planned = Planned.of(parameter_value(applied.engine, named, local, weights), applied.engine)
    if applied.depth:
        applied.planned[decision.name] = planned
    return planned
