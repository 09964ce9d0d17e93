"""Output of `solve`: the request before the search, and step, proof and memory of its plan afterwards."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from shardplan.plan.padding import pads_of
from shardplan.plan.types import Memory, Plan, Summary
from shardplan.plan.views.breakdown import breakdown
from shardplan.render.console import Folded, emit
from shardplan.render.pins import pin_lines
from shardplan.text_files import in_shell
from shardplan.units import TIME, Measure, count, counted, percent, rate, size, sizes_in_one_unit

if TYPE_CHECKING:
    from shardplan.cluster.types import Cluster
    from shardplan.cost.named import CostModel
    from shardplan.errors import Diagnostic
    from shardplan.graph.options import PlanOptions
    from shardplan.model.types import Model
    from shardplan.study.target_limits import TargetLimits


_NOTHING = 0.0005
"""A share that is shown as zero."""
_FAR_LESS = 0.005
"""Share of the memory limit below which three digits of the limit's unit say little."""
_OWN = 0.999
"""Share of a link's rate above which a device counts as having a link of its own when all send."""


def facts(*rows: tuple[str, str]) -> Table:
    """Labelled lines; an empty label continues the row above."""
    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for label, text in rows:
        made.add_row(f"{label:8}", Folded(text))
    return made


def describe_request(
    console: Console, model: Model, cluster: Cluster, options: PlanOptions, defaults: Collection[str]
) -> None:
    """Model, mode and cluster; `defaults` names those of `cluster`, `mesh`, `mode` that the user did not choose."""
    emit(
        console,
        facts(
            ("model", model_line(model)),
            ("mode", _mode_line(options, chosen="mode" not in defaults)),
            ("cluster", _cluster_line(cluster, options.memory_limit_bytes, defaults)),
            *([] if options.cost_model.is_ours else [("prices", prices_line(options.cost_model))]),
            *(("pin" * (not number), line) for number, line in enumerate(pin_lines(model, options.constraints))),
        ),
    )


def describe_start(console: Console, said: Diagnostic) -> None:
    """The plan that the search starts from, and what it takes here."""
    emit(console, facts(("start", f"{said.file}: {said.summary}")))


def prices_line(cost_model: CostModel) -> str:
    """`slapo:split=1, in elements`: whose cost model, and what its costs are numbers of."""
    return f"{cost_model}, in {cost_model.unit or 'time'}"


def model_line(model: Model) -> str:
    """`gpt2_small: 410 operators, 124.4 M parameters (475 MiB), 12 identical blocks`, in the digits of model cards."""
    weights = [model.tensors[parameter.tensor] for parameter in model.parameters]
    elements, stored = sum(w.elements for w in weights), sum(w.size_bytes for w in weights)
    copies = max((len(block.copies) for block in model.blocks), default=0)
    blocks = f", {counted(copies, 'identical block')}" if copies else ""
    operators = counted(len(model.operators), "operator")
    return f"{model.name}: {operators}, {count(elements, 4)} parameters ({size(stored)}){blocks}"


def _mode_line(options: PlanOptions, *, chosen: bool) -> str:
    other = "" if chosen else " (the default; --mode inference for the other)"
    if not options.training:
        return options.mode
    parts = [f"{options.mode}{other}", f"optimizer {options.optimizer}"]
    if options.microbatches > 1:
        parts.append(f"{options.microbatches} microbatches")
    if options.remat != "none":
        parts.append(f"{options.remat} rematerialisation")
    return ", ".join(parts)


def _cluster_line(cluster: Cluster, limit_bytes: int | None, defaults: Collection[str]) -> str:
    name = f"{cluster.name} (the default)" if "cluster" in defaults else cluster.name
    axes = []
    for axis, level in zip(cluster.mesh.axes, cluster.axis_levels, strict=True):
        link = cluster.levels[level]
        shared = contention(cluster, level)
        axes.append(f"{axis.name}={axis.size} ({link.name}, {rate(link.link_bytes_per_s)}{shared and f', {shared}'})")
    of_profile = " of the profile" if "mesh" in defaults else ""
    usable = size(cluster.device.usable_bytes)
    if limit_bytes is None:
        limit = f"{usable} usable per device"
    elif limit_bytes <= cluster.device.usable_bytes:
        limit = f"{size(limit_bytes)} of {usable} usable per device"
    else:
        limit = f"a limit of {size(limit_bytes)} per device, of which {usable} is usable"
    return f"{name}, mesh{of_profile} {' x '.join(axes)}, {limit}"


def contention(cluster: Cluster, level: int) -> str:
    """`1.56 per device when all 8 send`: of links that the devices of a machine share, in the unit of the link's rate;
    empty where each has one of its own."""
    link = cluster.levels[level]
    sizes = zip(cluster.mesh.shape, cluster.axis_levels, strict=True)
    inside = math.prod(size for size, its in sizes if its < level)
    each = shared_rate(link.link_bytes_per_s, link.node_bytes_per_s, inside)
    if not each:
        return ""
    number = rate(each) if rate(each).split()[1] != rate(link.link_bytes_per_s).split()[1] else rate(each).split()[0]
    return f"{number} per device when all {inside} send"


