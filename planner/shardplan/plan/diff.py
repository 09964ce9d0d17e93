"""Differences between two plans: decisions, their effect on time and memory, and their causes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat

from shardplan.cost.named import measure_of
from shardplan.folding import folded, pattern
from shardplan.layout.text import to_text
from shardplan.plan.format.encode import document
from shardplan.plan.format.fields import MEMORY, MODEL, OPERATOR, PARAMETER, SUMMARY, TENSOR
from shardplan.plan.format.kinds import Context
from shardplan.plan.format.records import Record
from shardplan.plan.orientation import checkpoint_shape
from shardplan.plan.types import OperatorDecision, Pipeline, Plan, TensorDecision
from shardplan.plan.views.breakdown import breakdown
from shardplan.units import TIME, Measure, size

_ABSENT = ""
_MOST_KEYS = 5
"""Keys in which profiles of two names are said to differ."""


@dataclass(frozen=True, slots=True)
class Change:
    """Decisions that changed in the same way in identical layers. `before`, `after`: layouts, `""` if there is none; of
    an operator, those of its results, else of its operands, else the factors that mesh axes split.

    `kind`: the tensor's role, or `operator`. `bytes_delta`: stored bytes per device; `time_ns_delta`: time of the
    tensors' moves or of the operators' compute, without overlap.
    """

    kind: str
    name: str
    count: int
    before: str
    after: str
    bytes_delta: int
    time_ns_delta: int

    @property
    def sign(self) -> str:
        """`+` added, `-` removed, `~` changed."""
        return "+" if not self.before else "-" if not self.after else "~"


@dataclass(frozen=True, slots=True)
class Effect:
    """One number of the summary, in nanoseconds or bytes."""

    name: str
    before: int
    after: int

    @property
    def delta(self) -> int:
        return self.after - self.before

    @property
    def share(self) -> float:
        """The relative change; 0 if there was nothing before."""
        return self.delta / self.before if self.before else 0.0

    def exceeds(self, share: float) -> bool:
        """Whether it grew by more than `share` of the earlier value; from nothing, whether it grew at all."""
        return self.delta > share * self.before


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """`unchanged`: the number of unchanged tensors and operators. `causes`: differences in the requests. `measures`:
    how to read the costs of the old and of the new plan. `held`: memory by category. `spent`: the parts of the step."""

    changes: tuple[Change, ...]
    unchanged: int
    effects: tuple[Effect, ...]
    causes: tuple[str, ...]
    measures: tuple[Measure, Measure] = (TIME, TIME)
    held: tuple[Effect, ...] = ()
    spent: tuple[Effect, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the plans say the same."""
        return not (self.changes or self.causes or any(effect.delta for effect in self.effects))

    def effect(self, name: str) -> Effect:
        return next(effect for effect in self.effects if effect.name == name)


@dataclass(frozen=True, slots=True)
class _Item:
    """One decision. `name` is unique in its plan; `shown` is the name for people. `text`: what is compared. `words`:
    the same for people, in several forms; the first form in which the two plans differ is shown."""

    kind: str
    name: str
    shown: str
    text: str
    size_bytes: int
    time_ns: int
    words: tuple[str, ...] = ()


_NOTHING = _Item("", "", "", "", 0, 0)


def diff_plans(old: Plan, new: Plan) -> PlanDiff:
    """The differences of `new` from `old`; identical layers are one change."""
    before, after = _items(old), _items(new)
    everything = [item.shown for item in {**before, **after}.values()]
    groups: dict[tuple[str, str, str, str], list[tuple[str, int, int]]] = {}
    unchanged = 0
    for kind, name in {**after, **before}:
        was, now = before.get((kind, name)), after.get((kind, name))
        if (was.text if was else _ABSENT) == (now.text if now else _ABSENT):
            unchanged += 1
            continue
        texts = _differing_words(was, now)
        shown = (now or was or _NOTHING).shown
        effect = (
            shown,
            (now.size_bytes if now else 0) - (was.size_bytes if was else 0),
            (now.time_ns if now else 0) - (was.time_ns if was else 0),
        )
        groups.setdefault((kind, pattern(shown), *texts), []).append(effect)
    changes = [
        Change(
            kind,
            folded(list(dict.fromkeys(name for name, _, _ in group)), everything),
            len(group),
            was_text,
            now_text,
            sum(held for _, held, _ in group),
            sum(time for _, _, time in group),
        )
        for (kind, _, was_text, now_text), group in groups.items()
    ]
    measures = measure_of(old.model.get("cost_model")), measure_of(new.model.get("cost_model"))
    effects = _effects(SUMMARY, old.summary, new.summary)
    held = _effects(MEMORY, old.summary.memory, new.summary.memory)
    return PlanDiff(tuple(changes), unchanged, effects, tuple(_causes(old, new)), measures, held, _spent(old, new))


