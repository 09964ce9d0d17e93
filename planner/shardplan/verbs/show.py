"""`shardplan show PLAN`: what a plan decides, what it costs, and why it fits."""

from __future__ import annotations

import click

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
@click.option("--all", "show_all", is_flag=True, help="Every parameter group and every move, not only the largest.")
@html_option
@verb
def show(session: Session, /, plan: str, form: str, html: str | None, show_all: bool) -> int:
    """Print the plan file PLAN: summary, parameters with the recipes they follow, the costliest moves."""
    from shardplan.plan.file import read_plan
    from shardplan.render.show import show_document, show_plan

    if session.as_json and form != "text":
        raise click.UsageError(f"--json and --format {form} ask for two things")
    check_report(html, plan)
    loaded = read_plan(plan)
    write_report(session, html, lambda: plan_document(loaded, plan))
    if form == "html":
        from shardplan.report.page import page

        session.write_text(page(plan_document(loaded, plan)))
        return EXIT_DONE
    if form == "dot":
        from shardplan.render.dot import dot_text

        session.write_text(dot_text(loaded))
        return EXIT_DONE
    if form == "graphml":
        from shardplan.render.graphml import plan_graphml

        session.write_text(plan_graphml(loaded))
        return EXIT_DONE
    if form == "slapo":
        from shardplan.extras.peers.slapo_table import show_slapo

        return session.finish({}, lambda console: show_slapo(console, loaded))
    return session.finish(show_document(loaded), lambda console: show_plan(console, loaded, everything=show_all))
