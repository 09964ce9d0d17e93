"""`shardplan solve MODEL --mesh 4x4`: the fastest plan, its proof, and a file."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardplan.errors import Attempts, InfeasibleError, NoneFitsError, ShardplanError, warning
from shardplan.interruption import Interruption
from shardplan.units import PS_PER_NS, percent
from shardplan.verbs.asking import (
    DRAWS,
    FIXED,
    PIPELINE,
    SEARCH,
    WORKLOAD,
    budget_option,
    model_argument,
    read_request,
    request_options,
)
from shardplan.verbs.report import check_report, html_option, write_report
from shardplan.verbs.session import EXIT_DONE, EXIT_INTERRUPTED, EXIT_LIMIT, STANDARD_OUTPUT, Session, option, verb

if TYPE_CHECKING:
    from shardplan.errors import Diagnostic
    from shardplan.layout.mesh import Mesh
    from shardplan.plan.types import Plan
    from shardplan.study.instance import ReadRequest
    from shardplan.study.solve import Solved
    from shardplan.units import Measure

_MOST_PROCESSES = 4
"""Number of processes that search logical meshes in parallel: each holds the model and its tables."""


@click.command(short_help="Find the fastest plan that fits, and write it.")
@model_argument
@request_options(*WORKLOAD, *PIPELINE, "uneven")
@option(
    "-o",
    "--output",
    metavar="FILE",
    help="Where the plan goes; - is standard output.  [default: plans/<model>.<mesh>.plan.json]",
)
@request_options(*SEARCH, "start", *FIXED, "cost_model")
@option(
    "--robust",
    type=DRAWS,
    default=0,
    metavar="N",
    help="Sensitivity analysis: whether the plan stays optimal when the profile is wrong, in N random draws and for "
    "each constant by itself.",
)
@request_options("strict")
@option(
    "--advice/--no-advice",
    default=True,
    show_default=True,
    help="Also say if a size rounded up, fewer devices or --shard-optimizer would make the step more than 2 % shorter.",
)
@option("--require-optimal", is_flag=True, help="Allow no gap, and exit with 4 unless the plan is proven optimal.")
@html_option
@budget_option
@verb
def solve(session: Session, /, **given: Any) -> int:
    """Find the fastest plan for MODEL that fits in memory, and write it to a file.

    MODEL is an ONNX file, a function that builds a torch module and its batch (my_pkg.module:build), a config.json of
    Hugging Face, or a transformer described by name and sizes (transformer:llama3-8b,batch=16).
    """
    from shardplan.render.solve import describe_request

    if session.as_json and given["output"] == STANDARD_OUTPUT:
        raise click.UsageError("--json and --output - both want standard output")
    order = _read(given)
    instance = order.instance
    session.say_all((*instance.model.warnings, *instance.cluster.warnings))
    if not order.is_piped:
        asked = (instance.model, instance.cluster, instance.options)
        session.tell(lambda console: describe_request(console, *asked, session.defaults))
    with Interruption() as interruption:
        answer = _answer(session, order)
        interruption.arm()  # the plan is written, whoever is in a hurry
        _write(session, order, answer)
    return _deliver(session, order, answer, require_optimal=given["require_optimal"])


@dataclass(frozen=True)
class _Order:
    """What is planned, where the plan goes, and how many draws tell what it is worth."""

    instance: ReadRequest
    output: str
    draws: int = 0
    html: str | None = None
    advice: bool = False

    @property
    def is_piped(self) -> bool:
        return self.output == STANDARD_OUTPUT


def _read(given: Mapping[str, Any]) -> _Order:
    """Read every input; all that is wrong with any of them is raised together."""
    from shardplan.plan.file import check_output

    attempt = Attempts()
    strict = {"gap": 0.0} if given["require_optimal"] else {}
    instance = read_request(given, attempt, **strict)
    output = given["output"]
    if output is None and instance is not None:
        output = _default_output(given["model"], instance)
    if output not in (None, STANDARD_OUTPUT):
        attempt(lambda: check_output(output))
    attempt(lambda: check_report(given["html"], output))
    if given["robust"] and instance is not None and instance.staging is not None:
        from shardplan.study.sensitivity import NOT_OF_A_PIPELINE

        attempt.problems.append(NOT_OF_A_PIPELINE)
    attempt.finish()
    assert instance is not None
    return _Order(instance, output, given["robust"], given["html"], given["advice"])


def _default_output(model: str, instance: ReadRequest) -> str:
    kind = ".auto" if instance.is_auto else ".stages" if instance.staging else ""
    return default_output(model, instance.cluster.mesh, kind=kind)


def default_output(model_path: str, mesh: Mesh, *, kind: str = "") -> str:
    """`plans/<model>.<mesh><kind>.plan.json` below the working directory."""
    sizes = "x".join(str(size) for size in mesh.shape)
    from shardplan.models import title_of_model

    return str(Path("plans", f"{title_of_model(model_path)}.{sizes}{kind}.plan.json"))


def _answer(session: Session, order: _Order) -> Solved:
    """The plan. Where it is proven that there is none, a document says what was asked and what would help."""
    from shardplan.plan.format.encode import infeasible_summary
    from shardplan.processes import processors
    from shardplan.render.meshes import meshes_record
    from shardplan.study.solve import NoMeshError
    from shardplan.study.solve import solve as find
    from shardplan.units import Measure

    instance = order.instance
    measure = Measure(instance.options.cost_model.unit)
    workers = min(processors(), _MOST_PROCESSES)
    alone = instance.staging is None and not instance.is_auto
    asked, instance = instance, _by_now(instance, session)
    try:
        on_progress = session.begin("solving", measure.of_picoseconds, keeps=True)
        return find(instance, on_progress, lambda said: _hear(session, order, said), processes=workers)
    except NoMeshError as problem:
        session.failure = {"plan": None, "meshes": meshes_record(problem.trials)}
        raise
    except NoneFitsError:
        raise
    except InfeasibleError as problem:
        session.failure = {"plan": None, "summary": infeasible_summary(instance.limit_bytes)}
        if alone:
            raise _with_remedies(session, problem, asked) from None
        raise


def _hear(session: Session, order: _Order, said: Diagnostic) -> None:
    """Say what the search says: what it starts from is part of the request, as its model is."""
    from shardplan.render.solve import describe_start

    if said.code != "start" or order.is_piped:
        session.say(said)
        return
    session.diagnostics.append(said)
    session.tell(lambda console: describe_start(console, said))


def _by_now(instance: ReadRequest, session: Session) -> ReadRequest:
    """The same with what is left of the time limit, of which reading has taken its part."""
    limit = instance.options.time_limit
    if limit is None:
        return instance
    from shardplan.study.constants import LEAST_SEARCH_S

    left = max(LEAST_SEARCH_S, limit - (time.monotonic() - session.started_s))
    return replace(instance, options=replace(instance.options, time_limit=left))


def _has_no_time(session: Session, instance: ReadRequest) -> bool:
    """Whether the time limit has passed: what a plan is worth is not asked then."""
    limit = instance.options.time_limit
    return limit is not None and time.monotonic() - session.started_s >= limit


def _with_remedies(session: Session, problem: InfeasibleError, instance: ReadRequest) -> InfeasibleError:
    """The same, with a hint that was tried; where constraints are to blame they are all there is to say."""
    from shardplan.study.remedies import find_remedies, remedies_record, remedies_text
    from shardplan.units import Measure

    first, *rest = problem.diagnostics
    asked = _by_now(instance, session)
    on_progress = session.begin("nothing fits; trying changes", keeps=True)
    remedies = () if first.file else find_remedies(asked.model, asked.cluster, asked.options, on_progress)
    session.failure = {**(session.failure or {}), "remedies": remedies_record(remedies)}
    if not remedies:
        return problem
    hint = remedies_text(remedies, Measure(instance.options.cost_model.unit))
    return InfeasibleError(replace(first, hint=hint), *rest)


def _write(session: Session, order: _Order, answer: Solved) -> None:
    """Write the plan and say how it stands."""
    from shardplan.plan.file import write_text
    from shardplan.plan.format.encode import dumps
    from shardplan.render.meshes import show_meshes
    from shardplan.render.solve import describe_outcome
    from shardplan.units import Measure

    plan, text = answer.plan, dumps(answer.plan)
    if order.is_piped:
        session.write_text(text)
    else:
        measure = Measure(order.instance.options.cost_model.unit)
        replaced = _replaced(order.output, plan, measure)
        written = write_text(text, order.output)
        if answer.trials:
            session.tell(lambda console: show_meshes(console, answer.trials))
        session.tell(
            lambda console: describe_outcome(
                console, plan, order.output, written=written, measure=measure, replaced=replaced if written else ""
            )
        )


def _deliver(session: Session, order: _Order, answer: Solved, *, require_optimal: bool) -> int:
    """What follows from a plan that is written: its report, the study of what it is worth, the exit code."""
    from shardplan.plan.format.encode import summary_record
    from shardplan.render.meshes import meshes_record

    plan, studies = answer.plan, _Studies(session, order)
    limits = studies(lambda: _limits(session, order, answer))
    write_report(session, order.html, lambda: _report(order, answer))
    code = _judge(session, plan, order.instance.options.gap, require_optimal=require_optimal)
    study = studies(lambda: _study(session, order, answer)) if order.draws else {}
    study = {**studies(lambda: _advice(session, order, answer)), **study}
    code = EXIT_INTERRUPTED if studies.stopped else code
    if session.as_json:
        meshes = {"meshes": meshes_record(answer.trials)} if answer.trials else {}
        document = {"plan": order.output, "summary": summary_record(plan.summary), **meshes, **limits, **study}
        session.write_document(document)
    return code


@dataclass
class _Studies:
    """Studies of a plan that is written: Ctrl-C ends the current one and those that would follow."""

    session: Session
    order: _Order
    stopped: bool = False

    def __call__(self, study: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        if self.stopped:
            return {}
        try:
            return study()
        except KeyboardInterrupt:
            self.stopped = True
            written = "the plan" if self.order.is_piped else self.order.output
            summary = f"interrupted: {written} is written; what else was asked about it is not computed"
            self.session.say(warning("interrupted", summary))
            return {}


def _limits(session: Session, order: _Order, answer: Solved) -> Mapping[str, Any]:
    """What the runtime that the plan is for costs, said and for a document; nothing where any plan would do."""
    from shardplan.render.solve import describe_limits
    from shardplan.study.target_limits import limits_of
    from shardplan.units import Measure

    if not order.instance.options.target or _has_no_time(session, order.instance):
        return {}
    measure = Measure(order.instance.options.cost_model.unit)
    on_progress = session.begin("planning without a runtime's limits", measure.of_picoseconds)
    found = limits_of(_by_now(order.instance, session), answer, on_progress)
    if found is None:
        return {}
    if not order.is_piped:
        session.tell(lambda console: describe_limits(console, found))
    return {"limits": found.record()}


def _replaced(path: str, plan: Plan, measure: Measure) -> str:
    """What the plan in a file was for, where that is another model, cluster or mesh, or that it was faster; empty where
    nothing is lost."""
    from shardplan.plan.file import read_plan, read_subject

    try:
        model, cluster, mesh = read_subject(path)
        if (model, cluster, mesh) != (plan.model.get("name"), plan.cluster.get("name"), plan.mesh):
            return f"it replaces the plan for {model} on {cluster} ({mesh})"
        old = read_plan(path)
    except ShardplanError:
        return ""
    is_same = (old.model, old.cluster.get("digest")) == (plan.model, plan.cluster.get("digest"))
    limits = old.summary.memory_limit_bytes, plan.summary.memory_limit_bytes
    if not is_same or limits[0] > limits[1] or old.summary.step_ns >= plan.summary.step_ns:
        return ""
    step = measure.apart(old.summary.step_ns, plan.summary.step_ns)[0]
    return f"it replaces a plan for the same with a step of {step}: --start FILE makes none slower than that in FILE"


def _report(order: _Order, answer: Solved) -> Mapping[str, Any]:
    """The plan's report, with the meshes that it was chosen from."""
    from shardplan.reports.plan import plan_report
    from shardplan.reports.studies import with_meshes

    report = plan_report(answer.plan, "" if order.is_piped else order.output)
    return with_meshes(report, answer.trials) if answer.trials else report


