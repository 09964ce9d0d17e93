"""Validating parser of the header of a safetensors file, which may be untrusted.

Format: 8 bytes little-endian length, that many bytes of JSON (name -> dtype, shape, data_offsets), then the data.
Source: https://github.com/huggingface/safetensors#format. What the format requires (no holes, no overlap, sizes that
agree) is checked before anything is read.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeGuard

from shardplan.errors import ShardplanError, error
from shardplan.units import counted

MOST_HEADER_BYTES = 100_000_000
"""The limit that the format's own reader has."""
DTYPE_BITS: dict[str, int] = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E5M2FNUZ": 8, "F8_E4M3FNUZ": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64,
    "C64": 64,
}  # fmt: skip
_METADATA = "__metadata__"


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor in a file: `dtype` as safetensors writes it (`BF16`), bytes `start` to `stop` of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    stop: int

    @property
    def itemsize(self) -> int:
        return DTYPE_BITS[self.dtype] // 8

    @property
    def size_bytes(self) -> int:
        return self.stop - self.start


def read_header(path: Path) -> tuple[dict[str, Entry], dict[str, str]]:
    """Tensors of the file in the order of their data, and its metadata.

    Raises `ShardplanError`: `unreadable-checkpoint`, `not-safetensors`, `damaged-checkpoint`.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(8)
            length = int.from_bytes(head, "little")
            if len(head) < 8 or length > min(MOST_HEADER_BYTES, size - 8):
                _refuse("not-safetensors", path, "this is not a safetensors file: it has no header of a sensible size")
            text = file.read(length)
    except OSError as problem:
        reason = problem.strerror or str(problem)
        summary = f"cannot read the checkpoint: {reason[:1].lower()}{reason[1:]}"
        raise ShardplanError(error("unreadable-checkpoint", summary, file=str(path))) from None
    return _parse(text, path, 8 + length, size)


def _parse(text: bytes, path: Path, base: int, size: int) -> tuple[dict[str, Entry], dict[str, str]]:
    try:
        document = json.loads(text, object_pairs_hook=lambda pairs: _unique(pairs, path))
    except (ValueError, RecursionError):
        _refuse("not-safetensors", path, "this is not a safetensors file: its header is not JSON")
    if not isinstance(document, dict):
        _refuse("not-safetensors", path, "this is not a safetensors file: its header is no table of tensors")
    metadata = document.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        _refuse("damaged-checkpoint", path, f"{_METADATA} is no table of texts")
    entries = sorted(
        (_entry(name, row, path, base) for name, row in document.items()), key=lambda e: (e.start, e.stop, e.name)
    )
    _check_bounds(entries, path, base, size)
    return {entry.name: entry for entry in entries}, metadata


def _unique(pairs: list[tuple[str, object]], path: Path) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        _refuse("damaged-checkpoint", path, f"the header names '{twice}' twice")
    return found


def _entry(name: str, row: object, path: Path, base: int) -> Entry:
    fields: Mapping[str, object] = row if isinstance(row, dict) else {}
    dtype, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
        _refuse("damaged-checkpoint", path, f"'{name}' has no proper shape and data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        known = f"the types are {', '.join(sorted(DTYPE_BITS))}"
        _refuse("unknown-dtype", path, f"'{name}' is of the unknown type {dtype!r}", known)
    start, stop = (base + offset for offset in offsets)
    entry = Entry(name, dtype, tuple(shape), path, start, stop)
    if stop - start != math.prod(shape) * entry.itemsize:
        need = math.prod(shape) * entry.itemsize
        _refuse(
            "damaged-checkpoint",
            path,
            f"'{name}' of {counted(need, 'byte')} has {counted(stop - start, 'byte')} of data",
        )
    return entry


def _are_counts(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_bounds(entries: list[Entry], path: Path, base: int, size: int) -> None:
    """Data is contiguous, in the file, and ends with it."""
    end = base
    for entry in entries:
        if entry.start != end:
            what = "overlaps what is before it" if entry.start < end else "leaves a hole before it"
            _refuse("damaged-checkpoint", path, f"the data of '{entry.name}' {what}")
        end = entry.stop
    if end > size:
        what = f"the file has {counted(size, 'byte')}, its header names {end:,}"
        _refuse("damaged-checkpoint", path, what, "was it cut off? fetch it again")
    if end < size:
        _refuse("damaged-checkpoint", path, f"the file has {counted(size - end, 'byte')} after its last tensor")


def _refuse(code: str, path: Path, summary: str, hint: str = "") -> NoReturn:
    raise ShardplanError(error(code, summary, file=str(path), hint=hint))
