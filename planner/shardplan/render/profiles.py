"""Output of `profiles`: the shipped cluster profiles as a table, or one in full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text

from shardplan.cluster.build import Profile
from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.written import written_text
from shardplan.escapes import one_line
from shardplan.render.console import Folded, emit, table
from shardplan.render.solve import contention
from shardplan.text_lines import KEPT
from shardplan.units import decimal_size, rate

_WIDE = 110
"""Columns of a terminal in which the list has room for links."""


def profile_row(profile: Profile) -> dict[str, object]:
    """What the list says of one profile."""
    status = profile.provenance.get("status", "")
    return {
        "name": profile.name,
        "device": profile.device.kind,
        "memory_bytes": profile.device.memory_bytes,
        "usable_bytes": profile.device.usable_bytes,
        "peak_flops": dict(profile.device.peak_flops),
        "mesh": {axis.name: axis.size for axis in profile.axes},
        "links": {level.name: level.link_bytes_per_s for level in profile.levels},
        "status": status,
    }


def show_profiles(console: Console, profiles: Sequence[Profile]) -> None:
    """One line per profile; without names of axes and links where a terminal is too narrow for them."""
    wide = ["*links"] if console.width >= _WIDE else []
    rows = table("name", "device", ">memory", ">bf16", "*mesh" if wide else "mesh", *wide, "=numbers")
    for profile in profiles:
        cluster = make_cluster(profile)
        links = ", ".join(
            f"{one_line(level.name)} {rate(level.link_bytes_per_s)}".replace(" ", KEPT) + (shared and f" ({shared})")
            for number, level in reversed(list(enumerate(cluster.levels)))
            for shared in [contention(cluster, number)]
        )
        rows.add_row(
            profile.name,
            profile.device.kind,
            decimal_size(profile.device.memory_bytes),
            _tflops(profile.device.peak_flops),
            (" x " if wide else "x").join(
                f"{axis.name}={axis.size}" if wide else str(axis.size) for axis in profile.axes
            ),
            *([Folded(links)] if wide else []),
            str(profile.provenance.get("status", "")),
        )
    emit(console, rows)


def _tflops(peaks: Mapping[str, float]) -> str:
    peak = peaks.get("bf16") or peaks.get("fp16") or max(peaks.values(), default=0.0)
    return f"{peak / 1e12:,.0f} TFLOP/s"


def show_profile(console: Console, profile: Profile) -> None:
    """Every value of a profile, defaults included, as YAML that is a profile itself; its lines stay whole."""
    emit(console, Text(written_text(profile), no_wrap=True))
