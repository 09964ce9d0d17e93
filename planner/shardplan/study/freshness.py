"""Staleness of a plan: its model, cluster profile and constraints are read again and compared with what it records."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from shardplan.cluster.mesh import cluster_digest, make_cluster
from shardplan.cluster.profile import list_profiles, load_profile
from shardplan.cluster.types import Cluster
from shardplan.constraints.reuse import adapted
from shardplan.errors import ShardplanError, error
from shardplan.layout.mesh import Mesh
from shardplan.model.types import Model
from shardplan.models.factory import factory_of
from shardplan.models.named import PREFIX
from shardplan.pipeline.manual.stages import read_stages
from shardplan.plan.diff import profile_differences
from shardplan.plan.recorded_request import cluster_of, is_of
from shardplan.plan.types import Plan
from shardplan.study.instance import load_model_of, read_all_constraints
from shardplan.study.sources import absence, found_path, source, sources
from shardplan.units import counted

_BLOCK = re.compile(r".*?\.\d+(?=\.|$)")
_MOST_BLOCKS = 4
_ALONE = "or check what the plan says of itself alone with --without-model"


@dataclass(frozen=True, slots=True)
class Given:
    """Inputs to check a plan with, in place of those that it records. `alone`: its model is not read. `signers`: the
    file of allowed signers, if a signature is required."""

    model: str | None = None
    cluster: str | None = None
    alone: bool = False
    signers: str | None = None


AS_RECORDED: Final = Given()


def model_now(plan: Plan, file: str, given: Given) -> Model | None:
    """The model of `plan`, read from `file`; None if it records no source, or with `given.alone`.

    Raises `ShardplanError`: `no-model` if the recorded file does not exist; or as reading it does.
    """
    if given.alone or (given.model is None and not source(plan, "model")):
        return None
    return model_of(plan, file, given.model, f", {_ALONE}")


def model_of(plan: Plan, file: str, given: str | None, otherwise: str = "") -> Model:
    """The model `given`, else the one that `plan`, read from `file`, records. `otherwise`: ends a hint.

    Raises `ShardplanError`: `no-model` if none is recorded, or the recorded file does not exist; or as reading it does.
    """
    path = given if given is not None else recorded_model(plan, file, lambda name: f"--model {name}{otherwise}")
    return load_model_of(plan, file, path)


def recorded_model(plan: Plan, file: str, naming: Callable[[str], str]) -> str:
    """The model that `plan`, read from `file`, records: a description, or the path at which its file is found.

    `naming`: the words that give the verb a model of some name, for hints. Raises `ShardplanError` (`no-model`): none
    is recorded, the file does not exist, or the model is a function, which no plan file alone may call.
    """
    recorded = source(plan, "model")
    path = recorded if recorded.startswith(PREFIX) else found_path(recorded, file)
    if path is not None:
        return path
    if factory_of(recorded):
        summary = f"its model '{recorded}' is a function, which is called only where you name it"
        raise ShardplanError(error("no-model", summary, file=file, hint=naming(recorded)))
    absent = f"its model '{recorded}' is {absence(recorded)}"
    summary = absent if recorded else "it does not record the file of its model"
    raise ShardplanError(error("no-model", summary, file=file, hint=f"give it: {naming('MODEL')}"))


def model_changes(plan: Plan, model: Model) -> tuple[str, ...]:
    """Changes in the structure of the model."""
    if is_of(plan, model):
        return ()
    if plan.model.get("name") != model.name:
        return (f"it was made for '{plan.model.get('name')}', and this is another model, '{model.name}'",)
    parts = [stage.plan for stage in plan.pipeline.stages] if plan.pipeline else [plan]
    before = {operator.name: operator.module for part in parts for operator in part.operators}
    after = {operator.name: operator.module for operator in model.operators}
    added = by_block({name: module for name, module in after.items() if name not in before})
    removed = by_block({name: module for name, module in before.items() if name not in after})
    details = [*(f"+ {text}" for text in added), *(f"- {text}" for text in removed)]
    return ("model structure changed since this plan was made", *details)


def by_block(modules: Mapping[str, str]) -> list[str]:
    """Nodes with their modules, grouped by repeated blocks: `model.layers.32 (41 nodes)`, the largest group first."""
    blocks: dict[str, list[str]] = {}
    for name, module in modules.items():
        found = _BLOCK.match(module)
        blocks.setdefault(found[0] if found else module or "", []).append(name)
    ranked = sorted(blocks.items(), key=lambda block: (-len(block[1]), block[0]))
    shown = [_block_text(block, names) for block, names in ranked[:_MOST_BLOCKS]]
    rest = sum(len(names) for _, names in ranked[_MOST_BLOCKS:])
    return [*shown, f"{counted(rest, 'node')} elsewhere"] if rest else shown


def _block_text(block: str, names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"'{names[0]}'"
    return f"{block} ({len(names)} nodes)" if block else f"{len(names)} nodes, among them '{min(names)}'"


def profile_changes(plan: Plan, file: str, given: Given) -> tuple[str, ...]:
    """Changes in the cluster profile. A profile that a plan does not record is compared if it is a shipped one.

    Raises `ShardplanError`: `no-cluster` if it does not exist; or as reading it does.
    """
    recorded = source(plan, "cluster") or str(plan.cluster.get("name"))
    if given.cluster is None and not source(plan, "cluster") and recorded not in list_profiles():
        return ()
    then = cluster_of(plan, file)
    name = given.cluster or (recorded if recorded in list_profiles() else found_path(recorded, file))
    if name is None:
        summary = f"its cluster profile '{recorded}' is {absence(recorded)}"
        raise ShardplanError(error("no-cluster", summary, file=file, hint="give it with --cluster"))
    now = _laid(name, plan.mesh, then)
    if now is not None and cluster_digest(now) == cluster_digest(then):
        return ()
    changes = profile_differences(then.resolved, load_profile(name).resolved if now is None else now.resolved)
    return (f"the profile '{given.cluster or recorded}' changed since", *changes)


def _laid(name: str, mesh: Mesh, then: Cluster) -> Cluster | None:
    """The current profile under the mesh of the plan; None if it no longer allows that mesh."""
    profile = load_profile(name)
    texts = [mesh.argument, "x".join(str(size) for size in mesh.shape)]
    found = None
    for text in texts:
        try:
            cluster = make_cluster(profile, text)
        except ShardplanError:
            continue
        if cluster_digest(cluster) == cluster_digest(then):
            return cluster
        found = found or cluster
    return found


def constraint_changes(plan: Plan, file: str, model: Model | None) -> tuple[str, ...]:
    """Changes in the constraints. Raises `ShardplanError` if one of their files does not exist or is faulty."""
    files, pins = sources(plan, "constraints"), sources(plan, "pins")
    if not files and not pins:
        return ()
    paths = [_constraint_file(recorded, file) for recorded in files]
    asked = read_all_constraints(paths, pins)
    if plan.pipeline is None and model is not None:
        asked, _ = adapted(asked, model)
    then = plan.model.get("constraints", ())
    was, now = [str(text) for text in then] if isinstance(then, list | tuple) else [], [str(one) for one in asked]
    if was == now:
        return tuple(_stage_changes(plan, paths))
    details = [*(f"+ {text}" for text in now if text not in was), *(f"- {text}" for text in was if text not in now)]
    return ("the constraints changed since", *details)


def _stage_changes(plan: Plan, paths: Sequence[str]) -> Iterator[str]:
    """Changes in the stages fixed by hand."""
    if plan.pipeline is None or plan.model.get("stages") != "manual" or (by_hand := read_stages(paths)) is None:
        return
    stages = plan.pipeline.stages
    if len(by_hand.stages) != len(stages):
        yield f"the stages changed since: {len(stages)} then, {len(by_hand.stages)} now"
        return
    for stage, manual in zip(stages, by_hand.stages, strict=True):
        then = stage.plan.model.get("constraints")
        was = {str(text) for text in then} if isinstance(then, list | tuple) else set()
        if new := [str(one) for one in manual.constraints if str(one) not in was]:
            yield f"the constraints of {stage.name} changed since"
            yield from (f"+ {text}" for text in new)


def _constraint_file(recorded: str, file: str) -> str:
    found = found_path(recorded, file)
    path, colon, section = recorded.rpartition(":")
    if found is None and colon and (plan := found_path(path, file)) is not None:
        found = f"{plan}:{section}"
    if found is None:
        summary = f"its constraints '{recorded}' are {absence(recorded)}"
        raise ShardplanError(error("no-constraints", summary, file=file, hint="bring the file back, or solve again"))
    return found


def input_changes(plan: Plan, file: str, model: Model | None, given: Given) -> Iterator[str]:
    """All changes in the inputs of the plan. Raises as the functions above."""
    if model is not None:
        yield from model_changes(plan, model)
    yield from profile_changes(plan, file, given)
    yield from constraint_changes(plan, file, model)
