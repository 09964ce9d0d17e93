"""Ranged reads of a stored tensor: only the bytes that a rank holds, or, for narrow columns, windows of whole rows.

numpy has no bfloat16 and no 8-bit floats; their bits are carried as unsigned integers of the same width, so nothing is
ever converted. `torch.from_numpy(array).view(torch.bfloat16)` or `array.view(ml_dtypes.bfloat16)` gives them back.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.loading.header import Entry
from shardplan.runtime.shards import Run, Runs

Array = NDArray[Any]
WINDOW_BYTES = 16 << 20
"""Most bytes that are read at once and not asked for."""
CHUNK_BYTES = 64 << 10
"""Pieces of a row at least this long are read one by one; shorter ones with the whole rows that they are in."""
CARRIERS: dict[str, str] = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "F8_E5M2": "u1", "F8_E4M3": "u1", "F8_E8M0": "u1", "F8_E5M2FNUZ": "u1",
    "F8_E4M3FNUZ": "u1", "U16": "<u2", "I16": "<i2", "F16": "<f2", "BF16": "<u2", "U32": "<u4", "I32": "<i4",
    "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8", "C64": "<c8",
}  # fmt: skip
"""safetensors type -> the numpy type that carries its bits."""


def carrier(dtype: str) -> np.dtype[Any]:
    """The numpy type that carries a safetensors type."""
    return np.dtype(CARRIERS[dtype])


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive bytes of a tensor: dims before `dim` fixed at `lead`, `rows` of dim `dim`, dims after it whole."""

    lead: tuple[int, ...]
    dim: int
    rows: Run


