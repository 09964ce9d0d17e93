"""Shares of a step's time: operators and moves of a plan, those of identical layers together."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from shardplan.folding import folded, pattern
from shardplan.plan.types import Move, Pipeline, Plan
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


def _of_stages(pipeline: Pipeline) -> tuple[Share, ...]:
    """For the slowest stage its whole time, for the others the time of one microbatch; and the waiting for
    transfers."""
    busy: dict[int, int] = {}
    for stage in pipeline.stages:
        busy[stage.first_device] = busy.get(stage.first_device, 0) + stage.plan.summary.step_ns
    slowest = max(busy, key=lambda device: busy[device])
    chunks = int(pipeline.schedule.partition(":")[2] or 1)
    found = []
    for stage in pipeline.stages:
        micro = int(str(stage.plan.model.get("microbatches", 1)))
        part = 1.0 if stage.first_device == slowest else 1.0 / (micro * chunks)
        found += [
            replace(share, name=f"{stage.name}: {share.name}", time_ns=round(share.time_ns * part))
            for share in shares_of(stage.plan)
        ]
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
