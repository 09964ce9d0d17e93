"""Which parameter of a model is which weight of a plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from torch import nn

from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.plan.orientation import checkpoint_layout, graph_layout
from shardplan.plan.types import Plan, TensorDecision
from shardplan.runtime.names import Named, Rename, match_names, parameters_by_name
from shardplan.torch.placements import to_placements


def name_parameters(
    model: nn.Module, plan: Plan, *, rename: Rename | None, ignore: Iterable[str], strict: bool
) -> dict[str, Named]:
    """The parameters that model and plan both have, under all their names in the model.

    Raises `ShardplanError` as `match_names`, and `no-placement`, `not-tied`.
    """
    names = _tied_names(model, plan, rename)
    found = {first: tuple(model.get_parameter(first).shape) for first in names}
    known = _with_buffers(model, plan, found)
    matched = match_names(plan, known, rename=rename, ignore=ignore, strict=strict)
    matched = {name: _stored(named) for name, named in matched.items()}
    _check_representable(matched.values(), plan.mesh)
    _check_tied(matched.values())
    return {name: replace(named, name=name) for first, named in matched.items() for name in names.get(first, (first,))}


def kept_layout(named: Named) -> Layout:
    """The layout in which the model reads a parameter, in the module's dims: what the plan calls kept."""
    return _in_module(named.decision.layout, named)


def stored_layout(decision: TensorDecision) -> Layout:
    """The layout in which a process holds a parameter, in the plan's dims: where the optimizer's state is, from where
    a step brings it to where it is kept."""
    return decision.optimizer if decision.optimizer is not None else decision.layout


def _stored(named: Named) -> Named:
    return replace(named, layout=_in_module(stored_layout(named.decision), named))


def _in_module(layout: Layout, named: Named) -> Layout:
    return graph_layout(checkpoint_layout(layout, named.decision.perm), named.perm)


def _with_buffers(model: nn.Module, plan: Plan, parameters: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Parameters, and the buffers that the plan knows as such (running statistics)."""
    planned = {
        name for tensor in plan.tensors if tensor.role == "parameter" for name in (tensor.checkpoint, *tensor.aliases)
    }
    buffers = {name: tuple(buffer.shape) for name, buffer in model.named_buffers() if name in planned}
    return {**parameters, **buffers}


def _tied_names(model: nn.Module, plan: Plan, rename: Rename | None) -> dict[str, tuple[str, ...]]:
    """Every parameter under the name that the plan knows it by (else its first) -> all its names."""
    known = parameters_by_name(plan)
    by_tensor: dict[int, list[str]] = {}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        by_tensor.setdefault(id(tensor), []).append(name)

    def is_known(name: str) -> bool:
        called = rename(name) if rename is not None else name
        return (called if isinstance(called, str) else called[0] if called else "") in known

    return {next(filter(is_known, names), names[0]): tuple(names) for names in by_tensor.values()}


def _check_representable(matched: Iterable[Named], mesh: Mesh) -> None:
    faults: list[Diagnostic] = []
    hint = "forbid it with a constraint (parameters: ...), or keep the parts as parameters of their own"
    for named in matched:
        try:
            to_placements(named.layout, mesh)
        except ValueError as problem:
            summary = f"torch has no placement for '{named.name}': {problem}"
            faults.append(error("no-placement", summary, hint=hint))
    if faults:
        raise ShardplanError(*faults)


def _check_tied(matched: Iterable[Named]) -> None:
    """What is one weight to the plan must be one parameter of the model."""
    names: dict[str, list[str]] = {}
    for named in matched:
        names.setdefault(named.decision.checkpoint, []).append(named.name)
    faults = [
        error(
            "not-tied",
            f"{' and '.join(several)} are one weight in the plan, but {len(several)} parameters of the model",
            hint=f"tie them: model.{several[1]} = model.{several[0]}",
        )
        for several in names.values()
        if len(several) > 1
    ]
    if faults:
        raise ShardplanError(*faults)
