"""`shardplan show PLAN`: what a plan decides, what it costs, and why it fits."""

from __future__ import annotations

import click

from shardplan.verbs.session import Session, verb


@click.command(short_help="Print a plan: recipes, moves, time, memory.")
@click.argument("plan", type=click.Path(path_type=str))
@click.option("--all", "show_all", is_flag=True, help="Every parameter group and every move, not only the largest.")
@verb
def show(session: Session, /, plan: str, show_all: bool) -> int:
    """Print the plan file PLAN: summary, parameters with the recipes they follow, the costliest moves."""
    from shardplan.plan.file import read_plan  # noqa: PLC0415
    from shardplan.render.show import show_document, show_plan  # noqa: PLC0415

    loaded = read_plan(plan)
    return session.finish(show_document(loaded), lambda console: show_plan(console, loaded, everything=show_all))
