"""`shardplan compare MODEL --mesh 4x4`: data parallel, ZeRO-3, Megatron and the best plan, side by side."""

from __future__ import annotations

from typing import Any

import click

from shardplan.verbs.asking import Asking, asking_options
from shardplan.verbs.inputs import Attempts, model_argument
from shardplan.verbs.session import EXIT_DONE, EXIT_INFEASIBLE, Session, verb


@click.command(short_help="Set plans that people write by hand beside the best one.")
@model_argument
@asking_options
@verb
def compare(session: Session, /, **given: Any) -> int:
    """Plan MODEL as people do by hand (data parallel, ZeRO-3, Megatron), and as well as possible.

    Each is solved by the same engine at the same prices; what a recipe leaves open is chosen best. Exits with 3 when
    not even the best plan fits in memory.
    """
    from shardplan.render.compare import comparison_document, show_comparison
    from shardplan.render.solve import describe_request
    from shardplan.study.compare import compare_recipes

    attempt = Attempts()
    asking = Asking(given, attempt)
    attempt.finish()
    asked = asking.finish()
    session.say_all((*asked.model.warnings, *asked.cluster.warnings))
    session.paint(lambda c: describe_request(c, asked.model, asked.cluster, asked.options, session.defaults))
    found = compare_recipes(asked.model, asked.cluster, asked.options)
    limit = asked.options.memory_limit_bytes or asked.cluster.device.usable_bytes
    session.finish(comparison_document(found, limit), lambda console: show_comparison(console, found, limit))
    return EXIT_DONE if found[-1].fits else EXIT_INFEASIBLE
