"""From the leaves of a pytree to the parameters of a plan: names, transposed kernels, stacked layers, divided dims."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.jax.fused_weights import Part
from shardplan.jax.partition_specs import Division, division, pin_text
from shardplan.jax.value_layouts import listed
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.text import to_text
from shardplan.plan.orientation import checkpoint_layout, checkpoint_shape, graph_shape
from shardplan.plan.types import Plan, TensorDecision
from shardplan.runtime.names import Named, match_names, parameters_by_name

Target = str | tuple[str, Sequence[int]] | Part | None
"""Checkpoint name; or name and perm, where leaf dim i is checkpoint dim perm[i]; a `Part`; None: none of the plan's.

A `*` in the name stands for the number of a layer: the leaf stacks these parameters of all layers on a first dim.
"""
Names = Callable[[str], Target] | Mapping[str, Target]
"""From the path of a leaf (`layers.attention.q.kernel`) to what it is."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf and the parameters that it holds: several where it stacks layers (dim 0 then counts them).

    `divided`: how the leaf divides the dims of one parameter, in the leaf's order; see `partition_specs.division`.
    `parameters` have one layout. `part`: the part of each that the leaf is.
    """

    path: str
    parameters: tuple[Named, ...]
    divided: Division
    stacked: bool
    part: Part | None = None

    @property
    def first(self) -> Named:
        return self.parameters[0]

    @property
    def perm(self) -> tuple[int, ...]:
        """Checkpoint dims in the leaf's order."""
        return self.part.perm if self.part else self.first.perm


def match_leaves(
    plan: Plan,
    shapes: Mapping[str, tuple[int, ...]],
    names: Names | None = None,
    *,
    ignore: Iterable[str] = (),
    strict: bool = True,
) -> dict[str, Leaf]:
    """Every leaf (path -> shape) with its parameters, in the order of `shapes`; leaves without parameters are left out.

    Raises `ShardplanError` as `shardplan.runtime.names.match_names`, and `wrong-stack` where a leaf has not as many
    layers as the plan, `layers-differ` where a leaf stacks parameters that the plan lays out differently, `wrong-part`.
    """
    known = parameters_by_name(plan)
    wanted = {path: targets_of(path, names, known) for path in shapes}
    given: dict[str, tuple[int, ...]] = {}
    renamed: dict[str, str | tuple[str, Sequence[int]] | None] = {}
    divided: dict[str, Division] = {}
    faults: list[Diagnostic] = []
    for path, shape in shapes.items():
        targets, stacked = wanted[path]
        if stacked and (len(shape) == 0 or shape[0] != len(targets)):
            faults.append(_wrong_stack(path, shape, targets))
            continue
        for number, target in enumerate(targets):
            entry, inner = _entry(path, number, target, stacked=stacked), shape[1:] if stacked else shape
            if isinstance(target, Part):
                faults += _check_part(path, inner, target, known)
            given[entry], divided[path] = _as_planned(inner, target, known)
            renamed[entry] = target.name if isinstance(target, Part) else target
    if faults:
        raise ShardplanError(*faults)
    matched = match_names(plan, given, rename=renamed.__getitem__, ignore=ignore, strict=strict)
    leaves = {}
    for path, (targets, stacked) in wanted.items():
        entries = [_entry(path, number, target, stacked=stacked) for number, target in enumerate(targets)]
        if all(entry in matched for entry in entries):
            part = targets[0] if isinstance(targets[0], Part) else None
            leaves[path] = Leaf(path, tuple(matched[entry] for entry in entries), divided[path], stacked, part)
    if faults := [fault for leaf in leaves.values() for fault in _differing(plan.mesh, leaf)]:
        raise ShardplanError(*faults)
    return leaves


def _entry(path: str, number: int, target: Target, *, stacked: bool) -> str:
    """The name under which a parameter is matched: one name for all its parts, else one for each leaf and layer."""
    if isinstance(target, Part):
        return target.name
    return f"{path}[{number}]" if stacked else path


