"""`shardplan sweep MODEL --cluster a,b --mesh 2x8,4x8,auto`: plan every combination, and say which are worth having."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from shardplan.errors import ShardplanError, did_you_mean, error
from shardplan.verbs.inputs import (
    Attempts,
    constraint_options,
    dim_option,
    load_model,
    model_argument,
    parse_dims,
    parse_memory_limit,
    profile_names,
    read_all_constraints,
)
from shardplan.verbs.session import EXIT_DONE, EXIT_INFEASIBLE, Session, completing, option, verb

if TYPE_CHECKING:
    from shardplan.study.sweep import Point, Request

AUTO = "auto"


@click.command(short_help="Plan many combinations, side by side.")
@model_argument
@option(
    "-c",
    "--cluster",
    "clusters",
    metavar="NAME,…",
    default="h100-dgx",
    show_default=True,
    help="Profiles.",
    shell_complete=completing(profile_names),
)
@option(
    "-m",
    "--mesh",
    "meshes",
    metavar="SIZES,…",
    default=AUTO,
    show_default=True,
    help="Meshes by their sizes, such as 2x8,4x8; auto tries those of up to two axes over the profile's devices.",
)
@option("--microbatches", metavar="N,…", default="1", show_default=True, help="Equal parts in which the batch runs.")
@option("--remat", "remats", metavar="WORD,…", default="none", show_default=True, help="none, selective, full, auto.")
@option("--stages", metavar="auto|N,…", help="Pipelines too, of so many stages; 1 is none.")
@option("--mode", type=click.Choice(["training", "inference"]), default="training", show_default=True, help="A step.")
@dim_option
@option(
    "--optimizer",
    type=click.Choice(["adam-mixed", "adam-fp32", "sgd", "none"]),
    default="adam-mixed",
    show_default=True,
    help="Whose state is kept, in training.",
)
@option("--memory-limit", metavar="SIZE", help="What a device may use.  [default: the profile's]")
@constraint_options
@option(
    "--engine",
    metavar="local|dask://HOST:PORT",
    default="local",
    show_default=True,
    help="Who plans: processes of this machine, or the workers of a Dask scheduler.",
)
@option("-o", "--output", metavar="FILE", help="Points as they are done; what the file holds is not planned again.")
@option("--plot", metavar="FILE.png", help="Memory over time as a picture.")
@click.option("--all", "show_all", is_flag=True, help="Every point, not only those worth having.")
@verb
def sweep(session: Session, /, **given: Any) -> int:
    """Plan MODEL for every combination of clusters, meshes, microbatches and rematerialisation.

    Exits with 3 when not one plan fits.
    """
    from shardplan.graph.options import PlanOptions
    from shardplan.render.sweep import draw_sweep, show_sweep
    from shardplan.study.engines import engine_of
    from shardplan.study.sweep import pareto, sweep_record
    from shardplan.study.sweep import sweep as run

    attempt = Attempts()
    dims = attempt(lambda: parse_dims(given["dims"]))
    limit = attempt(lambda: parse_memory_limit(given["memory_limit"]))
    requests = attempt(lambda: _requests(given))
    attempt(lambda: _check_meshes(_words(given["clusters"]), _words(given["meshes"])))
    constraints = attempt(lambda: read_all_constraints(given["constraint_files"], given["pins"]))
    engine = attempt(lambda: engine_of(given["engine"]))
    model = attempt(lambda: load_model(given["model"], dims)) if dims is not None else None
    attempt.finish()
    assert model is not None
    assert requests is not None
    assert engine is not None
    options = PlanOptions(
        mode=given["mode"], optimizer=given["optimizer"], memory_limit_bytes=limit, constraints=constraints or ()
    )
    with _Bar(len(requests), enabled=not session.quiet) as bar:
        try:
            found = run(model, options, requests, engine, given["output"], bar.advance)
        except KeyboardInterrupt:
            kept = f"{bar.done} of {len(requests)} points are in {given['output']}: the same command goes on"
            raise KeyboardInterrupt(kept if given["output"] else "") from None
    if given["plot"]:
        draw_sweep(found, given["plot"])
    best = [point.request for point in pareto(found.points)]
    document = {**sweep_record(found), "pareto": [str(request) for request in best]}
    session.finish(document, lambda console: show_sweep(console, found, everything=given["show_all"]))
    return EXIT_DONE if best else EXIT_INFEASIBLE


def _requests(given: Mapping[str, Any]) -> tuple[Request, ...]:
    """Every combination asked for. Raises `ShardplanError` with every word that is none."""
    from typing import get_args

    from shardplan.graph.options import Remat
    from shardplan.study.sweep import all_requests

    micro, remats = _words(given["microbatches"]), _words(given["remats"])
    stages = _words(given["stages"]) if given["stages"] else ("1",)
    wrong = [_wrong("--microbatches", word, "a positive number") for word in micro if not _is_count(word)]
    known = get_args(Remat)
    wrong += [_wrong("--remat", word, f"one of {', '.join(known)}", known) for word in remats if word not in known]
    asked = "auto or a positive number"
    wrong += [_wrong("--stages", word, asked, (AUTO,)) for word in stages if not _is_stages(word)]
    if wrong:
        raise ShardplanError(*wrong)
    staged = ["" if word == "1" else word for word in stages]
    counts = [int(word) for word in micro]
    return all_requests(_words(given["clusters"]), _words(given["meshes"]), counts, remats, staged)


def _check_meshes(clusters: Sequence[str], meshes: Sequence[str]) -> None:
    """Raises `ShardplanError` with every profile that cannot be read, and every mesh that none of them can have."""
    from shardplan.cluster.mesh import make_cluster
    from shardplan.cluster.profile import load_profile

    loading = Attempts()
    read = [loading(functools.partial(load_profile, name)) for name in clusters]
    profiles, problems = [profile for profile in read if profile is not None], loading.problems
    for mesh in meshes:
        attempt = Attempts()
        made = [attempt(functools.partial(make_cluster, profile, mesh)) for profile in profiles if mesh != AUTO]
        if made and not any(made):
            problem, near = attempt.problems[0], did_you_mean(mesh, (AUTO,))
            problems.append(replace(problem, hint=near) if near else problem)
    if problems:
        raise ShardplanError(*problems)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _is_count(word: str) -> bool:
    return word.isascii() and word.isdigit() and int(word) > 0


def _is_stages(word: str) -> bool:
    return word == AUTO or _is_count(word)


def _wrong(name: str, word: str, expected: str, known: Sequence[str] = ()) -> Any:
    hint = did_you_mean(word, known) or "words are separated by commas"
    return error("bad-list", f"{name}: '{word}' is not {expected}", hint=hint)


class _Bar:
    """A bar on standard error while there is a terminal to draw it on."""

    def __init__(self, total: int, *, enabled: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
        console = Console(file=sys.stderr)
        self._progress = Progress(
            *columns, console=console, transient=True, disable=not (enabled and sys.stderr.isatty())
        )
        self._task = self._progress.add_task("planning", total=total)
        self.done = 0

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: Iterable[object]) -> None:
        self._progress.stop()

    def advance(self, point: Point) -> None:
        """One more point is done."""
        self.done += 1
        self._progress.update(self._task, advance=1, description=str(point.request))
