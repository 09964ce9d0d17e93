"""The report of a plan as plain data: times in nanoseconds, sizes in bytes.

`kind` is `plan` or `pipeline`. A pipeline has its Gantt chart, a row of text for each stage under `runs`, and the
report of every stage's plan under `stages`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from shardplan.cost.named import measure_of
from shardplan.escapes import one_line
from shardplan.plan.format.conversions import devices_per_host
from shardplan.plan.types import Plan
from shardplan.plan.views.breakdown import Breakdown, Exposure, breakdown
from shardplan.plan.views.timeline import step_schedule
from shardplan.render.pipeline import stage_row
from shardplan.render.recipes import Recognizer, axis_shares
from shardplan.render.rematerialisation import remat_text
from shardplan.render.solve import memory_parts, plan_line, proof_line, shared_rate
from shardplan.reports.memory import memory_over_time
from shardplan.reports.model import model_record
from shardplan.reports.names import InternedNames
from shardplan.reports.schedule import pipeline_chart, schedule_record
from shardplan.reports.tables import Alternatives, move_rows, parameter_rows
from shardplan.study.sources import source

_PRICED = "cost_model"
_ROUNDING = 0.001
"""Share of a step below which communication of no axis is rounding."""


def plan_report(plan: Plan, file: str = "", alternatives: Alternatives | None = None) -> dict[str, object]:
    """The document of a plan. `file`: where it was read from, for the commands that the report names; `alternatives`:
    what else there was for groups of parameters, by name."""
    return {
        "title": f"{plan.model.get('name')} on {plan.cluster.get('name')}",
        **_about(plan, (one_line(file), one_line(source(plan, "model"))), alternatives or {}),
    }


def _about(plan: Plan, asked: tuple[str, str], alternatives: Alternatives) -> dict[str, object]:
    """`asked`: the plan's file and the model that it records, for the commands that the report names."""
    measure = measure_of(plan.model.get(_PRICED))
    said: dict[str, object] = {
        "kind": "pipeline" if plan.pipeline else "plan",
        "file": asked[0],
        "source": asked[1],
        "line": one_line(plan_line(plan)),
        "unit": measure.unit,
        "facts": _facts(plan),
        "summary": summary_bar(plan),
        "mesh": mesh_record(plan),
        "warnings": [one_line(text) for text in plan.warnings],
    }
    if plan.pipeline is not None:
        stages = plan.pipeline.stages
        return {
            **said,
            "chart": pipeline_chart(plan),
            "runs": [[one_line(text) for text in stage_row(stage, plan.summary.step_ns)] for stage in stages],
            "stages": [{"name": one_line(stage.name), **_about(stage.plan, asked, {})} for stage in stages],
        }
    names = InternedNames()
    drawn: dict[str, object] = {
        "model": model_record(plan, names),
        "parameters": parameter_rows(plan, alternatives),
        "moves": move_rows(plan, alternatives),
    }
    if not measure.unit:
        scheduled = step_schedule(plan)
        drawn["schedule"] = schedule_record(plan, names, scheduled)
        drawn["memory"] = memory_over_time(plan, names, scheduled)
    return {**said, **drawn, "names": names.listed()}


def _facts(plan: Plan) -> list[tuple[str, str]]:
    """What was asked for, in words."""
    model = plan.model
    said = [("mode", str(model.get("mode", "")))]
    if model.get("mode") == "training":
        said += [("optimizer", str(model.get("optimizer", ""))), ("rematerialisation", remat_text(plan))]
        said.append(("microbatches", str(model.get("microbatches", 1))))
    if isinstance(elements := model.get("parameter_elements"), int):
        said.append(("parameters", f"{elements:,}"))
    if isinstance(operators := model.get("operators"), int):
        said.append(("operators", f"{operators:,}"))
    if isinstance(dims := model.get("dims"), Mapping) and dims:
        said.append(("dims", ", ".join(f"{name} = {size}" for name, size in dims.items())))
    return [(name, one_line(text)) for name, text in said]


def summary_bar(plan: Plan) -> dict[str, object]:
    """Step, what proves it, what it consists of, and memory by category."""
    summary, spent = plan.summary, breakdown(plan)
    measure = measure_of(plan.model.get(_PRICED))
    return {
        "step": summary.step_ns,
        "proof": one_line(proof_line(summary, measure, staged=plan.pipeline is not None)),
        "parts": _step_parts(plan, spent),
        "overlapped": spent.overlapped_ns,
        "memory": list(memory_parts(summary.memory).items()),
        "held": summary.memory.total,
        "limit": summary.memory_limit_bytes,
    }


