"""`shardplan calibrate`: from measurements on your machine to a profile of your own."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from shardplan.errors import ShardplanError, error, warning
from shardplan.units import GIGA, US_PER_S, counted
from shardplan.verbs.inputs import text_of
from shardplan.verbs.numbers import FiniteRange
from shardplan.verbs.session import STANDARD_OUTPUT, Session, verb

if TYPE_CHECKING:
    from rich.console import Console

    from shardplan.cluster.build import Profile

Measured = TypeVar("Measured")

_GROUP = re.compile(r"(\d{1,9})[xX×](\d{1,9})")
_FAR_OFF = 1.5
"""A measured step that differs from the predicted one by more than this factor hints at another plan or machine."""
_base_option = click.option(
    "-c", "--cluster", metavar="NAME", default="h100-dgx", show_default=True, help="The shipped profile to start from."
)
_output_option = click.option(
    "-o", "--output", metavar="FILE", required=True, help="Where the profile goes; - is standard output."
)


@click.group(short_help="Fit a cluster profile to measurements.")
def calibrate() -> None:
    """Fit a cluster profile to measurements on your machine: collectives, matrix products, attention, traces of a run,
    a step."""


@calibrate.command(short_help="Fit links to logs of nccl-tests or rccl-tests.")
@click.argument("logs", nargs=-1, required=True, metavar="LOG...", type=click.Path(path_type=str))
@_base_option
@click.option("--group", metavar="MACHINESxDEVICES", help="What the logs ran on, if they do not list their ranks.")
@_output_option
@verb
def nccl(session: Session, /, logs: tuple[str, ...], cluster: str, group: str | None, output: str) -> int:
    """Fit bandwidth and latency of links to logs of nccl-tests or rccl-tests (all they print, comments included).

    Run all_reduce, all_gather, reduce_scatter and alltoall from 512 B to 1 GiB, on 2, 4 and all devices of a machine
    and on all devices of two machines or more. What fits to within 15 % becomes keys of the profile; for the rest the
    measured points are kept.
    """
    from shardplan.cluster.profile import load_profile
    from shardplan.extras.calibration.collectives import calibrate as fit
    from shardplan.extras.calibration.nccl_log import read_logs
    from shardplan.render.calibration import show_fits

    _refuse_two_documents(session, output)
    base = load_profile(cluster)
    measured = read_logs([(log, text_of(log)) for log in logs], _parse_group(group))
    text, fits = fit(measured, base, _name_of(output, base.name))
    rows = [
        {
            "collective": entry.measurement.collective,
            "machines": entry.measurement.nodes,
            "per_machine": entry.measurement.per_node,
            "points": len(entry.measurement.points),
            "busbw_gbps": round(entry.busbw_bytes_per_s / GIGA, 2),
            "latency_us": round(entry.latency_s * US_PER_S, 2),
            "error": round(entry.error, 4),
            "curve": entry.kept,
        }
        for entry in fits
    ]
    _deliver(session, text, output)
    return _finish(session, {"profile": output, "fits": rows}, output, lambda console: show_fits(console, rows))


@calibrate.command(short_help="Fit a device to measured matrix products.")
@click.argument("table", metavar="CSV", type=click.Path(path_type=str))
@_base_option
@_output_option
@verb
def gemm(session: Session, /, table: str, cluster: str, output: str) -> int:
    """Fit the matrix units and the memory of a device to a table of measured matrix products.

    The table has the columns m, n, k, dtype, seconds: [m, k] times [k, n], one product per row.
    """
    from shardplan.extras.calibration.products import calibrate as fit
    from shardplan.extras.calibration.products import read_products

    return _of_table(session, table, cluster, output, read_products, fit, "product")


@calibrate.command(short_help="Fit a device to measured fused attention.")
@click.argument("table", metavar="CSV", type=click.Path(path_type=str))
@_base_option
@_output_option
@verb
def attention(session: Session, /, table: str, cluster: str, output: str) -> int:
    """Fit what fused attention reaches on a device, by size of a head, to a table of measured ones in 16 bits.

    The table has the columns batch, heads, seq, head_size, causal (0 or 1), seconds (forward and backward together):
    as many keys as queries, one attention per row.
    """
    from shardplan.extras.calibration.attention import calibrate as fit
    from shardplan.extras.calibration.attention import read_attention

    return _of_table(session, table, cluster, output, read_attention, fit, "row")


def _of_table(
    session: Session,
    table: str,
    cluster: str,
    output: str,
    read: Callable[[str, str], list[Measured]],
    fit: Callable[[Sequence[Measured], Profile, str], tuple[str, float]],
    what: str,
) -> int:
    """Fit a profile to the rows of a table, and say how many there were and how far it is off."""
    from shardplan.cluster.profile import load_profile

    _refuse_two_documents(session, output)
    base = load_profile(cluster)
    rows = read(text_of(table), table)
    text, left = fit(rows, base, _name_of(output, base.name))
    _deliver(session, text, output)

    def show(console: Console) -> None:
        from shardplan.render.console import emit

        emit(console, f"{counted(len(rows), what)}, off by {100 * left:.1f} % on average")

    return _finish(session, {"profile": output, f"{what}s": len(rows), "error": round(left, 4)}, output, show)


@calibrate.command(short_help="Fit a profile to traces of torch.profiler or Nsight Systems.")
@click.argument("traces", nargs=-1, required=True, metavar="TRACE...", type=click.Path(path_type=str))
@_base_option
@click.option("--group", metavar="MACHINESxDEVICES", help="Ranks of collectives, where an export of nsys has no sizes.")
@_output_option
@verb
def trace(session: Session, /, traces: tuple[str, ...], cluster: str, group: str | None, output: str) -> int:
    """Fit a profile to traces of torch.profiler, .json or .json.gz, or to exports of Nsight Systems to SQLite, of one
    rank or several.

    Profile a few steps with ProfilerActivity.CPU and CUDA, record_shapes=True, and call export_chrome_trace; or with
    nsys profile --trace=cuda,nvtx --pytorch=autograd-shapes-nvtx, and nsys export --type sqlite --include-blobs=true.
    Matrix products, attention, operators bound by memory and every collective get a factor, measured over predicted,
    and their spread, which `solve --robust` then draws constants within; how much of the kernels' time these are is
    said.
    """
    from shardplan.cluster.profile import load_profile
    from shardplan.extras.calibration.traced import calibrate as fit
    from shardplan.extras.calibration.traced import coverage
    from shardplan.extras.calibration.traces import read_traces
    from shardplan.render.calibration import show_coverage, show_factors

    _refuse_two_documents(session, output)
    base = load_profile(cluster)
    ran = read_traces(traces, _ranks_of(group, base))
    text, factors = fit(ran, base, _name_of(output, base.name))
    told = coverage(ran, factors, base)
    _deliver(session, text, output)
    rows = [
        {
            "kind": each.kind,
            "level": each.level or None,
            "kernels": each.count,
            "factor": round(each.factor, 4),
            "spread": round(each.spread, 4),
        }
        for each in factors
    ]
    document = {
        "profile": output,
        "factors": rows,
        "kernel_us": round(told.seconds * US_PER_S, 3),
        "covered": round(told.covered, 4),
        "unused": [{"name": name, "share": round(share, 4)} for name, share in told.unused],
    }

    def show(console: Console) -> None:
        show_factors(console, rows)
        show_coverage(console, told.seconds, told.covered, told.unused)

    return _finish(session, document, output, show)


@calibrate.command(short_help="Compare a measured step with a plan.")
@click.argument("plan", type=click.Path(path_type=str))
@click.option(
    "--measured-ms",
    metavar="MS",
    type=FiniteRange(min=0, min_open=True),
    required=True,
    help="What one step really takes.",
)
@verb
def step(session: Session, /, plan: str, measured_ms: float) -> int:
    """Compare a measured step with what the plan file PLAN predicts.

    The factor is told, and applied to nothing: a plan is chosen by which step is shorter, and one factor for all plans
    changes no choice.
    """
    from shardplan.plan.file import read_plan
    from shardplan.render.calibration import show_step

    loaded = read_plan(plan)
    predicted_ms = loaded.summary.step_ns / 1e6
    if not predicted_ms:
        hint = "measure the step of a plan for a model that computes something"
        raise ShardplanError(error("no-time", "the plan says that a step takes no time", hint=hint, file=plan))
    factor = measured_ms / predicted_ms
    if not 1 / _FAR_OFF <= factor <= _FAR_OFF:
        hint = "calibrate links and matrix products first: shardplan calibrate nccl, shardplan calibrate gemm"
        session.say(warning("far-off", "the step is far from what was predicted: is it this plan that ran?", hint=hint))
    document = {
        "measured_ms": measured_ms,
        "step_ms": round(predicted_ms, 6),
        "scheduled_ms": round(predicted_ms, 6),
        "factor": round(factor, 4),
        "scheduled_factor": round(factor, 4),
    }

    return session.finish(document, lambda console: show_step(console, measured_ms, predicted_ms))


def _deliver(session: Session, text: str, output: str) -> None:
    from shardplan.cluster.profile import profile_from_text
    from shardplan.plan.file import write_other

    name = "calibrated" if output == STANDARD_OUTPUT else re.sub(r"\.ya?ml$", "", output)
    for diagnostic in profile_from_text(text, name).warnings:
        session.say(diagnostic)
    if output == STANDARD_OUTPUT:
        session.write_text(text)
    else:
        write_other(text, output, "profile")


def _finish(session: Session, document: dict[str, object], output: str, show: object) -> int:
    if output == STANDARD_OUTPUT:
        return 0
    from shardplan.render.console import emit

    code = session.finish(document, show)  # type: ignore[arg-type]
    session.paint(lambda console: emit(console, f"wrote {output}"))
    return code


def _refuse_two_documents(session: Session, output: str) -> None:
    if session.as_json and output == STANDARD_OUTPUT:
        raise click.UsageError("--json and --output - both want standard output")


def _parse_group(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = _GROUP.fullmatch(text.strip())
    if not match or not int(match[1]) or not int(match[2]):
        hint = "write machines and devices per machine, such as --group 2x8"
        raise ShardplanError(error("bad-group", f"--group '{text}' cannot be read", hint=hint))
    return int(match[1]), int(match[2])


def _ranks_of(group: str | None, base: Profile) -> tuple[int, ...]:
    """Of a group over machines of `base`; none if no group is given."""
    from shardplan.extras.calibration.events import MOST_RANKS

    machines, devices = _parse_group(group) or (0, 0)
    if machines * devices > MOST_RANKS:
        hint = f"a group has at most {MOST_RANKS} ranks"
        raise ShardplanError(error("bad-group", f"--group '{group}' cannot be read", hint=hint))
    joined = max(devices, base.levels[0].devices or 0)
    return tuple(at * joined + rank for at in range(machines) for rank in range(devices))


def _name_of(output: str, base: str) -> str:
    return f"{base}-measured" if output == STANDARD_OUTPUT else Path(output).stem
