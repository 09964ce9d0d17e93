"""Output of `price`: a configuration by category of memory and part of the step."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console

from shardplan.render.console import emit, table
from shardplan.render.solve import facts
from shardplan.units import counted, duration, percent, size, sizes_apart

if TYPE_CHECKING:
    from shardplan.planning.parallelism import Parallelism
    from shardplan.study.price import PriceReport

_PRECISIONS = {"": "", "fp8": "FP8", "mxfp8": "MXFP8", "nvfp4": "NVFP4"}
_ZERO = {0: "", 1: "ZeRO-1", 3: "ZeRO-3"}


def show_price(console: Console, told: PriceReport) -> None:
    """The configuration, memory of the fullest device, the step, and the best plan beside it."""
    priced, summary = told.priced, told.priced.plan.summary
    memory, spent = priced.peak, priced.spent
    rows = table("memory per device", ">")
    for name, size_bytes in asdict(memory).items():
        rows.add_row(name, size(size_bytes))
    rows.add_row("total", size(memory.total), style="bold")
    parts = table("step", ">")
    parts.add_row("compute", duration(spent.compute_ns))
    parts.add_row("exposed communication", duration(spent.exposed_ns))
    if spent.host_ns:
        parts.add_row("waits for the host", duration(spent.host_ns))
    if priced.parallelism.pipeline > 1:
        parts.add_row("bubble", duration(spent.bubble_ns))
    parts.add_row("total", duration(summary.step_ns), style="bold")
    emit(
        console,
        facts(
            ("runs as", ", ".join(filter(None, [words_of(priced.parallelism), _PRECISIONS[told.precision]]))),
            ("on", f"{counted(priced.parallelism.devices, 'device')} of {priced.plan.cluster['name']}"),
            ("batch", _batch(told)),
        ),
        "", rows, "", parts, "", verdict(told), *filter(None, [robust_line(told), best_line(told)]),
    )  # fmt: skip


def _batch(told: PriceReport) -> str:
    count = told.priced.microbatches
    parts = f"{counted(count, 'microbatch')} of {counted(told.micro_batch, 'row')} per rank"
    return f"{counted(told.global_batch, 'row')}: {parts}"


def words_of(parallelism: Parallelism) -> str:
    """`tp 8 x pp 4 x dp 16, ZeRO-1, sequence parallel`."""
    kinds = {"tp": parallelism.tensor, "cp": parallelism.context, "pp": parallelism.pipeline, "dp": parallelism.data}
    ways = [f"{name} {number}" for name, number in kinds.items() if number > 1] or ["one device"]
    more = [_ZERO[parallelism.zero], "sequence parallel" * parallelism.sequence]
    more += [f"ep {parallelism.expert}"] if parallelism.expert > 1 else []
    more += ["etp 1"] if parallelism.experts_are_whole else []
    more += [f"{parallelism.virtual} model chunks per stage"] if parallelism.virtual > 1 else []
    return ", ".join([" x ".join(ways), *filter(None, more)])


def verdict(told: PriceReport) -> str:
    """Whether it fits, and what trainers report of it, in two sentences."""
    used, limit = told.priced.peak.total, told.priced.limit_bytes
    reserved = f"An allocator reserves about {size(told.priced.reserved_bytes)} for that."
    both = " of ".join(sizes_apart(used, limit))
    if told.priced.fits:
        return f"It fits: {both}, {size(limit - used)} to spare. {reserved}"
    return f"It does not fit: {both}, {size(used - limit)} too much. {reserved} {_smaller(told)}"


def _smaller(told: PriceReport) -> str:
    """Options that make the largest category smaller, without those that the configuration has as far as they go."""
    category, _ = max(asdict(told.priced.peak).items(), key=lambda item: item[1])
    ways, several = told.priced.parallelism, told.priced.parallelism.data * told.priced.parallelism.context > 1
    shards = 1 if category == "optimizer" else 3
    fewer = ["--micro-batch"] if told.micro_batch > 1 else []
    by_sequence = ["--sequence-parallel"] if ways.tensor > 1 and not ways.sequence else []
    options = {
        "activations": ["--recompute", *by_sequence, *fewer, "--cp"],
        "temporaries": ["--fused-loss", *fewer, "--tp"],
    }.get(category, [*([f"--zero {shards}"] if several and ways.zero < shards else []), "--tp", "--pp"])
    return f"Of {category}, there is less with {' or '.join([', '.join(options[:-1]), options[-1]])}."


def robust_line(told: PriceReport) -> str:
    """Between which steps it lies where the profile is wrong."""
    if told.robust is None:
        return ""
    steps, width = told.robust.step_ns, " to ".join(dict.fromkeys(map(percent, told.robust.spread)))
    drawn = counted(len(steps), "perturbed profile")
    return f"The step takes {duration(steps[0])} to {duration(steps[-1])} on {drawn} (constants ±{width})."


def best_line(told: PriceReport) -> str:
    """How far it is from the best plan without a pipeline of a trainer that shards parameters, or of one that does
    not, whichever it is."""
    if not told.compared:
        return ""
    if told.best is None:
        return "Without a pipeline nothing fits on these devices."
    ours, theirs = told.priced.plan.summary.step_ns, told.best.summary.step_ns
    longer = f"{percent(abs(ours / theirs - 1))} {'longer' if ours > theirs else 'shorter'}"
    mesh = "x".join(str(axis.size) for axis in told.best.mesh.axes)
    parts = f" --microbatches {told.best.model['microbatches']}" if told.best.model.get("microbatches", 1) != 1 else ""
    apart = longer if ours != theirs else "as long"
    trainer = " for an FSDP trainer" if told.priced.parallelism.shards_parameters else ""
    best = f"The best plan without a pipeline{trainer} (--mesh {mesh}{parts})"
    return f"{best} takes {duration(theirs)}; this one is {apart}."


def price_document(told: PriceReport) -> dict[str, object]:
    """The same as plain data: microseconds and bytes."""
    priced, summary, parallelism = told.priced, told.priced.plan.summary, told.priced.parallelism
    spent = priced.spent
    return {
        "parallelism": {
            "tp": parallelism.tensor, "pp": parallelism.pipeline, "dp": parallelism.data, "cp": parallelism.context,
            "ep": parallelism.expert, "vp": parallelism.virtual, "zero": parallelism.zero,
            "sequence_parallel": parallelism.sequence,
            **({"etp": 1} if parallelism.experts_are_whole else {}),
        },
        **({"precision": told.precision} if told.precision else {}),
        "devices": parallelism.devices,
        "global_batch": told.global_batch,
        "micro_batch": told.micro_batch,
        "microbatches": priced.microbatches,
        "fits": priced.fits,
        "memory_limit_bytes": priced.limit_bytes,
        "memory_bytes": {**asdict(priced.peak), "total": priced.peak.total},
        "reserved_bytes": priced.reserved_bytes,
        "memory_of_stages_bytes": [memory.total for memory in priced.memory],
        "step_us": summary.step_ns / 1000,
        "compute_us": spent.compute_ns / 1000,
        "exposed_us": spent.exposed_ns / 1000,
        "host_us": spent.host_ns / 1000,
        "bubble_us": spent.bubble_ns / 1000,
        "best_step_us": told.best.summary.step_ns / 1000 if told.best else None,
        **({"robust_step_us": [step / 1000 for step in told.robust.step_ns]} if told.robust else {}),
    }  # fmt: skip
