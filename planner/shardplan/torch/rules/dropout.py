"""Dropout: replicas draw the same mask, shards draw independent ones."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function_unary

from shardplan.torch.propagation.engine import Engine, Op
from shardplan.torch.propagation.values import Site, Value
from shardplan.torch.rules.elementwise import unary


def dropout(engine: Engine, op: Op) -> Value:
    """Zeros drawn alike by processes that hold the same, and independently by others.

    The seed comes from the CPU generator, which must be in the same state on all processes; so does a recomputation.
    `feature_dropout` (of `nn.Dropout2d`) draws for the first two dims, and zeros whole channels.
    """
    value = op.args[0]
    rate = op.kwargs.get("p", op.args[1] if len(op.args) > 1 else 0.5)
    training = op.kwargs.get("training", op.kwargs.get("train", op.args[2] if len(op.args) > 2 else True))
    if not training or rate == 0:
        return value  # type: ignore[no-any-return]

    drawn = min(2, value.rank) if op.name == "feature_dropout" else value.rank

    def run(locals_: list[Any], site: Site) -> Any:
        return drop(locals_[0], rate, part_of(site, [f"x{dim}" for dim in range(drawn)]), drawn)

    call = unary(value, value.key, run)
    call.chains, call.linear = False, (frozenset({0}),)
    return engine.run(call)[0]


def part_of(site: Site, factors: Container[str] | None = None) -> int:
    """A number that processes share that have the same part of a call's result, as far as `factors` go, if given."""
    part = 0
    for factor, axes in sorted(site.splits.items()):
        if factors is not None and factor not in factors:
            continue
        part = part * site.mesh.ways(axes) + site.number(factor)
    return part


def drawn_seed(part: int) -> int:
    """A seed of its own for every part, drawn from the CPU generator, which all processes keep in the same state."""
    return int(torch.randint(0, 1 << 30, ()).item()) * 65537 + part


def drop(local: torch.Tensor, rate: float, part: int, dims: int) -> torch.Tensor:
    """Zeros at `rate` in place of elements, or of all that have the same indices in the first `dims`, the others scaled
    up; processes with the same `part` draw alike."""
    if has_torch_function_unary(local):
        return handle_torch_function(drop, (local,), local, rate, part, dims)
    if local.is_meta:  # nothing is drawn
        return local.clone()
    generator = torch.Generator(local.device).manual_seed(drawn_seed(part))
    shape = *local.shape[:dims], *(1 for _ in local.shape[dims:])
    drawn = torch.rand(shape, generator=generator, device=local.device)
    return local * (drawn >= rate).to(local.dtype) / (1 - rate)
