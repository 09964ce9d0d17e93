"""Cross entropy of a model's DTensor results, computed outside of the model.

DTensor's own implementation gathers sharded classes. Here each process sums the exponentials, and the logits of
targets, of its own classes: forward sends a few numbers per row, and backward nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn import functional

from shardplan.errors import ShardplanError, error
from shardplan.torch.placements import whole_of

REDUCTIONS = ("mean", "sum", "none")


def cross_entropy(input: Tensor, target: Tensor, *, ignore_index: int = -100, reduction: str = "mean") -> Tensor:  # noqa: A002 - as torch
    """`torch.nn.functional.cross_entropy` of classes by number for logits [rows, classes] or [rows, classes, ...] that
    are a DTensor, however sharded; `target` whole, or sharded as the rows are. The loss is a plain tensor, the same on
    every process; with `reduction="none"` it is that of this process's rows.

    Raises `ShardplanError` (`bad-argument`) for a reduction that there is not, and targets of another shape.
    """
    if reduction not in REDUCTIONS:
        raise ShardplanError(error("bad-argument", f"there is no reduction '{reduction}'", hint=", ".join(REDUCTIONS)))
    if not isinstance(input, DTensor):
        return functional.cross_entropy(input, whole_of(target), ignore_index=ignore_index, reduction=reduction)
    dim = 1 if input.dim() > 1 else 0
    rows = (*input.shape[:dim], *input.shape[dim + 1 :])
    if tuple(target.shape) != rows:
        summary = f"logits {list(input.shape)} need targets {list(rows)}, and these are {list(target.shape)}"
        raise ShardplanError(
            error("bad-argument", summary, hint="flatten both: logits.flatten(0, 1), targets.flatten()")
        )
    mesh, logits = input.device_mesh, _summed(input)
    placements = logits.placements
    by_class = [isinstance(place, Shard) and place.dim == dim for place in placements]
    local = logits.to_local().float() if input.dtype in (torch.float16, torch.bfloat16) else logits.to_local()
    of_rows = [Replicate() if split else _beside(place, dim) for split, place in zip(by_class, placements, strict=True)]
    targets = _part(target, mesh, of_rows)

    def over_classes(each: Tensor, how: str) -> Tensor:
        partial = [Partial(how) if split else place for split, place in zip(by_class, of_rows, strict=True)]
        return DTensor.from_local(each, mesh, partial, run_check=False).redistribute(mesh, of_rows).to_local()

    top = over_classes(local.detach().amax(dim), "max").unsqueeze(dim)
    total = over_classes((local - top).exp().sum(dim), "sum")
    first = _number(mesh.get_coordinate() or (), mesh.shape, by_class) * local.shape[dim]
    inside = (targets >= first) & (targets < first + local.shape[dim]) & (targets != ignore_index)
    own = (local - top).gather(dim, torch.where(inside, targets - first, 0).unsqueeze(dim)).squeeze(dim)
    losses = total.log() - over_classes(own.masked_fill(~inside, 0.0), "sum")
    losses = losses.masked_fill(targets == ignore_index, 0.0)
    if reduction == "none":
        return losses
    by_row = [Partial() if isinstance(place, Shard) else Replicate() for place in of_rows]

    def over_rows(each: Tensor) -> Tensor:
        whole = [Replicate()] * mesh.ndim
        return DTensor.from_local(each, mesh, by_row, run_check=False).redistribute(mesh, whole).to_local()

    loss = over_rows(losses.sum())
    return loss if reduction == "sum" else loss / over_rows((targets != ignore_index).sum().to(loss.dtype))


def _summed(logits: DTensor) -> DTensor:
    """Without partial sums."""
    if not any(place.is_partial() for place in logits.placements):
        return logits
    kept = [Replicate() if place.is_partial() else place for place in logits.placements]
    return logits.redistribute(logits.device_mesh, kept)


def _beside(place: object, dim: int) -> Shard | Replicate:
    """How a value without dim `dim` is sharded."""
    if not isinstance(place, Shard):
        return Replicate()
    return Shard(place.dim - (place.dim > dim))


def _part(target: Tensor, mesh: object, placements: Sequence[Shard | Replicate]) -> Tensor:
    """The targets of this process's rows."""
    if isinstance(target, DTensor):
        return target.redistribute(mesh, placements).to_local()
    whole = DTensor.from_local(target, mesh, [Replicate()] * len(placements), run_check=False)
    return whole.redistribute(mesh, placements).to_local()


def _number(coordinates: Sequence[int], shape: Sequence[int], used: Sequence[bool]) -> int:
    """Which of the parts of the classes this process has."""
    number = 0
    for coordinate, size, counts in zip(coordinates, shape, used, strict=True):
        number = number * size + coordinate if counts else number
    return number
