"""The part of every checkpoint tensor that each rank gets under a plan.

A tensor that the plan names is sharded as the plan keeps it; a group of quantised tensors as the weight that it stands
for; other tensors are copied to every rank, with a warning.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shardplan.errors import Diagnostic, ShardplanError, did_you_mean, error, warning
from shardplan.folding import folded, pattern
from shardplan.layout.layout import Layout
from shardplan.loading.checkpoint import Checkpoint
from shardplan.loading.header import Entry
from shardplan.model.types import FLOAT_DTYPES
from shardplan.plan.orientation import checkpoint_layout, checkpoint_shape
from shardplan.plan.types import Plan, TensorDecision
from shardplan.runtime.lookup import coordinates_of
from shardplan.runtime.names import parameters_by_name
from shardplan.runtime.shards import Run, Runs, Shard, replica_of, runs_of
from shardplan.runtime.units import Unit, find_unit, unit_shards
from shardplan.units import counted

_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Part:
    """A rank's part of a stored tensor: `runs` of it seen in the shape `view`, stored as `shape`.

    `groups`: the tensor holds group numbers; the rank holds these runs of groups and numbers them from 0.
    """

    entry: Entry
    view: tuple[int, ...]
    runs: Runs
    shape: tuple[int, ...]
    groups: tuple[Run, ...] = ()

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * self.entry.itemsize


@dataclass(frozen=True)
class Assignment:
    """`layouts`: stored tensor -> its layout, in the dims of its weight; `units`: those that stand for a weight of the
    plan together. `warnings`: what a user should know."""

    plan: Plan
    checkpoint: Checkpoint
    layouts: Mapping[str, Layout]
    units: Mapping[str, Unit]
    warnings: tuple[Diagnostic, ...] = field(default=())

    def parts(self, rank: int) -> tuple[Part, ...]:
        """The parts of `rank`, in the order of the checkpoint. Raises `ShardplanError` (`cut-group`,
        `unknown-rank`)."""
        place = coordinates_of(self.plan.mesh, rank)
        members = dict(self._members(place))
        return tuple(members.get(entry.name) or self._plain(entry, place) for entry in self.checkpoint)

    def _plain(self, entry: Entry, place: Sequence[int]) -> Part:
        runs = runs_of(self.layouts[entry.name], self.plan.mesh, entry.shape, place)
        shape = tuple(sum(stop - start for start, stop in dim) for dim in runs)
        return Part(entry, entry.shape, runs, shape)

    def _members(self, place: Sequence[int]) -> Iterator[tuple[str, Part]]:
        faults: list[Diagnostic] = []
        for unit in dict.fromkeys(self.units.values()):
            layout = self.layouts[unit.members[0].name]
            runs = runs_of(layout, self.plan.mesh, unit.shape, place)
            shard = Shard(unit.name, 0, unit.shape, "", runs, replica_of(layout, self.plan.mesh, place))
            try:
                members = unit_shards(unit, shard)
            except ShardplanError as refused:
                faults += refused.diagnostics
                continue
            for found in members:
                entry = self.checkpoint.entries[found.member.name]
                yield (
                    entry.name,
                    Part(entry, found.member.view, found.shard.runs, found.local_shape, found.groups),
                )
        if faults:
            raise ShardplanError(*faults[:_SHOWN])


def assign(
    plan: Plan,
    checkpoint: Checkpoint,
    rename: Mapping[str, str] | None = None,
    *,
    others: Collection[str] = (),
) -> Assignment:
    """Match a checkpoint with a plan. `others`: the plan's names of weights that are other stages' (see
    `runtime.stages.weights_of_others`); they, and what is stored beside them, are left out.

    `rename`: prefixes of names in the checkpoint -> what the plan has in their place (`{"": "transformer."}`); the
    first that fits counts. Raises `ShardplanError` with every fault: `wrong-shape`, and `missing-parameter` for weights
    that the checkpoint does not have (buffers are only warned of).
    """
    known = parameters_by_name(plan)
    checkpoint = _without(checkpoint, others, known, rename or {})
    layouts, taken, faults = _named(checkpoint, known, rename or {})
    units: dict[str, Unit] = {}
    stored = {_called(name, rename or {}): name for name in checkpoint.entries}
    shapes = {called: checkpoint.entries[name].shape for called, name in stored.items()}
    missing = []
    for name, decision in known.items():
        if decision.checkpoint in taken or name != decision.checkpoint:
            continue
        unit = _unit_of(decision, shapes)
        if unit is None:
            missing.append(decision)
            continue
        unit = _with_stored_names(unit, stored)
        for member in unit.members:
            units[member.name] = unit
            layouts[member.name] = checkpoint_layout(decision.layout, decision.perm)
    extra = [name for name in checkpoint.entries if name not in layouts]
    warnings = [*_missing(missing, stored, faults), *_extra(extra, checkpoint, known)]
    warnings += _other_types(checkpoint, known, rename or {})
    if faults:
        raise ShardplanError(*faults)
    layouts |= {name: Layout.replicated(len(plan.mesh)) for name in extra}
    return Assignment(plan, checkpoint, layouts, units, tuple(warnings))


def _without(
    checkpoint: Checkpoint, others: Collection[str], known: Collection[str], rename: Mapping[str, str]
) -> Checkpoint:
    """The checkpoint without the weights `others`, and without tensors of modules that hold nothing else."""
    modules = {name.rpartition(".")[0] for name in others} - {name.rpartition(".")[0] for name in known}
    called = {name: _called(name, rename) for name in checkpoint.entries}
    left = {
        name: entry
        for name, entry in checkpoint.entries.items()
        if called[name] not in others and called[name].rpartition(".")[0] not in modules
    }
    return replace(checkpoint, entries=left) if others else checkpoint


def _other_types(
    checkpoint: Checkpoint, known: Mapping[str, TensorDecision], rename: Mapping[str, str]
) -> Iterator[Diagnostic]:
    """A warning of floats that are stored as whole numbers, or the other way round."""
    found = [
        f"{entry.name}: {entry.dtype}, {decision.dtype} in the plan"
        for entry in checkpoint
        if (decision := known.get(_called(entry.name, rename))) is not None
        and (entry.dtype.startswith(("F", "BF"))) != (decision.dtype in FLOAT_DTYPES)
    ]
    if found:
        what = "a weight" if len(found) == 1 else f"{len(found)} weights"
        summary = f"the checkpoint has {what} of another kind of type than the plan; the bits are taken as they are"
        yield warning("other-type", summary, detail=_lines(found[:_SHOWN], len(found)))


def _called(name: str, rename: Mapping[str, str]) -> str:
    for old, new in rename.items():
        if name.startswith(old):
            return new + name[len(old) :]
    return name


def _named(
    checkpoint: Checkpoint, known: Mapping[str, TensorDecision], rename: Mapping[str, str]
) -> tuple[dict[str, Layout], set[str], list[Diagnostic]]:
    """Layouts of the tensors that the plan names, the plan's own names of them, and shapes that differ."""
    layouts: dict[str, Layout] = {}
    taken: set[str] = set()
    wrong: dict[tuple[str, tuple[int, ...], tuple[int, ...]], list[str]] = {}
    for entry in checkpoint:
        decision = known.get(_called(entry.name, rename))
        if decision is None:
            continue
        taken.add(decision.checkpoint)
        shape = checkpoint_shape(decision.shape, decision.perm)
        if shape != entry.shape:
            wrong.setdefault((pattern(entry.name), tuple(entry.shape), tuple(shape)), []).append(entry.name)
            continue
        layouts[entry.name] = checkpoint_layout(decision.layout, decision.perm)
    return layouts, taken, _wrong_shapes(wrong, [entry.name for entry in checkpoint])


