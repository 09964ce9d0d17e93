"""`shardplan evaluate MODEL --fix FILE`: what a given assignment costs, with any cost model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from shardplan.errors import Attempts, ShardplanError, error
from shardplan.request import option_of
from shardplan.text_files import in_shell
from shardplan.units import counted, size
from shardplan.verbs.asking import (
    ASKED,
    WORKLOAD,
    ask,
    budget_option,
    chosen,
    model_argument,
    read_request,
    request_options,
)
from shardplan.verbs.session import EXIT_DONE, EXIT_INFEASIBLE, Session, verb

if TYPE_CHECKING:
    from shardplan.cluster.types import Cluster
    from shardplan.graph.options import PlanOptions
    from shardplan.plan.types import Plan
    from shardplan.study.evaluate import Evaluation
    from shardplan.verbs.session import OnStanding


_HINT = "shardplan solve finds one that fits, if there is any, and says what would help"


@click.command(short_help="Price a given assignment, with any cost model.")
@model_argument
@click.option(
    "--fix",
    "file",
    metavar="FILE",
    help="The assignment: a plan, or constraints as for solve; what these leave open is chosen at least cost.",
)
@request_options("pins", "cost_model", *WORKLOAD)
@click.option("--all", "show_all", is_flag=True, help="Every term, not only the largest.")
@budget_option
@verb
def evaluate(session: Session, /, file: str | None, show_all: bool, **given: Any) -> int:
    """Say what it costs to run MODEL as FILE fixes it, term by term. Nothing is written.

    A plan names its own mesh, mode and sizes; --cluster, --memory-limit and
    --cost-model then price it under other conditions. Exits with 3 when the assignment does not fit in memory.
    """
    from shardplan.render.evaluate import evaluation_document, show_evaluation
    from shardplan.study.instance import is_plan
    from shardplan.study.shares import shares_of

    if file is None and not given["pins"]:
        raise click.UsageError("give the assignment: --fix FILE, or --pin 'PATTERN=SPEC'")
    found = _of_plan(session, file, given) if file and is_plan(file) else _of_constraints(session, file, given)
    shares = shares_of(found.plan)
    source = file or f"{counted(len(given['pins']), 'pin')}"
    if not found.fits:
        summary = f"the assignment does not fit in memory: {size(found.over_bytes)} too much"
        session.say(error("infeasible", summary, hint=_HINT))
    session.finish(
        evaluation_document(found, shares),
        lambda console: show_evaluation(console, found, source, shares, everything=show_all),
    )
    return EXIT_DONE if found.fits else EXIT_INFEASIBLE


def _of_constraints(session: Session, file: str | None, given: Mapping[str, Any]) -> Evaluation:
    from shardplan.study.evaluate import evaluate_constraints

    attempt = Attempts()
    instance = read_request(given, attempt, constraints=(file,) if file else ())
    attempt.finish()
    assert instance is not None
    if instance.staging is not None:
        summary = "stages cannot be evaluated: what is priced here is one mesh"
        raise ShardplanError(error("bad-stages", summary, hint="shardplan solve plans the stages", file=file))
    session.say_all((*instance.model.warnings, *instance.cluster.warnings))
    return evaluate_constraints(instance.model, instance.cluster, instance.options, _pricing(session, instance.options))


def _of_plan(session: Session, file: str, given: Mapping[str, Any]) -> Evaluation:
    from shardplan.cost.named import parse_cost_model
    from shardplan.plan.file import read_plan
    from shardplan.plan.recorded_request import dims_of, options_of
    from shardplan.study.evaluate import evaluate_plan
    from shardplan.study.instance import load_model

    said = chosen(given)
    if given["pins"]:
        raise click.UsageError("--pin goes with constraints; a plan leaves nothing open")
    if clash := [name for name in ("mesh", *ASKED) if name in said]:
        raise click.UsageError(f"leave {option_of(clash[0])} out: the plan {file} fixes it")
    attempt = Attempts()
    request, faults = ask(given)
    attempt.problems += (fault for found in faults.values() for fault in found)
    cost_model = attempt(lambda: parse_cost_model(request.cost_model))
    plan = attempt(lambda: read_plan(file))
    attempt.finish()
    assert plan is not None
    assert cost_model is not None
    assert not isinstance(request.memory_limit, str)
    if plan.pipeline is not None:
        summary = f"the plan is a pipeline of {len(plan.pipeline.stages)} stages, which cannot be priced anew"
        raise ShardplanError(
            error("pipeline-plan", summary, hint=f"shardplan explain {in_shell(file)} says what it takes", file=file)
        )
    options = options_of(plan, file)
    model = attempt(lambda: load_model(given["model"], dims_of(plan)))
    cluster = attempt(lambda: _cluster(plan, file, given["cluster"] if "cluster" in said else None))
    attempt.finish()
    assert model is not None
    assert cluster is not None
    session.say_all((*model.warnings, *cluster.warnings))
    options = replace(
        options,
        memory_limit_bytes=request.memory_limit or (None if "cluster" in said else options.memory_limit_bytes),
        cost_model=cost_model if "cost_model" in said else options.cost_model,
    )
    return evaluate_plan(model, cluster, options, plan, file, _pricing(session, options))


def _pricing(session: Session, options: PlanOptions) -> OnStanding:
    from shardplan.units import Measure

    return session.begin("pricing", Measure(options.cost_model.unit).of_picoseconds)


def _cluster(plan: Plan, file: str, given: str | None) -> Cluster:
    """The plan's cluster, or its mesh on another one."""
    from shardplan.cluster.mesh import make_cluster
    from shardplan.cluster.profile import load_profile
    from shardplan.plan.recorded_request import cluster_of

    if given is None:
        return cluster_of(plan, file)
    return make_cluster(load_profile(given), plan.mesh.argument)
