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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import yaml

from shardplan.constraints.parse import constraints_of
from shardplan.constraints.types import SECTIONS, Constraint, Dims
from shardplan.errors import ShardplanError, did_you_mean, error
from shardplan.layout.mesh import Mesh
from shardplan.layout.text import to_text
from shardplan.patterns import literal
from shardplan.plan.orientation import checkpoint_layout, dim_axes
from shardplan.plan.recorded_request import options_of
from shardplan.plan.types import Plan, Stage, TensorDecision
from shardplan.text_files import read_text
from shardplan.units import whole_number
from shardplan.yaml_source import Mark, compose, mark_of

_OWN = ("runs", "mesh")
_ALLOWED = (*_OWN, "mesh_axis_names", *SECTIONS)
REST = "*"
"""In `runs`: all operators that no earlier stage has."""


@dataclass(frozen=True)
class ManualStage:
    """One entry of `stages:`. `runs`: patterns of modules, blocks and operators, written at `marks` if these are known;
    `mesh`: as in `--mesh`."""

    runs: tuple[str, ...]
    mesh: str
    constraints: tuple[Constraint, ...]
    names: tuple[str, ...]
    mark: Mark
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True)
class ManualStages:
    """All entries; `intermediate`: axis -> the dim of values between stages that it shards."""

    stages: tuple[ManualStage, ...]
    intermediate: Mapping[str, int]


def read_stages(paths: Sequence[str]) -> ManualStages | None:
    """The stages in constraint files; None where none has any. Raises `ShardplanError` (`bad-stages`)."""
    for path in paths:
        try:
            text = read_text(path)
        except (OSError, UnicodeDecodeError):
            continue  # whoever reads the constraints says so
        if (found := stages_in(text, path)) is not None:
            return found
    return None


def stages_in(text: str, file: str) -> ManualStages | None:
    """The stages in the text of a constraints file; None where it has none. Raises as `read_stages`."""
    try:
        entries = _entries(compose(text, file))
    except ShardplanError:
        return None  # whoever reads the constraints says so
    if "stages" in entries:
        return parse_stages(entries, file)
    if (axes := entries.get("pipeline_intermediate_axes")) is not None:
        raise _bad(axes, file, "pipeline_intermediate_axes goes with stages, and there are none")
    return None


def parse_stages(entries: Mapping[str, yaml.Node], file: str) -> ManualStages:
    """The stages of a constraints file. Raises `ShardplanError` (`bad-stages`)."""
    node = entries["stages"]
    if not isinstance(node, yaml.SequenceNode) or not node.value:
        raise _bad(node, file, "stages: a list is expected, one entry for each stage")
    stages = tuple(_stage(entry, file) for entry in node.value)
    axes = _entries(entries["pipeline_intermediate_axes"]) if "pipeline_intermediate_axes" in entries else {}
    intermediate = {}
    for axis, dim in axes.items():
        number = whole_number(dim.value) if isinstance(dim, yaml.ScalarNode) else None
        if number is None:
            raise _bad(dim, file, f"pipeline_intermediate_axes: '{axis}' needs the number of a dim")
        intermediate[axis] = number
    return ManualStages(stages, intermediate)


def _entries(node: yaml.Node) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {str(key.value): value for key, value in node.value}


def _stage(node: yaml.Node, file: str) -> ManualStage:
    entries = _entries(node)
    if unknown := [(key, str(key.value)) for key, _ in node.value if str(key.value) not in _ALLOWED] if entries else []:
        raise ShardplanError(
            *(
                error(
                    "unknown-key",
                    f"unknown key '{name}' in a stage",
                    detail=f"allowed: {', '.join(_ALLOWED)}",
                    hint=did_you_mean(name, _ALLOWED),
                    **mark_of(key, file).where,
                )
                for key, name in unknown
            )
        )
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
    return ManualStage(
        tuple(str(entry.value) for entry in runs.value),
        str(mesh.value),
        constraints,
        names,
        mark_of(node, file),
        tuple(mark_of(entry, file) for entry in runs.value),
    )


def _bad(node: yaml.Node, file: str, summary: str) -> ShardplanError:
    hint = "docs/stages.md shows how stages are written"
    return ShardplanError(error("bad-stages", summary, hint=hint, **mark_of(node, file).where))


def stages_of(plan: Plan, file: str) -> ManualStages:
    """The stages of a plan, with their inputs and weights kept in its layouts; for another batch, for instance.

    Raises `ShardplanError` (`bad-stages`) for a plan without stages.
    """
    return _stages_as(plan, file, lambda stage: _kept_there(stage.plan, file))


def stages_asked_for(plan: Plan, file: str) -> ManualStages:
    """The stages of a plan, with the constraints that each was planned under and nothing else fixed.

    Raises `ShardplanError` as `stages_of`, and (`damaged-plan`) if a stage does not record its constraints.
    """
    return _stages_as(plan, file, lambda stage: options_of(stage.plan, file).constraints)


def _stages_as(plan: Plan, file: str, fixed: Callable[[Stage], tuple[Constraint, ...]]) -> ManualStages:
    if plan.pipeline is None:
        hint = "give a plan that was solved with --stages"
        raise ShardplanError(error("bad-stages", "this plan has no stages", file=file, hint=hint))
    mark = Mark(file, 1, 1)
    taken: set[str] = set()
    found = []
    for stage in plan.pipeline.stages:
        mesh = stage.plan.mesh
        own = [operator.name for operator in stage.plan.operators if operator.name not in taken]
        taken.update(own)
        found.append(ManualStage(tuple(literal(name) for name in own), mesh.argument, fixed(stage), mesh.names, mark))
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