def _check_part(path: str, shape: tuple[int, ...], part: Part, known: Mapping[str, TensorDecision]) -> list[Diagnostic]:
    if part.name not in known:
        return []
    whole = checkpoint_shape(known[part.name].shape, known[part.name].perm)
    if faults := part.check(whole):
        return faults
    planned = graph_shape(part.shape(whole), part.perm)
    if division(shape, planned) is not None:
        return []
    summary = f"'{path}' has shape {list(shape)}, that part of '{part.name}' has {list(planned)}"
    return [error("wrong-shape", summary)]


def named_as(path: str, names: Names | None) -> Target:
    """What `names` gives for a leaf."""
    if names is None:
        return path
    return names.get(path, path) if isinstance(names, Mapping) else names(path)


def spelled(target: Target) -> tuple[str | None, tuple[int, ...]]:
    """Name and perm of a target."""
    if isinstance(target, Part):
        return target.name, target.perm
    return (target, ()) if isinstance(target, str) or target is None else (target[0], tuple(target[1]))


def targets_of(path: str, names: Names | None, known: Mapping[str, TensorDecision]) -> tuple[list[Target], bool]:
    """The parameters that a leaf holds, in the order of layers, and whether it stacks them."""
    found = named_as(path, names)
    name, perm = spelled(found)
    if name is None or "*" not in name:
        return [found], False
    pattern = re.compile(r"(\d+)".join(re.escape(part) for part in name.split("*")))
    numbered = sorted(
        (tuple(int(number) for number in match.groups()), full) for full in known if (match := pattern.fullmatch(full))
    )
    stacked: list[Target] = [
        replace(found, name=full) if isinstance(found, Part) else (full, perm) if perm else full for _, full in numbered
    ]
    return (stacked, True) if stacked else ([found], False)


def _as_planned(
    shape: tuple[int, ...], target: Target, known: Mapping[str, TensorDecision]
) -> tuple[tuple[int, ...], Division]:
    """The planned shape and how the leaf divides its dims; the leaf's own shape where the two do not match."""
    name, perm = spelled(target)
    plain = shape, tuple((size,) for size in shape)
    if name is None or name not in known:
        return plain
    decision = known[name]
    planned = checkpoint_shape(decision.shape, decision.perm)
    if perm and sorted(perm) != list(range(len(planned))):
        return plain
    if isinstance(target, Part):
        return planned, division(shape, graph_shape(target.shape(planned), perm)) or plain[1]
    planned = graph_shape(planned, perm)
    found = division(shape, planned)
    return plain if found is None else (planned, found)


def _wrong_stack(path: str, shape: tuple[int, ...], targets: Sequence[Target]) -> Diagnostic:
    summary = f"'{path}' has shape {list(shape)}, but the plan has {len(targets)} of what it stacks"
    listed = ", ".join(str(spelled(target)[0]) for target in targets[:3])
    return error("wrong-stack", summary, detail=f"{listed} ...", hint="layers are stacked on the first dim")


def _differing(mesh: Mesh, leaf: Leaf) -> list[Diagnostic]:
    """A leaf has one sharding, so the layers that it stacks must have one layout."""
    groups: dict[tuple[Layout, Layout, Layout | None], list[Named]] = {}
    for named in leaf.parameters:
        groups.setdefault((named.layout, named.served, named.decision.optimizer), []).append(named)
    if len(groups) < 2:
        return []
    lines = [
        f"{to_text(kept, mesh)}, served {to_text(served, mesh)}"
        f"{f', optimizer {to_text(state, mesh)}' if state else ''}: "
        f"{listed([named.decision.checkpoint for named in members], 4)}"
        for (kept, served, state), members in groups.items()
    ]
    decision = max(groups.values(), key=len)[0].decision
    pattern = re.sub(r"\.\d+\.", ".*.", decision.checkpoint)
    wanted = pin_text(checkpoint_layout(decision.layout, decision.perm), mesh, len(decision.shape))
    summary = f"'{leaf.path}' stacks layers that the plan lays out differently"
    hint = f"solve again with all alike, such as --pin {shlex.quote(f'{pattern}={wanted}')}, or keep the layers apart"
    return [error("layers-differ", summary, detail="\n".join(lines), hint=hint)]
