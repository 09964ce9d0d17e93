"""What each of the processes of `families.py` does with one program under one plan."""

from __future__ import annotations

import contextlib
import logging
import re
import traceback
import warnings
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

import torch
from family_programs import LOOPS, PROGRAMS
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

import shardplan.torch
from shardplan.errors import ShardplanError
from shardplan.plan.types import Plan

RATE = 0.05
_MESHES: dict[Any, Any] = {}
_CPU_MESHES: dict[tuple[int, ...], DeviceMesh] = {}


def made(name: str, dtype: torch.dtype, device: str = "cpu") -> tuple[nn.Module, Any]:
    """A program and its batch, the same in every process."""
    torch.manual_seed(0)
    model, batch = PROGRAMS[name]()

    def typed(each: Tensor) -> Tensor:
        if each.is_complex():  # `Module.to` would drop imaginary parts
            return each.to(device, dtype.to_complex())
        return each.to(device, dtype if each.is_floating_point() else None)

    return model._apply(typed), tree_map_only(Tensor, typed, batch)  # noqa: SLF001 - as `Module.to` does


def ready() -> None:
    """Answers when a process has started."""


def train(
    name: str, plan: Plan, mode: str, device: str, strict: bool, dtype: torch.dtype = torch.float64
) -> tuple[str, Any]:
    """Two steps under `plan` and beside it by one process, then one pass as in evaluation: `("ran", errors)` of loss,
    gradients, parameters and buffers, relative to the largest entry, and how far one process is from itself (`own`)
    when its parameters are changed in the last digit; `("refused", why)`; `("crashed", why)`. `mode`: `eager`,
    `exported`, or a backend by which the graph is compiled."""
    warnings.simplefilter("ignore")
    logging.getLogger("torch.distributed").setLevel(logging.ERROR)
    try:
        return "ran", _errors(name, plan, mode, device, strict, dtype)
    except ShardplanError as problem:
        return "refused", re.sub(r"\s+", " ", str(problem.diagnostics[0]))
    except Exception as problem:  # noqa: BLE001 - it is what is looked for
        said = f"{type(problem).__name__}: {problem}".splitlines()[0]
        return "crashed", f"{said} {_where(problem)}"


def _where(problem: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(problem.__traceback__) if "shardplan" in frame.filename]
    own = [frame for frame in traceback.extract_tb(problem.__traceback__) if "family_programs" in frame.filename]
    return " ".join(f"[{frame.filename.rpartition('/')[2]}:{frame.lineno}]" for frame in (*own[-1:], *frames[-2:]))


def _errors(name: str, plan: Plan, mode: str, device: str, strict: bool, dtype: torch.dtype) -> dict[str, float]:
    if plan.mesh not in _MESHES:
        _MESHES[plan.mesh] = shardplan.torch.mesh(plan, device)
    mesh = _MESHES[plan.mesh]
    (model, batch), (reference, _), (another, _) = (made(name, dtype, device) for _ in range(3))
    with torch.no_grad(), torch.random.fork_rng():
        for parameter in another.parameters():
            parameter.mul_(1 + 2 * torch.finfo(dtype).eps * torch.randn_like(parameter))
    given = {"strict": strict, "ignore": () if strict else ("*",)}
    if mode != "eager":
        args, kwargs = ((), batch) if isinstance(batch, Mapping) else (batch, {})
        given["backend"] = None if mode == "exported" else mode
        model = shardplan.torch.parallelize_exported(model, args, plan, mesh, example_kwargs=kwargs, **given)
    else:
        shardplan.torch.parallelize(model, plan, mesh, **given)
    known = {name for name, _ in [*reference.named_parameters(), *reference.named_buffers()]}
    all_three, single = (model, reference, another), SinglePrecision()
    found = dict.fromkeys(("loss", "gradients", "parameters", "buffers", "evaluation", "own"), 0.0)
    for seen in _looped(name, all_three, batch, single) if name in LOOPS else _stepped(all_three, batch, single):
        seen["gradients"] = _apart(*(_of(each, known, gradients=True) for each in (model, reference)))
        seen["own"] = max(seen["own"], _apart(*(_of(each, known, gradients=True) for each in (another, reference))))
        seen["parameters"] = _apart(*(_of(each, known) for each in (model, reference)))
        seen["buffers"] = _buffers_apart(model, reference, known, missing=mode != "eager")
        found = {key: max(value, seen.get(key, 0.0)) for key, value in found.items()}
    if mode == "eager":  # a graph is of one mode
        seen = _evaluated(all_three, batch, known)
        found = {key: max(value, seen.get(key, 0.0)) for key, value in found.items()}
    return {**found, "single": float(single.seen)}


