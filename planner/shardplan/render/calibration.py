"""Output of `calibrate`: the fits, one line per collective or kind of kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from shardplan.render.console import emit, table
from shardplan.units import NS_PER_S, duration, percent

Row = Mapping[str, Any]
"""An entry of the `--json` document of `calibrate`."""
_MOST_GROUPS, _SMALLEST_SHARE = 5, 0.005
_KINDS = {"product": "matrix product", "memory": "memory-bound", "attention_backward": "attention backward"}


def show_fits(console: Console, fits: Sequence[Row]) -> None:
    """Bandwidth and latency of every collective on every group, and what its fit misses on average."""
    rows = table("collective", "devices", ">bus bandwidth", ">latency", ">fit off by", "=kept as")
    for fit in fits:
        rows.add_row(
            fit["collective"],
            f"{fit['machines']}x{fit['per_machine']}",
            f"{fit['busbw_gbps']:.1f} GB/s",
            f"{fit['latency_us']:.1f} us",
            f"{100 * fit['error']:.1f} %",
            "measured points" if fit["curve"] else "keys",
        )
    emit(console, rows)


def show_factors(console: Console, factors: Sequence[Row]) -> None:
    """How many kernels of each kind were measured, and what they took, as a factor of what the profile predicts."""
    rows = table("kind", "limited by", ">kernels", ">measured / predicted", ">spread")
    for each in factors:
        spread = f"±{100 * each['spread']:.0f} %"
        kind = _KINDS.get(each["kind"], each["kind"].replace("_", "-"))
        rows.add_row(kind, each["level"] or "device", f"{each['kernels']:,}", f"{each['factor']:.2f}", spread)
    emit(console, rows)


def show_coverage(console: Console, seconds: float, covered: float, unused: Sequence[tuple[str, float]]) -> None:
    """How much of the time of kernels has a factor, and the largest groups that have none."""
    line = f"covered    {percent(covered)} of {duration(seconds * NS_PER_S)} of kernel time"
    groups = [f"{name} {percent(share)}" for name, share in unused[:_MOST_GROUPS] if share >= _SMALLEST_SHARE]
    emit(console, f"{line}; not used: {', '.join(groups)}" if groups else line)


def show_step(console: Console, measured_ms: float, predicted_ms: float) -> None:
    """A measured step beside the planned one."""
    emit(console, f"measured   {measured_ms:,.4g} ms" if measured_ms < 1e4 else f"measured   {measured_ms:,.0f} ms")
    emit(console, f"planned    {predicted_ms:.4g} ms, measured is {measured_ms / predicted_ms:.4g} times that")
