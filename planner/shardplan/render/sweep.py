"""Output of `sweep`: the Pareto-optimal points as a table, all points as a plot in the terminal and as a picture."""

from __future__ import annotations

import itertools
import math
import string
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from shardplan.errors import ShardplanError, error
from shardplan.render.console import emit, table
from shardplan.study.sweep import Point, Sweep, pareto
from shardplan.units import count, counted, duration, size

_NS_PER_US = 1000
_WIDTH, _HEIGHT = 64, 12
_REASONS = 8
"""So many reasons why something has no plan are listed."""


def show_sweep(console: Console, found: Sweep, *, everything: bool = False) -> None:
    """The Pareto front (or every point), what did not fit, and the plot."""
    best = pareto(found.points)
    shown = found.points if everything else best
    priced = any(point.cost_usd is not None for point in shown)
    noted = any(point.request.stages or point.step_us is None for point in shown)
    marks = _marks(shown)
    parted = any(point.request.microbatches != 1 for point in shown)
    remade = any(point.request.remat != "none" for point in shown)
    rows = table(
        "",
        "cluster",
        "mesh",
        *([">micro"] * parted),
        *(["remat"] * remade),
        ">devices",
        ">step",
        ">memory",
        f">{found.items}/s",
        *([">per step"] * priced),
        *(["*"] * noted),
    )
    for point in shown:
        cluster, mesh, micro, remat, *cells = _cells(point, priced=priced)[: None if noted else -1]
        head = (cluster, mesh, *([micro] * parted), *([remat] * remade))
        rows.add_row(marks.get(point, ""), *head, *cells, style="bold" if everything and point in best else "")
    planned = [point for point in found.points if point.step_us is not None]
    are = "is" if len(best) == 1 else "are"
    said = f"{len(best)} of {len(planned)} plans {are} Pareto-optimal in step, memory, devices"
    emit(console, rows, *([said] if len(planned) > 1 else []))
    failed = [point for point in found.points if point.step_us is None]
    if failed:
        emit(console, f"{len(failed)} without a plan:", *_failed(failed))
    if len(planned) > 1:
        emit(console, "", *_plot(planned, marks))


def _failed(points: Sequence[Point]) -> list[str]:
    """Every reason with what it was given for, the most frequent first."""
    alike: dict[str, list[Point]] = {}
    for point in points:
        alike.setdefault(point.reason, []).append(point)
    lines = []
    for reason, those in sorted(alike.items(), key=lambda item: -len(item[1])):
        others = f" and {len(those) - 1} more" if len(those) > 1 else ""
        lines.append(f"  {those[0].request}{others}: {reason}")
    return [*lines[:_REASONS], *([f"  ... {len(lines) - _REASONS} more reasons"] if len(lines) > _REASONS else [])]


def _cells(point: Point, *, priced: bool) -> tuple[str, ...]:
    request = point.request
    head = (request.cluster, point.mesh or request.mesh, str(request.microbatches), request.remat)
    stages = f"stages {request.stages}" if request.stages else ""
    if point.step_us is None:
        return (*head, "-", "-", "-", "-", *(["-"] * priced), f"{point.outcome}: {point.reason}")
    cost = "-" if point.cost_usd is None else f"{point.cost_usd:.4f} USD"
    return (
        *head,
        str(point.devices),
        duration(point.step_us * _NS_PER_US),
        size(point.memory_bytes or 0),
        count(round(point.tokens_per_s or 0)),
        *([cost] * priced),
        stages,
    )


def _marks(shown: Sequence[Point]) -> dict[Point, str]:
    """By point its letter, in the table and in the plot; none where there is no plan, and where letters end."""
    planned = [point for point in shown if point.step_us is not None]
    return dict(zip(planned, string.ascii_lowercase + string.ascii_uppercase, strict=False))


def _plot(planned: Sequence[Point], marks: Mapping[Point, str]) -> list[Text]:
    """Memory of a device over the time of a step, both logarithmic; letters of the table, and a dot for others."""
    across = [math.log(point.step_us or 1) for point in planned]
    up = [math.log(max(point.memory_bytes or 1, 1)) for point in planned]
    cells = [[" "] * _WIDTH for _ in range(_HEIGHT)]
    for point, x, y in sorted(zip(planned, across, up, strict=True), key=lambda row: row[0] in marks):
        column = round((x - min(across)) / ((max(across) - min(across)) or 1) * (_WIDTH - 1))
        row = round((y - min(up)) / ((max(up) - min(up)) or 1) * (_HEIGHT - 1))
        cells[_HEIGHT - 1 - row][column] = marks.get(point, "·")
    most, least = (size(chosen(point.memory_bytes or 0 for point in planned)) for chosen in (max, min))
    margin = max(len(most), len(least))
    lines = [Text(f"{label:>{margin}} │{''.join(row)}") for label, row in zip(_labels(most, least), cells, strict=True)]
    quick, slow = (duration(chosen(point.step_us or 0 for point in planned) * _NS_PER_US) for chosen in (min, max))
    gap = max(1, _WIDTH - len(quick) - len(slow))
    named = "letters as in the table" + (", · for the others" if len(marks) < len(planned) else "")
    below = [f"{'':>{margin}} └{'─' * _WIDTH}", f"{'':>{margin}}  {quick}{' ' * gap}{slow}"]
    return [Text(f"memory per device over step; {named}"), *lines, *map(Text, below)]


def _labels(most: str, least: str) -> list[str]:
    return [most, *[""] * (_HEIGHT - 2), least]


def draw_sweep(found: Sweep, path: str) -> None:
    """The same plot as a picture, one colour per number of devices, one mark per cluster.

    Raises `ShardplanError` (`no-matplotlib`) where that is not installed.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra
    except ImportError:
        hint = "pip install 'shardplan[sweep]'"
        raise ShardplanError(error("no-matplotlib", "matplotlib is not installed", hint=hint)) from None
    planned = [point for point in found.points if point.step_us is not None]
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes: Any = figure.subplots()
    front = pareto(planned)
    clusters = sorted({point.request.cluster for point in planned})
    for number, devices in enumerate(sorted({point.devices or 0 for point in planned})):
        for cluster, marker in zip(clusters, itertools.cycle("osD^vP*")):
            alike = [point for point in planned if (point.devices, point.request.cluster) == (devices, cluster)]
            if not alike:
                continue
            times = [(point.step_us or 0) / 1000 for point in alike]
            held = [(point.memory_bytes or 0) / 2**30 for point in alike]
            color, label = f"C{number}", f"{cluster}, {counted(devices, 'device')}"
            faces = [color if point in front else "none" for point in alike]
            axes.scatter(times, held, s=48, marker=marker, edgecolors=color, facecolors=faces, label=label)
    axes.set(xlabel="predicted step, ms", ylabel="memory per device, GiB", ylim=(0, None), xlim=(0, None))
    axes.set_title(f"{found.model}: filled points are Pareto-optimal in step, memory, devices", fontsize=10)
    axes.legend()
    try:
        figure.savefig(path, format="png", dpi=120, metadata={"Software": None})
    except OSError as problem:
        reason = (problem.strerror or str(problem)).lower()
        raise ShardplanError(error("unwritable-output", f"cannot write the picture: {reason}", file=path)) from None
