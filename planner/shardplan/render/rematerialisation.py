"""The rematerialised operators of a plan: time and memory, identical layers in one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from shardplan.cost.named import measure_of
from shardplan.folding import folded, pattern
from shardplan.plan.types import OperatorDecision, Plan
from shardplan.render.console import emit, table
from shardplan.units import percent, size

MOST_ROWS = 8
"""Rows that `--all` completes."""


@dataclass(frozen=True, slots=True)
class RematGroup:
    """Operators of one kind in identical layers that are rematerialised. `time_ns`: of running them a second time;
    `bytes_per_device`: the activations that backward reads and that are not saved."""

    name: str
    count: int
    time_ns: int
    bytes_per_device: int


def remat_groups(plan: Plan) -> list[RematGroup]:
    """Rematerialised operators, most bytes first."""
    freed = {tensor.name: tensor.bytes_per_device for tensor in plan.tensors if tensor.recomputed}
    groups: dict[str, list[OperatorDecision]] = {}
    for operator in plan.operators:
        if operator.recomputed_before:
            groups.setdefault(pattern(operator.label), []).append(operator)
    everything = [operator.label for operator in plan.operators]
    found = [
        RematGroup(
            folded(list(dict.fromkeys(operator.label for operator in group)), everything),
            len(group),
            sum(operator.recompute_ns for operator in group),
            sum(freed.get(name, 0) for operator in group for name in operator.outputs),
        )
        for group in groups.values()
    ]
    return sorted(found, key=lambda group: (-group.bytes_per_device, -group.time_ns))


def show_rematerialisation(console: Console, plan: Plan, *, everything: bool = False) -> None:
    """A table of rematerialised operators; nothing where there are none."""
    groups = remat_groups(plan)
    if not groups:
        return
    measure, step_ns = measure_of(plan.model.get("cost_model")), max(plan.summary.step_ns, 1)
    many, time_ns, freed = _totals(groups)
    summary = f"{many:,} of {len(plan.operators):,} operators {'is' if many == 1 else 'are'} rematerialised in backward"
    emit(console, Text.assemble((summary, "bold"), (f"  {size(freed)} per device are not saved", "dim")))
    shown = [group for group in groups if group.time_ns or group.bytes_per_device]
    shown = shown if everything else shown[:MOST_ROWS]
    rows = table(">of step", ">time", ">not saved", ">", "=rematerialised")
    for group in shown:
        count = f"×{group.count}" if group.count > 1 else ""
        kept = size(group.bytes_per_device) if group.bytes_per_device else ""
        rows.add_row(percent(group.time_ns / max(step_ns, 1)), measure.text(group.time_ns), kept, count, group.name)
    part = percent(time_ns / max(step_ns, 1))
    rows.add_row(part, measure.text(time_ns), size(freed), "", "all of them", style="bold")
    emit(console, rows, "")


def remat_text(plan: Plan) -> str:
    """What was asked for, and what it takes and saves: `auto: 44.2 us, 14 MiB not saved`."""
    asked, groups = str(plan.model.get("remat", "none")), remat_groups(plan)
    if not groups:
        return asked
    _, time_ns, freed = _totals(groups)
    return f"{asked}: {measure_of(plan.model.get('cost_model')).text(time_ns)}, {size(freed)} not saved"


def remat_record(groups: Sequence[RematGroup]) -> list[dict[str, object]]:
    """The same as plain data: microseconds and bytes."""
    return [
        {
            "name": group.name,
            "count": group.count,
            "time_us": group.time_ns / 1000,
            "bytes_per_device": group.bytes_per_device,
        }
        for group in groups
    ]


def _totals(groups: Sequence[RematGroup]) -> tuple[int, int, int]:
    return (
        sum(group.count for group in groups),
        sum(group.time_ns for group in groups),
        sum(group.bytes_per_device for group in groups),
    )
