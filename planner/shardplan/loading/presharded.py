"""Reader of checkpoints that `shardplan.loading.split` wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from shardplan.errors import ShardplanError, error
from shardplan.loading.header import Entry, read_header
from shardplan.loading.layout import MANIFEST, OURS
from shardplan.loading.load import LocalTensor
from shardplan.loading.ranged import Reader
from shardplan.text_files import read_bytes
from shardplan.units import counted

MAJOR = "1"


@dataclass(frozen=True)
class Presharded:
    """A folder that `split` wrote. `files[r]`: the files of rank r, which other ranks may read too."""

    path: Path
    ranks: int
    mesh: tuple[tuple[str, int], ...]
    files: tuple[tuple[str, ...], ...]
    fingerprint: str

    def entries(self, rank: int) -> Mapping[str, Entry]:
        """Tensors of `rank`, from the headers of its files alone.

        Raises `ShardplanError`: `unknown-rank`, `wrong-split` (a file of another split), and as `read_header`.
        """
        if not 0 <= rank < self.ranks:
            summary = f"there is no rank {rank}: the checkpoint was split for ranks 0 to {self.ranks - 1}"
            raise ShardplanError(error("unknown-rank", summary, file=str(self.path)))
        found: dict[str, Entry] = {}
        for name in self.files[rank]:
            entries, said = read_header(self.path / name)
            if said.get("shardplan.fingerprint") != self.fingerprint or said.get("shardplan.ranks") != str(self.ranks):
                _refuse(self.path / name, "wrong-split", "this file belongs to another split", "split again")
            found |= entries
        return found


def open_presharded(path: str | Path, ranks: int | None = None) -> Presharded:
    """The split checkpoint in the folder at `path`; `ranks`: how many there are now, if that is to be checked.

    Raises `ShardplanError`: `not-a-split`, `unsupported-format`, `wrong-rank-count`.
    """
    folder = Path(path)
    document = _read(folder)
    try:
        mesh = tuple((str(axis["name"]), int(axis["size"])) for axis in document["mesh"])
        files = tuple(tuple(str(name) for name in names) for names in document["files"])
        found = Presharded(folder, int(document["ranks"]), mesh, files, str(document["fingerprint"]))
    except (KeyError, TypeError, ValueError):
        _refuse(folder / MANIFEST, "not-a-split", "this is no manifest of a split", "split again")
    named = [name for names in files for name in names]
    if len(files) != found.ranks or any(Path(name).name != name or not name.startswith(OURS) for name in named):
        _refuse(folder / MANIFEST, "not-a-split", "the manifest does not name files in its folder for each rank")
    if ranks is not None and ranks != found.ranks:
        spelled = " x ".join(f"{name}={size}" for name, size in mesh)
        summary = f"the checkpoint was split for {counted(found.ranks, 'rank')} ({spelled}), and there are {ranks}"
        _refuse(folder, "wrong-rank-count", summary, "split the checkpoint with the plan for this number of ranks")
    return found


def load_presharded(path: str | Path, rank: int, ranks: int | None = None) -> dict[str, LocalTensor]:
    """Every tensor of `rank`, by its name in the checkpoint. Errors as of `open_presharded` and `entries`."""
    return {tensor.name: tensor for tensor in iterate_presharded(path, rank, ranks)}


def iterate_presharded(path: str | Path, rank: int, ranks: int | None = None) -> Iterator[LocalTensor]:
    """`load_presharded`, one tensor at a time."""
    entries = open_presharded(path, ranks).entries(rank)
    with Reader() as reader:
        for entry in entries.values():
            yield LocalTensor(entry.name, entry.dtype, reader.whole(entry))


def _read(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        document = json.loads(read_bytes(path))
    except OSError:
        _refuse(folder, "not-a-split", f"there is no {MANIFEST} here", "make it with shardplan split")
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        _refuse(path, "not-a-split", "this is no manifest of a split", "split again")
    version = str(document.get("format_version"))
    if version.partition(".")[0] != MAJOR:
        summary = f"this split has format version {version}; this shardplan reads {MAJOR}.x"
        _refuse(path, "unsupported-format", summary, "split again with this version")
    return document


def _refuse(path: Path, code: str, summary: str, hint: str = "") -> NoReturn:
    raise ShardplanError(error(code, summary, file=str(path), hint=hint))
