"""`shardplan explain PLAN [NAME]`: what takes the time, and why this and not that."""

from __future__ import annotations

from dataclasses import replace

import click

from shardplan.verbs.asking import budget_option
from shardplan.verbs.reading import shown_plan
from shardplan.verbs.session import Session, verb


@click.command(short_help="Say what takes the time, or why a tensor has its layout.")
@click.argument("plan", type=click.Path(path_type=str))
@click.argument("name", required=False)
@click.option(
    "--model",
    metavar="MODEL",
    help="The model of the plan, as given to solve; by default as the plan records it.",
)
@click.option(
    "--instead",
    metavar="SPEC",
    help="Plan with NAME so, as --pin writes it, such as '[null, gpu]' or '{gpu: n}', and say what would change.",
)
@click.option("--all", "show_all", is_flag=True, help="With --instead: every change, not only the largest.")
@budget_option
@verb
def explain(
    session: Session, /, plan: str, name: str | None, model: str | None, instead: str | None, *, show_all: bool
) -> int:
    """Say what takes the time of a step; or, with NAME, why that tensor or operator has its layout.

    NAME is a weight's name in the checkpoint, a value or an operator of the graph, a pattern such as
    'layers.*.up.weight', or a line of what `show` and `explain` print, such as 'layers.*.up (MatMul)'. Each
    alternative is solved again with everything else free, so its price is exact.
    """
    from shardplan.plan.recorded_request import require_model
    from shardplan.render.explain import explain_document, show_explanation, show_shares
    from shardplan.study.freshness import model_of
    from shardplan.study.shares import shares_of

    if instead is not None and name is None:
        raise click.UsageError("--instead says how NAME is to be: which one?")
    loaded = shown_plan(session, plan)
    if name is None:
        if model is not None:
            require_model(loaded, model_of(loaded, plan, model), plan)
        shares = shares_of(loaded)
        document = explain_document(loaded, None, shares, None)
        return session.finish(document, lambda console: show_shares(console, loaded, shares))
    from shardplan.study.explain import as_of_step, described
    from shardplan.study.explain import explain as explain_name

    whole = model_of(loaded, plan, model)
    subject, file, part, label = loaded, plan, whole, ""
    if loaded.pipeline is not None:
        from shardplan.program.machine.pipeline import stage_of

        subject, file, part = stage_of(whole, loaded, plan, name)
        stage = next(stage for stage in loaded.pipeline.stages if stage.plan is subject)
        label = f"{stage.name}: "
        name = name.removeprefix(label)
    if instead is None:
        found = explain_name(subject, file, part, name, session.begin("explaining"))
        found = replace(found, subject=label + found.subject)
        if loaded.pipeline is not None:
            found = as_of_step(found, loaded.pipeline, stage)
        document = explain_document(loaded, found.subject, found.shares, found)
        return session.finish(document, lambda console: show_explanation(console, loaded, found))
    from shardplan.render.explain import instead_document, show_instead
    from shardplan.study.named_decisions import find
    from shardplan.study.what_if import what_if

    require_model(subject, part, file)
    named = find(subject, part, name)
    described_one = described(subject, named, name)
    other = what_if(subject, file, part, named, instead, session.begin("planning instead"))
    described_one = replace(described_one, subject=label + described_one.subject)
    if loaded.pipeline is not None:
        described_one = as_of_step(described_one, loaded.pipeline, stage)
    document = explain_document(loaded, described_one.subject, described_one.shares, described_one)
    return session.finish(
        {**document, "instead": instead_document(other)},
        lambda console: show_instead(console, subject, described_one, other, everything=show_all),
    )
