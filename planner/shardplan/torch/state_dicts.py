"""Checkpoints of models under a plan: whole tensors under the names of the module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parametrize

from shardplan.errors import Diagnostic, ShardplanError, error, reason_of
from shardplan.torch.applied_plan import applied_to, is_parallel
from shardplan.torch.parameters.distribution import FusedWeight
from shardplan.torch.parameters.fused import Parts, part_name, part_names, parts_of
from shardplan.torch.pipelines.run import Pipeline
from shardplan.torch.placements import whole_of
from shardplan.whole_files import written_beside


@torch.no_grad()  # type: ignore[untyped-decorator]
def full_state_dict(model: nn.Module | Pipeline, *, rank: int | None = None) -> dict[str, Tensor]:
    """`model.state_dict()` as it was before the plan: whole tensors on the CPU, fused weights as one, tied ones shared.

    All processes have to call it, and send what they hold tensor by tensor, so that no more than one is whole on a
    device at a time. `rank`: who keeps the result; others get an empty one. None: everybody keeps it.
    """
    if isinstance(model, Pipeline):
        from shardplan.torch.pipelines.states import whole_weights  # noqa: PLC0415 - it reads this module

        return whole_weights(model, rank)
    keep = rank is None or not dist.is_initialized() or dist.get_rank() == rank
    found: dict[str, Tensor] = {}
    same: dict[int, Tensor] = {}
    for name, stored in stored_by_name(model):
        first = stored[0] if isinstance(stored, tuple) else stored
        if id(first) not in same:
            whole = whole_stored(stored).detach()
            # what is replicated is the model's own memory
            same[id(first)] = whole.to("cpu", copy=True) if keep else whole.new_empty(0)
        if keep:
            found[name] = same[id(first)]
    return found


def save(model: nn.Module | Pipeline, path: str | Path) -> None:
    """Write the weights of `model` to `path` (.safetensors): whole tensors under the names of the module, those that
    are tied once. All processes have to call it; the first writes. The file is whole, or as it was before.

    Raises `ShardplanError` (`unwritable-output`), on all processes, so that none waits.
    """
    state = full_state_dict(model, rank=0)
    is_first = not dist.is_initialized() or dist.get_rank() == 0
    said: list[Diagnostic | None] = [_write(state, path) if is_first else None]
    if dist.is_initialized():
        dist.broadcast_object_list(said, src=0)
    if said[0] is not None:
        raise ShardplanError(said[0])


def _write(state: dict[str, Tensor], path: str | Path) -> Diagnostic | None:
    """What prevented it, if anything did."""
    from safetensors.torch import save_file  # noqa: PLC0415 - only to write

    once = {id(tensor): name for name, tensor in reversed(state.items())}
    kept = set(once.values())
    try:
        with written_beside(path) as beside:
            weights = {name: tensor.contiguous() for name, tensor in state.items() if name in kept}
            save_file(weights, beside, {"format": "pt"})
    except Exception as problem:  # noqa: BLE001 - whatever it is, the other processes wait to hear of it
        reason = reason_of(problem) if isinstance(problem, OSError) else f"{type(problem).__name__}: {problem}"
        return error("unwritable-output", f"cannot write the weights: {reason}", file=str(path))
    return None


def stored_by_name(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Names of the module without a plan -> what is stored: a tensor, or those of a fused weight, and its `Parts`."""
    state = model.state_dict(keep_vars=True)
    fused = {
        name: (*map(state.pop, part_names(name, parts)), parts)
        for name, parts in _parts_by_name(model).items()
        if part_name(name, 0) in state
    }
    yield from state.items()
    yield from fused.items()


def _parts_by_name(model: nn.Module) -> dict[str, Parts]:
    """The parts of fused weights: those of the plan that a model holds (a graph has no parametrizations), and those of
    modules, which another library may have taken out of such a model."""
    found: dict[str, Parts] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        inside: dict[str, Parts | None] = {}
        if is_parallel(module):
            applied = applied_to(module)
            inside = {name: parts_of(named.layout, applied.groups.mesh) for name, named in applied.named.items()}
        if parametrize.is_parametrized(module):
            made = {attribute: parts[0] for attribute, parts in module.parametrizations.items()}
            inside |= {name: one.parts for name, one in made.items() if isinstance(one, FusedWeight)}
        found |= {f"{path}.{name}".lstrip("."): parts for name, parts in inside.items() if parts is not None}
    return found


def whole_stored(stored: Any) -> Tensor:
    """A tensor, or the tensors of a fused weight and its `Parts`, whole; all processes that hold it have to call it."""
    if isinstance(stored, tuple):
        *tensors, parts = stored
        joined: Tensor = parts.join([whole_stored(tensor) for tensor in tensors])
        return joined
    return whole_of(stored)
