"""Weights and optimizer state of a pipeline for checkpoints: under the names of the model, from the first stage that
has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import Metadata

from shardplan.errors import Diagnostic, ShardplanError
from shardplan.torch.checkpoint_reading import optimizer_targets
from shardplan.torch.optimizer_states import (
    Weight,
    groups_of,
    loaded,
    state_by_name,
    state_that_was_read,
    weights_of,
)
from shardplan.torch.parameters.fused import part_names
from shardplan.torch.pipelines.run import Pipeline
from shardplan.torch.process_groups import refuse_together
from shardplan.torch.state_dicts import stored_by_name, whole_stored

Held = dict[str, Any]
"""What a process holds of the weights of one stage: the first of the names that a weight has in the model -> what is
stored, as `stored_by_name` gives it."""


class Owner(NamedTuple):
    """The first stage that has a weight, of those that read it if any does, and what the whole weight is like."""

    is_unread: bool
    stage: int
    shape: tuple[int, ...]
    dtype: torch.dtype


def held_by_stage(pipeline: Pipeline) -> dict[int, Held]:
    """Of every stage of this process, by its number, what is in `state_dict()` of the model."""
    found: dict[int, Held] = {}
    for stage in pipeline.stages:
        own = [*stored_by_name(stage.root), *stored_by_name(stage.module)]  # the graph reads some; these are newer
        found[stage.number] = {
            pipeline.names[name]: stored for name, stored in own if name in pipeline.names and _has_values(stored)
        }
    return found


def _has_values(stored: Any) -> bool:
    """Whether it is a weight that has been read, of a model that was made on the meta device."""
    return not any(each.is_meta for each in (stored[:-1] if isinstance(stored, tuple) else [stored]))


def owners_of(pipeline: Pipeline, held: Mapping[int, Held]) -> dict[str, Owner]:
    """The owners of all weights of the model; all processes have to call it. `held`: of this process."""
    read = {
        stage.number: {pipeline.names.get(name) for name, _ in stored_by_name(stage.module)}
        for stage in pipeline.stages
    }
    mine = [
        Owner(name not in read[number], number, *_like(each))
        for number, own in held.items()
        for name, each in own.items()
    ]
    named = [name for own in held.values() for name in own]
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, list(zip(named, mine, strict=True)))
    found: dict[str, Owner] = {}
    for name, owner in (each for theirs in gathered for each in theirs):
        found[name] = min(found.get(name, owner), owner, key=lambda each: each[:2])
    return found


def _like(stored: Any) -> tuple[tuple[int, ...], torch.dtype]:
    if not isinstance(stored, tuple):
        return tuple(stored.shape), stored.dtype
    *tensors, parts = stored
    joined = parts.join([torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for tensor in tensors])
    return tuple(joined.shape), joined.dtype


def whole_weights(pipeline: Pipeline, rank: int | None) -> dict[str, Tensor]:
    """`state_dict()` of the model as it was before the plan, on the CPU; all processes have to call it. `rank`: who
    gets it, others get nothing; None: all."""
    held = held_by_stage(pipeline)
    owners = owners_of(pipeline, held)
    found: dict[str, Tensor] = {}
    for name in dict.fromkeys(pipeline.names.values()):
        if name in owners:
            owner = owners[name]
            stored = held.get(owner.stage, {}).get(name)
            got = _sent(pipeline, owner, None if stored is None else whole_stored(stored).detach(), rank)
            if got is not None:
                found[name] = got.to("cpu", copy=True)
    return {name: found[first] for name, first in pipeline.names.items() if first in found}


def _sent(pipeline: Pipeline, owner: Owner, whole: Tensor | None, rank: int | None) -> Tensor | None:
    """A weight, `whole` on the processes of its owner, on the process `rank`, or on all."""
    source, me = pipeline.first_rank(owner.stage), dist.get_rank()
    if rank is not None and me not in {source, rank}:
        return None
    if whole is None or me != source:
        whole = torch.empty(owner.shape, dtype=owner.dtype, device=pipeline.device)
    content = whole.to(pipeline.device).contiguous().view(-1).view(torch.uint8)  # whatever dtypes can be sent
    if rank is None:
        dist.broadcast(content, source)
    elif source != rank:
        (dist.send if me == source else dist.recv)(content, rank if me == source else source)
    return content.view(owner.dtype).view(owner.shape) if rank in {None, me} else None


def written_here(pipeline: Pipeline, held: Mapping[int, Held]) -> Iterator[tuple[int, str, Any]]:
    """The weights that this process writes its part of, with the number of their stage, under each of their names; all
    processes have to call it."""
    owners = owners_of(pipeline, held)
    for number, own in held.items():
        for name, first in pipeline.names.items():
            if first in own and owners[first].stage == number:
                yield number, name, own[first]


class PipelineOptimizer:
    """The state of the optimizer of a process, by stage and under the names of the model. `weights`: of the optimizer,
    by stage."""

    def __init__(self, pipeline: Pipeline, optimizer: torch.optim.Optimizer) -> None:
        """All processes have to make one. Raises `ShardplanError` as `weights_of`, on all of them."""
        self._optimizer = optimizer
        self._meshes = {stage.number: stage.applied.groups.mesh for stage in pipeline.stages}
        self.weights: dict[int, list[Weight]] = {number: [] for number in self._meshes}
        modules = nn.ModuleDict({str(stage.number): stage.module for stage in pipeline.stages})
        faults: Sequence[Diagnostic] = ()
        try:
            for weight in weights_of(modules, optimizer):
                number, _, _ = weight.names[0].partition(".")
                self.weights[int(number)].append(_in_model(weight, pipeline.names))
        except ShardplanError as problem:
            faults = problem.diagnostics
        refuse_together(faults)

    def of_stage(self, number: int) -> dict[str, Any]:
        """The state of the weights of a stage, its tensors as blocks of what this process holds."""
        return {**state_by_name(self._optimizer, self.weights[number], self._meshes[number])}

    def groups(self) -> list[dict[str, Any]]:
        """The groups of parameters of all processes; all have to call it."""
        gathered: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, groups_of(self._optimizer, self._all()))
        longest = max(gathered, key=len)
        return [{**group, "params": _all_named(gathered, place)} for place, group in enumerate(longest)]

    def targets(self, saved: Metadata, path: str | Path) -> dict[int, dict[str, Any]]:
        """By stage, what the state that was saved is to be read into. Raises `ShardplanError` as
        `optimizer_targets`."""
        return {
            number: optimizer_targets(self._optimizer, weights, saved, self._meshes[number], path)
            for number, weights in self.weights.items()
        }

    def fill(self, read: Mapping[int, Mapping[str, Any]], groups: Sequence[Mapping[str, Any]]) -> None:
        """Sets the state, of what has been read into `targets`, and the settings of `groups`."""
        states = dict(
            pair for number, weights in self.weights.items() for weight in weights
            for pair in state_that_was_read(weight, read[number])
        )  # fmt: skip
        self._optimizer.load_state_dict(loaded(self._optimizer, self._all(), states, groups))

    def _all(self) -> list[Weight]:
        return [weight for weights in self.weights.values() for weight in weights]


def _in_model(weight: Weight, first: Mapping[str, str]) -> Weight:
    """A weight of a stage under the names of the model. `first`: the first name there of each."""
    inner = [name.partition(".")[2] for name in weight.names]
    names = tuple(dict.fromkeys(first.get(name, name) for name in inner))
    stored = (names[0],) if weight.parts is None else tuple(part_names(names[0], weight.parts))
    return Weight(names, weight.stored, stored, weight.parts)


def _all_named(gathered: Iterable[list[dict[str, Any]]], place: int) -> list[str]:
    """The parameters that the groups number `place` of all processes have."""
    named = (name for groups in gathered if place < len(groups) for name in groups[place]["params"])
    return list(dict.fromkeys(named))
