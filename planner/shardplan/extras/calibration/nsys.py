"""Reader of Nsight Systems exports (`nsys export --type sqlite`): kernels, and the operators that started them.

A kernel and the call that launched it have one correlation number; the call lies in ranges of NVTX on its thread. torch
writes operators and the sizes of their operands into ranges (`emit_nvtx(record_shapes=True)`, of which the innermost
counts), but no types: these are read off the names of kernels. What kernels of NCCL move is in `nsys_nccl`.
"""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from shardplan.extras.calibration.events import MOST_DIMS, Event, Operand, Ran, bad_trace, is_size, ran_of
from shardplan.extras.calibration.nsys_nccl import Call, call_of, groups_of, moved_by, schemas_of
from shardplan.units import NS_PER_S

MAGIC = b"SQLite format 3\0"
EXPORT = "run nsys export --type sqlite --include-blobs=true REPORT.nsys-rep, and give what it wrote"
_PROFILE = "run nsys profile --trace=cuda,nvtx --pytorch=autograd-shapes-nvtx, and export what it wrote"
_KERNELS, _CALLS, _RANGES = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"
_COPIES, _STRINGS, _ENTRIES = "CUPTI_ACTIVITY_KIND_MEMCPY", "StringIds", "NVTX_PAYLOAD_SCHEMA_ENTRIES"
_MOST_BYTES = 1 << 32
_MOST_NS = 1 << 62
_WITHIN_DEVICE = 8
"""`copyKind` of a copy inside a device (`CUPTI_ACTIVITY_MEMCPY_KIND_DTOD`)."""
_NESTED = frozenset({59, 70})
"""`eventType` of ranges that are pushed and popped on a thread, so that they nest."""
_THREAD = (1 << 24) - 1
"""The bits of `globalTid` that tell threads of a process apart; the others are the process's `globalPid`."""
_OPERATOR = re.compile(r"([\w:]+),[^\[]{0,99}sizes = (\[\[[\d\[\], ]*\]\])")
_TYPES = (
    (re.compile(r"e4m3|e5m2|float8|fp8"), "float8e4m3fn", 1),
    (re.compile(r"bf16|bfloat16|nvjet_tst"), "bfloat16", 2),
    (re.compile(r"\bhalf\b|half_t|f16|fp16|h16816|h1688|hgemm|nvjet_hsh"), "float16", 2),
    (re.compile(r"\bfloat\b|f32|s1688|sgemm"), "float", 4),
    (re.compile(r"\bdouble\b|dgemm"), "double", 8),
)
"""In the name of a kernel -> ONNX name and bytes. The first counts: sums of narrow types are kept in wider ones."""
_COPY = "aten::copy_"
"""Its operands may be of two types, and no name of a kernel says both."""


@dataclass(frozen=True, slots=True)
class _Kernel:
    """`thread` and `launched_ns`: of the call that launched it, if that is known."""

    event: Event
    device: tuple[int, int]
    thread: int = -1
    launched_ns: int = -1


@dataclass(frozen=True, slots=True)
class _Range:
    """Of an operator of torch."""

    start_ns: int
    end_ns: int
    name: str
    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class _Thread:
    """What ranges of NVTX on a thread tell, by their start."""

    ranges: list[_Range] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)


def read_export(file: str, ranks: tuple[int, ...] = ()) -> list[Ran]:
    """What ran, of one export, device by device. `ranks`: of groups whose communicator the export does not describe.
    Raises `ShardplanError` (`bad-trace`) for what is no export, lacks a table, or has no kernels."""
    try:
        path = Path(file)
        if path.stat().st_size > _MOST_BYTES:
            raise bad_trace(f"it is larger than {_MOST_BYTES >> 30} GiB", file, "profile fewer steps")
        address = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
        with contextlib.closing(sqlite3.connect(address, uri=True)) as opened:
            opened.text_factory = lambda text: text.decode("utf-8", "replace")
            return _ran(_Tables(opened, file), ranks)
    except (sqlite3.Error, OSError, ValueError) as problem:
        raise bad_trace(f"no export of Nsight Systems can be read: {problem}", file, EXPORT) from None


class _Tables:
    """The tables of a file of SQLite, which anybody may have written: no views, and no modules."""

    def __init__(self, opened: sqlite3.Connection, file: str) -> None:
        self._opened, self.file = opened, file
        listed = opened.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
        self._there = {str(name) for name, sql in listed if not str(sql).upper().startswith("CREATE VIRTUAL")}

    def require(self, tables: Iterable[str]) -> None:
        """Raises `ShardplanError` if one is missing."""
        for table in tables:
            if table not in self._there:
                raise bad_trace(f"no table {table} is in this file, so it is no export of a run", self.file, _PROFILE)

    def rows(self, table: str, columns: Sequence[str], optional: Sequence[str] = ()) -> Iterator[tuple[Any, ...]]:
        """Of a table, none if it is not there; optional columns that are not there are None in every row."""
        if table not in self._there:
            return
        there = {str(row[1]) for row in self._opened.execute(f"PRAGMA table_info({table})")}
        if missing := [column for column in columns if column not in there]:
            raise bad_trace(f"table {table} has no column {missing[0]}", self.file, EXPORT)
        wanted = [f'"{each}"' if each in there else "NULL" for each in (*columns, *optional)]
        yield from self._opened.execute(f"SELECT {', '.join(wanted)} FROM {table}")  # noqa: S608 - names are ours


