"""`shardplan evaluate MODEL --fix FILE`: what a given assignment costs, with any cost model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from shardplan.errors import ShardplanError, error
from shardplan.verbs.asking import Asking, asking_options
from shardplan.verbs.inputs import (
    Attempts,
    cost_model_option,
    is_plan,
    load_model,
    model_argument,
    parse_memory_limit,
    read_all_constraints,
    read_cost_model,
)
from shardplan.verbs.session import EXIT_DONE, EXIT_INFEASIBLE, Session, verb

if TYPE_CHECKING:
    from shardplan.cluster.types import Cluster
    from shardplan.plan.types import Plan
    from shardplan.study.evaluate import Evaluation

_OF_THE_PLAN = ("mesh", "mode", "dims", "optimizer", "shard_optimizer", "microbatches", "remat", "kv_cache")
"""Options that a plan answers itself."""


@click.command(short_help="Price a given assignment, with any cost model.")
@model_argument
@click.option(
    "--fix",
    "file",
    metavar="FILE",
    help="The assignment: a plan, or constraints as for solve; what these leave open is chosen at least cost.",
)
@click.option("--pin", "pins", metavar="'PATTERN=SPEC'", multiple=True, help="One more constraint; may be repeated.")
@cost_model_option
@asking_options
@click.option("--all", "show_all", is_flag=True, help="Every term, not only the largest.")
@verb
def evaluate(session: Session, /, file: str | None, show_all: bool, **given: Any) -> int:
    """Say what it costs to run MODEL as FILE fixes it, term by term. Nothing is written.

    A plan says itself on which mesh, in which mode and for which sizes it is; --cluster, --memory-limit and
    --cost-model then price it under other conditions. Exits with 3 when the assignment does not fit in memory.
    """
    from shardplan.render.evaluate import evaluation_document, show_evaluation
    from shardplan.study.shares import shares_of

    if file is None and not given["pins"]:
        raise click.UsageError("give the assignment: --fix FILE, or --pin 'PATTERN=SPEC'")
    found = _of_plan(session, file, given) if file and is_plan(file) else _of_constraints(session, file, given)
    shares = shares_of(found.plan)
    source = file or f"{len(given['pins'])} pin{'s' * (len(given['pins']) > 1)}"
    session.finish(
        evaluation_document(found, shares),
        lambda console: show_evaluation(console, found, source, shares, everything=show_all),
    )
    return EXIT_DONE if found.fits else EXIT_INFEASIBLE


def _of_constraints(session: Session, file: str | None, given: dict[str, Any]) -> Evaluation:
    from shardplan.study.evaluate import evaluate_constraints

    attempt = Attempts()
    asking = Asking(given, attempt)
    constraints = attempt(lambda: read_all_constraints([file] if file else [], given["pins"]))
    cost_model = attempt(lambda: read_cost_model(given["cost_model"]))
    attempt.finish()
    asked = asking.finish()
    assert cost_model is not None
    session.say_all((*asked.model.warnings, *asked.cluster.warnings))
    options = replace(asked.options, constraints=constraints or (), cost_model=cost_model)
    return evaluate_constraints(asked.model, asked.cluster, options)


def _of_plan(session: Session, file: str, given: dict[str, Any]) -> Evaluation:
    from shardplan.plan.file import read_plan
    from shardplan.plan.recorded import dims_of, options_of
    from shardplan.study.evaluate import evaluate_plan

    context = click.get_current_context()
    said = {name for name in given if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    if given["pins"]:
        raise click.UsageError("--pin goes with constraints; a plan leaves nothing open")
    if clash := [name for name in _OF_THE_PLAN if name in said]:
        raise click.UsageError(f"--{clash[0].replace('_', '-').removesuffix('s')} is what the plan {file} says")
    attempt = Attempts()
    limit = attempt(lambda: parse_memory_limit(given["memory_limit"]))
    cost_model = attempt(lambda: read_cost_model(given["cost_model"]))
    plan = attempt(lambda: read_plan(file))
    attempt.finish()
    assert plan is not None
    assert cost_model is not None
    if plan.pipeline is not None:
        summary = f"the plan is a pipeline of {len(plan.pipeline.stages)} stages, which cannot be priced anew"
        raise ShardplanError(
            error("pipeline-plan", summary, hint=f"shardplan explain {file} says what it takes", file=file)
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
        memory_limit_bytes=limit or (None if "cluster" in said else options.memory_limit_bytes),
        cost_model=cost_model if "cost_model" in said else options.cost_model,
    )
    return evaluate_plan(model, cluster, options, plan, file)


def _cluster(plan: Plan, file: str, given: str | None) -> Cluster:
    """The plan's cluster, or its mesh on another one."""
    from shardplan.cluster.mesh import make_cluster
    from shardplan.cluster.profile import load_profile
    from shardplan.plan.recorded import cluster_of

    if given is None:
        return cluster_of(plan, file)
    return make_cluster(load_profile(given), ",".join(f"{axis.name}={axis.size}" for axis in plan.mesh.axes))
