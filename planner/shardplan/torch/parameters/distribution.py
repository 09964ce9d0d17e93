"""Parameters as DTensors: what each process stores of them, and their local values in a forward pass."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate
from torch.nn.utils import parametrize

from shardplan.errors import ShardplanError, error
from shardplan.layout.layout import Layout
from shardplan.layout.legal import local_shape
from shardplan.runtime.names import Named
from shardplan.torch.collectives.steps import shard_of_whole
from shardplan.torch.gradients.bucketing import BucketedWeights
from shardplan.torch.parameters.between_steps import joined
from shardplan.torch.parameters.fused import Parts, parts_of
from shardplan.torch.parameters.gradient_hooks import refuse_hooks, take_over_hooks
from shardplan.torch.parameters.orientation import in_module_dims
from shardplan.torch.placements import wrap
from shardplan.torch.process_groups import ProcessGroups
from shardplan.torch.propagation.engine import Engine
from shardplan.torch.propagation.lineage import leaf
from shardplan.torch.propagation.plan_graph import Key, permuted
from shardplan.torch.propagation.values import Value


def distribute(model: nn.Module, named: Mapping[str, Named], groups: ProcessGroups) -> None:
    """Replace every parameter by a DTensor of the shard that this process stores, or by several (see
    `shardplan.torch.parameters.fused`); tied parameters and shared buffers stay one, and a module may have several
    names."""
    made: dict[int, nn.Parameter] = {}
    buffers: dict[int, Tensor] = {}
    in_parts: dict[int, nn.Module] = {}
    done: set[tuple[nn.Module, str]] = set()
    for name, entry in named.items():
        owner, attribute = owner_of(model, name)
        if (owner, attribute) in done:
            continue
        done.add((owner, attribute))
        tensor = getattr(owner, attribute)
        parts = parts_of(entry.layout, groups.mesh)
        refuse_hooks(name, tensor, in_parts=parts is not None)
        if parts is not None:
            made_of_parts = FusedWeight(parts, groups, is_buffer=attribute in owner._buffers)  # noqa: SLF001 - as below
            parametrize.register_parametrization(owner, attribute, made_of_parts, unsafe=True)
            _tie(owner.parametrizations[attribute], in_parts.setdefault(id(tensor), owner.parametrizations[attribute]))
            continue
        if id(tensor) not in made:
            made[id(tensor)] = distributed(tensor, entry.layout, groups)
            take_over_hooks(tensor, made[id(tensor)], entry.layout, groups)
        if attribute in owner._parameters:  # noqa: SLF001 - a parameter is replaced in place
            owner._parameters[attribute] = made[id(tensor)]  # noqa: SLF001
        else:
            owner._buffers[attribute] = buffers.setdefault(id(tensor), made[id(tensor)].data)  # noqa: SLF001


def _tie(stored: nn.Module, first: nn.Module) -> None:
    """A weight in parts has the tensors of `first`, which is the same parameter."""
    for own, others in ((stored._parameters, first._parameters), (stored._buffers, first._buffers)):  # noqa: SLF001
        own.update(others)


def place_constants(model: nn.Module, groups: ProcessGroups) -> None:
    """Bring buffers that every process has whole to its device."""
    for module in model.modules():
        for name, buffer in module._buffers.items():  # noqa: SLF001 - a buffer is replaced in place
            if buffer is not None and not isinstance(buffer, DTensor) and not buffer.is_meta:
                module._buffers[name] = buffer.to(groups.device)  # noqa: SLF001


def owner_of(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The module that has a parameter, and the attribute that it is."""
    path, _, attribute = name.rpartition(".")
    return model.get_submodule(path), attribute


def distributed(tensor: Tensor, layout: Layout, groups: ProcessGroups) -> nn.Parameter:
    """The DTensor of a tensor that every process has whole, or that is on the meta device."""
    device = tensor.device if tensor.device.type == "meta" else groups.device
    local = shard_of_whole(tensor.detach().to(device), layout.forward, groups)
    return nn.Parameter(wrap(local.contiguous(), layout, tensor.shape, groups), requires_grad=tensor.requires_grad)


class FusedWeight(nn.Module):  # type: ignore[misc]
    """A parametrization of torch that joins a fused weight from its parts. While the model runs, its result is the top
    of `running`, a planned tensor, and `stored` are its parts; otherwise it is the whole tensor, gathered. `is_buffer`:
    it is not a parameter."""

    def __init__(self, parts: Parts, groups: ProcessGroups, *, is_buffer: bool) -> None:
        super().__init__()
        self.parts, self.groups, self.is_buffer = parts, groups, is_buffer
        self.running: list[Any] = []  # planned tensors
        self.stored: Sequence[DTensor] = ()

    def right_inverse(self, whole: Tensor) -> tuple[Tensor, ...]:
        """The parts, as DTensors. While the model runs, `running` keeps what the program assigns."""
        if self.running:
            with self.running[-1].engine.lasting():  # torch has turned gradients off
                self.running[-1].copy_(whole)
            return tuple(part.detach() for part in self.stored)
        made = [distributed(part, self.parts.layout, self.groups) for part in self.parts.split(whole)]
        return tuple(part.data if self.is_buffer else part for part in made)

    def forward(self, *parts: Tensor) -> Any:
        """The weight."""
        if self.running:
            return self.running[-1]
        return joined(self.parts.join([*map(_gathered, parts)]), parts, self.parts)


