"""Stages that are fixed by hand: `stages:` in a constraints file.

```yaml
stages:
  - runs: ["*.layers.[0-3]", "*.embed*"]      # modules, blocks or operators, as patterns
    mesh: 1x2                                 # the part of the devices, and the axes laid over it
    mesh_axis_names: [dummy, model]
    parameters: {"*.up.weight": [null, model]}  # and everything else that a constraints file may say
  - runs: ["*"]                               # what no stage before has
    mesh: 1x2
    mesh_axis_names: [dummy, data]
pipeline_intermediate_axes: {data: 0}         # what is handed on is sharded so where a stage has the axis
```

What is not said is solved, stage by stage.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from shardplan.cluster.build import profile_from_resolved
from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.types import Cluster
from shardplan.constraints.parse import constraints_of
from shardplan.constraints.resolve import resolve
from shardplan.constraints.types import Constraint, Dims
from shardplan.errors import ShardplanError, error
from shardplan.graph.options import PlanOptions
from shardplan.layout.mesh import Mesh
from shardplan.layout.text import to_text
from shardplan.model.types import Model
from shardplan.patterns import literal, matches
from shardplan.plan.orientation import checkpoint_layout, dim_axes
from shardplan.plan.types import Plan, Stage, TensorDecision
from shardplan.planning import Planner
from shardplan.stages.cut import Chain, chain_at, part_of
from shardplan.stages.found import StagedPlans, put_together
from shardplan.stages.parts import concerning
from shardplan.stages.schedule import Schedule
from shardplan.stages.search import Cut
from shardplan.stages.submeshes import Submesh
from shardplan.stages.transfer import Transfers
from shardplan.study.request import options_of
from shardplan.yaml_source import Mark, compose, mark_of

_OWN = ("runs", "mesh")


@dataclass(frozen=True)
class StageWish:
    """One entry of `stages:`. `runs`: patterns of modules, blocks and operators; `mesh`: as `--mesh` takes it."""

    runs: tuple[str, ...]
    mesh: str
    constraints: tuple[Constraint, ...]
    names: tuple[str, ...]
    mark: Mark


@dataclass(frozen=True)
class ManualStages:
    """All entries; `intermediate`: axis -> the dim that it shards of what stages hand on."""

    stages: tuple[StageWish, ...]
    intermediate: Mapping[str, int]


def read_stages(paths: Sequence[str]) -> ManualStages | None:
    """The stages in constraint files; None where none has any. Raises `ShardplanError` (`bad-stages`)."""
    for path in paths:
        try:
            text = Path(path).read_text(encoding="utf-8")
            root = compose(text, path)
        except (OSError, UnicodeDecodeError, ShardplanError):
            continue  # whoever reads the constraints says so
        entries = _entries(root)
        if "stages" in entries:
            return parse_stages(entries, path)
    return None


def parse_stages(entries: Mapping[str, yaml.Node], file: str) -> ManualStages:
    """The stages of a constraints file. Raises `ShardplanError` (`bad-stages`)."""
    node = entries["stages"]
    if not isinstance(node, yaml.SequenceNode) or not node.value:
        raise _bad(node, file, "stages: a list is expected, one entry for each stage")
    stages = tuple(_stage(entry, file) for entry in node.value)
    axes = _entries(entries["pipeline_intermediate_axes"]) if "pipeline_intermediate_axes" in entries else {}
    for axis, dim in axes.items():
        if not isinstance(dim, yaml.ScalarNode) or not dim.value.isdecimal():
            raise _bad(dim, file, f"pipeline_intermediate_axes: '{axis}' needs the number of a dim")
    return ManualStages(stages, {axis: int(str(dim.value)) for axis, dim in axes.items()})


def _entries(node: yaml.Node) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {str(key.value): value for key, value in node.value}


def _stage(node: yaml.Node, file: str) -> StageWish:
    entries = _entries(node)
    runs, mesh = entries.get("runs"), entries.get("mesh")
    if not isinstance(runs, yaml.SequenceNode) or not runs.value:
        raise _bad(node, file, "a stage needs 'runs': a list of patterns of modules, blocks or operators")
    if not isinstance(mesh, yaml.ScalarNode):
        raise _bad(node, file, "a stage needs 'mesh': its part of the devices, such as 1x2")
    rest = yaml.MappingNode(
        node.tag, [(key, value) for key, value in node.value if key.value not in _OWN], node.start_mark, node.end_mark
    )
    constraints = constraints_of(rest, file) if rest.value else ()
    named = entries.get("mesh_axis_names")
    names = tuple(str(entry.value) for entry in named.value) if isinstance(named, yaml.SequenceNode) else ()
    return StageWish(
        tuple(str(entry.value) for entry in runs.value), str(mesh.value), constraints, names, mark_of(node, file)
    )


def _bad(node: yaml.Node, file: str, summary: str) -> ShardplanError:
    hint = "docs/stages.md shows how stages are written"
    return ShardplanError(error("bad-stages", summary, hint=hint, **mark_of(node, file).where))


def stages_of(plan: Plan, file: str) -> ManualStages:
    """The stages of a plan, with their inputs and weights kept where it keeps them; for another batch, say.

    Raises `ShardplanError` (`bad-stages`) for a plan without stages.
    """
    return _stages_as(plan, file, lambda stage: _kept_there(stage.plan, file))


def stages_asked_for(plan: Plan, file: str) -> ManualStages:
    """The stages of a plan, with the constraints that each was planned under and nothing else fixed.

    Raises `ShardplanError` as `stages_of`, and (`damaged-plan`) where a stage does not say what it was asked for.
    """
    return _stages_as(plan, file, lambda stage: options_of(stage.plan, file).constraints)


def _stages_as(plan: Plan, file: str, fixed: Callable[[Stage], tuple[Constraint, ...]]) -> ManualStages:
    if plan.pipeline is None:
        raise ShardplanError(error("bad-stages", "this plan has no stages", file=file))
    mark = Mark(file, 1, 1)
    taken: set[str] = set()
    found = []
    for stage in plan.pipeline.stages:
        mesh = stage.plan.mesh
        own = [operator.name for operator in stage.plan.operators if operator.name not in taken]
        taken.update(own)
        text = ",".join(f"{axis.name}={axis.size}" for axis in mesh.axes)
        found.append(StageWish(tuple(literal(name) for name in own), text, fixed(stage), mesh.names, mark))
    return ManualStages(tuple(found), {})


def _kept_there(plan: Plan, file: str) -> tuple[Constraint, ...]:
    """Inputs and weights as `plan` keeps them."""
    return tuple(
        Constraint(
            "inputs" if tensor.role == "input" else "parameters",
            literal(tensor.checkpoint or tensor.name),
            Dims(tuple(tuple(axes) for axes in _dims(tensor, plan.mesh))),
            to_text(tensor.layout, plan.mesh),
            Mark(file, 1, 1),
        )
        for tensor in plan.tensors
        if tensor.role in ("input", "parameter")
    )


def _dims(tensor: TensorDecision, mesh: Mesh) -> list[list[str]]:
    """Axes of every dim, in checkpoint orientation."""
    layout = checkpoint_layout(tensor.layout, tensor.perm)
    return dim_axes(layout, len(tensor.shape), mesh.names)


def plan_by_hand(
    model: Model, cluster: Cluster, options: PlanOptions, schedule: Schedule, manual: ManualStages
) -> StagedPlans:
    """The stages as they are fixed, each planned under its own constraints.

    Raises `ShardplanError` (`bad-stages`, `no-cut`, or as planning does), `InfeasibleError` where one does not fit.
    """
    _refuse_unmatched(options.constraints, model, cluster.mesh)
    chain = chain_at(model, _places(model, manual))
    parts = tuple(_part(cluster, wish) for wish in manual.stages)
    used = sum(part.size for part in parts)
    if used > cluster.mesh.size:
        summary = f"the stages take {used} devices, and the cluster has {cluster.mesh.size}"
        raise ShardplanError(error("bad-stages", summary, **manual.stages[0].mark.where))
    plans, waiting = [], []
    for place, (wish, part) in enumerate(zip(manual.stages, parts, strict=True)):
        held = schedule.in_flight(len(parts) - 1 - place, len(parts), options.microbatches)
        waiting.append(held if options.training else 1)
        own = part_of(chain, place, place + 1, f"{model.name}.stage{place}")
        everywhere = concerning(options.constraints, own, part.mesh)
        handed = _handed(chain, place, wish, part, manual.intermediate)
        asked = replace(options, in_flight=waiting[-1], constraints=(*everywhere, *wish.constraints, *handed))
        plans.append(Planner(own, part.cluster, asked).plan())
    return _staged(chain, parts, tuple(plans), tuple(waiting), cluster, options, schedule)


def _refuse_unmatched(constraints: Sequence[Constraint], model: Model, mesh: Mesh) -> None:
    """Constraints for all stages must be about something; whether they can be met, the mesh of every stage tells."""
    try:
        resolve(constraints, model, mesh)
    except ShardplanError as problem:
        if unmatched := [diagnostic for diagnostic in problem.diagnostics if diagnostic.code == "no-match"]:
            raise ShardplanError(*unmatched) from None


def _places(model: Model, manual: ManualStages) -> list[int]:
    """Where every stage but the first begins: at the first operator that it has and no stage before. What comes before
    all that the first stage names is the first stage's."""
    places: list[int] = []
    begun = 0
    taken = [False] * len(model.operators)
    blocks = {
        index: name
        for block in model.blocks
        for name, copy in zip(block.names, block.copies, strict=True)
        for index in copy
    }
    for number, wish in enumerate(manual.stages):
        own = [
            index
            for index, operator in enumerate(model.operators)
            if not taken[index]
            and any(
                matches(text, run) or matches(text, f"{run}.*")
                for run in wish.runs
                for text in (operator.module, operator.name, blocks.get(index, ""))
                if text
            )
        ]
        if not own:
            summary = (
                f"stage {number} runs nothing: no module, block or operator is left that matches {list(wish.runs)}"
            )
            raise ShardplanError(error("bad-stages", summary, **wish.mark.where))
        if not number:
            begun = own[0]
        else:
            first = next((index for index in own if index > begun), own[0])
            if first <= begun:
                summary = f"stage {number} begins before stage {number - 1} does"
                raise ShardplanError(error("bad-stages", summary, **wish.mark.where))
            places.append(first)
            begun = first
        for index in own:
            taken[index] = True
    return places


