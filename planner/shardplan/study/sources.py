"""Sources of a plan's inputs: recorded in the plan, and found again relative to its file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePath

from shardplan.cluster.profile import BUILTIN, is_path, list_profiles
from shardplan.models.named import PREFIX
from shardplan.plan.types import Plan
from shardplan.request import AUTO, Request

_ABOVE = ".."


def sources_of(request: Request) -> dict[str, object]:
    """The `sources` of a plan: names, and paths from the working directory, as they were given.

    A plan holds no absolute path, and none with `..`: see `recorded_path`. What was given as a value has no source; of
    constraints, files and pins are only there if all of them have one.
    """
    found: dict[str, object] = {}
    if isinstance(request.model, str | Path):
        given = str(request.model)
        found["model"] = given if given.startswith(PREFIX) else recorded_path(given)
    if isinstance(request.cluster, str | Path):
        found["cluster"] = _recorded_profile(str(request.cluster))
    if all(isinstance(source, str | Path) for source in request.constraints):
        files, pins = [recorded_path(str(source)) for source in request.constraints], [*request.pins]
        found |= {"constraints": files} if files else {}
        found |= {"pins": pins} if pins else {}
    if isinstance(request.stages, str | Path) and request.stages != AUTO:
        found["stages"] = recorded_path(str(request.stages))
    return found


def _recorded_profile(given: str) -> str:
    """The name of a shipped profile; a path always looks like one."""
    if given.removeprefix(BUILTIN) in list_profiles():
        return given.removeprefix(BUILTIN)
    path = recorded_path(given)
    return path if is_path(path) else f"./{path}"


def recorded_path(given: str) -> str:
    """A path with `/` and without `.`, from the working directory. Of a file outside of it, an absolute path is
    recorded as its last name, and one such as `../models/m.onnx` as `models/m.onnx`, which is above the plan."""
    path = PurePath(os.path.normpath(given))
    if path.is_absolute():
        here = Path.cwd()
        path = path.relative_to(here) if path.is_relative_to(here) else PurePath(path.name)
    return PurePath(*(part for part in path.parts if part != _ABOVE)).as_posix()


def found_path(recorded: str, plan_file: str) -> str | None:
    """The file that a plan, read from `plan_file`, calls `recorded`: in the working directory, else in the folder of
    the plan or the nearest parent that has it. None if there is none, and for a path that could lead anywhere."""
    if not recorded or _leads_out(recorded):
        return None
    for folder in _folders(plan_file):
        path = folder / recorded
        if _is_file(path):
            return path.as_posix()
    return None


def absence(recorded: str) -> str:
    """Why `found_path` has nothing, to follow the name and `is`."""
    if _leads_out(recorded):
        return "not looked for: an absolute path, or one with '..', is not followed"
    return "neither here, nor beside the plan or above it"


def _leads_out(recorded: str) -> bool:
    path = PurePath(recorded)
    return path.is_absolute() or _ABOVE in path.parts


def _folders(plan_file: str) -> Iterator[Path]:
    """The folders to search, without the root, below which all files are: relative to the working directory where that
    is short."""
    yield Path()
    here, folder = Path.cwd(), Path(plan_file).absolute().parent
    for above in (folder, *folder.parents[:-1]):
        yield above.relative_to(here) if above.is_relative_to(here) else above


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def source(plan: Plan, key: str) -> str:
    """The recorded text of one source; empty if the plan records none."""
    return str(plan.sources.get(key, ""))


def sources(plan: Plan, key: str) -> tuple[str, ...]:
    """The recorded texts of sources of which there may be several."""
    found = plan.sources.get(key, ())
    return tuple(str(one) for one in found) if isinstance(found, list | tuple) else ()
