"""Splits a checkpoint into one file per rank: one pass over the checkpoint, in windows of a few megabytes.

Files grow under temporary names beside their final ones, with every tensor at its final place; a journal says which
tensors are safely on disk, so an interrupted split goes on where it was. The manifest is written last: a folder that
has one is whole.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np

from shardplan.errors import Diagnostic, ShardplanError, error, reason_of
from shardplan.loading.assign import Assignment, Part
from shardplan.loading.header import Entry
from shardplan.loading.layout import MANIFEST, OURS, RankFile, SplitLayout, lay_out, manifest
from shardplan.loading.load import renumber
from shardplan.loading.ranged import WINDOW_BYTES, Array, Reader, Window, kept, windows
from shardplan.runtime.shards import Run, Runs
from shardplan.text_files import is_folder, is_there
from shardplan.units import size
from shardplan.whole_files import write_every_byte, write_whole

JOURNAL = ".split-journal.json"
PART = ".part"
SYNC_BYTES = 256 << 20
"""After so many bytes read, what is written is forced to disk and the journal says so."""
_MOST_OPEN = 128
Progress = Callable[[int, int, str], None]
"""Called with bytes of the checkpoint done, bytes in all, and the tensor at hand."""


@dataclass(frozen=True, slots=True)
class Split:
    """The result of a split. `by_rank[r]`: the files of rank r; `written_bytes`: of all files; `largest_bytes`: read by
    the rank with the most; `resumed_bytes`: of the checkpoint, done by an earlier attempt; `is_new`: False if
    everything existed already."""

    by_rank: tuple[tuple[str, ...], ...]
    written_bytes: int
    largest_bytes: int
    resumed_bytes: int = 0
    is_new: bool = True

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for names in self.by_rank for name in names))


def split(
    assignment: Assignment,
    output: str | Path,
    progress: Progress | None = None,
    sync_bytes: int = SYNC_BYTES,
    *,
    once: bool = False,
) -> Split:
    """Write the files of every rank, and the manifest, into the folder `output`; `once` as in `lay_out`.

    A split of the same checkpoint that was interrupted there is finished; one that is complete is left alone; another
    split there is replaced. Raises `ShardplanError`: `unwritable-output` (among others a folder that holds something
    else), `no-space`, and as reading the checkpoint does.
    """
    folder = Path(output)
    layout = lay_out(assignment, once=once)
    try:
        _check_folder(folder, assignment)
        if _is_done(folder, layout, assignment):
            return _made(layout, is_new=False)
        folder.mkdir(parents=True, exist_ok=True)
        journal = _Journal.open(folder, layout, assignment)
        _check_space(folder, layout, journal)
        (folder / MANIFEST).unlink(missing_ok=True)
        resumed = _write_all(folder, layout, assignment, journal, progress or (lambda *_: None), sync_bytes)
        _finish(folder, layout, assignment)
    except OSError as problem:
        raise ShardplanError(_unwritable(folder, reason_of(problem))) from None
    return _made(layout, resumed)


def _write_all(
    folder: Path, layout: SplitLayout, assignment: Assignment, journal: _Journal, progress: Progress, sync_bytes: int
) -> int:
    """Every tensor that the journal does not have; bytes of the checkpoint that it has."""
    total = sum(entry.size_bytes for entry in assignment.checkpoint)
    resumed = sum(entry.size_bytes for entry in assignment.checkpoint if entry.name in journal.done)
    done, unsafe = resumed, 0
    with Reader() as reader, _Outputs(folder, layout.files) as outputs:
        outputs.prepare()
        try:
            for entry in assignment.checkpoint:
                if entry.name in journal.done:
                    continue
                for copied in _copy(reader, outputs, entry, layout.files):
                    done += copied
                    progress(done, total, entry.name)
                journal.done.add(entry.name)
                unsafe += entry.size_bytes
                if unsafe >= sync_bytes:
                    journal.save(outputs)
                    unsafe = 0
        finally:  # also when interrupted: the next attempt goes on from here
            journal.save(outputs)
    return resumed


def _copy(reader: Reader, outputs: _Outputs, entry: Entry, files: Sequence[RankFile]) -> Iterator[int]:
    """Write every file's part of one tensor; yields the bytes read so far, window by window."""
    targets: dict[tuple[Runs, tuple[Run, ...]], list[tuple[RankFile, int]]] = {}
    parts: dict[tuple[Runs, tuple[Run, ...]], Part] = {}
    for file in files:
        part = file.parts.get(entry.name)
        if part is None:
            continue
        key = (part.runs, part.groups)
        targets.setdefault(key, []).append((file, file.offsets[entry.name]))
        parts[key] = part
    view = next(iter(parts.values())).view
    for window in windows(view, entry.itemsize, WINDOW_BYTES):
        rows = reader.window(entry, view, window)
        for key, part in parts.items():
            for place, block in blocks(part, window, rows):
                for file, offset in targets[key]:
                    outputs.write(file, offset + place, block)
        yield rows.nbytes


