"""Finding, reading and resolving cluster profiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from shardplan.cluster.build import Profile, profile_from_resolved
from shardplan.cluster.keys import PROFILE
from shardplan.cluster.lint import lint_profile
from shardplan.cluster.resolve import missing_keys, resolve
from shardplan.cluster.yaml import Record, merge, read_yaml
from shardplan.errors import Diagnostic, ShardplanError, did_you_mean, error
from shardplan.text_files import read_text

BUILTIN = "builtin:"
_SUFFIXES = (".yaml", ".yml")


def shipped_profiles() -> Traversable:
    """The folder of shipped profiles: inside the installed package, else beside `planner/` in a checkout."""
    packaged = files("shardplan") / "cluster_profiles"
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[3] / "cluster_profiles"


def list_profiles() -> tuple[str, ...]:
    """Names of the shipped profiles, sorted."""
    names = (entry.name for entry in shipped_profiles().iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml")))


def load_profile(name_or_path: str | Path) -> Profile:
    """The profile of that name, or in that file (anything with a directory separator or ending in .yaml or .yml).

    Raises `ShardplanError` with every fault of the file and of those it extends.
    """
    text = str(name_or_path)
    return _load(_file_source(Path(text)) if is_path(text) else _builtin_source(text.removeprefix(BUILTIN), None))


def profile_from_text(text: str, name: str) -> Profile:
    """The profile in `text`, which is in no file yet. Raises `ShardplanError` as `load_profile`."""
    return _load(_Source(text, f"{name}.yaml", name, Path()))


def _load(source: _Source) -> Profile:
    tree, faults = _read_chain(source, ())
    faults += [] if faults else missing_keys(tree)
    if faults:
        raise ShardplanError(*faults)
    resolved = resolve(tree, source.stem)
    warnings, errors = lint_profile(tree, resolved)
    if errors:
        raise ShardplanError(*errors)
    return profile_from_resolved(resolved, warnings)


@dataclass(frozen=True, slots=True)
class _Source:
    """Text of one profile file. `file`: the name shown; `folder`: where relative `extends` start (None: shipped)."""

    text: str
    file: str
    stem: str
    folder: Path | None


def is_path(text: str) -> bool:
    """Whether a cluster is given by a file and not by a name."""
    return not text.startswith(BUILTIN) and (text.endswith(_SUFFIXES) or "/" in text or "\\" in text)


def _file_source(path: Path, place: Mapping[str, object] | None = None) -> _Source:
    try:
        return _Source(read_text(path), str(path), path.stem, path.parent)
    except UnicodeDecodeError:
        reason = "it is not UTF-8 text"
    except OSError as fault:
        reason = fault.strerror or str(fault)
    raise ShardplanError(error("unreadable-profile", f"cannot read profile '{path}': {reason}", **(place or {})))


def _builtin_source(name: str, place: Mapping[str, object] | None) -> _Source:
    names = list_profiles()
    if name not in names:
        near = did_you_mean(name, names) or "a profile of your own is given as a path ending in .yaml"
        fields = {"detail": f"shipped profiles: {', '.join(names)}", "hint": near, **(place or {})}
        raise ShardplanError(error("unknown-profile", f"unknown profile '{name}'", **fields))
    text = (shipped_profiles() / f"{name}.yaml").read_text(encoding="utf-8")
    return _Source(text, f"{BUILTIN}{name}", name, None)


def _read_chain(source: _Source, above: tuple[str, ...]) -> tuple[Record, list[Diagnostic]]:
    """The profile in `source` merged over the one that it extends; `above` are the files that lead here."""
    tree, faults = read_yaml(source.text, source.file, PROFILE.section)
    target = tree.value("extends")
    if not isinstance(target, str):
        return tree, faults
    place = tree.get("extends").mark.where  # type: ignore[union-attr]
    try:
        base_source = _extended(source, target, place)
    except ShardplanError as fault:
        return tree, [*faults, *fault.diagnostics]
    chain = (*above, _identity(source))
    if _identity(base_source) in chain:
        cycle = " -> ".join(Path(name).name for name in (*chain, _identity(base_source)))
        return tree, [*faults, error("cyclic-extends", f"profiles extend each other in a circle: {cycle}", **place)]
    base, base_faults = _read_chain(base_source, chain)
    over = {key: value for key, value in tree.entries.items() if key != "extends"}
    own_name = {key: value for key, value in base.entries.items() if key not in ("name", "extends")}
    merged = merge(Record(own_name, base.mark), Record(over, tree.mark))
    return merged if isinstance(merged, Record) else tree, [*base_faults, *faults]


def _extended(source: _Source, target: str, place: Mapping[str, object]) -> _Source:
    if target.startswith(BUILTIN):
        return _builtin_source(target.removeprefix(BUILTIN), place)
    if source.folder is None or not target.endswith(_SUFFIXES):
        hint = "write builtin:NAME for a shipped profile, or a relative path ending in .yaml"
        raise ShardplanError(error("bad-value", f"extends: '{target}' is no profile", hint=hint, **place))
    return _file_source(source.folder / target, place)


def _identity(source: _Source) -> str:
    return source.file if source.folder is None else str(Path(source.file).resolve())
