"""`shardplan profiles`: the shipped cluster profiles; one of them in full; a file checked; one from a machine."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shardplan.errors import ShardplanError, error
from shardplan.verbs.asking import profile_names
from shardplan.verbs.inputs import text_of
from shardplan.verbs.numbers import WholeRange
from shardplan.verbs.session import EXIT_DONE, STANDARD_OUTPUT, Session, completing, verb

if TYPE_CHECKING:
    from shardplan.cluster.build import Profile


class _ListByDefault(click.Group):
    """`shardplan profiles` and `shardplan profiles --json` are `shardplan profiles list …`, and the name of a shipped
    profile alone shows it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        wants_help = bool(args) and args[0] in ctx.help_option_names
        named = bool(args) and not args[0].startswith("-")
        if named and args[0] not in self.commands and args[0] in profile_names():
            args = ["show", *args]
        return super().parse_args(ctx, args if named or wants_help else ["list", *args])


@click.group(cls=_ListByDefault, short_help="List, show and check cluster profiles.")
def profiles() -> None:
    """List the shipped cluster profiles, show one in full, check a file of your own, or write one from a machine."""


@profiles.command("list")
@verb
def list_all(session: Session, /) -> int:
    """List the shipped profiles."""
    from shardplan.cluster.profile import list_profiles, load_profile
    from shardplan.render.profiles import profile_row, show_profiles

    loaded = [load_profile(name) for name in list_profiles()]
    document = {"profiles": [profile_row(profile) for profile in loaded]}
    return session.finish(document, lambda console: show_profiles(console, loaded))


@profiles.command("show", short_help="Print a profile with every default written out.")
@click.argument("name", shell_complete=completing(profile_names, files=True))
@verb
def show_one(session: Session, /, name: str) -> int:
    """Print the profile NAME (or a file) with every default written out."""
    from shardplan.cluster.profile import load_profile
    from shardplan.render.profiles import show_profile

    profile = load_profile(name)
    for diagnostic in profile.warnings:
        session.say(diagnostic)
    return session.finish({"profile": profile.resolved}, lambda console: show_profile(console, profile))


@profiles.command("detect")
@click.option("--from", "files", metavar="FILE", multiple=True, help="A saved text of the machine; may be repeated.")
@click.option("--machines", type=WholeRange(1), metavar="N", help="How many machines like this one there are.")
@click.option(
    "-o", "--output", metavar="FILE", default=STANDARD_OUTPUT, show_default=True, help="The profile; - prints it."
)
@verb
def detect(session: Session, /, files: tuple[str, ...], machines: int | None, output: str) -> int:
    """Write a profile from what a machine says of itself.

    Without --from, nvidia-smi and the network cards of this machine are asked. Texts that can be saved elsewhere:
    nvidia-smi topo -m; nvidia-smi --query-gpu=name,memory.total --format=csv; ibstat; scontrol show node. What none of
    them says is a warning, and stays as the shipped profile of the device has it; shardplan calibrate measures it.
    """
    from shardplan.extras.detect.captures import machine_of
    from shardplan.extras.detect.here import texts_here
    from shardplan.extras.detect.profile import detected
    from shardplan.plan.file import write_other
    from shardplan.render.console import emit

    texts = [(file, text_of(file)) for file in files] or texts_here()
    if not texts:
        hint = "run it where nvidia-smi is, or save what it prints there and give it with --from"
        raise ShardplanError(
            error("nothing-detected", "this machine has no nvidia-smi and no network cards", hint=hint)
        )
    machine = machine_of(texts)
    if machines is not None:
        machine = replace(machine, machines=machines)
    name = "detected" if output == STANDARD_OUTPUT else Path(output).stem
    found = detected(machine, name)
    session.say_all(found.unknown)
    if output == STANDARD_OUTPUT and not session.as_json:
        session.write_text(found.text)
        return EXIT_DONE
    if output != STANDARD_OUTPUT:
        write_other(found.text, output, "profile")
    document = {"output": output, "extends": found.base, "text": found.text}
    return session.finish(document, lambda console: emit(console, f"wrote {output}, which extends {found.base}"))


@profiles.command("check", short_help="Check profile files: every fault, with line and column.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@verb
def check(session: Session, /, files: tuple[str, ...]) -> int:
    """Check profile files; every fault is printed with its line and column. So are the mesh and the environment, which
    other commands refuse where they use them."""
    from shardplan.errors import Attempts
    from shardplan.render.console import emit

    attempt = Attempts()
    for name in files:
        profile = attempt(functools.partial(_whole, name))
        for diagnostic in profile.warnings if profile else ():
            session.say(diagnostic)
    attempt.finish()
    many = f"{len(files)} profiles are" if len(files) > 1 else f"{files[0]} is"
    return session.finish({"checked": list(files)}, lambda console: emit(console, f"{many} valid"))


def _whole(name: str) -> Profile:
    """The profile, fit for use as it stands. Raises `ShardplanError` also for its mesh and its environment."""
    from shardplan.cluster.mesh import make_cluster
    from shardplan.cluster.profile import load_profile
    from shardplan.errors import Attempts
    from shardplan.launch.ranks import bad_variables

    profile = load_profile(name)
    attempt = Attempts()
    attempt(lambda: make_cluster(profile))
    variables = profile.resolved.get("environment", {})
    assert isinstance(variables, dict)
    attempt.problems += bad_variables(variables, "the profile")
    if attempt.problems:
        raise ShardplanError(*(replace(problem, file=name) for problem in attempt.problems))
    return profile
