"""Batches as DTensors in the layouts of the plan's inputs, and the part that each rank has to read."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from shardplan.errors import Diagnostic, ShardplanError, did_you_mean, error
from shardplan.layout.layout import Layout
from shardplan.layout.legal import local_shape
from shardplan.layout.placement import R
from shardplan.plan.types import Plan, TensorDecision
from shardplan.runtime.shards import Piece, shard_of
from shardplan.torch.argument_types import check_plan
from shardplan.torch.collectives.steps import shard_of_whole
from shardplan.torch.microbatch_plan import fewest_rows, with_rows
from shardplan.torch.placements import wrap
from shardplan.torch.process_groups import ProcessGroups
from shardplan.torch.with_loss import INPUT

Shape = tuple[int, ...]


def inputs(plan: Plan, mesh: DeviceMesh, batch: Mapping[str, Any], *, local: bool = False) -> dict[str, Any]:
    """The tensors of `batch` (argument of the model, as the plan calls it -> tensor) as DTensors in the layouts of the
    plan, under the same names.

    `local=False`: every process has the whole batch and keeps its part. `local=True`: every process has read only its
    part (see `part_of`). Nothing is sent. A batch may have fewer rows than the plan's, if the plan can divide them.
    Tensors that are none of the plan's inputs (targets of a loss outside of the plan) are sharded along dim 0 as the
    first input is, where they have as many rows, and else whole. DTensors, and what is no tensor, stay as they are.

    Raises `ShardplanError`: `bad-argument`, `pipeline-plan`, `unknown-input`, `missing-input`, `wrong-shape`.
    """
    check_plan(plan)
    refuse_stages(plan)
    groups = ProcessGroups(plan, mesh)
    known = planned_inputs(plan, groups, batch, local=local)
    first = first_with_rows(known)
    return {
        name: _distributed(known[name], each, groups, local=local)
        if name in known
        else _beside(first, each, groups, local=local)
        for name, each in batch.items()
    }


def planned_inputs(plan: Plan, groups: ProcessGroups, batch: Any, *, local: bool = False) -> dict[str, TensorDecision]:
    """The plan's inputs by their names in a batch, with the shapes that they have in it. Raises `ShardplanError` as
    `inputs`."""
    known = _inputs_among(plan, batch)
    given = [_given(decision, batch[name], groups, local=local) for name, decision in known.items()]
    sized = {tensor.name: tensor for tensor in _for_batch(plan, given).tensors}
    return {name: sized[decision.name] for name, decision in known.items()}


def first_with_rows(known: Mapping[str, TensorDecision]) -> TensorDecision | None:
    """The input as which what is none is sharded."""
    return next((each for each in known.values() if each.shape), None)


def _inputs_among(plan: Plan, batch: Any) -> dict[str, TensorDecision]:
    """The plan's inputs by their names in a batch. Raises `ShardplanError`: `bad-argument`, `missing-input`, and
    `unknown-input` for what may be meant."""
    planned = {tensor.name: tensor for tensor in plan.tensors if tensor.role == "input"}
    if not isinstance(batch, Mapping):
        summary = f"the batch is of type {type(batch).__name__}, and is to be a mapping of names to tensors"
        hint = f"give each input by its name: {{{', '.join(f'{name!r}: ...' for name in planned)}}}"
        raise ShardplanError(error("bad-argument", summary, hint=hint))
    known = {_asked_for(name, planned, batch): tensor for name, tensor in planned.items()}
    missing = [name for name in known if name not in batch]
    faults = [
        error("unknown-input", f"the plan has no input '{name}'", hint=did_you_mean(name, missing) or _listed(known))
        for name in batch
        if name not in known and missing
    ]
    faults += [error("missing-input", f"the batch has no '{name}'", hint=_listed(known)) for name in missing]
    faults += [
        error("bad-argument", f"'{name}' is of type {type(batch[name]).__name__}", hint="make it a tensor")
        for name in known
        if name in batch and not isinstance(batch[name], Tensor)
    ]
    if faults:
        raise ShardplanError(*faults)
    return known


def refuse_stages(plan: Plan) -> None:
    """Raises `ShardplanError` (`pipeline-plan`) for a plan with stages, whose inputs are those of several meshes."""
    if plan.pipeline is not None:
        summary = f"the plan is a pipeline of {len(plan.pipeline.stages)} stages, which take their inputs themselves"
        hint = "call step and forward of shardplan.torch.pipeline(...) with the whole batch on every process"
        raise ShardplanError(error("pipeline-plan", summary, hint=hint))


def _asked_for(name: str, planned: Container[str], batch: Container[str]) -> str:
    """The name of an input in a batch: without the prefix `input.` of arguments that share a name with a tensor of the
    model."""
    short = name.removeprefix(INPUT)
    return short if short in batch and short not in planned and name not in batch else name


def part_of(plan: Plan, name: str, rank: int) -> tuple[Piece, ...]:
    """The part of input `name` that a rank's data loader has to read."""
    return shard_of(plan, name, rank).pieces


