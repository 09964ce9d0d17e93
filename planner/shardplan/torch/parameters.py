"""The parameters of a model under a plan: DTensors while it rests, planned tensors while it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import parametrize

from shardplan.layout.layout import Layout
from shardplan.runtime.names import Named
from shardplan.torch.eager import Planned
from shardplan.torch.engine import Engine
from shardplan.torch.fused import Parts, parts_of
from shardplan.torch.graph import Key, permuted
from shardplan.torch.grid import Grid
from shardplan.torch.naming import kept_layout
from shardplan.torch.placements import to_placements
from shardplan.torch.steps import part_of_whole
from shardplan.torch.together import Weights
from shardplan.torch.values import Value

if TYPE_CHECKING:
    from shardplan.torch.parallelize import Applied


def distribute(model: nn.Module, applied: Applied) -> None:
    """Every parameter becomes a DTensor of the part that this process keeps, or several (`shardplan.torch.fused`); tied
    ones stay tied."""
    made: dict[int, nn.Parameter] = {}
    for name, named in applied.named.items():
        owner, attribute = owner_of(model, name)
        tensor = getattr(owner, attribute)
        parts = parts_of(named.layout, applied.grid.mesh)
        if parts is not None:
            parametrize.register_parametrization(owner, attribute, Joined(parts, applied.grid), unsafe=True)
            continue
        if id(tensor) not in made:
            made[id(tensor)] = distributed(tensor, named.layout, applied.grid)
        if attribute in owner._parameters:  # noqa: SLF001 - a parameter is replaced in place
            owner._parameters[attribute] = made[id(tensor)]  # noqa: SLF001
        else:
            owner._buffers[attribute] = made[id(tensor)].data  # noqa: SLF001


def owner_of(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The module that has a parameter, and what it calls it."""
    path, _, attribute = name.rpartition(".")
    return model.get_submodule(path), attribute


def distributed(tensor: Tensor, layout: Layout, grid: Grid) -> nn.Parameter:
    """The DTensor of a tensor that every process has whole, or that is on the meta device."""
    device = tensor.device if tensor.device.type == "meta" else grid.device
    local = part_of_whole(tensor.detach().to(device), layout.forward, grid)
    stride = torch.empty(tensor.shape, device="meta").stride()
    placements = to_placements(layout, grid.mesh)
    made = DTensor.from_local(
        local.contiguous(), grid.device_mesh, placements, run_check=False, shape=tensor.shape, stride=stride
    )
    return nn.Parameter(made, requires_grad=tensor.requires_grad)


class Joined(nn.Module):  # type: ignore[misc]
    """How a weight is put together from its parts: a parametrization of torch. While the model runs (`running`), it is
    a planned tensor; else it is the whole tensor, gathered."""

    def __init__(self, parts: Parts, grid: Grid) -> None:
        super().__init__()
        self.parts, self.grid = parts, grid
        self.running: list[Planned] = []

    def right_inverse(self, whole: Tensor) -> tuple[Tensor, ...]:
        """The parts, as this process keeps them."""
        return tuple(distributed(part, self.parts.layout, self.grid) for part in self.parts.split(whole))

    def forward(self, *parts: Tensor) -> Any:
        """The weight."""
        return self.running[-1] if self.running else torch.cat(parts, self.parts.dim)


def enter_module(applied: Applied, parameters: Sequence[tuple[str, str]]) -> Callable[..., None]:
    """A hook: while a module runs, its parameters, (attribute, name), are planned tensors."""

    def enter(module: nn.Module, args: Any) -> None:
        del args
        stores = module.__dict__.setdefault("_shardplan_stores", [])
        stores.append((dict(module._parameters), dict(module._buffers)))  # noqa: SLF001 - put back when it has run
        for attribute, name in parameters:
            joined = _joined(module, attribute)
            if joined is not None:
                joined.running.append(_planned(applied, name, *_originals(module, attribute)))
                continue
            store = module._parameters if attribute in module._parameters else module._buffers  # noqa: SLF001
            if isinstance(store[attribute], DTensor):
                store[attribute] = _planned(applied, name, store[attribute])

    return enter


def leave_module(parameters: Sequence[tuple[str, str]]) -> Callable[..., None]:
    """A hook: the module has run."""

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        del args, output
        stores = module.__dict__.get("_shardplan_stores")
        if stores:
            own, buffers = stores.pop()
            module._parameters.update(own)  # noqa: SLF001 - as above
            module._buffers.update(buffers)  # noqa: SLF001
            for joined in filter(None, (_joined(module, attribute) for attribute, _ in parameters)):
                joined.running.pop()

    return leave


def _joined(module: nn.Module, attribute: str) -> Joined | None:
    found = module.parametrizations[attribute][0] if parametrize.is_parametrized(module, attribute) else None
    return found if isinstance(found, Joined) else None


def _originals(module: nn.Module, attribute: str) -> list[DTensor]:
    held = module.parametrizations[attribute]
    return [getattr(held, f"original{number}") for number in range(held.ntensors)]


def _planned(applied: Applied, name: str, *held: DTensor) -> Planned:
    """A parameter, held in one or several tensors, as a planned tensor; the same one for all modules that share it in
    one forward pass."""
    named = applied.named[name]
    decision = named.decision
    if applied.depth and decision.name in applied.parameters:
        return applied.parameters[decision.name]
    weights = applied.weights
    _, local = weights.held[decision.name] if weights is not None else (named, held_part(applied, named, held))
    planned = Planned.of(parameter_value(applied.engine, named, local, weights), applied.engine)
    if applied.depth:
        applied.parameters[decision.name] = planned
    return planned


def held_weights(model: nn.Module, applied: Applied) -> dict[str, tuple[Named, Tensor]]:
    """By the plan's names, what this process holds of every parameter when a forward pass begins."""
    found: dict[str, tuple[Named, Tensor]] = {}
    for name, named in applied.named.items():
        if named.decision.name not in found:
            owner, attribute = owner_of(model, name)
            held = [getattr(owner, attribute)] if _joined(owner, attribute) is None else _originals(owner, attribute)
            if all(isinstance(tensor, DTensor) for tensor in held):
                found[named.decision.name] = named, held_part(applied, named, held)
    return found


def held_part(applied: Applied, named: Named, held: Sequence[DTensor]) -> Tensor:
    """What this process holds of a parameter, in one or several tensors."""
    locals_ = [local_part(applied, tensor) for tensor in held]
    parts = parts_of(named.layout, applied.grid.mesh)
    return locals_[0] if parts is None else parts.join(locals_)


def local_part(applied: Applied, tensor: DTensor) -> Tensor:
    """What this process holds of a parameter; where the plan trains, its gradient is a DTensor again."""
    if not applied.trains or not tensor.requires_grad:
        return tensor.detach().to_local()
    return tensor.to_local(grad_placements=tensor.placements)


def parameter_value(engine: Engine, named: Named, local: Any, weights: Weights | None) -> Value:
    """A parameter as the module sees it; what the plan calls by its name may be its transpose. `weights`: all of a
    forward pass, whose gradients go home together."""
    dtype, grad = engine.backend.describe(local)
    signature = engine.graph.signatures.leaf("weight", named.decision.checkpoint)
    key = Key(signature, named.shape, permuted((), named.perm))
    value = Value(local, named.layout.forward, named.shape, dtype, grad, key)
    if weights is not None:
        return weights.value(named.decision.name, value)
    if named.decision.optimizer is None:
        return value
    return engine.updated(value, kept_layout(named), named.decision)
