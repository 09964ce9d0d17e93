"""`shardplan compare MODEL --mesh 4x4`: data parallel, ZeRO-3, Megatron and the best plan, side by side."""

from __future__ import annotations

from typing import Any

import click

from shardplan.errors import Attempts, error, warning
from shardplan.units import counted
from shardplan.verbs.asking import WORKLOAD, budget_option, model_argument, read_request, request_options
from shardplan.verbs.report import check_report, html_option, write_report
from shardplan.verbs.session import EXIT_DONE, EXIT_INFEASIBLE, EXIT_INTERRUPTED, Session, verb

_HINT = "shardplan solve says how much is missing, and what would help"


@click.command(short_help="Set plans that people write by hand beside the best one.")
@model_argument
@request_options(*WORKLOAD)
@html_option
@budget_option
@verb
def compare(session: Session, /, **given: Any) -> int:
    """Plan MODEL by the recipes that people write by hand (data parallel, ZeRO-3, Megatron), and without any.

    Each is solved by the same engine at the same prices, with every operator split by the batch on the axes of data
    parallelism; what a recipe leaves open is optimised. Exits with 3 when
    not even the best plan fits in memory. Ctrl-C ends it with the plans that are known (exit code 130).
    """
    from shardplan.planning.instance import above_device
    from shardplan.render.compare import comparison_document, show_comparison
    from shardplan.render.solve import describe_request
    from shardplan.reports.studies import comparison_report
    from shardplan.study.compare import compare_recipes

    attempt = Attempts()
    html = given.pop("html")
    attempt(lambda: check_report(html))
    instance = read_request(given, attempt)
    attempt.finish()
    assert instance is not None
    model, cluster, options = instance.model, instance.cluster, instance.options
    session.say_all((*model.warnings, *cluster.warnings, *above_device(options.memory_limit_bytes, cluster)))
    session.paint(lambda console: describe_request(console, model, cluster, options, session.defaults))
    found = compare_recipes(model, cluster, options, session.begin("comparing"))
    limit = instance.limit_bytes
    is_whole = all(one.is_computed for one in found)
    if is_whole and not found[-1].fits:
        session.say(error("infeasible", "not even the best plan fits in memory", hint=_HINT))
    if not is_whole:
        known = sum(one.is_computed for one in found)
        session.say(warning("interrupted", f"interrupted: {known} of {counted(len(found), 'plan')} were computed"))
    title = f"{model.name} on {cluster.name} ({cluster.mesh})"
    write_report(session, html, lambda: comparison_report(title, found, limit))
    session.finish(comparison_document(found, limit), lambda console: show_comparison(console, found, limit))
    if not is_whole:
        return EXIT_INTERRUPTED
    return EXIT_DONE if found[-1].fits else EXIT_INFEASIBLE
