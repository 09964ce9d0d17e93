"""Module hooks of a forward pass: while a module runs, its parameters, and those of modules in it, are planned tensors.

A program reads weights of other modules than the one that runs (attention, those of its projections), so the outermost
module that is called, the model or a block that is recomputed, replaces all in it. Buffers that the program changes
meanwhile, in place or by assignment, and parameters that it changes in place are written back when it has run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils import _python_dispatch, checkpoint

from shardplan.errors import ShardplanError, error
from shardplan.layout.layout import Layout
from shardplan.torch.applied_plan import AppliedPlan
from shardplan.torch.eager.planned_tensor import Planned, value_of
from shardplan.torch.parameters.distribution import (
    FusedWeight,
    fused_weight,
    local_weight,
    parameter_value,
    stored_tensors,
)

Owners = Mapping[nn.Module, Sequence[tuple[str, str]]]
"""Module -> the parameters that it has itself, (attribute, name)."""


class _Replaced(NamedTuple):
    """A parameter or buffer that is a planned tensor, `planned`, while its module runs. `store`: where the module keeps
    it; `given`: for a buffer, the local tensor that the program got."""

    module: nn.Module
    store: dict[str, Any]
    attribute: str
    name: str
    stored: DTensor
    planned: Planned
    given: Tensor | None
    is_buffer: bool


class _InParts(NamedTuple):
    """A parameter or buffer that is kept in parts, while its module runs: `planned` stands for it; `given`: as
    above."""

    weight: FusedWeight
    name: str
    stored: Sequence[DTensor]
    planned: Planned
    given: Tensor | None


@dataclass
class ModuleHooks:
    """The hooks of all modules of a model. `_running`: the outermost module that runs, and `_entered`, its nesting
    depth; `_replaced`, `_fused`: the replacements of its parameters; `_begun`, `_uncompiled`: `_begin` and
    `_restore` without compilation.
    That wrapper imports torch's compiler, so it is made with the first model and not at import."""

    applied: AppliedPlan
    owners: Owners
    _running: nn.Module | None = None
    _entered: int = 0
    _replaced: list[_Replaced] = field(default_factory=list)
    _fused: list[_InParts] = field(default_factory=list)
    _uncompiled: Callable[[ModuleHooks, nn.Module], None] = field(
        default_factory=lambda: torch.compiler.disable(ModuleHooks._restore)
    )
    _begun: Callable[[ModuleHooks, nn.Module], None] = field(
        default_factory=lambda: torch.compiler.disable(ModuleHooks._begin)
    )

    def register(self, model: nn.Module) -> None:
        """Hook every module that has parameters of the plan in it."""
        for module in model.modules():
            if any(inner in self.owners for inner in module.modules()):
                module.register_forward_pre_hook(self._enter)
                module.register_forward_hook(self._leave, always_call=True)

    def _enter(self, module: nn.Module, args: Any) -> None:
        del args
        if torch._C._len_torch_dispatch_stack():  # noqa: SLF001 - there is no public way
            _refuse_selection()
        if self._running not in {None, module}:
            return
        self._entered += 1
        if self._running is None:
            self._begun(self, module)

    def _begin(self, module: nn.Module) -> None:
        """Puts planned tensors in the place of parameters; not compiled, or a compiler warns that it does so for every
        name anew."""
        self._running = module
        for owner in module.modules():
            for attribute, name in self.owners.get(owner, ()):
                self._replace(owner, attribute, name)
            _renew_flat_weights(owner)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        del args, output
        if self._running is not module:
            return
        self._entered -= 1
        if not self._entered:
            self._uncompiled(self, module)

    def _restore(self, module: nn.Module) -> None:
        """Gives the modules their parameters back, and buffers their new values. It is not compiled: there is nothing
        to gain, and a compiler loses track of modules that are kept in records.

        Raises `ShardplanError` (`shared-buffer`)."""
        replaced, self._running = self._replaced, None
        self._replaced = []
        while self._fused:
            fused = self._fused.pop()
            fused.weight.running.pop()
            self._write_parts(fused)
        owners, untied = Counter(id(each.stored) for each in replaced), list[str]()
        for each in replaced:
            now, each.store[each.attribute] = each.store.get(each.attribute), each.stored
            if now is not None and (each.is_buffer or getattr(now, "changes", 0) > 0):
                self._write_back(each, now)
            if each.is_buffer and now is not each.planned and owners[id(each.stored)] > 1:
                untied.append(each.name)
        for owner in module.modules():
            _renew_flat_weights(owner)
        if untied:
            summary = f"the model sets '{untied[0]}', a buffer that several of its modules have, to another tensor"
            hint = "change it in place (buffer.copy_(...)), or give every module a buffer of its own: buffer.clone()"
            raise ShardplanError(error("shared-buffer", summary, hint=hint))

    def _replace(self, module: nn.Module, attribute: str, name: str) -> None:
        fused = fused_weight(module, attribute)
        if fused is not None:
            parts = stored_tensors(module, attribute)
            fused.running.append(planned := self._planned(name, parts))
            fused.stored = parts
            given = planned.value.local if fused.is_buffer else None
            self._fused.append(_InParts(fused, name, parts, planned, given))
            return
        is_buffer = attribute not in module._parameters  # noqa: SLF001 - there is no public name
        store = module._buffers if is_buffer else module._parameters  # noqa: SLF001 - as above
        if attribute not in store:
            _refuse_computed(module, attribute, name)
        stored = store[attribute]
        if isinstance(stored, DTensor):
            store[attribute] = planned = self._planned(name, [stored])
            planned._is_param = not is_buffer  # noqa: SLF001 - by this torch knows a parameter, as `get_parameter` asks
            given = planned.value.local if is_buffer else None
            self._replaced.append(_Replaced(module, store, attribute, name, stored, planned, given, is_buffer))

    def _planned(self, name: str, stored: Sequence[DTensor]) -> Planned:
        """A parameter as a planned tensor; the same one for all modules that share it in one forward pass."""
        applied = self.applied
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
        engine = applied.engine
        planned = Planned.weight(local, named.shape, engine, lambda: parameter_value(engine, named, local, weights))
        if applied.depth:
            applied.planned[decision.name] = planned
        return planned

    def weight_of(self, stored: Any) -> Planned | None:
        """The replacement of a parameter that is stored in one tensor, `stored`, while the model runs; else None."""
        for owner, pairs in self.owners.items():
            for attribute, name in pairs:
                if owner._parameters.get(attribute) is stored:  # noqa: SLF001 - there is no public name
                    return self._planned(name, [stored])
        return None

    def _write_back(self, replaced: _Replaced, now: Tensor) -> None:
        """Sets a buffer to the program's value `now`, in the layout in which it is stored."""
        engine = self.applied.engine
        value = value_of(now) if isinstance(now, Planned) else engine.constant(now, now.shape)
        layout = self.applied.named[replaced.name].layout
        if value.local is replaced.given and value.layout.forward == layout.forward:
            return
        with torch.no_grad():
            local = engine.convert(value, layout, inner=True).local
            replaced.stored.to_local().copy_(local)

    def _write_parts(self, fused: _InParts) -> None:
        """As `_write_back`, of what is kept in parts. A parameter that nobody has read is not gathered for it."""
        if not fused.planned.changes and fused.given is None:
            return
        value, layout = value_of(fused.planned), self.applied.named[fused.name].layout
        if not fused.planned.changes and value.local is fused.given and value.layout.forward == layout.forward:
            return
        with torch.no_grad():
            local = self.applied.engine.convert(value, layout, inner=True).local
            for stored, piece in zip(fused.stored, fused.weight.parts.split_local(local), strict=True):
                stored.to_local().copy_(piece)


