"""Output of `show`: a plan for people, as tables, and for scripts, as one document."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from shardplan.cost.named import measure_of
from shardplan.plan.format.encode import summary_record
from shardplan.plan.types import Pipeline, Plan
from shardplan.render.console import Folded, emit, table
from shardplan.render.groups import MoveGroup, ParameterGroup, move_groups, parameter_groups
from shardplan.render.pipeline import pipeline_record, runs_text, show_stages
from shardplan.render.recipes import LEAST_SHARE, Recognizer, axis_shares, recipe_text
from shardplan.render.rematerialisation import remat_groups, remat_record, show_rematerialisation
from shardplan.render.solve import facts, memory_parts, padded_line, plan_line, proof_line, time_line
from shardplan.text_lines import in_pieces
from shardplan.units import Measure, counted, percent, size

DEAREST = 12
"""Rows of the tables that `--all` completes."""
_BAR_CELLS = 30
_UNDER_NAME = 4
"""Columns by which what stands below the name of a parameter is indented."""
_WIDE = 140
"""Columns from which the layouts of moves are shown too."""


def show_plan(console: Console, plan: Plan, *, everything: bool = False) -> None:
    """Parameters, moves, memory, what each axis does, and last, where a terminal stands, the summary; of a pipeline,
    this for every stage, then its stages and its summary."""
    if plan.pipeline is not None:
        for stage in plan.pipeline.stages:
            emit(console, Text(f"{stage.name}: {runs_text(stage)}", style="bold"))
            show_plan(console, stage.plan, everything=everything)
            emit(console, "")
        show_stages(console, plan)
    else:
        _show_parameters(console, parameter_groups(plan), plan, everything=everything)
        _show_moves(console, move_groups(plan), plan, everything=everything)
        show_rematerialisation(console, plan, everything=everything)
        emit(console, _memory(plan), "", _axes(plan), "")
    for warning in plan.warnings:
        emit(console, Text(warning, style="yellow"))
    emit(console, _head(plan))


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
        **({"again": remat_record(remat_groups(plan))} if plan.model.get("remat") == "auto" else {}),
        **({"pipeline": _stage_records(plan.pipeline)} if plan.pipeline else {}),
    }


def _stage_records(pipeline: Pipeline) -> dict[str, object]:
    """The pipeline as plain data, every stage with the document of its plan."""
    stages = [show_document(stage.plan) for stage in pipeline.stages]
    return {**pipeline_record(pipeline), "plans": stages}


def _move_record(group: MoveGroup) -> dict[str, object]:
    return {
        "tensor": group.tensor,
        "module": group.module,
        "count": group.count,
        "from": group.source,
        "to": group.target,
        "phase": group.phase,
        "collectives": group.collectives,
        "payload_bytes": group.payload_bytes,
        "kind": group.kind,
        "time_us": group.time_ns / 1000,
        "charged_us": group.exposed_ns / 1000,
    }


def _head(plan: Plan) -> Table:
    prices, measure = plan.model.get("cost_model"), measure_of(plan.model.get("cost_model"))
    return facts(
        ("plan", plan_line(plan)),
        *([("loops", _loops(loops))] if isinstance(loops := plan.model.get("loops"), Mapping) else []),
        *([("prices", f"{prices}, in {measure.unit or 'time'}")] if prices else []),
        ("step", time_line(plan, measure).removeprefix("step ")),
        *([("padded", padded)] if (padded := padded_line(plan)) else []),
        ("proof", proof_line(plan.summary, measure, staged=plan.pipeline is not None)),
    )


def _loops(trips: Mapping[str, object]) -> str:
    counts = {name: counted(many, "iteration") for name, many in trips.items() if isinstance(many, int)}
    return ", ".join(f"{name}: {counts.get(name, trips[name])}" for name in trips)


def _axes(plan: Plan) -> Table:
    """What each axis does, by the share of the parameter elements it does it to; an axis of size 1 does nothing."""
    recognizer = Recognizer(plan)
    recipes = {tensor.name: recognizer.recipe(tensor) for tensor in plan.tensors if tensor.role == "parameter"}
    rows = table("axis", ">size", "link", "*parameters are")
    for axis, link, shares in zip(plan.mesh.axes, plan.axis_links, axis_shares(plan, recipes), strict=True):
        named = {name: share for name, share in shares.items() if share >= LEAST_SHARE}
        rest = sum(shares.values()) - sum(named.values())
        named |= {"other": rest} if len(named) < len(shares) else {}
        what = ", ".join(f"{name} {percent(share)}" for name, share in named.items()) if axis.size > 1 else "-"
        rows.add_row(Text(axis.name, style="bold"), str(axis.size), link, Folded(in_pieces(what)))
    return rows


def _show_parameters(console: Console, groups: list[ParameterGroup], plan: Plan, *, everything: bool) -> None:
    """Groups of parameters below the recipe that they follow."""
    if not groups:
        return
    largest = sorted(groups, key=lambda group: -group.bytes_per_device)[: None if everything else DEAREST]
    shown = [group for group in groups if group in largest]
    typed = not (_is_wider(shown, console.width) and len({group.dtype for group in shown}) == 1)
    widths = [max(map(len, column)) for column in zip(*(_cells(group, typed=typed) for group in shown), strict=True)]
    if not typed:
        emit(console, Text(f"all parameters shown are {shown[0].dtype}", style="dim"))
    room = console.width - sum(widths[1:]) - 2 * len(widths[1:])
    if below := widths[0] > room:
        widths[0] = max((len(name) for name, *_ in map(_cells, shown) if len(name) <= room), default=_UNDER_NAME)
    for recipe in dict.fromkeys(group.recipe for group in shown):
        alike = [group for group in shown if group.recipe == recipe]
        stored = size(sum(group.bytes_per_device for group in alike))
        emit(console, Text.assemble((recipe_text(recipe, plan.mesh.names), "bold"), (f"  {stored} per device", "dim")))
        emit(console, *_parameter_rows(alike, widths, typed=typed, below=below))
    rest = [group for group in groups if group not in shown]
    _note_hidden(console, len(rest), "group{s} of parameters", size(sum(group.bytes_per_device for group in rest)))


def _cells(group: ParameterGroup, *, typed: bool = True) -> tuple[str, ...]:
    copies, dtype = f"×{group.count}" if group.count > 1 else "", [group.dtype] if typed else []
    return (f"  {group.name}", copies, str(list(group.shape)), *dtype, group.layout, size(group.bytes_per_device))


def _is_wider(groups: list[ParameterGroup], console_width: int) -> bool:
    natural = [max(map(len, column)) for column in zip(*map(_cells, groups), strict=True)]
    return sum(natural) + 2 * len(natural[1:]) > console_width


def _parameter_rows(
    groups: list[ParameterGroup], widths: list[int], *, typed: bool, below: bool
) -> Iterator[RenderableType]:
    """One table; or, where some names leave no room for it, these on lines of their own with the rest `below` them."""
    for part in [[group] for group in groups] if below else [groups]:
        rows = Table.grid(padding=(0, 2, 0, 0))
        for number, width in enumerate(widths):
            justify = "right" if number in (1, len(widths) - 1) else "left"
            rows.add_column(width=width, justify=justify, no_wrap=True)  # type: ignore[arg-type]
        for group in part:
            name, *others, layout, stored = _cells(group, typed=typed)
            if len(name) > widths[0]:
                yield Text(name, no_wrap=True, overflow="ignore")
            rows.add_row(name if len(name) <= widths[0] else "", *others, Text(layout, style="cyan"), stored)
        yield rows


def _show_moves(console: Console, groups: list[MoveGroup], plan: Plan, *, everything: bool) -> None:
    if not groups:
        emit(console, "no tensor is moved between devices", "")
        return
    shown = groups if everything else groups[:DEAREST]
    wide, measure = console.width >= _WIDE, measure_of(plan.model.get("cost_model"))
    rows = table(
        ">of step",
        ">cost" if measure.unit else ">exposed",
        *([] if measure.unit else [">total"]),
        ">",
        "=move",
        ">bytes",
        "when",
        "=tensor",
        *(["=from → to"] if wide else []),
    )
    for group in shown:
        layouts = [f"{group.source} → {group.target}"] if wide else []
        share, exposed, *cells = _move_cells(group, plan.summary.step_ns, measure)
        total = [] if measure.unit else [measure.text(group.time_ns)]
        rows.add_row(share, exposed, *total, *cells, *layouts)
    emit(console, rows)
    rest = groups[len(shown) :]
    _note_hidden(console, len(rest), "kind{s} of moves", _rest(rest, measure))


def _move_cells(group: MoveGroup, step_ns: int, measure: Measure) -> tuple[str | Text, ...]:
    return (
        percent(group.exposed_ns / step_ns if step_ns else 0.0),
        measure.text(group.exposed_ns),
        f"×{group.count}" if group.count > 1 else "",
        Text(group.collectives, style="cyan"),
        size(group.payload_bytes),
        group.phase_text,
        group.label,
    )


def _rest(groups: list[MoveGroup], measure: Measure) -> str:
    """`1.19 ms exposed, 2.31 ms overlapped`; costs in another unit are all exposed."""
    exposed, overlapped = (sum(getattr(group, f"{kind}_ns") for group in groups) for kind in ("exposed", "overlapped"))
    if measure.unit:
        return measure.text(exposed)
    return f"{measure.text(exposed)} exposed" + (f", {measure.text(overlapped)} overlapped" if overlapped else "")


def _note_hidden(console: Console, number: int, what: str, amount: str) -> None:
    """Say what is not shown, if anything; `what` has `{s}` where the plural has an s."""
    plural = what.format(s="s" if number > 1 else "")
    note = [Text(f"({number} more {plural}, {amount}; --all shows them)", style="dim")] if number else []
    emit(console, *note, "")


def _memory(plan: Plan) -> Table:
    memory, limit = plan.summary.memory, plan.summary.memory_limit_bytes
    rows = table("memory per device", ">", ">of limit", "")
    for name, amount in (*memory_parts(memory).items(), ("total", memory.total)):
        if not amount and name != "total":
            continue  # a forward pass holds neither gradients nor state
        share = amount / limit if limit else 0.0
        rows.add_row(name, size(amount), percent(share), _bar(share), style="bold" if name == "total" else "")
    rows.add_row("limit", size(limit), "", "", style="dim")
    return rows


def _bar(share: float) -> Text:
    cells = min(_BAR_CELLS, round(share * _BAR_CELLS))
    return Text("█" * (cells or int(share > 0)), style="green" if share <= 0.9 else "yellow")