def _differing_words(was: _Item | None, now: _Item | None) -> tuple[str, str]:
    """Two decisions in words (one may be missing), in the first form in which they differ."""
    pairs = zip(*((*item.words, item.text) if item else repeat(_ABSENT) for item in (was, now)), strict=False)
    return next((before, after) for before, after in pairs if before != after)


def _items(plan: Plan) -> dict[tuple[str, str], _Item]:
    """Every decision by kind and name; weights first. A tensor that several stages of a pipeline hold counts
    in each."""
    if plan.pipeline is not None:
        return _stage_items(plan.pipeline)
    on = Context(plan.mesh, document)
    modules = {name: operator.module for operator in plan.operators for name in operator.outputs}
    moved: dict[str, int] = {}
    for move in plan.moves:
        moved[move.tensor] = moved.get(move.tensor, 0) + move.time_ns
    found = [
        _tensor_item(on, tensor, modules.get(tensor.name, ""), moved.get(tensor.name, 0)) for tensor in plan.tensors
    ]
    found += [_operator_item(on, operator) for operator in plan.operators]
    return {(item.kind, item.name): item for item in found}


def _stage_items(pipeline: Pipeline) -> dict[tuple[str, str], _Item]:
    found: dict[tuple[str, str], _Item] = {}
    for stage in pipeline.stages:
        summary, mesh = stage.plan.summary, stage.plan.mesh
        text = f"{stage.units[0]} … {stage.units[-1]} on {mesh}, from device {stage.first_device}"
        found["stage", stage.name] = _Item("stage", stage.name, stage.name, text, summary.memory.total, summary.step_ns)
        for (kind, name), item in _items(stage.plan).items():
            key = (kind, name) if (kind, name) not in found else (kind, f"{name} in {stage.name}")
            found[key] = replace(item, name=key[1])
    for transfer in pipeline.transfers:
        mine, theirs = (pipeline.stages[number].plan.mesh for number in (transfer.sender, transfer.receiver))
        text = f"{to_text(transfer.source, mine)} → {to_text(transfer.target, theirs)}"
        name = f"{transfer.tensor} from stage {transfer.sender} to {transfer.receiver}"
        found["transfer", name] = _Item("transfer", name, name, text, 0, transfer.time_ns)
    return found


def _tensor_item(on: Context, tensor: TensorDecision, module: str, moved_ns: int) -> _Item:
    text = _fields_in_words(PARAMETER if tensor.role == "parameter" else TENSOR, tensor, on)
    name = tensor.checkpoint or tensor.name
    shown = f"output of {module}" if module and tensor.role == "activation" else name
    return _Item(tensor.role, name, shown, text, tensor.bytes_per_device, moved_ns)


def _operator_item(on: Context, operator: OperatorDecision) -> _Item:
    shown = f"{operator.module} ({operator.op_type})" if operator.module else operator.name
    remat = ", recomputed" if operator.recomputed_before else ""
    made, read = (
        ", ".join(to_text(layout, on.mesh) if layout else "-" for layout in layouts)
        for layouts in (operator.makes, operator.reads)
    )
    words = (f"{made}{remat}", f"reads {read}{remat}")
    return _Item(
        "operator", operator.name, shown, _fields_in_words(OPERATOR, operator, on), 0, operator.compute_ns, words
    )


def _fields_in_words(record: Record, value: TensorDecision | OperatorDecision, on: Context) -> str:
    """The compared fields of `value` in words, without those that the file omits."""
    written = record.view(value) if record.view else value
    fields = [field for field in record.fields if field.diff and not field.absent(written)]
    return ", ".join(field.diff.replace("{}", field.kind.say(field.of(written), on)) for field in fields)


def _spent(old: Plan, new: Plan) -> tuple[Effect, ...]:
    """The parts of the two steps: they add up to them, also where a pipeline has a bubble."""
    was, now = breakdown(old), breakdown(new)
    parts = [Effect("compute", was.compute_ns, now.compute_ns)]
    parts.append(Effect("exposed communication", was.exposed_ns, now.exposed_ns))
    bubble = Effect("bubble", was.bubble_ns, now.bubble_ns)
    return (*parts, bubble) if bubble.before or bubble.after else tuple(parts)


def _effects(record: Record, was: object, now: object) -> tuple[Effect, ...]:
    return tuple(Effect(field.diff, field.of(was), field.of(now)) for field in record.fields if field.diff)


