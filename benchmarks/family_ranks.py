"""What each of the processes of `families.py` does with one program under one plan."""

from __future__ import annotations

import logging
import re
import traceback
import warnings
from typing import Any

import torch
from family_programs import PROGRAMS
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import shardplan.torch
from shardplan.errors import ShardplanError
from shardplan.plan.types import Plan

RATE = 0.05
_MESHES: dict[Any, Any] = {}


def made(name: str, dtype: torch.dtype) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A program and its batch, the same in every process."""
    torch.manual_seed(0)
    model, batch = PROGRAMS[name]()
    return model.to(dtype), tuple(each.to(dtype) if each.is_floating_point() else each for each in batch)


def train(name: str, plan: Plan, mode: str, strict: bool, dtype: torch.dtype = torch.float64) -> tuple[str, Any]:
    """Two steps under `plan` and beside it by one process: `("ran", errors)` of loss, gradients, parameters and
    buffers, relative to the largest entry; `("refused", why)`; `("crashed", why)`."""
    warnings.simplefilter("ignore")
    logging.getLogger("torch.distributed").setLevel(logging.ERROR)
    try:
        return "ran", _errors(name, plan, mode, strict, dtype)
    except ShardplanError as problem:
        return "refused", re.sub(r"\s+", " ", str(problem.diagnostics[0]))
    except Exception as problem:  # noqa: BLE001 - it is what is looked for
        said = f"{type(problem).__name__}: {problem}".splitlines()[0]
        return "crashed", f"{said} {_where(problem)}"


def _where(problem: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(problem.__traceback__) if "shardplan" in frame.filename]
    own = [frame for frame in traceback.extract_tb(problem.__traceback__) if "family_programs" in frame.filename]
    return " ".join(f"[{frame.filename.rpartition('/')[2]}:{frame.lineno}]" for frame in (*own[-1:], *frames[-2:]))


def _errors(name: str, plan: Plan, mode: str, strict: bool, dtype: torch.dtype) -> dict[str, float]:
    if plan.mesh not in _MESHES:
        _MESHES[plan.mesh] = shardplan.torch.mesh(plan, "cpu")
    mesh = _MESHES[plan.mesh]
    (model, batch), (reference, _) = made(name, dtype), made(name, dtype)
    given = {"strict": strict, "ignore": () if strict else ("*",)}
    if mode == "exported":
        model = shardplan.torch.parallelize_exported(model, batch, plan, mesh, **given)
    else:
        shardplan.torch.parallelize(model, plan, mesh, **given)
    optimizers = [torch.optim.SGD(each.parameters(), RATE, momentum=0.9) for each in (model, reference)]
    found = {"loss": 0.0, "gradients": 0.0, "parameters": 0.0, "buffers": 0.0}
    for _ in range(2):
        losses = [each(*batch) for each in (model, reference)]
        for optimizer, loss in zip(optimizers, losses, strict=True):
            optimizer.zero_grad()
            loss.backward()
        seen = {
            "loss": _apart({"": losses[0]}, {"": losses[1]}),
            "gradients": _apart(_of(model, gradients=True), _of(reference, gradients=True)),
        }
        for optimizer in optimizers:
            optimizer.step()
        seen["parameters"] = _apart(_of(model), _of(reference))
        seen["buffers"] = _apart(
            dict(model.named_buffers()), dict(reference.named_buffers()), missing=mode == "exported"
        )
        found = {key: max(value, seen[key]) for key, value in found.items()}
    return found


def _of(model: nn.Module, *, gradients: bool = False) -> dict[str, Tensor]:
    """Whole parameters, or their gradients, by name; those that are kept in parts are put together."""
    parts: dict[str, list[Tensor]] = {}
    for name, tensor in model.named_parameters():
        held = tensor.grad if gradients else tensor
        if held is not None:
            parts.setdefault(re.sub(r"\.parametrizations\.(\w+)\.original(\d+)$", r".\1", name), []).append(held)
    return {name: several[0] if len(several) == 1 else _joined(several) for name, several in parts.items()}


def _joined(several: list[Tensor]) -> Tensor:
    return torch.cat([_whole(each).flatten() for each in several])


def _whole(tensor: Any) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def _apart(ours: dict[str, Any], theirs: dict[str, Any], *, missing: bool = False) -> float:
    """The largest difference over all tensors, relative to the largest entry of `theirs`."""
    if not missing:
        assert ours.keys() == theirs.keys(), f"{sorted(ours.keys() ^ theirs.keys())} on one side alone"
    pairs = [(_whole(ours[name]), theirs[name].detach()) for name in theirs if name in ours]
    top = max((float(other.abs().max()) for _, other in pairs if other.numel()), default=1.0) or 1.0
    found = 0.0
    for one, other in pairs:
        if other.numel():
            wrong = (one.flatten().sort().values if one.shape != other.shape else one).double()
            right = (other.flatten().sort().values if one.shape != other.shape else other).double()
            apart = float((wrong - right).abs().max())
            found = max(found, float("inf") if apart != apart else apart / top)
    return found
