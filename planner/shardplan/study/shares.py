"""Shares of a step's time: operators and moves of a plan, those of identical layers together."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from shardplan.folding import folded, pattern
from shardplan.plan.types import Move, Pipeline, Plan, Stage
from shardplan.plan.views.breakdown import Exposure

_INSIDE = "collectives inside"
_RECOMPUTED = "recomputed"


@dataclass(frozen=True, slots=True)
class Share:
    """`what`: `compute`, `recomputed` (in backward), `collectives inside`, or the collectives of a move with their
    phase. `time_ns`: the exposed time of all together."""

    name: str
    what: str
    count: int
    time_ns: int


def shares_of(
    plan: Plan, tensors: Collection[str] | None = None, operators: Collection[str] | None = None
) -> tuple[Share, ...]:
    """Shares of the step, largest first; of everything, or of `tensors` (their moves and the operators that read them)
    and `operators` (their compute and the moves made for them). Those of everything sum to the step, except for
    rounding."""
    if plan.pipeline is not None:
        return _of_stages(plan.pipeline)
    everything = tensors is None and operators is None
    tensors, operators = tensors or (), operators or ()
    makers = ((name, operator.module) for operator in plan.operators for name in operator.outputs)
    known = {name: f"output of {module}" for name, module in makers if module}
    known |= {tensor.name: tensor.checkpoint for tensor in plan.tensors if tensor.checkpoint}
    items: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for operator in plan.operators:
        if everything or operator.name in operators or any(name in tensors for name in operator.inputs):
            name = operator.label
            items.setdefault((pattern(name), "compute"), []).append((name, operator.compute_ns - operator.recompute_ns))
            items.setdefault((pattern(name), _RECOMPUTED), []).append((name, operator.recompute_ns))
            items.setdefault((pattern(name), _INSIDE), []).append((name, operator.inner_ns))
    exposure = Exposure(plan)
    for move in plan.moves:
        if everything or move.tensor in tensors or move.reader in operators:
            name = known.get(move.tensor, move.tensor)
            exposed_ns = round(exposure.exposed_ns(move))
            items.setdefault((pattern(name), _collectives(move, plan)), []).append((name, exposed_ns))
    if everything:
        stepping_ns = plan.summary.compute_ns - sum(operator.compute_ns for operator in plan.operators)
        if stepping_ns > len(plan.operators):  # less is the rounding of single operators
            items["optimizer step", "compute"] = [("optimizer step", stepping_ns)]
    names = [name for group in items.values() for name, _ in group]
    found = [
        Share(folded(list(dict.fromkeys(name for name, _ in group)), names), what, len(group), sum(t for _, t in group))
        for (_, what), group in items.items()
    ]
    return tuple(sorted((share for share in found if share.time_ns), key=lambda share: -share.time_ns))


def longer_ns(pipeline: Pipeline, stage: Stage, more_ns: int) -> int:
    """Nanoseconds by which a step is longer if a stage, or one of its model chunks, takes `more_ns` longer: all of them
    while it is the slowest, else those of one microbatch."""
    busy, own = _busy_ns(pipeline), stage.first_device
    others_ns = max((each for device, each in busy.items() if device != own), default=0)
    slowest_ns = max(others_ns, busy[own] + more_ns) - max(others_ns, busy[own])
    return round(slowest_ns + (more_ns - slowest_ns) / _parts(pipeline, stage))


def in_step(pipeline: Pipeline, stage: Stage, shares: Sequence[Share]) -> list[Share]:
    """Shares of a stage as shares of the step: for the slowest stage its whole time, for others one microbatch."""
    busy = _busy_ns(pipeline)
    is_slowest = stage.first_device == max(busy, key=lambda device: busy[device])
    part = 1.0 if is_slowest else 1.0 / _parts(pipeline, stage)
    return [replace(share, time_ns=round(share.time_ns * part)) for share in shares]


def _parts(pipeline: Pipeline, stage: Stage) -> int:
    """Number of the equal parts of a stage's time, of which a step waits for one if another stage is slower:
    microbatches, times model chunks."""
    return int(str(stage.plan.model.get("microbatches", 1))) * int(pipeline.schedule.partition(":")[2] or 1)


def _busy_ns(pipeline: Pipeline) -> dict[int, int]:
    """By the first device of a stage, its time for all microbatches."""
    busy: dict[int, int] = {}
    for stage in pipeline.stages:
        busy[stage.first_device] = busy.get(stage.first_device, 0) + stage.plan.summary.step_ns
    return busy


def _of_stages(pipeline: Pipeline) -> tuple[Share, ...]:
    """For the slowest stage its whole time, for the others the time of one microbatch; and the waiting for
    transfers."""
    found = []
    for stage in pipeline.stages:
        shares = in_step(pipeline, stage, shares_of(stage.plan))
        found += [replace(share, name=f"{stage.name}: {share.name}") for share in shares]
    for transfer in pipeline.transfers:
        name = f"{transfer.tensor}, stage {transfer.sender} to {transfer.receiver}"
        found.append(Share(name, "handed on", 1, round(transfer.time_ns * (1.0 - transfer.hidden))))
    return tuple(sorted((share for share in found if share.time_ns), key=lambda share: -share.time_ns))


def _collectives(move: Move, plan: Plan) -> str:
    steps = [
        f"{step.collective.kind.replace('_', '-')}@{','.join(plan.mesh.names[axis] for axis in step.collective.axes)}"
        for step in move.steps
        if not step.collective.is_free
    ]
    return f"{', '.join(steps) or 'slice'}, {'re-gather (backward)' if move.regather else move.phase}"
