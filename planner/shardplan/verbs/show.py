"""`shardplan show PLAN`: what a plan decides, what it costs, and why it fits."""

from __future__ import annotations

from typing import Any

import click

from shardplan.verbs.asking import budget_option, chosen
from shardplan.verbs.numbers import WholeRange
from shardplan.verbs.reading import shown_plan
from shardplan.verbs.report import check_report, html_option, plan_document, write_report
from shardplan.verbs.session import EXIT_DONE, Session, verb


@click.command(short_help="Print a plan: recipes, moves, time, memory.")
@click.argument("plan", type=click.Path(path_type=str))
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "html", "slapo", "dot", "graphml"]),
    default="text",
    show_default=True,
    help="A summary; a report for a browser; Slapo's table of specs and its schedule; or the graph, for Graphviz or as "
    "GraphML.",
)
@click.option(
    "--all",
    "show_all",
    is_flag=True,
    help="Every parameter group and every move, not only the largest; with --format dot every copy of a block.",
)
@html_option
@click.option(
    "--why",
    metavar="N",
    type=WholeRange(0, 1000),
    default=0,
    help="In the report, alternatives for the N largest groups of parameters and the N tensors with the costliest "
    "moves, each solved again.",
)
@click.option("--model", metavar="MODEL", help="The model of the plan, for --why; by default as the plan records it.")
@budget_option
@verb
def show(session: Session, /, plan: str, form: str, show_all: bool, **about_report: Any) -> int:
    """Print the plan file PLAN: summary, parameters with the recipes they follow, the costliest moves."""
    from shardplan.render.show import show_document, show_plan

    html, why, model = (about_report[name] for name in ("html", "why", "model"))
    if session.as_json and form != "text":
        raise click.UsageError(f"--json and --format {form} ask for two things")
    if why and not (html or form == "html"):
        raise click.UsageError("--why N goes with --html or --format html")
    if not why and chosen({"model": model}):
        raise click.UsageError("--model goes with --why N: nothing else of the report is made from the model")
    check_report(html, plan, model)
    loaded = shown_plan(session, plan)
    if why and loaded.pipeline is not None:
        raise click.UsageError("--why is not for a pipeline: shardplan explain has it for one name")
    if html or form == "html":
        document = plan_document(session, loaded, plan, model, why)
        write_report(session, html, lambda: document)
        if form == "html":
            from shardplan.reports.page import page

            session.write_text(page(document))
            return EXIT_DONE
    if form == "dot":
        from shardplan.render.dot import dot_text

        session.write_text(dot_text(loaded, unfolded=show_all))
        return EXIT_DONE
    if form == "graphml":
        from shardplan.render.graphml import plan_graphml

        session.write_text(plan_graphml(loaded))
        return EXIT_DONE
    if form == "slapo":
        from shardplan.extras.peers.slapo_table import show_slapo

        return session.finish({}, lambda console: show_slapo(console, loaded))
    return session.finish(show_document(loaded), lambda console: show_plan(console, loaded, everything=show_all))