def _study(session: Session, order: _Order, answer: Solved) -> Mapping[str, Any]:
    """What the plan, which is written by now, is worth under other constants; what a document says of it."""
    from shardplan.planning.standing import Standing
    from shardplan.render.sensitivity import describe_sensitivity, sensitivity_record
    from shardplan.study.sensitivity import robustness

    instance = order.instance
    told = session.begin("trying other constants")

    def tell(done: int, left: int) -> None:
        told(Standing(math.inf, -math.inf, doing=f"{done} of at most {done + left} tried", done=done, left=left))

    found = robustness(answer.model, answer.cluster, instance.options, answer.plan, order.draws, tell)
    if not order.is_piped:
        session.tell(lambda console: describe_sensitivity(console, found))
    return {"robustness": sensitivity_record(found)}


def _advice(session: Session, order: _Order, answer: Solved) -> Mapping[str, Any]:
    """What would be faster than the plan, which is written by now; what a document says of it."""
    from shardplan.advice.advise import advise
    from shardplan.planning.standing import Standing
    from shardplan.render.advice import advice_record, describe_advice

    if not order.advice or order.is_piped:
        return {}
    instance = _by_now(order.instance, session)
    left_s = math.inf if instance.options.time_limit is None else instance.options.time_limit
    summary = answer.plan.summary
    stands = Standing(summary.step_ns * PS_PER_NS, summary.least_ns * PS_PER_NS)
    told = session.begin("trying", keeps=True)
    told(replace(stands, doing="other sizes"))
    found = advise(
        answer.model, answer.cluster, order.instance.options, answer.plan, left_s,
        on_try=lambda what: told(replace(stands, doing=what)),
    )  # fmt: skip
    if found:
        session.tell(lambda console: describe_advice(console, found))
    return {"advice": advice_record(found)}


def _judge(session: Session, plan: Plan, gap: float, *, require_optimal: bool) -> int:
    """The exit code of a plan that was found, with a warning where it may be further from the best one than was said
    to be near enough."""
    summary = plan.summary
    if summary.outcome == "optimal":
        return EXIT_DONE
    within = f"its optimality gap is {percent(summary.slack)}"
    if summary.outcome == "interrupted":
        session.say(warning("interrupted", f"interrupted: the plan is the best found so far; {within}"))
        return EXIT_INTERRUPTED
    if require_optimal or summary.slack > gap:
        session.say(warning("not-optimal", f"the plan is not proven optimal; {within}"))
    return EXIT_LIMIT if require_optimal else EXIT_DONE
