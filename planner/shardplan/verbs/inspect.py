"""`shardplan inspect MODEL`: what is in a model, and which operators no rule covers; or its cost graph on a mesh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from shardplan.verbs.asking import MESH, SIZES, budget_option, model_argument, request_options
from shardplan.verbs.inputs import load_model, parse_sizes
from shardplan.verbs.session import EXIT_DONE, STANDARD_OUTPUT, Session, verb


@click.command(short_help="List a model's operators and what no rule covers.")
@model_argument
@request_options(*SIZES)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "graphml"]),
    default="text",
    show_default=True,
    help="A summary; or the cost graph on a mesh, for graph tools.",
)
@request_options(*MESH, "mode")
@click.option("-o", "--output", metavar="FILE", help="File for the cost graph; - is standard output, the default.")
@budget_option
@verb
def inspect(
    session: Session,
    /,
    model: str,
    dims: tuple[str, ...],
    trips: tuple[str, ...],
    pads: tuple[str, ...],
    form: str,
    output: str | None,
    **given: Any,
) -> int:
    """List the operators of MODEL by family, with their share of the work, and those that can only be replicated.

    With --format graphml, write its cost graph: operators and tensors, what their choices cost, and moves between; on
    --mesh of --cluster, for --mode.
    """
    sizes = parse_sizes(dims, trips, pads)
    if form == "graphml":
        return _write_cost_graph(session, model, sizes, output, given)
    if output:
        raise click.UsageError("--output is for --format graphml")
    from shardplan.render.inspect import inspect_document, show_inspection
    from shardplan.render.operator_statistics import operator_statistics

    loaded = load_model(model, sizes)
    for diagnostic in loaded.warnings:
        session.say(diagnostic)
    statistics = operator_statistics(loaded)
    return session.finish(
        inspect_document(loaded, statistics), lambda console: show_inspection(console, loaded, statistics)
    )


def _write_cost_graph(
    session: Session, model: str, sizes: Mapping[str, int], output: str | None, given: Mapping[str, Any]
) -> int:
    if session.as_json:
        raise click.UsageError("--json and --format graphml ask for two things")
    from shardplan.plan.file import write_other
    from shardplan.render.graphml import graphml
    from shardplan.study.cost_graph import cost_graph

    asked = {name: value for name, value in given.items() if value is not None}
    graph = cost_graph(load_model(model, sizes), on_warning=session.say, **asked)
    text = graphml(graph)
    if output not in (None, STANDARD_OUTPUT):
        write_other(text, str(output), "graph")
    else:
        session.write_text(text)
    return EXIT_DONE
