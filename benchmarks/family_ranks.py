"""What each of the processes of `families.py` does with one program under one plan."""

from __future__ import annotations

import logging
import re
import traceback
import warnings
from collections.abc import Container, Iterable
from typing import Any

import torch
from family_programs import PROGRAMS
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode

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
    buffers, relative to the largest entry, and how far one process is from itself (`own`) when its parameters are
    changed in the last digit; `("refused", why)`; `("crashed", why)`."""
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
    (model, batch), (reference, _), (another, _) = (made(name, dtype) for _ in range(3))
    with torch.no_grad(), torch.random.fork_rng():
        for parameter in another.parameters():
            parameter.mul_(1 + 2 * torch.finfo(dtype).eps * torch.randn_like(parameter))
    given = {"strict": strict, "ignore": () if strict else ("*",)}
    if mode == "exported":
        model = shardplan.torch.parallelize_exported(model, batch, plan, mesh, **given)
    else:
        shardplan.torch.parallelize(model, plan, mesh, **given)
    known = {name for name, _ in [*reference.named_parameters(), *reference.named_buffers()]}
    optimizers = [torch.optim.SGD(each.parameters(), RATE, momentum=0.9) for each in (model, reference, another)]
    with SinglePrecision() as single:
        another(*batch)
    found = {"loss": 0.0, "gradients": 0.0, "parameters": 0.0, "buffers": 0.0, "own": 0.0}
    for _ in range(2):
        losses = [each(*batch) for each in (model, reference, another)]
        for optimizer, loss in zip(optimizers, losses, strict=True):
            optimizer.zero_grad()
            loss.backward()
        seen = {
            "loss": _apart(_together([("", losses[0])]), _together([("", losses[1])])),
            "gradients": _apart(*(_of(each, known, gradients=True) for each in (model, reference))),
            "own": max(
                _apart(*(_of(each, known, gradients=True) for each in (another, reference))),
                _apart(_together([("", losses[2])]), _together([("", losses[1])])),
            ),
        }
        for optimizer in optimizers:
            optimizer.step()
        seen["parameters"] = _apart(*(_of(each, known) for each in (model, reference)))
        buffers = [_together(each.named_buffers(), known) for each in (model, reference)]
        seen["buffers"] = _apart(*buffers, missing=mode == "exported")
        found = {key: max(value, seen[key]) for key, value in found.items()}
    return {**found, "single": float(single.seen)}


class SinglePrecision(TorchFunctionMode):
    """Whether a program in double precision computes something in single precision that has a gradient."""

    seen = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor) and made.dtype == torch.float32 and made.requires_grad:
            self.seen = True
        return made


def _of(model: nn.Module, known: Container[str], *, gradients: bool = False) -> dict[str, list[Tensor]]:
    """Whole parameters, or their gradients, by name."""
    named = ((name, tensor.grad if gradients else tensor) for name, tensor in model.named_parameters())
    return _together(((name, held) for name, held in named if held is not None), known)


def _together(named: Iterable[tuple[str, Tensor]], known: Container[str] = ()) -> dict[str, list[Tensor]]:
    """Tensors by name; of those that are kept in parts, all parts under the name in `known` that they are of."""
    parts: dict[str, list[Tensor]] = {}
    for name, tensor in named:
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        parts.setdefault(name if name in known else _PART.sub(r"\1\2", name), []).append(whole.detach().double())
    return parts


_PART = re.compile(r"(^|\.)parametrizations\.(\w+)\.original\d+$")


def _joined(parts: list[Tensor], shape: torch.Size) -> Tensor:
    """Parts one after the other along the dim in which they make up `shape`."""
    if len(parts) == 1:
        return parts[0]
    joined = (torch.cat(parts, dim) for dim in range(len(shape)) if _fits(parts, dim))
    return next(whole for whole in joined if whole.shape == shape)


def _fits(parts: list[Tensor], dim: int) -> bool:
    return len({(*part.shape[:dim], *part.shape[dim + 1 :]) for part in parts}) == 1


def _apart(ours: dict[str, list[Tensor]], theirs: dict[str, list[Tensor]], *, missing: bool = False) -> float:
    """The largest difference over all tensors, relative to the largest entry of `theirs`."""
    if not missing and ours.keys() != theirs.keys():
        raise AssertionError(f"{sorted(ours.keys() ^ theirs.keys())} on one side alone")
    found, top = 0.0, 0.0
    for name, several in theirs.items():
        for number, other in enumerate(several):
            if name in ours and other.numel():
                one = _joined(ours[name], other.shape) if len(several) == 1 else ours[name][number]
                apart = float((one - other).abs().max())
                found, top = max(found, float("inf") if apart != apart else apart), max(top, float(other.abs().max()))
    return found / (top or 1.0)