def _ran(tables: _Tables, ranks: tuple[int, ...]) -> list[Ran]:
    tables.require((_KERNELS, _STRINGS, _CALLS, _RANGES))
    strings = {number: str(text) for number, text in tables.rows(_STRINGS, ("id", "value"))}
    kernels = [*_kernels(tables, strings)]
    if not kernels:
        raise bad_trace("no kernel of a device is in this export", tables.file, _PROFILE)
    kernels += _copies(tables)
    threads = _threads(tables, strings)
    groups = groups_of((number & ~_THREAD, thread.calls) for number, thread in sorted(threads.items()))
    by_thread: dict[int, list[_Kernel]] = {}
    for kernel in kernels:
        by_thread.setdefault(kernel.thread, []).append(kernel)
    operators: dict[int, Event] = {}
    by_device: dict[tuple[int, int], list[Event]] = {}
    for number, own in sorted(by_thread.items()):
        own.sort(key=lambda kernel: kernel.launched_ns)
        thread = threads.get(number, _Thread())
        sending = [kernel.launched_ns for kernel in own if kernel.event.is_collective]
        told = iter(moved_by(thread.calls, sending, groups, ranks))
        first, started = len(operators), dict[int, list[Event]]()
        for kernel, place in zip(own, _innermost(thread.ranges, [each.launched_ns for each in own]), strict=True):
            event = replace(kernel.event, sent=next(told)) if kernel.event.is_collective else kernel.event
            if place is not None:
                event = replace(event, external=first + place)
                started.setdefault(place, []).append(event)
            by_device.setdefault(kernel.device, []).append(event)
        for place, within in enumerate(thread.ranges):
            operators[first + place] = _operator(within, started.get(place, ()))
    return [each for _, events in sorted(by_device.items()) for each in ran_of(events, operators)]


def _kernels(tables: _Tables, strings: Mapping[int, str]) -> Iterator[_Kernel]:
    launched = {
        (thread & ~_THREAD, number): (thread, start)
        for start, number, thread in tables.rows(_CALLS, ("start", "correlationId", "globalTid"))
        if _are_whole(start, number, thread)
    }
    columns = ("start", "end", "correlationId", "globalPid", "deviceId", "demangledName")
    for start, end, number, process, device, name, node in tables.rows(_KERNELS, columns, ("graphNodeId",)):
        if _are_whole(start, end, number, process, device) and start < end:
            called = strings.get(name, "")
            event = Event(called, start / NS_PER_S, (end - start) / NS_PER_S, is_collective="nccl" in called.lower())
            call = launched.get((process, number)) if not node else None  # graphs are launched whole
            yield _Kernel(event, (process, device), *(call or (-1, -1)))


def _copies(tables: _Tables) -> Iterator[_Kernel]:
    """Inside of a device: they are bound by its memory, and say their bytes."""
    columns = ("start", "end", "globalPid", "deviceId", "copyKind", "bytes")
    for start, end, process, device, kind, size in tables.rows(_COPIES, columns):
        if kind == _WITHIN_DEVICE and _are_whole(start, end, process, device) and start < end and is_size(size):
            seconds = (end - start) / NS_PER_S
            yield _Kernel(Event("Memcpy DtoD", start / NS_PER_S, seconds, copied_bytes=float(size)), (process, device))


def _threads(tables: _Tables, strings: Mapping[int, str]) -> dict[int, _Thread]:
    """Operators of torch and calls of NCCL, of every thread, in order."""
    schemas = schemas_of(tables.rows(_ENTRIES, ("schemaId", "type", "name", "offset")))
    found: dict[int, _Thread] = {}
    columns, optional = ("start", "end", "eventType", "globalTid", "text"), ("textId", "binaryData")
    for start, end, kind, number, text, registered, payload in tables.rows(_RANGES, columns, optional):
        if kind not in _NESTED or not _are_whole(start, end, number):
            continue
        thread = found.setdefault(number, _Thread())
        name = str(text) if text is not None else strings.get(registered, "")
        if (call := call_of(start, name, payload, schemas)) is not None:
            thread.calls.append(call)
        elif (told := _OPERATOR.match(name)) is not None:
            thread.ranges.append(_Range(start, end, told[1], _shapes(told[2])))
    for thread in found.values():
        thread.ranges.sort(key=lambda each: (each.start_ns, -each.end_ns))
        thread.calls.sort(key=lambda each: each.start_ns)
    return found


def _are_whole(*numbers: object) -> bool:
    return all(isinstance(number, int) and abs(number) < _MOST_NS for number in numbers)


def _shapes(text: str) -> tuple[tuple[int, ...], ...]:
    """Of all operands; what is no tensor has no dims."""
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    shapes = [each if isinstance(each, list) and all(map(is_size, each)) else [] for each in listed]
    return tuple(tuple(shape) for shape in shapes if len(shape) <= MOST_DIMS)


def _innermost(ranges: Sequence[_Range], launched_ns: Sequence[int]) -> Iterator[int | None]:
    """For every launch, in order: the place of the innermost range that is open then."""
    begun, still = 0, list[int]()
    for launched in launched_ns:
        while begun < len(ranges) and ranges[begun].start_ns <= launched:
            while still and ranges[still[-1]].end_ns <= ranges[begun].start_ns:
                still.pop()
            still.append(begun)
            begun += 1
        while still and ranges[still[-1]].end_ns < launched:
            still.pop()
        yield still[-1] if still else None


def _operator(within: _Range, kernels: Sequence[Event]) -> Event:
    """An operator whose operands have the type that its kernels are named after; none if they name none."""
    names = " ".join(kernel.name for kernel in kernels).lower()
    known = next(((name, width) for pattern, name, width in _TYPES if pattern.search(names)), None)
    operands: tuple[Operand, ...] = ()
    if known is not None and within.name != _COPY:
        operands = tuple((shape, *known) for shape in within.shapes if shape)
    return Event(within.name, within.start_ns / NS_PER_S, 0.0, operands=operands)