def _wrong_shapes(
    wrong: Mapping[tuple[str, tuple[int, ...], tuple[int, ...]], Sequence[str]], everything: Sequence[str]
) -> list[Diagnostic]:
    """One fault for corresponding tensors of identical layers; the last says how many kinds are not shown."""
    faults = []
    for (_, found, planned), names in list(wrong.items())[:_SHOWN]:
        who = f"'{folded(names, everything)}' (×{len(names)})" if names[1:] else f"'{names[0]}'"
        summary = f"{who} has shape {list(found)} in the checkpoint, {list(planned)} in the plan"
        faults.append(error("wrong-shape", summary))
    if faults:
        rest = f"and {counted(len(wrong) - _SHOWN, 'more kind')} of tensors" if len(wrong) > _SHOWN else ""
        faults[-1] = replace(faults[-1], detail=rest, hint="is this the checkpoint of the model that was planned?")
    return faults


def _unit_of(decision: TensorDecision, shapes: Mapping[str, Sequence[int]]) -> Unit | None:
    shape = checkpoint_shape(decision.shape, decision.perm)
    names = (decision.checkpoint, *decision.aliases)
    return next((unit for name in names if (unit := find_unit(name, shape, shapes))), None)


def _with_stored_names(unit: Unit, stored: Mapping[str, str]) -> Unit:
    members = tuple(replace(member, name=stored[member.name]) for member in unit.members)
    return replace(unit, members=members)


