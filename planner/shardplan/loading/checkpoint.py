"""A checkpoint of safetensors: one file, or a folder with an index, opened without reading any weight."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import NoReturn

from shardplan.errors import ShardplanError, did_you_mean, error
from shardplan.loading.header import Entry, read_header
from shardplan.text_files import is_folder, read_bytes

_SUFFIX = ".safetensors"
_INDEX = ".safetensors.index.json"


@dataclass(frozen=True)
class Checkpoint:
    """`entries`: every tensor, file by file in the order of the data. `metadata`: of the first file."""

    path: Path
    entries: Mapping[str, Entry]
    metadata: Mapping[str, str]

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys(entry.file for entry in self.entries.values()))

    def entry(self, name: str) -> Entry:
        """The tensor called `name`. Raises `ShardplanError` (`unknown-weight`) with the nearest name."""
        if name not in self.entries:
            hint = did_you_mean(name, self.entries)
            summary = f"the checkpoint has no tensor '{name}'"
            raise ShardplanError(error("unknown-weight", summary, file=str(self.path), hint=hint))
        return self.entries[name]

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries.values())


def open_checkpoint(path: str | Path) -> Checkpoint:
    """The checkpoint at `path`: a `.safetensors` file, its index (`*.safetensors.index.json`), or a folder that has
    either. Only headers are read.

    Raises `ShardplanError`: `unreadable-checkpoint`, `not-safetensors`, `damaged-checkpoint`, `hostile-path` (an index
    that names files outside its folder), `unknown-dtype`.
    """
    given = Path(path)
    main = _main_file(given) if is_folder(given) else given
    if main.name.endswith(".json"):
        return _indexed(given, main)
    entries, metadata = read_header(main)
    return Checkpoint(given, entries, metadata)


def _main_file(folder: Path) -> Path:
    """The index of a folder if there is one, else its only safetensors file."""
    indices = sorted(folder.glob(f"*{_INDEX}"))
    files = sorted(folder.glob(f"*{_SUFFIX}"))
    found = indices or files
    if len(found) != 1:
        what = f"there is no *{_SUFFIX} in this folder"
        if found:
            what = f"this folder has several: {', '.join(file.name for file in found[:8])}"
        _refuse("unreadable-checkpoint", folder, what, "name the file, or the index of its parts")
    return found[0]


def _indexed(given: Path, index: Path) -> Checkpoint:
    weights = _weight_map(index)
    entries: dict[str, Entry] = {}
    metadata: dict[str, str] = {}
    for name in dict.fromkeys(weights.values()):
        found, said = read_header(index.parent / name)
        metadata = metadata or said
        for tensor, entry in found.items():
            if weights.get(tensor) != name:
                owner = f"'{weights[tensor]}'" if tensor in weights else "no file"
                what = f"'{tensor}' is in '{name}', but the index says that it is in {owner}"
                _refuse("damaged-checkpoint", index, what)
            entries[tensor] = entry
    missing = [tensor for tensor in weights if tensor not in entries]
    if missing:
        what = f"the index says that '{missing[0]}' is in '{weights[missing[0]]}', which does not have it"
        _refuse("damaged-checkpoint", index, what)
    return Checkpoint(given, entries, metadata)


def _weight_map(index: Path) -> dict[str, str]:
    """Tensor -> file, the files in the order of their names."""
    try:
        document = json.loads(read_bytes(index))
    except OSError as problem:
        reason = problem.strerror or str(problem)
        _refuse("unreadable-checkpoint", index, f"cannot read the checkpoint: {reason[:1].lower()}{reason[1:]}")
    except (ValueError, RecursionError):
        _refuse("damaged-checkpoint", index, "the index is not JSON")
    weights = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(weights, dict) or not weights or not all(isinstance(file, str) for file in weights.values()):
        _refuse("damaged-checkpoint", index, "the index has no weight_map from tensors to files")
    for file in sorted(set(weights.values())):
        _check_name(file, index)
    return dict(sorted(weights.items(), key=lambda pair: pair[1]))


def _check_name(file: str, index: Path) -> None:
    """Files are beside the index or below it. A link there may lead elsewhere, as in the cache of the Hugging Face hub;
    a name may not."""
    parts = PurePosixPath(file).parts
    windows = PureWindowsPath(file)
    if not parts or ".." in parts or file.startswith("/") or windows.drive or "\\" in file or "\0" in file:
        hint = "files of a checkpoint are named relative to its index, without '..'"
        _refuse("hostile-path", index, f"the index names the file '{file}', which is not in its folder", hint)
    if not file.endswith(_SUFFIX):
        _refuse("hostile-path", index, f"the index names the file '{file}', which is no {_SUFFIX} file")


def _refuse(code: str, path: Path, summary: str, hint: str = "") -> NoReturn:
    raise ShardplanError(error(code, summary, file=str(path), hint=hint))
