"""Matching of a model's parameters with the weights of a plan, and its errors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.layout.legal import check
from shardplan.layout.mesh import Mesh
from shardplan.patterns import matches
from shardplan.plan.orientation import checkpoint_shape
from shardplan.plan.types import Plan, TensorDecision
from shardplan.runtime.names import Named, Rename, match_names, parameters_by_name
from shardplan.torch.parameters.orientation import in_module_dims, stored_layout
from shardplan.torch.with_loss import WithLoss, planned_name


def name_parameters(
    model: nn.Module, plan: Plan, *, rename: Rename | None, ignore: Iterable[str], strict: bool
) -> dict[str, Named]:
    """The parameters that model and plan both have, under all their names in the model.

    Raises `ShardplanError` as `match_names`, and `indivisible`, `not-tied`, `folded-weight`, `tied-apart`.
    """
    rename = _with_planned_names(model, rename)
    names = _tied_names(model.named_parameters(remove_duplicate=False), plan, rename)
    found = {first: tuple(model.get_parameter(first).shape) for first in names}
    if strict:
        _check_export(plan, names.values(), found, rename)
    buffers = _planned_buffers(model, plan, rename)
    known = {**found, **{first: tuple(model.get_buffer(first).shape) for first in buffers}}
    names |= buffers
    ignore = (*ignore, *_left_alone(model, plan, found, known, rename))
    matched = match_names(plan, known, rename=rename, ignore=ignore, strict=strict)
    matched = {name: _stored(named) for name, named in matched.items()}
    _check_divisible(matched.values(), plan.mesh)
    _check_tied(matched.values())
    return {name: replace(named, name=name) for first, named in matched.items() for name in names.get(first, (first,))}


def trained_and_unnamed(model: nn.Module, plan: Plan, *, rename: Rename | None, ignore: Iterable[str]) -> list[str]:
    """Trained parameters that the plan does not name, and `ignore` neither, where it names everything else. A plan made
    of the program has none that it reads, so they get no gradient and stay as they are."""
    rename, patterns = _with_planned_names(model, rename), tuple(ignore)
    names = [*_tied_names(model.named_parameters(remove_duplicate=False), plan, rename)]
    buffers = [name for name, _ in model.named_buffers(remove_duplicate=False)]
    found = [
        name for name in _unnamed(names, plan, [*names, *buffers], rename) if model.get_parameter(name).requires_grad
    ]
    return [name for name in found if not any(matches(name, pattern) for pattern in patterns)]


def without_constants(model: nn.Module, named: Mapping[str, Named]) -> tuple[dict[str, Named], frozenset[str]]:
    """The parameters of `named` that every process keeps its part of, and the tensors of the plan that are constants of
    the program instead: buffers that no checkpoint has (rotary tables, masks), which each process has whole."""
    made = {
        name
        for path, module in model.named_modules()
        for attribute in module._non_persistent_buffers_set  # noqa: SLF001 - there is no public name
        for name in (f"{path}.{attribute}" if path else attribute,)
    }
    kept = {name: entry for name, entry in named.items() if name not in made}
    return kept, frozenset(entry.decision.name for name, entry in named.items() if name in made)


def _with_planned_names(model: nn.Module, rename: Rename | None) -> Rename | None:
    """The renaming for a model whose parameters have other names in plans."""
    if not isinstance(model, WithLoss):
        return rename

    def renamed(name: str) -> Any:
        known = planned_name(model, name)
        return rename(known) if rename is not None else known

    return renamed


def _stored(named: Named) -> Named:
    return replace(named, layout=in_module_dims(stored_layout(named.decision), named))


def _left_alone(
    model: nn.Module, plan: Plan, parameters: Iterable[str], given: Iterable[str], rename: Rename | None
) -> list[str]:
    """Parameters that no step changes and the plan does not name: what the program has replaced and keeps (the layers
    that adapters are copies of). Every process keeps them whole."""
    unnamed = _unnamed(parameters, plan, given, rename)
    return [name for name in unnamed if not model.get_parameter(name).requires_grad]


def _unnamed(parameters: Iterable[str], plan: Plan, given: Iterable[str], rename: Rename | None) -> list[str]:
    """Parameters that the plan does not name, where everything that it names is in `given`. Where it is not, names do
    not fit, which is refused with more to say of it."""
    known = parameters_by_name(plan)
    present = {known[name].checkpoint for name in _called(given, rename) if name in known}
    if any(tensor.checkpoint not in present for tensor in known.values()):
        return []
    return [name for name in parameters if not any(called in known for called in _called([name], rename))]


def _planned_buffers(model: nn.Module, plan: Plan, rename: Rename | None) -> dict[str, tuple[str, ...]]:
    """The buffers that the plan knows as such (running statistics), as `_tied_names`: modules may share one."""
    known = parameters_by_name(plan)
    several = _tied_names(model.named_buffers(remove_duplicate=False), plan, rename)
    return {first: names for first, names in several.items() if any(name in known for name in _called([first], rename))}


def _tied_names(tensors: Iterable[tuple[str, Tensor]], plan: Plan, rename: Rename | None) -> dict[str, tuple[str, ...]]:
    """Every tensor under the name that the plan knows it by (else its first) -> all its names. `tensors`: of a model,
    under all names."""
    known = parameters_by_name(plan)
    by_tensor: dict[int, list[str]] = {}
    for name, tensor in tensors:
        by_tensor.setdefault(id(tensor), []).append(name)

    def is_known(name: str) -> bool:
        called = rename(name) if rename is not None else name
        return (called if isinstance(called, str) else called[0] if called else "") in known

    return {next(filter(is_known, names), names[0]): tuple(names) for names in by_tensor.values()}


def _check_export(
    plan: Plan, names: Iterable[tuple[str, ...]], shapes: Mapping[str, tuple[int, ...]], rename: Rename | None
) -> None:
    """Checks that an optimising exporter has not folded values that depend on no input (lookups of positions,
    transposes of tied weights) into new weights, which are not parameters of the model."""
    known = parameters_by_name(plan)
    folded = [tensor for tensor in known.values() if _MADE_UP.match(tensor.checkpoint)]
    wide = [known[name] for name, shape in shapes.items() if name in known and _is_lookup(known[name], shape)]
    hint = "export with torch.onnx.export(..., dynamo=True, optimize=False), and solve again"
    faults: list[Diagnostic] = []
    if folded or wide:
        lines = [f"{tensor.checkpoint} {list(tensor.shape)}" for tensor in dict.fromkeys((*wide, *folded))]
        summary = "the plan has weights that the exporter has computed from others: the model has none like them"
        faults.append(error("folded-weight", summary, detail="\n".join(lines), hint=hint))
    for several in names:
        apart = {known[name].checkpoint for name in _called(several, rename) if name in known}
        if len(apart) > 1:
            both = " and ".join(sorted(apart))
            summary = f"{both} are one parameter of the model, but {len(apart)} weights of the plan"
            faults.append(error("tied-apart", summary, hint=f"{hint}, or untie them"))
    if faults:
        raise ShardplanError(*faults)


_MADE_UP = re.compile(r"(val_\d+|onnx::\w+)$")
"""What exporters call tensors that no module has."""


def _is_lookup(tensor: TensorDecision, shape: tuple[int, ...]) -> bool:
    """Whether the plan has rows of a table, with dims of 1 before them, where the model has the table."""
    found = checkpoint_shape(tensor.shape, tensor.perm)
    return len(found) > len(shape) > 1 and found[-1] == shape[-1] and set(found[: len(found) - len(shape)]) == {1}


def _called(names: Iterable[str], rename: Rename | None) -> list[str]:
    found = [rename(name) if rename is not None else name for name in names]
    return [name if isinstance(name, str) else name[0] for name in found if name]


def _check_divisible(matched: Iterable[Named], mesh: Mesh) -> None:
    faults: list[Diagnostic] = []
    for named in matched:
        uneven = check(named.layout.forward, mesh, named.shape)
        if uneven:
            summary = f"'{named.name}' cannot be sharded as the plan says: {uneven[0]}"
            faults.append(error("indivisible", summary, hint="was the plan file changed by hand? solve again"))
    if faults:
        raise ShardplanError(*faults)


def _check_tied(matched: Iterable[Named]) -> None:
    """Checks that one weight of the plan is one parameter of the model."""
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