def _step_parts(plan: Plan, spent: Breakdown) -> list[tuple[str, int, int]]:
    """(what, nanoseconds, number of the mesh axis or -1): compute, exposed communication by axis, the bubble."""
    by_name: dict[str, int] = {}
    for part in spent.of:
        for axis, ns in zip(part.mesh.axes, exposed_by_axis(part), strict=True):
            by_name[axis.name] = by_name.get(axis.name, 0) + ns
    axes = [(f"exposed communication on {name}", by_name.pop(name, 0), at) for at, name in enumerate(plan.mesh.names)]
    rest = spent.exposed_ns - sum(ns for _, ns, _ in axes)
    if rest <= _ROUNDING * plan.summary.step_ns:
        rest = 0
    parts = [("compute", spent.compute_ns, -1), *axes, ("other exposed communication", rest, -1)]
    return [part for part in [*parts, ("bubble", spent.bubble_ns, -1)] if part[1] or part[0] == "compute"]


def exposed_by_axis(plan: Plan) -> list[int]:
    """Exposed nanoseconds of each mesh axis; a collective over several counts in equal parts for each."""
    found = [0.0] * len(plan.mesh)
    exposure = Exposure(plan)
    for move in plan.moves:
        share = exposure.exposed_ns(move) / move.time_ns if move.time_ns else 0.0
        for step in move.steps:
            axes = step.collective.axes
            for axis in axes:
                found[axis] += share * move.count * step.time_ns / len(axes)
    for operator in plan.operators:
        for inner in (operator.inner_forward_ns, operator.inner_backward_ns):
            for axis, ns in enumerate(inner):
                found[axis] += ns
    whole = sum(found)
    scale = min(1.0, plan.summary.communication_ns / whole) if whole else 0.0
    return [round(ns * scale) for ns in found]


def mesh_record(plan: Plan) -> dict[str, object]:
    """Axes with their links and what they do to the parameters, and how many devices a machine has (0: unknown)."""
    recognizer = Recognizer(plan)
    recipes = {tensor.name: recognizer.recipe(tensor) for tensor in plan.tensors if tensor.role == "parameter"}
    shares = axis_shares(plan, recipes) if plan.pipeline is None else [{} for _ in plan.mesh.axes]
    rates = _link_rates(plan.cluster.get("profile"), "link_gbps", 1e9)
    axes = [
        {
            "name": axis.name,
            "size": axis.size,
            "link": link,
            "rate": rates.get(link, 0.0),
            "shared": _shared(plan, link, rates),
            "does": list(does.items()),
        }
        for axis, link, does in zip(plan.mesh.axes, plan.axis_links, shares, strict=True)
    ]
    return {"axes": axes, "machine": devices_per_host(plan) or 0, "devices": plan.mesh.size, "device": _device(plan)}


def _shared(plan: Plan, link: str, rates: Mapping[str, float]) -> tuple[int, float] | None:
    """How many devices share a link, and bytes per second of each when all send; None where each has its own."""
    order = [*rates]
    inner = order[: order.index(link)] if link in order else []
    devices = math.prod(size for size, its in zip(plan.mesh.shape, plan.axis_links, strict=True) if its in inner)
    whole = _link_rates(plan.cluster.get("profile"), "node_gbit", 1e9 / 8).get(link, 0.0)
    each = shared_rate(rates.get(link, 0.0), whole, devices)
    return (devices, each) if each else None


def _link_rates(profile: object, key: str, unit: float) -> dict[str, float]:
    """Bytes per second of every link level of a resolved profile that says them as `key`, innermost first."""
    levels = profile.get("levels") if isinstance(profile, Mapping) else None
    found: dict[str, float] = {}
    for level in levels if isinstance(levels, Sequence) else ():
        rate = level.get(key) if isinstance(level, Mapping) else None
        if isinstance(rate, int | float):
            found[str(level.get("name"))] = rate * unit
    return found


def _device(plan: Plan) -> str:
    profile = plan.cluster.get("profile")
    device = profile.get("device") if isinstance(profile, Mapping) else None
    return one_line(str(device.get("kind", ""))) if isinstance(device, Mapping) else ""