def _stepped(models: tuple[nn.Module, ...], batch: Any, single: Any) -> Iterator[dict[str, float]]:
    """Two steps of three models; how far losses are apart after each. `single`: what the last one runs under."""
    optimizers = [torch.optim.SGD(each.parameters(), RATE, momentum=0.9) for each in models]
    for step in range(2):
        results = [_called(each, batch, step, single if each is models[2] else None) for each in models]
        losses = [getattr(each, "loss", each) for each in results]
        for optimizer, loss in zip(optimizers, losses, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        yield {"loss": _loss_apart(*results[:2]), "own": _loss_apart(*results[:0:-1])}


def _looped(name: str, models: tuple[nn.Module, ...], batch: Any, single: Any) -> Iterator[dict[str, float]]:
    """The same of a loop of the program's own."""
    results = []
    for each in models:
        torch.manual_seed(0)
        with single if each is models[2] else contextlib.nullcontext():
            results.append(_together((str(number), one) for number, one in enumerate(LOOPS[name][1](each, batch))))
    yield {"loss": _apart(results[0], results[1]), "own": _apart(results[2], results[1])}


def _called(model: nn.Module, batch: Any, seed: int, under: Any = None) -> Any:
    """What a program gives; whatever it draws, all copies of it draw alike."""
    torch.manual_seed(seed)
    with under or contextlib.nullcontext():
        return model(**batch) if isinstance(batch, Mapping) else model(*batch)


def _evaluated(models: tuple[nn.Module, ...], batch: Any, known: Container[str]) -> dict[str, float]:
    """What the trained programs are apart without gradients, as in evaluation, which changes no buffer but counts."""
    for each in models:
        each.eval()
    with torch.no_grad():
        model, reference, another = (_called(each, batch, 0) for each in models)
    buffers = _buffers_apart(models[0], models[1], known)
    return {"evaluation": _loss_apart(model, reference), "own": _loss_apart(another, reference), "buffers": buffers}


def _loss_apart(one: Any, other: Any) -> float:
    """How far results are apart: of a tensor, or of all in a structure."""
    return _apart(*(_together((str(at), leaf) for at, leaf in enumerate(tree_leaves(each))) for each in (one, other)))


def _buffers_apart(one: nn.Module, other: nn.Module, known: Container[str], *, missing: bool = False) -> float:
    return _apart(*(_together(each.named_buffers(), known) for each in (one, other)), missing=missing)


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
        whole = _whole(tensor) if isinstance(tensor, DTensor) else tensor
        parts.setdefault(name if name in known else _PART.sub(r"\1\2", name), []).append(whole.detach().double())
    return parts


def _whole(tensor: DTensor) -> Tensor:
    """Gathered on the CPU: torch's functional collectives of gloo end the process for tensors of a GPU (torch 2.11)."""
    kind = tensor.device_mesh.device_type
    if kind == "cpu":
        return tensor.full_tensor()
    shape, strides = tuple(tensor.device_mesh.shape), torch.empty(tensor.shape, device="meta").stride()
    if shape not in _CPU_MESHES:
        _CPU_MESHES[shape] = init_device_mesh("cpu", shape)
    local, placements = tensor.to_local().detach().cpu(), tensor.placements
    there = DTensor.from_local(
        local, _CPU_MESHES[shape], placements, run_check=False, shape=tensor.shape, stride=strides
    )
    return there.full_tensor().to(kind)


_PART = re.compile(r"(^|\.)parametrizations\.(\w+)\.original\d+$")


def _joined(parts: list[Tensor], shape: torch.Size) -> Tensor:
    """Parts one after the other along the dim in which they make up `shape`; a dim of one part may be two."""
    if len(parts) == 1:
        return parts[0].reshape(shape)
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
