"""`show`: a plan for people, as tables, and for scripts, as one document."""

from __future__ import annotations

import dataclasses

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shardplan.plan.encode import summary_record
from shardplan.plan.types import Plan
from shardplan.render.console import emit, table
from shardplan.render.groups import MoveGroup, ParameterGroup, move_groups, parameter_groups
from shardplan.render.recipes import Recognizer, axis_shares, recipe_text
from shardplan.render.solved import facts, memory_parts, proof_line, time_line
from shardplan.render.units import duration, percent, size

DEAREST = 12
"""Rows of the tables that `--all` completes."""
_BAR_CELLS = 30


def show_plan(console: Console, plan: Plan, *, everything: bool = False) -> None:
    """Summary, what each axis does, parameters, moves and memory."""
    emit(console, _head(plan), "")
    emit(console, _axes(plan), "")
    _show_parameters(console, parameter_groups(plan), plan, everything=everything)
    _show_moves(console, move_groups(plan), plan, everything=everything)
    emit(console, _memory(plan))
    for warning in plan.warnings:
        emit(console, Text(warning, style="yellow"))


def show_document(plan: Plan) -> dict[str, object]:
    """The same content as plain data: groups and moves complete, times in microseconds, sizes in bytes."""
    return {
        "model": dict(plan.model),
        "cluster": {"name": plan.cluster.get("name"), "digest": plan.cluster.get("digest")},
        "mesh": {axis.name: axis.size for axis in plan.mesh.axes},
        "summary": summary_record(plan.summary),
        "parameters": [
            {**dataclasses.asdict(group), "recipe": dict(zip(plan.mesh.names, group.recipe, strict=True))}
            for group in parameter_groups(plan)
        ],
        "moves": [_move_record(group) for group in move_groups(plan)],
    }


def _move_record(group: MoveGroup) -> dict[str, object]:
    return {
        "tensor": group.tensor,
        "count": group.count,
        "from": group.source,
        "to": group.target,
        "phase": group.phase,
        "collectives": group.collectives,
        "payload_bytes": group.payload_bytes,
        "time_us": group.time_ns / 1000,
        "charged_us": group.charged_ns / 1000,
    }


def _head(plan: Plan) -> Table:
    mode = str(plan.model.get("mode", ""))
    devices = f"{plan.mesh}, {plan.mesh.size} devices"
    return facts(
        ("plan", f"{plan.model.get('name')}, {mode}, on {plan.cluster.get('name')} ({devices})"),
        ("step", time_line(plan.summary).removeprefix("step ")),
        ("proof", proof_line(plan.summary)),
    )


def _axes(plan: Plan) -> Table:
    """What each axis does, by the share of the parameter elements it does it to."""
    recognizer = Recognizer(plan)
    recipes = {tensor.name: recognizer.recipe(tensor) for tensor in plan.tensors if tensor.role == "parameter"}
    rows = table("axis", ">size", "link", "*parameters are")
    for axis, link, shares in zip(plan.mesh.axes, plan.axis_links, axis_shares(plan, recipes), strict=True):
        what = ", ".join(f"{name} {percent(share)}" for name, share in shares.items())
        rows.add_row(Text(axis.name, style="bold"), str(axis.size), link, what)
    return rows


def _show_parameters(console: Console, groups: list[ParameterGroup], plan: Plan, *, everything: bool) -> None:
    if not groups:
        return
    largest = sorted(groups, key=lambda group: -group.bytes_per_device)[: None if everything else DEAREST]
    shown = [group for group in groups if group in largest]
    rows = table("*parameter", ">", "shape", "dtype", "layout", ">per device", "*recipe")
    for group in shown:
        rows.add_row(
            group.name,
            f"×{group.count}" if group.count > 1 else "",
            str(list(group.shape)),
            group.dtype,
            Text(group.layout, style="cyan"),
            size(group.bytes_per_device),
            recipe_text(group.recipe, plan.mesh.names),
        )
    emit(console, rows)
    hidden = [group for group in groups if group not in shown]
    _note_hidden(console, len(hidden), "groups of parameters", size(sum(group.bytes_per_device for group in hidden)))


def _show_moves(console: Console, groups: list[MoveGroup], plan: Plan, *, everything: bool) -> None:
    if not groups:
        emit(console, "no tensor is moved between devices", "")
        return
    shown = groups if everything else groups[:DEAREST]
    step = plan.summary.step_ns or 1
    rows = table(">of step", ">time", ">", "move", ">bytes", "when", "*tensor", "*from → to")
    for group in shown:
        rows.add_row(
            percent(group.charged_ns / step),
            duration(group.charged_ns),
            f"×{group.count}" if group.count > 1 else "",
            Text(group.collectives, style="cyan"),
            size(group.payload_bytes),
            group.phase,
            group.tensor,
            f"{group.source} → {group.target}",
        )
    emit(console, rows)
    rest = groups[len(shown) :]
    _note_hidden(console, len(rest), "kinds of moves", duration(sum(group.charged_ns for group in rest)))


def _note_hidden(console: Console, number: int, what: str, amount: str) -> None:
    note = Text(f"({number} more {what}, {amount}; --all shows them)", style="dim") if number else ""
    emit(console, *([note, ""] if number else [""]))


def _memory(plan: Plan) -> Table:
    memory, limit = plan.summary.memory, plan.summary.memory_limit_bytes
    rows = table("memory per device", ">", ">of limit", "")
    for name, amount in (*memory_parts(memory).items(), ("total", memory.total)):
        share = amount / limit if limit else 0.0
        rows.add_row(name, size(amount), percent(share), _bar(share), style="bold" if name == "total" else "")
    rows.add_row("limit", size(limit), "", "", style="dim")
    return rows


def _bar(share: float) -> Text:
    cells = min(_BAR_CELLS, round(share * _BAR_CELLS))
    return Text("█" * (cells or int(share > 0)), style="green" if share <= 0.9 else "yellow")
