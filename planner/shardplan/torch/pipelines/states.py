"""Weights and optimizer state of a pipeline for checkpoints: under the names of the model, from the first stage that
has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

from shardplan.torch.exported.program import tensor_tree
from shardplan.torch.pipelines.run import Pipeline
from shardplan.torch.state_dicts import stored_by_name, whole_of

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
            got = _sent(pipeline, owner, None if stored is None else whole_of(stored).detach(), rank)
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
    """The state of the optimizer of a process, by stage and under the names of the model."""

    def __init__(self, pipeline: Pipeline, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._names: dict[str, tuple[int, str]] = {}
        tensors: dict[str, Tensor] = {}
        for stage in pipeline.stages:
            for name, parameter in stage.module.named_parameters():
                known = f"stage_{stage.number}.{name}"  # a process may have two stages that share a weight
                self._names[known], tensors[known] = (stage.number, pipeline.names.get(name, name)), parameter
        self._parameters = tensor_tree(tensors)
        self._state: dict[str, Any] = get_optimizer_state_dict(self._parameters, optimizer)

    def of_stage(self, number: int) -> dict[str, Any]:
        """The state of the weights of a stage."""
        state = self._state["state"]
        return {
            name: state[known] for known, (stage, name) in self._names.items() if stage == number and known in state
        }

    def groups(self) -> list[dict[str, Any]]:
        """The groups of parameters of all processes; all have to call it."""
        mine = [{**group, "params": self._in_model(group["params"])} for group in self._state["param_groups"]]
        gathered: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, mine)
        longest = max(gathered, key=len)
        return [{**group, "params": _all_named(gathered, place)} for place, group in enumerate(longest)]

    def _in_model(self, known: Iterable[str]) -> list[str]:
        return [self._names[each][1] for each in known]

    def fill(self, by_stage: Mapping[int, Mapping[str, Any]], groups: list[dict[str, Any]]) -> None:
        """Sets the state, of what `of_stage` gives of each stage, and the settings of `groups`."""
        state = {
            known: by_stage[number][name]
            for known, (number, name) in self._names.items()
            if name in by_stage.get(number, {})
        }
        mine = []
        for place, group in enumerate(self._state["param_groups"]):
            named = self._in_model(group["params"])
            found = next((each for each in groups if named and named[0] in each["params"]), groups[place])
            mine.append({**found, "params": group["params"]})
        set_optimizer_state_dict(self._parameters, self._optimizer, {"state": state, "param_groups": mine})


def _all_named(gathered: Iterable[list[dict[str, Any]]], place: int) -> list[str]:
    """The parameters that the groups number `place` of all processes have."""
    named = (name for groups in gathered if place < len(groups) for name in groups[place]["params"])
    return list(dict.fromkeys(named))
