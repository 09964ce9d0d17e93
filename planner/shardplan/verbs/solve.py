"""`shardplan solve MODEL --mesh 4x4`: the fastest plan, its proof, and a file."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardplan.errors import InfeasibleError, warning
from shardplan.verbs.asking import Asking, asking_options
from shardplan.verbs.inputs import (
    Attempts,
    constraint_options,
    cost_model_option,
    model_argument,
    name_of_model,
    read_all_constraints,
    read_cost_model,
)
from shardplan.verbs.logical import (
    AUTO,
    Staging,
    mesh_options,
    physical,
    plan_pipeline,
    read_staging,
    search_meshes,
)
from shardplan.verbs.session import EXIT_DONE, EXIT_INTERRUPTED, EXIT_LIMIT, Session, option, verb

if TYPE_CHECKING:
    from shardplan.cluster.types import Cluster
    from shardplan.graph.options import PlanOptions
    from shardplan.layout.mesh import Mesh
    from shardplan.model.types import Model
    from shardplan.plan.types import Plan

STANDARD_OUTPUT = "-"


@click.command(short_help="Find the fastest plan that fits, and write it.")
@model_argument
@asking_options
@mesh_options
@option(
    "-o",
    "--output",
    metavar="FILE",
    help="Where the plan goes; - is standard output.  [default: plans/<model>.<mesh>.plan.json]",
)
@option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Stop then, with the best plan so far.",
)
@option(
    "--gap",
    type=click.FloatRange(min=0, max=1),
    default=0.005,
    show_default=True,
    metavar="SHARE",
    help="Where memory binds, how far from the best possible is near enough.",
)
@option("--seed", type=int, default=0, show_default=True, help="Of the search, where a model is too large for proof.")
@option(
    "--presolve/--no-presolve", default=True, show_default=True, help="Exact reductions before the integer program."
)
@constraint_options
@cost_model_option
@option(
    "--robust",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Then ask what the plan is worth if the profile is wrong: N random draws, and each constant by itself.",
)
@option("--strict", is_flag=True, help="An operator without a sharding rule is an error.")
@option("--require-optimal", is_flag=True, help="Allow no gap, and exit with 4 unless the plan is proven optimal.")
@verb
def solve(session: Session, /, **given: Any) -> int:
    """Find the fastest plan for MODEL that fits in memory, and write it to a file.

    MODEL is an ONNX file, or a transformer described by name and sizes: transformer:llama3-8b,batch=16
    """
    from shardplan.render.progress import ProgressLine
    from shardplan.render.solve import describe_request
    from shardplan.units import Measure

    if session.as_json and given["output"] == STANDARD_OUTPUT:
        raise click.UsageError("--json and --output - both want standard output")
    request = _read_request(given)
    for diagnostic in (*request.model.warnings, *request.cluster.warnings):
        session.say(diagnostic)
    if request.output != STANDARD_OUTPUT:
        session.paint(lambda c: describe_request(c, request.model, request.cluster, request.options, session.defaults))
    also: Mapping[str, Any] = {}
    if given["mesh"] == AUTO:
        request, plan, also = _on_best_mesh(session, request)
    elif request.staging is not None:
        plan = plan_pipeline(session, request.model, request.cluster, request.options, request.staging)
    else:
        measure = Measure(request.options.cost_model.unit)
        with ProgressLine(sys.stderr, enabled=not session.quiet, amount=measure.of_picoseconds) as progress:
            plan = _plan(session, request, progress.update)
    return _deliver(session, request, plan, also, require_optimal=given["require_optimal"])


@dataclass(frozen=True)
class _Request:
    """What was asked for, read and checked."""

    model: Model
    cluster: Cluster
    options: PlanOptions
    output: str
    draws: int = 0
    staging: Staging | None = None


def _read_request(given: Mapping[str, Any]) -> _Request:
    """Read every input; all that is wrong with any of them is raised together."""
    from shardplan.plan.file import check_output

    attempt = Attempts()
    asking = Asking(physical(given), attempt)
    staging = attempt(lambda: read_staging(given))
    kind = ".auto" if given["mesh"] == AUTO else ".stages" if staging else ""
    output = given["output"] or (
        default_output(given["model"], asking.cluster.mesh, kind=kind) if asking.cluster else STANDARD_OUTPUT
    )
    if output != STANDARD_OUTPUT:
        attempt(lambda: check_output(output))
    constraints = attempt(lambda: read_all_constraints(given["constraint_files"], given["pins"]))
    cost_model = attempt(lambda: read_cost_model(given["cost_model"]))
    attempt.finish()
    asked = asking.finish()
    assert cost_model is not None
    options = replace(
        asked.options,
        time_limit=given["time_limit"],
        gap=0.0 if given["require_optimal"] else given["gap"],
        seed=given["seed"],
        presolve=given["presolve"],
        strict=given["strict"],
        constraints=constraints or (),
        cost_model=cost_model,
    )
    return _Request(asked.model, asked.cluster, options, output, given["robust"], staging)


def default_output(model_path: str, mesh: Mesh, *, kind: str = "") -> str:
    """`plans/<model>.<mesh><kind>.plan.json` below the working directory."""
    sizes = "x".join(str(size) for size in mesh.shape)
    return str(Path("plans", f"{name_of_model(model_path)}.{sizes}{kind}.plan.json"))


def _on_best_mesh(session: Session, request: _Request) -> tuple[_Request, Plan, Mapping[str, Any]]:
    """The request on the best logical mesh, the plan, and what a document says of all meshes."""
    from shardplan.plan.recorded import cluster_of
    from shardplan.render.meshes import meshes_record, show_meshes
    from shardplan.study.meshes import best_of

    trials = search_meshes(session, request.model, request.cluster, request.options)
    best = best_of(trials)
    assert best is not None
    assert best.plan is not None
    session.say_all(best.diagnostics)
    if request.output != STANDARD_OUTPUT:
        session.paint(lambda console: show_meshes(console, trials))
    found = replace(request, cluster=cluster_of(best.plan, request.output))
    return found, best.plan, {"meshes": meshes_record(trials)}


def _plan(session: Session, request: _Request, on_progress: Any) -> Plan:
    from shardplan.planning import plan_model

    try:
        return plan_model(request.model, request.cluster, request.options, on_progress, session.say)
    except InfeasibleError as problem:
        from shardplan.plan.encode import infeasible_summary

        limit = request.options.memory_limit_bytes or request.cluster.device.usable_bytes
        session.failure = {"plan": None, "summary": infeasible_summary(limit)}
        raise _with_remedies(session, problem, request) from None


def _with_remedies(session: Session, problem: InfeasibleError, request: _Request) -> InfeasibleError:
    """The same, with a hint that was tried; where constraints are to blame they are all there is to say."""
    from shardplan.study.remedies import find_remedies, remedies_record, remedies_text
    from shardplan.units import Measure

    first, *rest = problem.diagnostics
    remedies = () if first.file else find_remedies(request.model, request.cluster, request.options)
    session.failure = {**(session.failure or {}), "remedies": remedies_record(remedies)}
    if not remedies:
        return problem
    hint = remedies_text(remedies, Measure(request.options.cost_model.unit))
    return InfeasibleError(replace(first, hint=hint), *rest)


def _deliver(session: Session, request: _Request, plan: Plan, also: Mapping[str, Any], *, require_optimal: bool) -> int:
    """Write the plan, say how it stands (in a document `also` this), and choose the exit code."""
    from shardplan.plan.encode import dumps, summary_record
    from shardplan.plan.file import write_text
    from shardplan.render.solve import describe_outcome
    from shardplan.units import Measure

    text = dumps(plan)
    if request.output == STANDARD_OUTPUT:
        sys.stdout.write(text)
    else:
        written, measure = write_text(text, request.output), Measure(request.options.cost_model.unit)
        session.paint(
            lambda console: describe_outcome(
                console,
                plan.summary,
                request.output,
                written=written,
                staged=plan.pipeline is not None,
                measure=measure,
            )
        )
    code = _judge(session, plan, request.options.gap, require_optimal=require_optimal)
    study = _study(session, request, plan) if request.draws else {}
    if session.as_json:
        session.write_document({"plan": request.output, "summary": summary_record(plan.summary), **also, **study})
    return code


def _study(session: Session, request: _Request, plan: Plan) -> Mapping[str, Any]:
    """What the plan, which is written by now, is worth under other constants; what a document says of it."""
    from shardplan.render.sensitivity import describe_sensitivity, sensitivity_record
    from shardplan.study.robust import robustness

    found = robustness(request.model, request.cluster, request.options, plan, request.draws)
    if request.output != STANDARD_OUTPUT:
        session.paint(lambda console: describe_sensitivity(console, found))
    return {"robustness": sensitivity_record(found)}


def _judge(session: Session, plan: Plan, gap: float, *, require_optimal: bool) -> int:
    """The exit code of a plan that was found, with a warning where it may be further from the best one than was said
    to be near enough."""
    summary = plan.summary
    if summary.outcome == "optimal":
        return EXIT_DONE
    within = f"its optimality gap is {100 * summary.slack:.2f} %"
    if summary.outcome == "interrupted":
        session.say(warning("interrupted", f"interrupted: the plan is the best found so far; {within}"))
        return EXIT_INTERRUPTED
    if require_optimal or summary.slack > gap:
        session.say(warning("not-optimal", f"the plan is not proven optimal; {within}"))
    return EXIT_LIMIT if require_optimal else EXIT_DONE
