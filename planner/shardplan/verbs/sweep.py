"""`shardplan sweep MODEL --cluster a,b --mesh 2x8,4x8,auto`: plan every combination, and say which are the best."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import click

from shardplan.errors import Attempts, Diagnostic, ShardplanError, did_you_mean, error, warning
from shardplan.request import AUTO, option_of, term
from shardplan.units import PS_PER_NS, counted
from shardplan.verbs.asking import (
    FIXED,
    SEARCH,
    SIZES,
    ask,
    budget_option,
    model_argument,
    profile_names,
    request_options,
)
from shardplan.verbs.report import check_report, html_option, write_report
from shardplan.verbs.session import (
    EXIT_DONE,
    EXIT_INFEASIBLE,
    EXIT_INTERRUPTED,
    EXIT_LIMIT,
    EXIT_USAGE,
    STANDARD_OUTPUT,
    Session,
    completing,
    option,
    verb,
)

if TYPE_CHECKING:
    from shardplan.graph.options import Remat
    from shardplan.render.progress import Step
    from shardplan.request import Request
    from shardplan.study.sweep import Combination, Point


def _list_option(*names: str, default: tuple[str, ...], **of_option: Any) -> Callable[[Any], Any]:
    """An option that takes several words, split by commas or given again."""
    shown = bool(default)
    return option(*names, multiple=True, default=default, show_default=shown, callback=_joined, **of_option)


def _joined(context: click.Context, of: click.Parameter, value: tuple[str, ...]) -> str:
    joined = ",".join(value)
    if value and not _words(joined):
        raise click.BadParameter("the list is empty", context, of)
    return joined


@click.command(short_help="Plan many combinations, side by side.")
@model_argument
@_list_option(
    "-c",
    "--cluster",
    "clusters",
    metavar="NAME,…",
    default=("h100-dgx",),
    help="Profiles.",
    shell_complete=completing(profile_names),
)
@_list_option(
    "-m",
    "--mesh",
    "meshes",
    metavar="SIZES,…",
    default=(AUTO,),
    help="Meshes by their sizes, such as 2x8,4x8; auto tries those of up to two axes over the profile's devices.",
)
@_list_option("--microbatches", metavar="N,…", default=("1",), help="Equal parts in which the batch runs.")
@_list_option("--remat", "remats", metavar="WORD,…", default=("none",), help="none, selective, alternate, full, auto.")
@_list_option("--stages", metavar="auto|N,…", default=(), help="Pipelines too, of so many stages; 1 is none.")
@request_options(
    "schedule", "mode", "target", *SIZES, "optimizer", "shard_optimizer", "equal_layers", "kv_cache_tokens"
)
@request_options("memory_limit", *FIXED, *SEARCH, "strict")
@option(
    "--engine",
    metavar="local|dask://HOST:PORT",
    default="local",
    show_default=True,
    help="Who plans: processes of this machine, or the workers of a Dask scheduler.",
)
@option("-o", "--output", metavar="FILE", help="Points as they are done; what the file holds is not planned again.")
@option("--plot", metavar="FILE.png", help="Memory over step as a picture.")
@click.option("--all", "show_all", is_flag=True, help="Every point, not only those that are Pareto-optimal.")
@html_option
@budget_option
@verb
def sweep(session: Session, /, **given: Any) -> int:
    """Plan MODEL for every combination of clusters, meshes, microbatches and rematerialisation.

    Exits with 3 when no plan fits, 4 when limits ended every search without one, 2 when every combination is
    refused. Ctrl-C ends it with the points that are planned (exit code 130).
    """
    from shardplan.render.sweep import draw_sweep, show_sweep
    from shardplan.reports.studies import sweep_report
    from shardplan.study.engines import engine_of
    from shardplan.study.sweep import SweepInterrupt, pareto, sweep_record
    from shardplan.study.sweep import sweep as run

    if given["output"] == STANDARD_OUTPUT:
        raise click.UsageError("--output -: points are read again and cannot be in standard output; give it a name")
    attempt = Attempts()
    attempt(lambda: check_report(given["html"], given["output"], given["plot"]))
    combinations = attempt(lambda: _combinations(given))
    attempt(lambda: _check_meshes(_words(given["clusters"]), _words(given["meshes"])))
    engine = attempt(lambda: engine_of(given["engine"]))
    request = attempt(lambda: _request(given))
    attempt.finish()
    assert request is not None
    assert combinations is not None
    assert engine is not None
    session.say_all(_nothing_recomputed(request, combinations))
    told = _Told(session.begin("planning"), len(combinations))
    told.say()
    is_whole = True
    try:
        found = run(request, combinations, engine, given["output"], told.advance)
    except SweepInterrupt as stop:
        found, is_whole = stop.found, False
        _say_interrupted(session, len(found.points), len(combinations), given["output"])
    write_report(session, given["html"], lambda: sweep_report(found))
    best = [point.request for point in pareto(found.points)]
    document = {**sweep_record(found), "pareto": [str(request) for request in best]}
    session.finish(document, lambda console: show_sweep(console, found, everything=given["show_all"]))
    if given["plot"]:
        draw_sweep(found, given["plot"])
    return _exit_code(found.points) if is_whole else EXIT_INTERRUPTED


def _nothing_recomputed(request: Request, combinations: Iterable[Combination]) -> Iterator[Diagnostic]:
    """Warnings about flags of rematerialisation that find nothing to recompute in the model, which was read."""
    from shardplan.graph.options import PlanOptions
    from shardplan.graph.remat import nothing_recomputed
    from shardplan.model.types import Model
    from shardplan.rules import model_rules

    assert isinstance(request.model, Model)
    for remat in dict.fromkeys(one.remat for one in combinations):
        options = PlanOptions(request.mode, remat=cast("Remat", remat))
        yield from nothing_recomputed(request.model, model_rules(request.model), options)


def _say_interrupted(session: Session, done: int, count: int, output: str | None) -> None:
    """Say how many of the points are known. Raises `KeyboardInterrupt` where there are none."""
    every = counted(count, "point")
    kept = f"{output} holds {done} of {every}; the same command goes on" if output else ""
    if not done:
        raise KeyboardInterrupt(kept) from None
    session.say(warning("interrupted", f"interrupted: {kept or f'{done} of {every} were planned'}"))


def _exit_code(points: Iterable[Point]) -> int:
    """Of the best outcome: planned, does not fit, not found in time, refused."""
    outcomes = {point.outcome for point in points}
    codes = {"infeasible": EXIT_INFEASIBLE, "limit": EXIT_LIMIT, "refused": EXIT_USAGE}
    if outcomes - codes.keys():  # a plan, proven or not
        return EXIT_DONE
    return next((code for outcome, code in codes.items() if outcome in outcomes), EXIT_USAGE)


def _request(given: Mapping[str, Any]) -> Request:
    """What all points have in common, with its inputs read."""
    from shardplan.study.instance import as_read, read

    lists = ("clusters", "meshes", "microbatches", "remats", "stages", "html")
    request, faults = ask({name: value for name, value in given.items() if name not in lists})
    if faults:
        read(request, faults)
    request = as_read(request)
    if request.stages is not None and given["stages"]:
        summary = "--stages, and stages in a constraints file: only one can say where to cut"
        raise ShardplanError(error("bad-stages", summary))
    return request


def _combinations(given: Mapping[str, Any]) -> tuple[Combination, ...]:
    """Every combination asked for. Raises `ShardplanError` with every word that is none."""
    from shardplan.study.sweep import all_combinations

    micro, remats = _words(given["microbatches"]), _words(given["remats"])
    stages = _words(given["stages"]) if given["stages"] else ("1",)
    wrong = [
        fault
        for field, words in (("microbatches", micro), ("remat", remats), ("stages", stages))
        for word in words
        for fault in _wrong(field, word)
    ]
    if wrong:
        raise ShardplanError(*wrong)
    staged = ["" if word == "1" else word for word in stages]
    counts = [int(word) for word in micro]
    return all_combinations(_words(given["clusters"]), _words(given["meshes"]), counts, remats, staged)


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


def _wrong(field: str, word: str) -> tuple[Diagnostic, ...]:
    """What is wrong with one word of a list."""
    try:
        term(field).check(option_of(field), word)
    except ShardplanError as problem:
        return problem.diagnostics
    return ()


@dataclass
class _Told:
    """How many of the points are done, said on a terminal with the best of them."""

    tell: Callable[[Step], None]
    total: int
    done: int = 0
    best_us: float = math.inf

    def advance(self, point: Point) -> None:
        """One more point is done."""
        self.done, self.best_us = self.done + 1, min(self.best_us, point.step_us or math.inf)
        self.say()

    def say(self) -> None:
        """Say how far the sweep is."""
        from shardplan.render.progress import Step

        doing = f"{self.done} of {self.total} done"
        self.tell(Step(doing, self.done, self.total - self.done, self.best_us * 1e3 * PS_PER_NS))