def blocks(part: Part, window: Window, rows: Array) -> Iterator[tuple[int, memoryview]]:
    """The bytes of a part within the `rows` of a window: (offset in the part, bytes)."""
    runs = part.runs or (((0, 1),),)
    local = tuple(sum(stop - start for start, stop in dim) for dim in runs)
    lead = [_place(index, dim) for index, dim in zip(window.lead, runs, strict=False)]
    if None in lead:
        return
    inner = math.prod(local[window.dim + 1 :])
    begin, end = window.rows
    position = 0
    for start, stop in runs[window.dim]:
        first, last = max(start, begin), min(stop, end)
        if first < last and inner:
            taken = kept(rows[first - begin : last - begin], (((0, last - first),), *runs[window.dim + 1 :]))
            block = np.ascontiguousarray(renumber(taken, part.groups, part.entry.name) if part.groups else taken)
            where = (*lead, position + first - start)
            number = int(np.ravel_multi_index(where, local[: window.dim + 1]))  # type: ignore[arg-type]
            yield number * inner * part.entry.itemsize, block.reshape(-1).view(np.uint8).data
        position += stop - start


def _place(index: int, runs: Sequence[Run]) -> int | None:
    """The index in the local dim of an index of the whole dim."""
    position = 0
    for start, stop in runs:
        if start <= index < stop:
            return position + index - start
        position += stop - start
    return None


class _Outputs:
    """The files under their temporary names; so many are kept open as a process may."""

    def __init__(self, folder: Path, files: Sequence[RankFile]) -> None:
        self._folder, self._files = folder, files
        self._open: OrderedDict[str, BinaryIO] = OrderedDict()

    def __enter__(self) -> _Outputs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()

    def prepare(self) -> None:
        """Every file at its full size, with its header."""
        for file in self._files:
            path = _unfinished(self._folder, file)
            if not path.exists() or path.stat().st_size != file.size_bytes:
                with path.open("wb") as made:
                    made.truncate(file.size_bytes)
            self._put(file, 0, file.header)

    def write(self, file: RankFile, offset: int, data: memoryview) -> None:
        self._put(file, offset, data)

    def sync(self) -> None:
        """Force to disk what was written to any file."""
        for file in self._files:
            os.fsync(self._get(file).fileno())

    def _put(self, file: RankFile, offset: int, data: bytes | memoryview) -> None:
        stream = self._get(file)
        stream.seek(offset)
        write_every_byte(stream, data)

    def _get(self, file: RankFile) -> BinaryIO:
        stream = self._open.pop(file.name, None)
        if stream is None:
            if len(self._open) >= _MOST_OPEN:
                self._open.popitem(last=False)[1].close()
            stream = _unfinished(self._folder, file).open("r+b", buffering=0)
        self._open[file.name] = stream
        return stream


def _unfinished(folder: Path, file: RankFile) -> Path:
    """Where a file grows."""
    return folder / (file.name + PART)


def _left_over(folder: Path, suffix: str) -> Iterator[Path]:
    """Files of ours with this suffix, whatever split they belong to."""
    return (path for path in folder.glob(f"*{suffix}") if path.name.startswith(OURS))


