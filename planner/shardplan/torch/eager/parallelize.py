"""Plans on modules: parameters become DTensors, the module's own forward pass runs on planned tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from shardplan.plan.types import Plan, TensorDecision
from shardplan.runtime.names import Rename
from shardplan.torch.applied_plan import AppliedPlan, attach, prepare, run_eagerly
from shardplan.torch.argument_paths import named_tensors, tensors_in, with_tensors
from shardplan.torch.arguments import check_shapes, input_value, match_inputs, output_tensor
from shardplan.torch.eager.module_hooks import ModuleHooks, release_buffers
from shardplan.torch.eager.planned_tensor import Planned, value_of
from shardplan.torch.gradients.bucketing import BucketedWeights
from shardplan.torch.parameters.distribution import local_weights, owner_of
from shardplan.torch.propagation.autograd_leaves import leaves_in
from shardplan.torch.propagation.conformance import check_conformance, warn_of_differences, warn_of_gathered
from shardplan.torch.propagation.engine import Record
from shardplan.torch.with_loss import INPUT, argument_names


def parallelize(
    model: nn.Module,
    plan: Plan,
    mesh: DeviceMesh,
    *,
    rename: Rename | None = None,
    ignore: Iterable[str] = (),
    strict: bool = True,
) -> nn.Module:
    """Applies `plan` to `model` in place and returns it. Parameters become DTensors; the model is called as before.

    Parameters must have equal values on all processes (each keeps its part; nothing is sent), or be on the meta device,
    to be filled by `load_`. `rename`, `ignore`: as in `shardplan.runtime.names.match_names`. `strict`: refuse a model
    or a first forward pass that differs from the plan's; without it the result is still right, but more may be sent
    than the plan says.

    The model returns DTensors in the layouts of the plan's outputs.

    Raises `ShardplanError` as `match_names` and `ProcessGroups`, and `not-tied`, `already-parallel`.
    """
    applied = prepare(model, plan, mesh, rename=rename, ignore=ignore, strict=strict)
    attach(model, applied)
    _hook(model, applied)
    return model


def _hook(model: nn.Module, applied: AppliedPlan) -> None:
    """Hooks: while a module runs, its parameters are planned tensors; `model` itself takes its arguments as planned
    tensors and returns DTensors."""
    owners: dict[nn.Module, list[tuple[str, str]]] = {}
    for name in applied.named:
        owner, attribute = owner_of(model, name)
        if all(attribute != other for other, _ in owners.setdefault(owner, [])):  # a module may have several names
            owners[owner].append((attribute, name))
    hooks = ModuleHooks(applied, owners)
    hooks.register(model)
    applied.engine.weight_of = hooks.weight_of
    run_eagerly(model, _enter(applied), _leave(applied))


def _enter(applied: AppliedPlan) -> Callable[..., Any]:
    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        applied.depth += 1
        if applied.depth > 1:
            return None
        partner = _inputs_among(module, applied, args, kwargs)
        shapes = {decision.name: tuple(tensor.shape) for decision, tensor in partner.values()}
        check_shapes(applied, shapes, strict=applied.strict)
        applied.engine.record = Record()
        shards = local_weights(module, applied.named, applied.groups, trains=applied.trains)
        applied.begin_forward(module)
        applied.weights = BucketedWeights(applied.engine, applied.buckets, shards)
        return _planned_arguments(module, applied, args, kwargs, partner)

    return enter


def _leave(applied: AppliedPlan) -> Callable[..., Any]:
    def leave(module: nn.Module, args: Any, output: Any) -> Any:
        del args
        applied.depth -= 1
        if applied.depth:
            return None
        release_buffers(module, applied)
        applied.end_forward()
        applied.planned.clear()
        applied.weights = None
        if output is None:
            return None
        found = _output(applied, output)
        _look_for_unnamed(module, applied, found)
        if applied.checked:
            warn_of_gathered(applied.engine, applied.gathered)
            return found
        applied.checked = True
        (check_conformance if applied.strict else warn_of_differences)(applied.engine)
        applied.gathered.update(applied.engine.record.without_rule)
        return found

    return leave


def _look_for_unnamed(module: nn.Module, applied: AppliedPlan, found: Any) -> None:
    """Notes whether what the first pass with gradients returns depends on trained parameters that the plan does not
    name. Raises `ShardplanError` (`unplanned-parameter`) if the passes before it have been compared with the plan."""
    if not applied.left_alone or not torch.is_grad_enabled():
        return
    names = {id(module.get_parameter(name)): name for name in applied.left_alone}
    applied.left_alone, record = (), applied.engine.record
    record.unnamed.update(name for tensor in tensors_in(found) for name in leaves_in(tensor, names))
    if record.unnamed and applied.checked:
        check_conformance(applied.engine)


def _inputs_among(
    model: nn.Module, applied: AppliedPlan, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, tuple[TensorDecision, Tensor]]:
    """The tensors among the arguments by their names, with the inputs of the plan that they are: those that are
    arguments themselves as `match_inputs` says, those in dictionaries and the like by name."""
    arguments = _named(model, args, kwargs)
    given = {name: value for name, value in arguments if isinstance(value, Tensor)}
    known = {decision.name: decision for decision in applied.inputs}
    inner = {
        name: (known.pop(called), tensor)
        for name, tensor in named_tensors((name, value) for name, value in arguments if name not in given)
        for called in (name, f"{INPUT}{name}")
        if called in known
    }
    partner = match_inputs([*given], list(known.values()))
    return inner | {name: (decision, given[name]) for name, decision in partner.items()}


def _named(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
    names = [*argument_names(model, args, kwargs), *kwargs]
    return list(zip(names, [*args, *kwargs.values()], strict=True))


def _planned_arguments(
    model: nn.Module,
    applied: AppliedPlan,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    partner: Mapping[str, tuple[TensorDecision, Tensor]],
) -> tuple[Any, Any]:
    """The arguments, with planned tensors in place of those that are inputs of the plan."""

    def planned(name: str, value: Any) -> Any:
        return _planned_input(applied, *partner[name]) if name in partner else value

    made = [with_tensors(name, value, planned) for name, value in _named(model, args, kwargs)]
    return tuple(made[: len(args)]), dict(zip(kwargs, made[len(args) :], strict=True))


def _planned_input(applied: AppliedPlan, decision: TensorDecision, tensor: Tensor) -> Planned:
    return Planned.of(input_value(applied, decision, tensor), applied.engine)


def _output(applied: AppliedPlan, output: Any) -> Any:
    """What the model returns, with DTensors in place of planned tensors."""
    if isinstance(output, Planned):
        value = applied.engine.as_output(value_of(output))
        return output_tensor(applied.engine, value.local, value.layout, value.shape, grad=value.grad)
    if isinstance(output, dict):
        made = {key: _output(applied, item) for key, item in output.items()}
        return type(output)(**made) if type(output) is not dict else made
    if isinstance(output, tuple) and hasattr(output, "_fields"):
        return type(output)(*(_output(applied, item) for item in output))
    if isinstance(output, (tuple, list)):
        return type(output)(_output(applied, item) for item in output)
    if is_dataclass(output) and not isinstance(output, type):
        record: Any = copy.copy(output)
        for each in fields(output):
            object.__setattr__(record, each.name, _output(applied, getattr(output, each.name)))  # it may be frozen
        return record
    return output