def _causes(old: Plan, new: Plan) -> Iterator[str]:
    """Differences in the requests of the two plans; if there are none, the planner itself decided differently."""
    was, now = old.model, new.model
    if was.get("digest") != now.get("digest"):
        before, after = was.get("operators", "?"), now.get("operators", "?")
        count = f"{before} → {after} operators" if before != after else f"{after} operators in both"
        yield f"model changed ({count})"
    yield from _reshaped(old, new)
    for field in MODEL.fields:
        usual = None if field.required else field.default
        before, after = (section.get(field.key, usual) for section in (was, now))
        if field.diff and before != after:
            yield f"{field.diff} {_in_words(before)} → {_in_words(after)}"
    yield from _differences(_mapping(was.get("dims")), _mapping(now.get("dims")), "dim ")
    lost, added = _constraints(old) - _constraints(new), _constraints(new) - _constraints(old)
    yield from (f"constraint removed: {text}" for text in _fold_layers(lost))
    yield from (f"constraint added: {text}" for text in _fold_layers(added))
    if old.mesh != new.mesh:
        yield f"mesh {old.mesh} → {new.mesh}"
    if old.summary.memory_limit_bytes != new.summary.memory_limit_bytes:
        yield f"memory limit {size(old.summary.memory_limit_bytes)} → {size(new.summary.memory_limit_bytes)}"
    if old.cluster.get("digest") != new.cluster.get("digest"):
        yield from _cluster_causes(old, new)


def _reshaped(old: Plan, new: Plan) -> Iterator[str]:
    """Parameters that both plans have with different shapes in the checkpoint; identical layers are one."""
    before, after = _shapes(old), _shapes(new)
    changed = {name: (before[name], shape) for name, shape in after.items() if before.get(name, shape) != shape}
    groups: dict[tuple[str, tuple[tuple[int, ...], tuple[int, ...]]], list[str]] = {}
    for name, shapes in changed.items():
        groups.setdefault((pattern(name), shapes), []).append(name)
    for (_, shapes), names in groups.items():
        was, now = shapes
        count = f" (×{len(names)})" if names[1:] else ""
        yield f"shape of {folded(names, [*before, *after])}{count} {list(was)} → {list(now)}"


def _shapes(plan: Plan) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters by their names in the checkpoint."""
    plans = [stage.plan for stage in plan.pipeline.stages] if plan.pipeline else [plan]
    return {
        tensor.checkpoint: checkpoint_shape(tensor.shape, tensor.perm)
        for one in plans
        for tensor in one.tensors
        if tensor.role == "parameter"
    }


def _in_words(value: object) -> object:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else value


def _fold_layers(texts: Iterable[str]) -> list[str]:
    """Changes of identical layers merged into one, with their number."""
    groups: dict[str, list[str]] = {}
    for text in sorted(texts):
        groups.setdefault(pattern(text), []).append(text)
    return [f"{folded(group, group)} (×{len(group)})" if group[1:] else group[0] for group in groups.values()]


def _cluster_causes(old: Plan, new: Plan) -> Iterator[str]:
    was, now = ({**_mapping(plan.cluster.get("profile")), "name": ""} for plan in (old, new))
    changed = [f"cluster profile changed: {text}" for text in profile_differences(was, now)]
    if old.cluster.get("name") != new.cluster.get("name"):
        yield f"cluster {old.cluster.get('name')} → {new.cluster.get('name')}"
        if len(changed) > _MOST_KEYS:
            changed[_MOST_KEYS - 1 :] = [f"cluster profile changed: {len(changed) - _MOST_KEYS + 1} more keys"]
    yield from changed


def profile_differences(was: Mapping[str, object], now: Mapping[str, object]) -> Iterator[str]:
    """The keys in which two resolved profiles differ, with their values; without the mesh, the sources of numbers and
    the variables of launched processes."""
    before, after = (
        _leaves({key: value for key, value in profile.items() if key not in ("mesh", "provenance", "environment")})
        for profile in (was, now)
    )
    return _differences(before, after, "")


def _differences(was: Mapping[str, object], now: Mapping[str, object], label: str) -> Iterator[str]:
    for key in dict.fromkeys([*was, *now]):
        if was.get(key) != now.get(key):
            yield f"{label}{key} {was.get(key, 'unset')} → {now.get(key, 'unset')}"


def _constraints(plan: Plan) -> set[str]:
    found = plan.model.get("constraints")
    return {str(text) for text in found} if isinstance(found, Sequence) else set()


def _leaves(value: object, path: str = "") -> dict[str, object]:
    """Every scalar of nested plain data under its path; list entries are addressed by their names if they have one."""
    if isinstance(value, Mapping):
        entries = list(value.items())
    elif isinstance(value, list | tuple):
        entries = [(_mapping(entry).get("name", number), entry) for number, entry in enumerate(value)]
    else:
        return {path: value}
    found: dict[str, object] = {}
    for key, entry in entries:
        found |= _leaves(entry, f"{path}.{key}" if path else str(key))
    return found


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def without_operators(diff: PlanDiff) -> PlanDiff:
    """The same diff with only stored tensors: the split of operators mostly follows from these."""
    return replace(diff, changes=tuple(change for change in diff.changes if change.kind != "operator"))