class _Journal:
    """Records which tensors are safely in the unfinished files of a folder."""

    def __init__(self, path: Path, identity: Mapping[str, object], done: set[str]) -> None:
        self._path, self._identity, self.done = path, identity, done

    @classmethod
    def open(cls, folder: Path, layout: SplitLayout, assignment: Assignment) -> _Journal:
        """The journal of an earlier attempt at exactly this split, or an empty one."""
        sources = [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in assignment.checkpoint.files]
        identity: dict[str, object] = {"fingerprint": layout.fingerprint, "sources": sources}
        path = folder / JOURNAL
        done: set[str] = set()
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(path.read_bytes())
            parts = [_unfinished(folder, file) for file in layout.files]
            same = isinstance(found, dict) and all(found.get(key) == value for key, value in identity.items())
            if same and all(
                p.is_file() and p.stat().st_size == f.size_bytes for p, f in zip(parts, layout.files, strict=True)
            ):
                done = set(found["done"]) & set(assignment.checkpoint.entries)
        journal = cls(path, identity, done)
        if not done:
            for leftover in _left_over(folder, PART):
                leftover.unlink()
            journal.save()
        return journal

    def save(self, outputs: _Outputs | None = None) -> None:
        """Write the journal, after what it speaks of is on disk."""
        if outputs is not None:
            outputs.sync()
        text = json.dumps({**self._identity, "done": sorted(self.done)})
        write_whole(self._path, text.encode())


def _finish(folder: Path, layout: SplitLayout, assignment: Assignment) -> None:
    """Renames the files, writes the manifest, and removes other files of ours."""
    names = set(_names(layout))
    for leftover in _left_over(folder, ".safetensors"):
        if leftover.name not in names:
            leftover.unlink()
    for file in layout.files:
        _unfinished(folder, file).replace(folder / file.name)
    (folder / MANIFEST).unlink(missing_ok=True)  # its time says when the split was made
    write_whole(folder / MANIFEST, manifest(assignment, layout).encode())
    (folder / JOURNAL).unlink(missing_ok=True)


def _is_done(folder: Path, layout: SplitLayout, assignment: Assignment) -> bool:
    """Whether the folder has this split, made after the checkpoint was last changed."""
    path = folder / MANIFEST
    if not path.is_file() or path.read_text(encoding="utf-8") != manifest(assignment, layout):
        return False
    made = path.stat().st_mtime_ns
    sizes = {file.name: file.size_bytes for file in layout.files}
    return all(file.stat().st_mtime_ns <= made for file in assignment.checkpoint.files) and all(
        (folder / name).is_file() and (folder / name).stat().st_size == size for name, size in sizes.items()
    )


def _check_folder(folder: Path, assignment: Assignment) -> None:
    """Refuses a folder in which the user's files would be mixed with ours."""
    if is_there(folder) and not is_folder(folder):
        raise ShardplanError(_unwritable(folder, "it is a file", "name a folder"))
    if not is_folder(folder):
        return
    if any(file.parent.resolve() == folder.resolve() for file in assignment.checkpoint.files):
        raise ShardplanError(_unwritable(folder, "the checkpoint itself is in it", "name another folder"))
    if any(folder.iterdir()) and not ((folder / MANIFEST).is_file() or (folder / JOURNAL).is_file()):
        hint = "name a new folder, or empty this one"
        raise ShardplanError(_unwritable(folder, f"the folder holds something else than a split (no {MANIFEST})", hint))


def _check_space(folder: Path, layout: SplitLayout, journal: _Journal) -> None:
    """Checks that the remaining files fit on the disk; unfinished files may exist in part."""
    there = sum((path.stat().st_blocks * 512) for path in _left_over(folder, PART)) if journal.done else 0
    free = shutil.disk_usage(folder).free
    if layout.size_bytes - there > free:
        summary = f"the split takes {size(layout.size_bytes - there)}, and {size(free)} is free there"
        raise ShardplanError(error("no-space", summary, file=str(folder), hint="name a folder on another file system"))


def _names(layout: SplitLayout) -> tuple[str, ...]:
    return tuple(file.name for file in layout.files)


def _made(layout: SplitLayout, resumed_bytes: int = 0, *, is_new: bool = True) -> Split:
    sizes = {file.name: file.size_bytes for file in layout.files}
    largest = max(sum(sizes[name] for name in names) for names in layout.by_rank)
    return Split(layout.by_rank, layout.size_bytes, largest, resumed_bytes, is_new)


def _unwritable(folder: Path, reason: str, hint: str = "") -> Diagnostic:
    return error("unwritable-output", f"cannot write the split: {reason}", file=str(folder), hint=hint)