def _part(cluster: Cluster, wish: StageWish) -> Submesh:
    return Submesh(make_cluster(profile_from_resolved(cluster.resolved), wish.mesh))


def _handed(
    chain: Chain, place: int, wish: StageWish, part: Submesh, intermediate: Mapping[str, int]
) -> list[Constraint]:
    """What is handed to and from a stage, sharded by the intermediate axes that it has and by no others."""
    if not intermediate:
        return []
    names = wish.names or part.mesh.names
    borders = [*chain.borders[max(place - 1, 0) : place], *chain.borders[place : place + 1]]
    found = []
    for border in borders:
        rank = len(chain.model.tensor(border).shape)
        entries = tuple(
            tuple(axis for axis, at in intermediate.items() if axis in names and at == dim and rank > 1)
            for dim in range(rank)
        )
        text = "[" + ", ".join(f"[{', '.join(axes)}]" for axes in entries) + "]"
        found.append(Constraint("tensors", border, Dims(entries), text, wish.mark, None, wish.names))
    return found


def _staged(
    chain: Chain,
    parts: tuple[Submesh, ...],
    plans: tuple[Plan, ...],
    in_flight: tuple[int, ...],
    cluster: Cluster,
    options: PlanOptions,
    schedule: Schedule,
) -> StagedPlans:
    cuts = [Cut(place, place + 1, 0, 0, 0) for place in range(len(parts))]
    kept = [{tensor.name: tensor.layout for tensor in plan.tensors} for plan in plans]
    borders = [
        (mine[border], theirs[border])
        for border, (mine, theirs) in zip(chain.borders, itertools.pairwise(kept), strict=True)
    ]
    each = [-(-chain.model.tensor(border).size_bytes // options.microbatches) for border in chain.borders]
    sizes = [(size, size if options.training else 0) for size in each]
    transfers = Transfers(cluster)
    return put_together(chain, cuts, parts, plans, in_flight, borders, sizes, transfers, options, schedule)
