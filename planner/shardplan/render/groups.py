"""Parameters and moves of a plan in groups: those of identical layers are one row."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from shardplan.folding import folded, pattern
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.text import to_text
from shardplan.plan.orientation import checkpoint_layout, checkpoint_shape
from shardplan.plan.types import Move, MoveKind, Plan, TensorDecision
from shardplan.plan.views.breakdown import Exposure
from shardplan.render.recipes import Recognizer

T = TypeVar("T")
REGATHER = "gather again"
"""The phase of re-gathered weights in `--json` documents, whose keys and words are promises."""


def phase_text(phase: str) -> str:
    """A phase, as people read it: that of re-gathered weights is `re-gather (backward)`."""
    return "re-gather (backward)" if phase == REGATHER else phase


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Parameters alike in name (but for layer numbers), shape and layout, in checkpoint orientation.

    `bytes_per_device`: of all of them together. `recipe`: one name for each mesh axis.
    """

    name: str
    count: int
    shape: tuple[int, ...]
    dtype: str
    layout: str
    recipe: tuple[str, ...]
    bytes_per_device: int


@dataclass(frozen=True, slots=True)
class MoveGroup:
    """Moves alike in tensor name (but for layer numbers), layouts, kind, phase and collectives; parameters in
    checkpoint orientation.

    `module`: that makes the tensor, `""` for a parameter or where it is unknown. `count`: moves per step. `time_ns`: of
    all of them; `exposed_ns`: of that, what is not overlapped with compute.
    """

    tensor: str
    module: str
    count: int
    source: str
    target: str
    phase: str
    kind: MoveKind
    collectives: str
    payload_bytes: int
    time_ns: int
    exposed_ns: int

    @property
    def phase_text(self) -> str:
        """The phase as people read it."""
        return phase_text(self.phase)

    @property
    def label(self) -> str:
        """The tensor and the module that makes it, where the tensor's name does not begin with the module's."""
        if not self.module or self.tensor.startswith((f"{self.module}.", f"{self.module}/")):
            return self.tensor
        return f"{self.module}: {self.tensor}"

    @property
    def overlapped_ns(self) -> int:
        """Beside compute."""
        return self.time_ns - self.exposed_ns


def parameter_groups(plan: Plan) -> list[ParameterGroup]:
    """Groups in the order in which their first member stands in the plan."""
    recognizer = Recognizer(plan)
    parameters = [tensor for tensor in plan.tensors if tensor.role == "parameter"]
    names = [tensor.checkpoint for tensor in parameters]
    recipes = {tensor.name: recognizer.recipe(tensor) for tensor in parameters}

    def alike(tensor: TensorDecision) -> Hashable:
        return (
            pattern(tensor.checkpoint),
            tensor.shape,
            tensor.dtype,
            tensor.layout.forward,
            tensor.optimizer,
            tensor.perm,
            recipes[tensor.name],
        )

    return [
        ParameterGroup(
            name=folded([tensor.checkpoint for tensor in group], names),
            count=len(group),
            shape=checkpoint_shape(group[0].shape, group[0].perm),
            dtype=group[0].dtype,
            layout=_layout_text(plan, group[0]),
            recipe=recipes[group[0].name],
            bytes_per_device=sum(tensor.bytes_per_device for tensor in group),
        )
        for group in _together(parameters, alike)
    ]


def _layout_text(plan: Plan, parameter: TensorDecision) -> str:
    """Where a weight rests, and its optimizer state where that is elsewhere."""

    def shown(layout: Layout) -> str:
        return to_text(checkpoint_layout(layout.forward, parameter.perm), plan.mesh)

    rests = shown(parameter.layout)
    state = shown(parameter.optimizer) if parameter.optimizer else rests
    return rests if state == rests else f"{rests}, optimizer {state}"


def move_groups(plan: Plan) -> list[MoveGroup]:
    """Groups of moves that cost time: the most exposed first, of those that are not exposed the longest."""
    stored = {tensor.name: tensor for tensor in plan.tensors if tensor.role == "parameter"}
    modules = {name: operator.module for operator in plan.operators for name in operator.outputs}
    named = [
        _NamedMove(*_as_stored(move, stored.get(move.tensor)), modules.get(move.tensor, ""))
        for move in plan.moves
        if move.time_ns
    ]
    exposure = Exposure(plan)
    everything = {kind: sorted({getattr(item, kind) for item in named}) for kind in ("name", "module")}

    def alike(item: _NamedMove) -> Hashable:
        move = item.move
        how = (move.source, move.target, move.phase, move.regather, move.kind, described(move, plan.mesh))
        return (pattern(item.name), pattern(item.module), *how)

    groups = [_move_group(group, everything, plan.mesh, exposure) for group in _together(named, alike)]
    return sorted(groups, key=lambda group: (-group.exposed_ns, -group.time_ns))


@dataclass(frozen=True, slots=True)
class _NamedMove:
    """A move with the name people know its tensor by, and the module that makes it (`""` for a parameter)."""

    name: str
    move: Move
    module: str


def _as_stored(move: Move, parameter: TensorDecision | None) -> tuple[str, Move]:
    """A parameter is known by its name in the checkpoint, with the dims it has there."""
    if parameter is None:
        return move.tensor, move
    source, target = (checkpoint_layout(layout, parameter.perm) for layout in (move.source, move.target))
    return parameter.checkpoint, replace(move, source=source, target=target)


def _move_group(group: list[_NamedMove], everything: dict[str, list[str]], mesh: Mesh, exposure: Exposure) -> MoveGroup:
    moves = [item.move for item in group]
    first = moves[0]
    return MoveGroup(
        tensor=folded(list(dict.fromkeys(item.name for item in group)), everything["name"]),
        module=folded(list(dict.fromkeys(item.module for item in group)), everything["module"]),
        count=sum(move.count for move in moves),
        source=to_text(first.source, mesh),
        target=to_text(first.target, mesh),
        phase=REGATHER if first.regather else first.phase,
        kind=first.kind,
        collectives=described(first, mesh),
        payload_bytes=sum(step.payload_bytes for step in first.steps),
        time_ns=sum(move.time_ns for move in moves),
        exposed_ns=round(sum(exposure.exposed_ns(move) for move in moves)),
    )


def described(move: Move, mesh: Mesh) -> str:
    """`all-gather@gpu, all-reduce@machine`; what costs nothing is left out."""
    return ", ".join(
        f"{step.collective.kind.replace('_', '-')}@{','.join(mesh.names[axis] for axis in step.collective.axes)}"
        for step in move.steps
        if not step.collective.is_free
    )


def _together(items: Iterable[T], alike: Callable[[T], Hashable]) -> list[list[T]]:
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(alike(item), []).append(item)
    return list(groups.values())
