"""`shardplan profiles`: the shipped cluster profiles; one of them in full; a file checked."""

from __future__ import annotations

import functools

import click

from shardplan.verbs.asking import profile_names
from shardplan.verbs.session import Session, completing, verb


class _ListByDefault(click.Group):
    """`shardplan profiles` and `shardplan profiles --json` are `shardplan profiles list …`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        wants_help = bool(args) and args[0] in ctx.help_option_names
        named = bool(args) and not args[0].startswith("-")
        return super().parse_args(ctx, args if named or wants_help else ["list", *args])


@click.group(cls=_ListByDefault, short_help="List, show and check cluster profiles.")
def profiles() -> None:
    """List the shipped cluster profiles, show one in full, or check a file of your own."""


@profiles.command("list")
@verb
def list_all(session: Session, /) -> int:
    """List the shipped profiles."""
    from shardplan.cluster.profile import list_profiles, load_profile
    from shardplan.render.profiles import profile_row, show_profiles

    loaded = [load_profile(name) for name in list_profiles()]
    document = {"profiles": [profile_row(profile) for profile in loaded]}
    return session.finish(document, lambda console: show_profiles(console, loaded))


@profiles.command("show")
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


@profiles.command("check")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@verb
def check(session: Session, /, files: tuple[str, ...]) -> int:
    """Check profile files; every fault is printed with its line and column."""
    from shardplan.cluster.profile import load_profile
    from shardplan.errors import Attempts
    from shardplan.render.console import emit

    attempt = Attempts()
    for name in files:
        profile = attempt(functools.partial(load_profile, name))
        for diagnostic in profile.warnings if profile else ():
            session.say(diagnostic)
    attempt.finish()
    many = f"{len(files)} profiles are" if len(files) > 1 else f"{files[0]} is"
    return session.finish({"checked": list(files)}, lambda console: emit(console, f"{many} valid"))
