"""`shardplan inspect MODEL`: what is in a model, and which operators no rule covers; or its cost graph on a mesh."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from shardplan.verbs.inputs import dim_option, load_model, model_argument, parse_dims, profile_names
from shardplan.verbs.session import EXIT_DONE, Session, completing, option, verb

if TYPE_CHECKING:
    from shardplan.graph.options import Mode


@click.command(short_help="List a model's operators and what no rule covers.")
@model_argument
@dim_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "graphml"]),
    default="text",
    show_default=True,
    help="A summary; or the cost graph on a mesh, for graph tools.",
)
@option("-m", "--mesh", metavar="SIZES", help="Of the cost graph: 4x4 or machine=4,gpu=4.  [default: the profile's]")
@option(
    "-c",
    "--cluster",
    metavar="NAME|FILE",
    shell_complete=completing(profile_names, files=True),
    default="h100-dgx",
    show_default=True,
    help="Of the cost graph: a shipped profile or a YAML file.",
)
@option(
    "--mode",
    type=click.Choice(["training", "inference"]),
    default="training",
    show_default=True,
    help="Of the cost graph: what one step is.",
)
@click.option("-o", "--output", metavar="FILE", help="File for the cost graph.  [default: standard output]")
@verb
def inspect(
    session: Session,
    /,
    model: str,
    dims: tuple[str, ...],
    form: str,
    mesh: str | None,
    cluster: str,
    mode: Mode,
    output: str | None,
) -> int:
    """List the operators of MODEL by family, their share of the work, and what can only be replicated.

    With --format graphml, write its cost graph: operators and tensors, what their choices cost, and moves between.
    """
    if form == "graphml":
        return _write_cost_graph(session, model, dims, output, mesh=mesh, cluster=cluster, mode=mode)
    if output:
        raise click.UsageError("--output is for --format graphml")
    from shardplan.render.inspect import inspect_document, show_inspection
    from shardplan.render.operator_statistics import operator_statistics

    loaded = load_model(model, parse_dims(dims))
    for diagnostic in loaded.warnings:
        session.say(diagnostic)
    statistics = operator_statistics(loaded)
    return session.finish(
        inspect_document(loaded, statistics), lambda console: show_inspection(console, loaded, statistics)
    )


def _write_cost_graph(
    session: Session,
    model: str,
    dims: tuple[str, ...],
    output: str | None,
    *,
    mesh: str | None,
    cluster: str,
    mode: Mode,
) -> int:
    if session.as_json:
        raise click.UsageError("--json and --format graphml ask for two things")
    from shardplan.cost_graph import cost_graph
    from shardplan.plan.file import write_other
    from shardplan.render.graphml import graphml

    loaded = load_model(model, parse_dims(dims))
    graph = cost_graph(loaded, mesh, cluster=cluster, mode=mode, on_warning=session.say)
    text = graphml(graph)
    if output:
        write_other(text, output, "graph")
    else:
        sys.stdout.write(text)
    return EXIT_DONE
