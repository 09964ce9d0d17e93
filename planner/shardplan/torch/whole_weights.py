"""Weights of a model under a plan, whole, to be changed by hand between steps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from shardplan.errors import ShardplanError, did_you_mean, error
from shardplan.torch.applied_plan import applied_to
from shardplan.torch.collectives.steps import shard_of_whole
from shardplan.torch.parameters.distribution import owner_of
from shardplan.torch.parameters.fused import part_names, parts_of


@contextlib.contextmanager
def whole(model: nn.Module, name: str) -> Iterator[Tensor]:
    """Context: the parameter or buffer `name` of a model under a plan as a plain tensor, whole on every process. What
    is changed in it is in the model when the context ends, and nothing where it ends with an exception.

    Slices of a DTensor are copies: torch drops what is written into them. All processes have to enter the context, and
    change alike.

    >>> with shardplan.torch.whole(model, "table.weight") as weight:
    ...     weight[0] = 0.0

    Raises `ShardplanError`: `not-parallel`, `unknown-parameter`.
    """
    applied = applied_to(model)
    named = applied.named.get(name)
    parts = None if named is None else parts_of(named.layout, applied.groups.mesh)
    names = [name] if parts is None else part_names(name, parts)
    try:
        stored = [getattr(*owner_of(model, each)) for each in names]
    except AttributeError:
        named = None
    if named is None:
        summary = f"the plan of this model has no parameter '{name}'"
        others = [each for each in applied.named if each != name]
        hint = did_you_mean(name, others) or "parameters outside of the plan are plain tensors: change them"
        raise ShardplanError(error("unknown-parameter", summary, hint=hint))
    with torch.no_grad():
        gathered = [_whole(part) for part in stored]
        given = gathered[0] if parts is None else parts.join(gathered)
        yield given
        pieces = [given] if parts is None else parts.split(given)
        layout = named.layout if parts is None else parts.layout
        for part, piece in zip(stored, pieces, strict=True):
            part.to_local().copy_(shard_of_whole(piece, layout.forward, applied.groups))


def _whole(stored: DTensor) -> Tensor:
    """A copy: what is replicated is the model's own memory."""
    return stored.full_tensor().detach().clone()
