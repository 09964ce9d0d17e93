"""`shardplan init`: a cluster file, settings and a check in CI, by a few questions or by options."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardplan.text_files import in_shell, is_there
from shardplan.verbs.asking import profile_names
from shardplan.verbs.numbers import WholeRange
from shardplan.verbs.session import Session, attended_verb, completing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardplan.study.project import Project

_MOST = 1 << 20
_DEFAULTS: Mapping[str, Any] = {"like": "h100-dgx", "machines": 4, "devices": 8, "model": ""}
_QUESTIONS: Mapping[str, str] = {
    "like": "Shipped profile nearest to your machines (shardplan profiles)",
    "machines": "Machines",
    "devices": "Devices in each",
    "model": "ONNX file to plan (empty if there is none yet)",
}


@click.command(short_help="Write a cluster file, settings and a CI workflow.")
@click.option(
    "--like",
    metavar="NAME",
    help="The shipped profile nearest to the machines.",
    shell_complete=completing(profile_names),
)
@click.option("--machines", metavar="N", type=WholeRange(1, _MOST), help="How many machines.")
@click.option("--devices", metavar="N", type=WholeRange(1, _MOST), help="Devices of each machine.")
@click.option("--model", metavar="FILE.onnx", help="The model that plans are for, which CI gives to `check`.")
@click.option("--no-ci", is_flag=True, help="Write no workflow for GitHub Actions.")
@click.option("--force", is_flag=True, help="Replace files that are there.")
@attended_verb
def init(session: Session, /, **given: Any) -> int:
    """Write cluster.yaml, shardplan.toml and .github/workflows/shardplan.yml into the working directory.

    What no option says is asked for in a terminal, and is the default elsewhere. Nothing is replaced without --force,
    and nothing is written where anything is in the way.
    """
    from shardplan.cluster.profile import load_profile
    from shardplan.study.project import project_files

    if given["like"]:  # a wrong name is said before anything is asked
        load_profile(f"builtin:{given['like']}")
    asked = _project(given, ask=sys.stdin.isatty() and not session.as_json)
    profile = load_profile(f"builtin:{asked.base}")
    files = project_files(asked, profile)
    written = _write(files, force=given["force"])
    mesh = f"{asked.machines}x{asked.devices}"
    command = f"shardplan solve {in_shell(asked.model or 'model.onnx')}"
    document = {"files": list(files), "next": command}

    def draw(console: Any) -> None:
        from shardplan.render.console import emit
        from shardplan.render.solve import facts

        kept = [path for path in files if path not in written]
        rows = [
            (label * (not number), path)
            for label, paths in (("wrote", written), ("same as", kept))
            for number, path in enumerate(paths)
        ]
        if asked.model and not is_there(asked.model):
            rows.append(("model", f"there is no {asked.model} yet"))
        emit(console, facts(*rows, ("next", f"{command}   plans it for the mesh {mesh}")))

    return session.finish(document, draw)


def _project(given: Mapping[str, Any], *, ask: bool) -> Project:
    from shardplan import __version__
    from shardplan.study.project import Project

    kinds = {
        "like": click.Choice(profile_names()),
        "machines": WholeRange(1, _MOST),
        "devices": WholeRange(1, _MOST),
    }
    found = {}
    for name, default in _DEFAULTS.items():
        found[name] = given[name]
        if found[name] is None and ask:
            found[name] = click.prompt(
                _QUESTIONS[name],
                default=default,
                type=kinds.get(name),
                show_choices=False,
                show_default=bool(default),
                err=True,
            )
        found[name] = default if found[name] is None else found[name]
    workflow = not given["no_ci"]
    return Project(found["like"], found["machines"], found["devices"], found["model"], __version__, workflow)


def _write(files: Mapping[str, str], *, force: bool) -> tuple[str, ...]:
    """Write all, or none where anything is in the way: the files that were written, without those that were so already.
    Raises `ShardplanError` with every file that is in the way."""
    from shardplan.errors import ShardplanError, error
    from shardplan.whole_files import write_all

    hint = "shardplan init --force replaces it"
    there = [path for path, text in files.items() if not force and _differs(Path(path), text)]
    if there:
        summary = "this file is there already; nothing was written"
        raise ShardplanError(*(error("file-exists", summary, file=path, hint=hint) for path in there))
    try:
        return write_all({path: text.encode() for path, text in files.items()})
    except OSError as problem:
        reason = (problem.strerror or str(problem)).lower()
        summary = f"cannot write the file: {reason}; nothing was written"
        raise ShardplanError(error("unwritable-output", summary, file=str(problem.filename))) from None


def _differs(path: Path, text: str) -> bool:
    """Whether something else is there."""
    try:
        return path.exists() and path.read_text(encoding="utf-8", errors="replace") != text
    except OSError:
        return True
