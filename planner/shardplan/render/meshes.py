"""Output of `solve --mesh auto`: one row for every logical mesh."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from shardplan.render.console import emit, table
from shardplan.study.meshes import MeshTrial, best_of
from shardplan.units import duration, percent, size


def show_meshes(console: Console, trials: Sequence[MeshTrial]) -> None:
    """Step, bound and memory of the best plan on each mesh; the best of all in bold."""
    best = best_of(trials)
    rows = table("mesh", ">step", ">lower bound", ">memory", "*")
    for trial in trials:
        rows.add_row(trial.text, *_cells(trial, best))
        rows.rows[-1].style = "bold" if trial is best else "" if trial.plan else "dim"
    emit(console, rows)


def meshes_record(trials: Sequence[MeshTrial]) -> list[dict[str, object]]:
    """The same as plain data: microseconds and bytes, null where there is no plan."""
    return [
        {
            "mesh": trial.text,
            "step_us": trial.plan and trial.plan.summary.step_ns / 1000,
            "bound_us": trial.bound_ns / 1000,
            "memory_bytes": trial.plan and trial.plan.summary.memory.total,
            "reason": trial.reason,
        }
        for trial in trials
    ]


def _cells(trial: MeshTrial, best: MeshTrial | None) -> tuple[str, ...]:
    bound = duration(trial.bound_ns) if trial.bound_ns else "-"
    if trial.plan is None:
        return ("-", bound, "-", trial.reason)
    summary = trial.plan.summary
    return (duration(summary.step_ns), bound, size(summary.memory.total), mesh_note(trial, best))


def mesh_note(trial: MeshTrial, best: MeshTrial | None) -> str:
    """How a mesh stands beside the best one, or why it has no plan: `best`, `+3.1 %`, `as fast`."""
    if trial.plan is None or best is None or best.plan is None:
        return trial.reason
    shortest = best.plan.summary.step_ns  # nothing, where all operators are on tensors without elements
    slower = trial.plan.summary.step_ns / shortest - 1 if shortest else 0.0
    return "best" if trial is best else f"+{percent(slower)}" if slower else "as fast"