def shared_rate(link_bytes_per_s: float, node_bytes_per_s: float, devices: int) -> float:
    """Bytes per second that each of so many devices gets of what they share, when all send; 0 where each has a link of
    its own."""
    each = node_bytes_per_s / devices
    return each if devices > 1 and each <= _OWN * link_bytes_per_s else 0.0


def describe_limits(console: Console, limits: TargetLimits) -> None:
    """`18.3 % slower than the free optimum of this mesh (121 ms) for tp-plan`."""
    free = TIME.text(limits.free_ns)
    optimum = "the free optimum of this mesh"
    said = f"{percent(limits.slower)} slower than {optimum} ({free})" if limits.slower else optimum
    emit(console, facts(("limits", f"{said} for {limits.target}")))


def describe_outcome(
    console: Console,
    plan: Plan,
    path: str,
    *,
    written: bool,
    measure: Measure = TIME,
    replaced: str = "",
) -> None:
    """Time, proof, memory, the file, what was there before if that was for something else, and what to do next."""
    summary = plan.summary
    emit(
        console,
        facts(
            ("plan", time_line(plan, measure)),
            ("", proof_line(summary, measure, staged=plan.pipeline is not None)),
            *([("padded", padded)] if (padded := padded_line(plan)) else []),
            ("memory", memory_line(summary.memory, summary.memory_limit_bytes)),
            ("wrote" if written else "same as", path),
            *([("", replaced)] if replaced else []),
            ("next", f"shardplan show {in_shell(path)}"),
        ),
    )


def padded_line(plan: Plan) -> str:
    """`input_ids[0] held as 16`; empty where no dim is held as a larger one."""
    return ", ".join(f"{name} held as {size:,}" for name, size in pads_of(plan).items())


def plan_line(plan: Plan) -> str:
    """`gpt2_small, training, on h100-dgx (machine=4 x gpu=4, 16 devices)`."""
    devices = f"{plan.mesh}, {counted(plan.mesh.size, 'device')}"
    return f"{plan.model.get('name')}, {plan.model.get('mode', '')}, on {plan.cluster.get('name')} ({devices})"


def time_line(plan: Plan, measure: Measure = TIME) -> str:
    """`step 38.2 ms   compute 31.0, exposed communication 7.2, overlapped 3.3`; of a pipeline as its slowest stage
    spends the step, with its bubble."""
    found = breakdown(plan)
    parts = [found.compute_ns, found.exposed_ns, found.bubble_ns, found.overlapped_ns]
    (compute, exposed, bubble, overlapped), _ = measure.texts(parts, plan.summary.step_ns)
    waits = f", bubble {bubble}" if plan.pipeline else ""
    beside = f", overlapped {overlapped}" if found.overlapped_ns else ""
    step = _step_and_bound(plan.summary, measure)[0]
    return f"step {step}   compute {compute}, exposed communication {exposed}{waits}{beside}"


def proof_line(summary: Summary, measure: Measure = TIME, *, staged: bool = False) -> str:
    """`optimality gap 0.3 % (lower bound 16.75 ms)`, by the proven lower bound on the step where there is one, else by
    the objective's. Pipelines (`staged`) are optimal among those that were asked for: so many stages, say.
    """
    slack = summary.slack
    if summary.outcome == "optimal" and slack < _NOTHING:
        others = "pipeline as was asked for" if staged else "plan of this model on this mesh"
        return f"optimal: no {others} is predicted to be faster"
    stopped = "the search was interrupted; " if summary.outcome == "interrupted" else ""
    return f"{stopped}optimality gap {percent(slack)} (lower bound {_step_and_bound(summary, measure)[1]})"


def _step_and_bound(summary: Summary, measure: Measure) -> tuple[str, str]:
    """The step and its lower bound; of a plan that is as good as optimal, without digits to tell them apart."""
    if summary.outcome == "optimal" and summary.slack < _NOTHING:
        return (measure.text(summary.step_ns),) * 2
    return measure.apart(summary.step_ns, summary.least_ns)


def memory_line(memory: Memory, limit_bytes: int) -> str:
    """`28.1 of 70.8 GiB per device: parameters 1.4 + gradients 1.3 + …`; where that is far less than the limit it has a
    unit of its own: `14.2 MiB of 70.8 GiB per device: parameters 6.1 + …`."""
    used = [(name, number) for name, number in memory_parts(memory).items() if number]
    reference = memory.total if memory.total < _FAR_LESS * limit_bytes else limit_bytes
    amounts, unit = sizes_in_one_unit([memory.total, *(number for _, number in used)], reference)
    limit = size(limit_bytes)
    total = f"{amounts[0]} {unit}".removesuffix(f" {limit.split()[1]}")
    terms = " + ".join(f"{name} {amount}" for (name, _), amount in zip(used, amounts[1:], strict=True))
    return f"{total} of {limit} per device" + (f": {terms}" if terms else "")


def memory_parts(memory: Memory) -> dict[str, int]:
    """Category -> bytes, in the order in which they are always shown."""
    return {
        "parameters": memory.parameters,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer,
        "activations": memory.activations,
        "temporaries": memory.temporaries,
    }