def _gathered(part: Tensor) -> Tensor:
    """A part, whole on every process."""
    if not isinstance(part, DTensor):
        return part
    return part.redistribute(placements=[Replicate()] * part.device_mesh.ndim)


def fused_weight(module: nn.Module, attribute: str) -> FusedWeight | None:
    """The parametrization of a weight that is stored in parts, else None."""
    found = module.parametrizations[attribute][0] if parametrize.is_parametrized(module, attribute) else None
    return found if isinstance(found, FusedWeight) else None


def stored_tensors(module: nn.Module, attribute: str) -> list[Any]:
    """The tensors in which a module stores a parameter: one, or the parts of a fused weight."""
    if fused_weight(module, attribute) is None:
        return [getattr(module, attribute)]
    stored = module.parametrizations[attribute]
    return [getattr(stored, f"original{number}") for number in range(stored.ntensors)]


def local_weights(
    model: nn.Module, named: Mapping[str, Named], groups: ProcessGroups, *, trains: bool
) -> dict[str, tuple[Named, Tensor]]:
    """By the plan's names, every parameter with what this process holds of it when a forward pass begins. Raises
    `ShardplanError`: `changed-model`, `lost-change`."""
    found: dict[str, tuple[Named, Tensor]] = {}
    for name, entry in named.items():
        if entry.decision.name not in found:
            stored = _still_stored(model, name)
            if all(isinstance(tensor, DTensor) for tensor in stored):
                found[entry.decision.name] = entry, local_weight(entry, stored, groups, trains=trains)
    return found


def _still_stored(model: nn.Module, name: str) -> list[Any]:
    """As `stored_tensors`. Raises `ShardplanError` (`changed-model`)."""
    try:
        return stored_tensors(*owner_of(model, name))
    except AttributeError:
        summary = f"the model has no '{name}' any more, which it had when the plan was applied"
        hint = "call what it has become (adapters: what merge_and_unload returns), or save that and plan it anew"
        raise ShardplanError(error("changed-model", summary, hint=hint)) from None


def local_weight(named: Named, stored: Sequence[DTensor], groups: ProcessGroups, *, trains: bool) -> Tensor:
    """What this process holds of a parameter that is stored in one or several tensors. Raises `ShardplanError`
    (`lost-change`)."""
    locals_ = [local_shard(tensor, trains=trains) for tensor in stored]
    parts = parts_of(named.layout, groups.mesh)
    local = locals_[0] if parts is None else parts.join(locals_)
    wanted = _planned_shape(named.layout.forward, groups.mesh, named.shape)
    if local.shape != wanted:
        summary = (
            f"parameter '{named.name}' has become {list(local.shape)} on this process, which is to hold {[*wanted]}"
        )
        detail = "a function of torch has written into it that cannot write into parts (torch.eye(..., out=weight))"
        hint = "change it in: with shardplan.torch.whole(model, name) as weight; or before the plan is applied"
        raise ShardplanError(error("lost-change", summary, detail=detail, hint=hint))
    return local


_planned_shape = functools.lru_cache(maxsize=4096)(local_shape)


def local_shard(tensor: DTensor, *, trains: bool) -> Tensor:
    """The local part of a DTensor; if the plan trains, its gradient is a DTensor again."""
    if not trains or not tensor.requires_grad:
        return tensor.to_local().detach()  # the other way round, a DTensor cannot in inference mode
    return tensor.to_local(grad_placements=tensor.placements)


def parameter_value(engine: Engine, named: Named, local: Any, weights: BucketedWeights | None) -> Value:
    """A parameter in the dims of its module, which may be a transpose of the plan's. `weights`: all weights of the
    forward pass, if one is under way."""
    dtype, grad = engine.backend.describe(local)
    signature = engine.graph.signatures.leaf("weight", named.decision.checkpoint)
    key = Key(signature, named.shape, permuted((), named.perm))
    told = leaf("weight", named.decision.checkpoint)
    value = Value(local, named.layout.forward, named.shape, dtype, grad, key, lineage=told)
    if weights is not None:
        return weights.value(named.decision.name, value)
    if named.decision.optimizer is None:
        return value
    return engine.updated(value, in_module_dims(named.decision.layout, named), named.decision)