def _refuse_selection() -> None:
    """Refuses selective checkpoints: they count operators to find what they saved, and a block under a plan need not
    run as many again. Raises `ShardplanError` (`selective-checkpoint`)."""
    modes = _python_dispatch._get_current_dispatch_mode_stack()  # noqa: SLF001 - as above
    if any(isinstance(mode, checkpoint._CachingTorchDispatchMode) for mode in modes):  # noqa: SLF001 - as above
        summary = "a block under a plan is run by a checkpoint that saves some of its results and recomputes others"
        hint = "checkpoint it whole (without context_fn), or let the plan choose: shardplan solve --remat"
        raise ShardplanError(error("selective-checkpoint", summary, hint=hint))


def _refuse_computed(module: nn.Module, attribute: str, name: str) -> None:
    """Refuses a weight of the plan that its module computes from others since the plan was applied, as pruning and
    weight norm let it. Raises `ShardplanError` (`changed-model`)."""
    path = name.removesuffix(attribute)
    names = [each for each, _ in (*module.named_parameters(), *module.named_buffers())]
    starts = (f"{attribute}_", f"parametrizations.{attribute}.")
    others = ", ".join(f"'{path}{each}'" for each in names if each.startswith(starts))
    summary = f"the model has no parameter '{name}' any more, which it had when the plan was applied"
    detail = f"it is now computed from {others}" if others else "it is now another attribute of its module"
    hint = (
        "prune, or put weight norm and other parametrizations on, before the plan is made and applied; or make the "
        "result a parameter again (prune.remove, parametrize.remove_parametrizations)"
    )
    raise ShardplanError(error("changed-model", summary, detail=detail, hint=hint))


def _renew_flat_weights(module: nn.Module) -> None:
    """A recurrent module keeps a list of its parameters beside them."""
    if isinstance(module, nn.RNNBase):
        module._flat_weights = [getattr(module, name, None) for name in module._flat_weights_names]  # noqa: SLF001


def release_buffers(model: nn.Module, applied: AppliedPlan) -> None:
    """Makes buffers of the program to which it assigned planned tensors whole again."""
    engine = applied.engine
    for module in model.modules():
        for name, buffer in module._buffers.items():  # noqa: SLF001 - as above
            if isinstance(buffer, Planned):
                whole = Layout.replicated(len(engine.groups.mesh))
                module._buffers[name] = engine.convert(value_of(buffer), whole, inner=True).local  # noqa: SLF001