def windows(shape: Sequence[int], itemsize: int, limit_bytes: int = WINDOW_BYTES) -> Iterator[Window]:
    """Windows of at most `limit_bytes` (or one element) that cover a tensor in order; a scalar is one row."""
    dims = tuple(shape) or (1,)
    if 0 in dims:
        return
    split = next(
        d for d in range(len(dims)) if math.prod(dims[d + 1 :]) * itemsize <= limit_bytes or d == len(dims) - 1
    )
    step = max(1, limit_bytes // (math.prod(dims[split + 1 :]) * itemsize))
    for lead in np.ndindex(dims[:split]):
        for start in range(0, dims[split], step):
            yield Window(tuple(int(i) for i in lead), split, (start, min(dims[split], start + step)))


class Reader:
    """Reads entries of checkpoint files; keeps one file open at a time. `read_bytes`: read so far."""

    def __init__(self) -> None:
        self.read_bytes = 0
        self._path: Path | None = None
        self._file: io.FileIO | None = None

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file that is open."""
        if self._file is not None:
            self._file.close()
        self._file = self._path = None

    def whole(self, entry: Entry) -> Array:
        """All of a tensor."""
        return self.part(entry, tuple(((0, size),) for size in entry.shape))

    def part(self, entry: Entry, runs: Runs, view: Sequence[int] | None = None) -> Array:
        """The product of `runs` (one tuple of ranges per dim, in local order) of a tensor.

        `view`: shape in which the tensor's bytes are seen, where it is not the stored one.
        Raises `ShardplanError` (`unreadable-checkpoint`).
        """
        shape = tuple(entry.shape if view is None else view)
        local = tuple(sum(stop - start for start, stop in dim) for dim in runs)
        out = np.empty(local or (1,), carrier(entry.dtype))
        if out.size:
            self._fill(entry, entry.start, shape or (1,), runs or (((0, 1),),), out)
        return out.reshape(local)

    def window(self, entry: Entry, shape: Sequence[int], window: Window) -> Array:
        """The rows of a window of the tensor seen in `shape`, with the dims after it: `[rows, ...]`."""
        dims = tuple(shape) or (1,)
        inner = dims[window.dim + 1 :]
        number = int(np.ravel_multi_index((*window.lead, window.rows[0]), dims[: window.dim + 1]))
        out = np.empty((window.rows[1] - window.rows[0], *inner), carrier(entry.dtype))
        self._into(entry, entry.start + number * math.prod(inner) * entry.itemsize, out)
        return out

    def _fill(self, entry: Entry, offset: int, shape: tuple[int, ...], runs: Runs, out: Array) -> None:
        """Fill `out`, the product of `runs` of the `shape` that begins at byte `offset` of the file."""
        row_bytes = math.prod(shape[1:]) * entry.itemsize
        placed, position = [], 0
        for start, stop in runs[0]:
            placed.append((start, stop, position))
            position += stop - start
        if all(dim == ((0, size),) for dim, size in zip(runs[1:], shape[1:], strict=True)):
            for start, stop, at in placed:
                self._into(entry, offset + start * row_bytes, out[at : at + stop - start])
        elif row_bytes > WINDOW_BYTES or _shortest(shape[1:], runs[1:]) * entry.itemsize >= CHUNK_BYTES:
            for start, stop, at in placed:
                for row in range(start, stop):
                    self._fill(entry, offset + row * row_bytes, shape[1:], runs[1:], out[at + row - start])
        else:
            for start, stop, at in placed:
                self._fill_by_rows(entry, offset, shape, runs, (start, stop), out[at : at + stop - start])

    def _fill_by_rows(
        self, entry: Entry, offset: int, shape: tuple[int, ...], runs: Runs, rows: Run, out: Array
    ) -> None:
        """Read windows of whole rows and keep the runs of their inner dims."""
        row_bytes = math.prod(shape[1:]) * entry.itemsize
        step = max(1, WINDOW_BYTES // row_bytes)
        for start in range(*rows, step):
            stop = min(rows[1], start + step)
            scratch = np.empty((stop - start, *shape[1:]), out.dtype)
            self._into(entry, offset + start * row_bytes, scratch)
            out[start - rows[0] : stop - rows[0]] = kept(scratch, (((0, stop - start),), *runs[1:]))

    def _into(self, entry: Entry, offset: int, out: Array) -> None:
        if not out.size:
            return
        file = self._open(entry)
        rest = out.data.cast("B")
        try:
            file.seek(offset)
            while rest:
                number = file.readinto(rest)
                if not number:
                    summary = f"the file ended inside '{entry.name}'; was it changed while it was read?"
                    raise ShardplanError(error("unreadable-checkpoint", summary, file=str(entry.file)))
                self.read_bytes += number
                rest = rest[number:]
        except OSError as problem:
            raise ShardplanError(_unreadable(entry, problem)) from None

    def _open(self, entry: Entry) -> io.FileIO:
        if self._file is None or self._path != entry.file:
            self.close()
            try:
                self._file, self._path = io.FileIO(entry.file), entry.file
            except OSError as problem:
                raise ShardplanError(_unreadable(entry, problem)) from None
        return self._file


def kept(array: Array, runs: Runs) -> Array:
    """The product of `runs` of an array: a view where every dim has one run."""
    for dim, pieces in enumerate(runs):
        if pieces == ((0, array.shape[dim]),):
            continue
        before = (slice(None),) * dim
        parts = [array[(*before, slice(start, stop))] for start, stop in pieces]
        array = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=dim)
    return array


def _shortest(shape: tuple[int, ...], runs: Runs) -> int:
    """Elements of the shortest consecutive piece of the product of `runs`."""
    length = 1
    for size, dim in zip(reversed(shape), reversed(runs), strict=True):
        length *= min((stop - start for start, stop in dim), default=0)
        if dim != ((0, size),):
            break
    return length


def _unreadable(entry: Entry, problem: OSError) -> Diagnostic:
    reason = problem.strerror or str(problem)
    summary = f"cannot read the checkpoint: {reason[:1].lower()}{reason[1:]}"
    return error("unreadable-checkpoint", summary, file=str(entry.file))
