"""Bounded reading of text documents: a size limit protects against any path, such as a device."""

from __future__ import annotations

import errno
import os.path
import shlex
from pathlib import Path
from typing import Protocol

MOST_BYTES = 1 << 26
"""The index of a checkpoint of a million tensors is larger than all else, and has this."""

MARK = "\ufeff"
"""With which editors of Windows begin a file, and JSON and TOML may not begin."""


class Readable(Protocol):
    """What bytes are read from: a file, or what unpacks one."""

    def read(self, size: int, /) -> bytes:
        """At most so many bytes."""


def file_argument(path: str) -> str:
    """A file as an argument of a command, which would take a name that begins with `-` for an option."""
    return f"./{path}" if path.startswith("-") else path


def in_shell(path: str) -> str:
    """The same in a command line that a person pastes into a shell."""
    return shlex.quote(file_argument(path))


def is_there(given: str | Path) -> bool:
    """Whether there is a file or a folder of that name; what is too long for a name is none, and no error."""
    return os.path.exists(given)  # noqa: PTH110 - Path.exists raises for names that are too long


def is_file(given: str | Path) -> bool:
    """Whether `given` is a file; False where it cannot be looked at."""
    return os.path.isfile(given)  # noqa: PTH113


def is_folder(given: str | Path) -> bool:
    """Whether `given` is a folder; False where it cannot be looked at."""
    return os.path.isdir(given)  # noqa: PTH112


def read_bytes(path: str | Path, most: int | None = None) -> bytes:
    """What is in the file. Raises `OSError`, also for more than `most` bytes (`MOST_BYTES`), or what has no end."""
    with Path(path).open("rb") as file:
        return read_at_most(file, MOST_BYTES if most is None else most)


def read_at_most(file: Readable, most: int) -> bytes:
    """The rest of a file, as `read_bytes`."""
    data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EINVAL, f"it is larger than {most >> 20} MiB, which no document of its kind is")
    return data


def read_text(path: str | Path, errors: str = "strict") -> str:
    """What is in a file of UTF-8, its line ends unified. Raises `OSError`, `UnicodeDecodeError`."""
    return read_bytes(path).decode("utf-8", errors).replace("\r\n", "\n").replace("\r", "\n")