def _missing(
    missing: list[TensorDecision], stored: Mapping[str, str], faults: list[Diagnostic]
) -> Iterator[Diagnostic]:
    """A warning of buffers that are not stored; weights that are not are added to `faults`."""
    buffers = [d.checkpoint for d in missing if not d.trainable and d.dtype in FLOAT_DTYPES]
    weights = [d for d in missing if d.checkpoint not in set(buffers)]
    if weights:
        lines = []
        for decision in weights[:_SHOWN]:
            near = did_you_mean(decision.checkpoint, stored)
            lines.append(decision.checkpoint + (f": {near}" if near else ""))
        what = "a parameter" if len(weights) == 1 else f"{len(weights)} parameters"
        summary = f"the plan names {what} that the checkpoint does not have"
        hint = _prefix_hint([d.checkpoint for d in weights], stored) or "is this the checkpoint of that model?"
        faults.append(error("missing-parameter", summary, detail=_lines(lines, len(weights)), hint=hint))
    if buffers:
        what = "a buffer" if len(buffers) == 1 else f"{len(buffers)} buffers"
        summary = f"the plan names {what} that the checkpoint does not have; the model makes what is not stored"
        yield warning("missing-buffer", summary, detail=_lines(buffers[:_SHOWN], len(buffers)))


def _extra(extra: list[str], checkpoint: Checkpoint, known: Mapping[str, TensorDecision]) -> Iterator[Diagnostic]:
    if extra:
        lines = []
        for name in extra[:_SHOWN]:
            near = did_you_mean(name, known)
            lines.append(f"{name} {list(checkpoint.entries[name].shape)}" + (f": {near}" if near else ""))
        what = "a tensor" if len(extra) == 1 else f"{len(extra)} tensors"
        summary = f"the checkpoint has {what} that the plan does not name; every rank gets a whole copy"
        yield warning("unplanned-weight", summary, detail=_lines(lines, len(extra)))


def _prefix_hint(names: Sequence[str], stored: Mapping[str, str]) -> str:
    """Where the plan's names are the checkpoint's after one prefix, or the other way round, how to say so."""
    first = names[0]
    for cut in [place + 1 for place, letter in enumerate(first) if letter == "."]:
        prefix = first[:cut]
        if all(name.startswith(prefix) and name[cut:] in stored for name in names):
            return f"the plan's names begin with '{prefix}': rename '' to '{prefix}' (--rename ={prefix})"
    for name in sorted(stored):
        prefix = name.removesuffix(first)
        if prefix != name and all(prefix + other in stored for other in names):
            return f"the checkpoint's names begin with '{prefix}': rename it to '' (--rename {prefix}=)"
    return ""


def _lines(lines: list[str], number: int) -> str:
    return "\n".join([*lines, f"and {number - _SHOWN} more"] if number > _SHOWN else lines)