def rows_only(first: TensorDecision | None, mesh_dims: int) -> Layout:
    """The layout of the first input, of which only shards of dim 0 are taken."""
    if first is None:
        return Layout.replicated(mesh_dims)
    layout = first.layout.forward
    return Layout.of(*(p if p.is_shard and p.dim == 0 else R for p in layout.placements), order=layout.order)


def _listed(known: Mapping[str, TensorDecision]) -> str:
    return f"the plan's inputs are {', '.join(sorted(known))}"


@dataclass(frozen=True)
class _Given:
    """An input that has been given in the shape `found`, where the plan has `wanted`: of the whole, or of the part of a
    process. `shape`: of the whole."""

    decision: TensorDecision
    found: Shape
    wanted: Shape
    shape: Shape


def _given(decision: TensorDecision, tensor: Tensor, groups: ProcessGroups, *, local: bool) -> _Given:
    found, planned = tuple(tensor.shape), decision.shape
    if isinstance(tensor, DTensor) or not local or not planned:
        return _Given(decision, found, planned, found)
    part = local_shape(decision.layout.forward, groups.mesh, planned)
    rows, left = divmod(found[0] * planned[0], part[0]) if found[1:] == part[1:] and found else (0, 1)
    return _Given(decision, found, part, found if left else (rows, *planned[1:]))


def _for_batch(plan: Plan, given: Sequence[_Given]) -> Plan:
    """The plan for a batch of these inputs: the same, or with fewer rows. Raises `ShardplanError` (`wrong-shape`)."""
    changed = {each.decision.name: each for each in given if each.found != each.wanted}
    if not changed:
        return plan
    has_fewer = plan.pipeline is None and all(
        each.found[1:] == each.wanted[1:] and (0,) < each.found[:1] < each.wanted[:1] for each in changed.values()
    )
    if has_fewer:
        found = with_rows(plan, {name: each.shape[0] for name, each in changed.items()})
        if found is not None:
            return found
    rows = {name: fewest_rows(plan, name, changed) if has_fewer else None for name in changed}
    raise ShardplanError(*(_wrong_shape(each, rows[name]) for name, each in changed.items()))


def _wrong_shape(given: _Given, rows: int | None) -> Diagnostic:
    """`rows`: of which number the rows of a smaller batch have to be a multiple."""
    decision, hint = given.decision, "solve again for this batch, or pad it"
    if rows is not None and rows < decision.shape[0]:
        hint = f"pad it to a multiple of {rows} rows, which the plan can divide, or solve again for this batch"
    whose = "a process's part of " if given.wanted != decision.shape else ""
    summary = f"{whose}input '{decision.name}' has shape {list(given.found)}, the plan is for {list(given.wanted)}"
    return error("wrong-shape", summary, hint=hint)


def _distributed(decision: TensorDecision, tensor: Tensor, groups: ProcessGroups, *, local: bool) -> DTensor:
    if isinstance(tensor, DTensor):
        return tensor
    part: Any = tensor.to(groups.device)
    layout = decision.layout.forward
    if not local:
        part = shard_of_whole(part, layout, groups)
    return wrap(torch.as_tensor(part), layout, decision.shape, groups)


def _beside(first: TensorDecision | None, given: Any, groups: ProcessGroups, *, local: bool) -> Any:
    """What is none of the plan's inputs, the first of which is `first`."""
    if isinstance(given, DTensor) or not isinstance(given, Tensor):
        return given
    layout, shape = rows_only(first, len(groups.mesh)), tuple(given.shape)
    total = first.shape[:1] if first is not None else ()
    part, wanted = given.to(groups.device), local_shape(layout, groups.mesh, total) if local and total else total
    if not total or shape[:1] != wanted:
        return wrap(part, Layout.replicated(len(groups.mesh)), shape, groups)
    return wrap(part if local else shard_of_whole(part, layout, groups), layout, (*total, *shape[1:]), groups)
