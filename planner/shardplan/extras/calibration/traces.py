"""Profiles of a run, in any format that is read: traces of `torch.profiler`, exports of Nsight Systems to SQLite."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from shardplan.extras.calibration import kineto, nsys
from shardplan.extras.calibration.events import Ran, bad_trace

_REPORTS = (".nsys-rep", ".qdrep")


def read_traces(files: Iterable[str], ranks: tuple[int, ...] = ()) -> list[Ran]:
    """What ran, of all files. `ranks`: of the groups that an export of Nsight Systems does not describe. Raises
    `ShardplanError` (`bad-trace`) for what is no trace or has no kernels."""
    return [each for file in files for each in _read(file, ranks)]


def _read(file: str, ranks: tuple[int, ...]) -> list[Ran]:
    if file.endswith(_REPORTS):
        raise bad_trace("a report of Nsight Systems is not read, only its export to SQLite", file, nsys.EXPORT)
    return nsys.read_export(file, ranks) if _begins(file) == nsys.MAGIC else kineto.read_trace(file)


def _begins(file: str) -> bytes:
    """The first bytes of a regular file; nothing of another, which the reader of traces has a word about."""
    try:
        path = Path(file)
        if not path.is_file():
            return b""
        with path.open("rb") as opened:
            return opened.read(len(nsys.MAGIC))
    except (OSError, ValueError):
        return b""
