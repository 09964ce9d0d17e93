"""Atomic file writes: data is written to a temporary file, flushed to disk, and then replaces the file."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO


def write_whole(path: str | Path, data: bytes) -> bool:
    """Write `data` to the file at `path`, and make the folders it is in; False where the file is exactly this already.

    A file that is replaced keeps its permissions, and its owner where we may give it away; a symbolic link stays one.
    Nothing is left behind where it fails. Raises `OSError`, also where something else than a file is there.
    """
    target = Path(os.path.realpath(path))
    before = _replaceable(target, path)
    if before is not None and before.st_size == len(data) and target.read_bytes() == data:
        return False
    with written_beside(path) as beside:
        beside.write_bytes(data)
    return True


@contextlib.contextmanager
def written_beside(path: str | Path) -> Iterator[Path]:
    """A file for the block to write, which takes the place of the one at `path` when the block ends without an error,
    as in `write_whole`. Raises `OSError`."""
    target = Path(os.path.realpath(path))
    before = _replaceable(target, path)
    beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as made:
            like = before or os.fstat(made.fileno())
        beside.chmod(stat.S_IRUSR | stat.S_IWUSR)
        yield beside
        with beside.open("r+b") as written:
            _take_after(written.fileno(), like)
            os.fsync(written.fileno())
        beside.replace(target)
        settle(target.parent)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def _replaceable(target: Path, path: str | Path) -> os.stat_result | None:
    """What is known of the file that would be replaced; None where there is none. Raises `OSError` where something else
    is there: what takes its place would be a file, and a device, say, gone."""
    before = target.stat() if target.exists() else None
    if before is not None and not stat.S_ISREG(before.st_mode):
        reason = "it is a folder" if stat.S_ISDIR(before.st_mode) else "it is not a regular file"
        raise OSError(errno.EINVAL, reason, str(path))
    return before


def write_every_byte(stream: BinaryIO, data: bytes | memoryview) -> None:
    """Write all of `data` to an unbuffered file, whose `write` may take only a part where a disk is nearly full. Raises
    `OSError`, with `ENOSPC` where nothing more is taken."""
    left = memoryview(data)
    while left:
        taken = stream.write(left)
        if not taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left = left[taken:]


def write_all(files: Mapping[str, bytes]) -> tuple[str, ...]:
    """Write several files by `write_whole`, all or none: those that were written, without those that were so already.
    Raises `OSError`, whose `filename` is the path that could not be written, with all as it was before."""
    before: dict[Path, bytes | None] = {}
    folders: list[Path] = []
    written = []
    for name, data in files.items():
        path = Path(os.path.realpath(name))  # what is written through a link, of a file that is not there yet too
        try:
            if path not in before:
                before[path] = path.read_bytes() if path.exists() else None
            folders += [parent for parent in path.parents if not parent.exists()]
            if write_whole(path, data):
                written.append(name)
        except BaseException as problem:  # an interrupt leaves nothing half-written either
            _undo(before, folders)
            if isinstance(problem, OSError):
                raise OSError(problem.errno, problem.strerror, name) from None
            raise
    return tuple(written)


def _undo(before: Mapping[Path, bytes | None], folders: Sequence[Path]) -> None:
    """Put files back, and take away those that were not there, with their folders, as far as that can be done."""
    for path, data in before.items():
        with contextlib.suppress(OSError):
            if data is None:
                path.unlink(missing_ok=True)
            else:
                write_whole(path, data)
    for folder in sorted(folders, key=lambda folder: -len(folder.parts)):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _take_after(file: int, before: os.stat_result) -> None:
    """Give an open file the owner and the permissions of another."""
    if hasattr(os, "fchown"):
        with contextlib.suppress(OSError):
            os.fchown(file, before.st_uid, before.st_gid)
    if hasattr(os, "fchmod"):
        os.fchmod(file, stat.S_IMODE(before.st_mode))


def settle(path: Path) -> None:
    """Bring to the disk what is in a file, or the names that are in a folder, where the system can."""
    with contextlib.suppress(OSError):
        place = os.open(path, os.O_RDONLY)
        try:
            os.fsync(place)
        finally:
            os.close(place)
