"""`shardplan inspect MODEL`: what is in a model, and which operators no rule covers."""

from __future__ import annotations

import click

from shardplan.verbs.inputs import dim_option, load_model, model_argument, parse_dims
from shardplan.verbs.session import Session, verb


@click.command(short_help="List a model's operators and what no rule covers.")
@model_argument
@dim_option
@verb
def inspect(session: Session, /, model: str, dims: tuple[str, ...]) -> int:
    """List the operators of MODEL by family, their share of the work, and what can only be replicated."""
    from shardplan.render.census import take_census
    from shardplan.render.inspect import inspect_document, show_inspection

    loaded = load_model(model, parse_dims(dims))
    for diagnostic in loaded.warnings:
        session.say(diagnostic)
    census = take_census(loaded)
    return session.finish(inspect_document(loaded, census), lambda console: show_inspection(console, loaded, census))
