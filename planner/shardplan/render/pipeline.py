"""Plans with pipeline stages for `show` and `solve`: one row per stage, and the sends between stages."""

from __future__ import annotations

from rich.console import Console

from shardplan.folding import pattern
from shardplan.layout.text import to_text
from shardplan.plan.types import Pipeline, Plan, Stage, Transfer
from shardplan.render.console import emit, table
from shardplan.units import counted, duration, percent, size


def show_stages(console: Console, plan: Plan) -> None:
    """The stages with their devices, times and memory, then the transfers."""
    pipeline = plan.pipeline
    assert pipeline is not None
    rows = table("stage", "devices", "mesh", "=runs", ">of step", ">busy", ">in flight", ">memory")
    for stage in pipeline.stages:
        rows.add_row(*stage_row(stage, plan.summary.step_ns))
    emit(console, rows, _schedule_line(pipeline, plan), "")
    if pipeline.transfers:
        sent = table("stages", "tensor", ">bytes", ">time", "=forward", "=backward", "=from → to")
        for transfer in pipeline.transfers:
            sent.add_row(*_transfer_cells(transfer, pipeline))
        emit(console, sent, "")


def pipeline_record(pipeline: Pipeline) -> dict[str, object]:
    """The same as plain data: microseconds and bytes."""
    return {
        "schedule": pipeline.schedule,
        "bubble": pipeline.bubble,
        "stages": [
            {
                "name": stage.name,
                "first_device": stage.first_device,
                "mesh": {axis.name: axis.size for axis in stage.plan.mesh.axes},
                "units": stage.units,
                "in_flight": stage.in_flight,
                "step_us": stage.plan.summary.step_ns / 1000,
                "memory_bytes": stage.plan.summary.memory.total,
            }
            for stage in pipeline.stages
        ],
        "transfers": [
            {
                "tensor": transfer.tensor,
                "sender": transfer.sender,
                "receiver": transfer.receiver,
                "time_us": transfer.time_ns / 1000,
                "hidden": transfer.hidden,
            }
            for transfer in pipeline.transfers
        ],
    }


def runs_text(stage: Stage) -> str:
    """`model.layers.0 … model.layers.7 (8 units)`."""
    if len(stage.units) == 1:
        return stage.units[0]
    return f"{stage.units[0]} … {stage.units[-1]} ({counted(len(stage.units), 'unit')})"


def _schedule_line(pipeline: Pipeline, plan: Plan) -> str:
    micro = plan.model.get("microbatches")
    parts = counted(micro, "microbatch") if isinstance(micro, int) else f"{micro} microbatches"
    return f"{pipeline.schedule}, {parts}; the slowest stage waits {percent(pipeline.bubble)} of the step"


def stage_row(stage: Stage, step_ns: int) -> tuple[str, ...]:
    """Number, devices, mesh, what it runs, share of the step, busy time, microbatches in flight, memory of a device."""
    mesh, summary = stage.plan.mesh, stage.plan.summary
    last = stage.first_device + mesh.size - 1
    devices = f"{stage.first_device}-{last}" if mesh.size > 1 else str(last)
    return (
        stage.name.removeprefix("stage "),
        devices,
        str(mesh),
        runs_text(stage),
        percent(summary.step_ns / step_ns if step_ns else 0.0),
        duration(summary.step_ns),
        str(stage.in_flight),
        size(summary.memory.total),
    )


def _transfer_cells(transfer: Transfer, pipeline: Pipeline) -> tuple[str, ...]:
    mine, theirs = (pipeline.stages[number].plan.mesh for number in (transfer.sender, transfer.receiver))
    ways = ["+".join(_word(step.collective.kind) for step in steps) for steps in (transfer.forward, transfer.backward)]
    return (
        f"{transfer.sender} → {transfer.receiver}",
        pattern(transfer.tensor),
        size(sum(step.payload_bytes for step in transfer.forward[:1])),
        duration(transfer.time_ns),
        ways[0],
        ways[1] or "-",
        f"{to_text(transfer.source, mine)} → {to_text(transfer.target, theirs)}",
    )


def _word(kind: str) -> str:
    return "send" if kind == "permute" else kind.replace("_", "-")
