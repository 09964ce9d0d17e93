"""A request's fields as options of the command line, and the request and instance made from their values."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from shardplan.checks import Cache, Flag, OneOf, Several, Sizes
from shardplan.errors import Attempts, Diagnostic
from shardplan.request import FIELDS, Request, Term, option_of, request_of, term
from shardplan.units import whole_number
from shardplan.verbs.numbers import WholeRange
from shardplan.verbs.session import Verb, completing, option, whence

if TYPE_CHECKING:
    from shardplan.study.instance import ReadRequest

    _Type = click.ParamType[Any]
else:
    _Type = click.ParamType  # takes no argument before click 8.4

MESH = ("mesh", "cluster")
SIZES = ("dims", "trips", "pads")
"""What a model is read with."""
ASKED = (
    "mode", "target", *SIZES, "optimizer", "shard_optimizer", "equal_layers", "microbatches", "remat",
    "kv_cache_tokens",
)  # fmt: skip
WORKLOAD = (*MESH, *ASKED, "memory_limit")
"""What every verb that plans on one mesh asks for."""
PIPELINE = ("devices", "stages", "schedule")
SEARCH = ("time_limit", "effort", "gap", "seed", "presolve")
FIXED = ("constraints", "pins")
DRAWS = WholeRange(0, 10_000)
"""Numbers of random draws; more would take hours and say nothing more."""
model_argument = click.argument("model", type=click.Path(path_type=str))


def _budgeted(context: click.Context, _: click.Parameter, texts: tuple[str, ...]) -> None:
    """Raise the budgets of models for this command, in its workers too."""
    if not texts:
        return
    from shardplan.model.limits import BUDGETS, variable_of

    given = dict(text.partition("=")[::2] for text in texts)
    if unknown := [name for name in given if name not in BUDGETS]:
        raise click.BadParameter(f"there is no budget '{unknown[0]}'; there are {', '.join(BUDGETS)}")
    if unsaid := [name for name, number in given.items() if not number]:
        raise click.BadParameter(f"budget '{unsaid[0]}' has no number: {unsaid[0]}=N")
    if wrong := [f"{name}={number}" for name, number in given.items() if not whole_number(number.strip())]:
        raise click.BadParameter(f"{wrong[0]} is no positive whole number")
    before = dict(os.environ)
    os.environ.update({variable_of(name): number for name, number in given.items()})
    names = [variable_of(name) for name in given]
    context.call_on_close(lambda: _restore(before, names))


def _restore(before: Mapping[str, str], names: Iterable[str]) -> None:
    """Variables of the environment as they were before."""
    for name in names:
        os.environ.pop(name, None)
        os.environ.update({name: before[name]} if name in before else {})


budget_option = click.option(
    "--budget",
    metavar="NAME=N",
    multiple=True,
    expose_value=False,
    callback=_budgeted,
    help="Raise a limit on models: operators, elements, rank or nesting; may be repeated.",
)


def seed_option(of: str) -> Callable[[Verb], Verb]:
    """`--seed` of a verb whose request has none; `of`: what it is a seed of."""
    return option("--seed", type=WholeRange(0), metavar="N", default=0, show_default=True, help=of)


class AsGiven(_Type):
    """What was given, as it is: the check of the field refuses it with everything else that is wrong."""

    def __init__(self, field: Term) -> None:
        self.words = field.check.words if isinstance(field.check, OneOf) else ()
        self.name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ARG002
        return value

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:  # noqa: ARG002
        return f"[{'|'.join(self.words)}]" if self.words else None

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        return [CompletionItem(word) for word in self.words if word.startswith(incomplete)]


def profile_names() -> tuple[str, ...]:
    """Names of the shipped profiles, for a shell to offer."""
    from shardplan.cluster.profile import list_profiles

    return list_profiles()


def request_options(*names: str) -> Callable[[Verb], Verb]:
    """Add the options of these fields of a request."""

    def add(function: Verb) -> Verb:
        for name in reversed(names):
            function = _option(name)(function)
        return function

    return add


def _option(name: str) -> Callable[[Verb], Verb]:
    asked, default = term(name), FIELDS[name].default
    if isinstance(asked.check, Flag):
        both = any("/" in flag for flag in asked.flags)
        shown: dict[str, Any] = {"is_flag": True, "default": default, "show_default": both}
    elif isinstance(asked.check, Several | Sizes):
        shown = {"multiple": True, "metavar": asked.metavar, "type": AsGiven(asked)}
    else:
        unset = default is None or isinstance(asked.check, Cache)
        shown = {"metavar": asked.metavar, "type": AsGiven(asked), "default": None if unset else default}
        shown["show_default"] = not unset and default != ""
    if asked.offers == "profiles":
        shown["shell_complete"] = completing(profile_names, files=True)
    return option(*asked.flags, name, help=asked.help, **shown)


def ask(given: Mapping[str, Any], **other: Any) -> tuple[Request, dict[str, Any]]:
    """The request that options and `other` values make, and the faults of its fields."""
    values = {name: value for name, value in given.items() if name in FIELDS}
    unset = [name for name, value in values.items() if value is None]
    asked = {**{name: value for name, value in values.items() if name not in unset}, **other}
    request, faults = request_of(asked, option_of)
    return request, {name: tuple(_placed(name, fault) for fault in found) for name, found in faults.items()}


def _placed(name: str, fault: Diagnostic) -> Diagnostic:
    """A fault of a field, with a hint to where its value comes from, if that is not the command line."""
    return replace(fault, hint=". ".join(filter(None, (fault.hint, whence(click.get_current_context(), name)))))


def read_request(given: Mapping[str, Any], attempt: Attempts, **other: Any) -> ReadRequest | None:
    """What the options ask for, with all inputs read; None after `attempt` has kept what is wrong with them."""
    from shardplan.study.instance import read

    def reading() -> ReadRequest:
        return read(*ask(given, **other))

    return attempt(reading)


def chosen(given: Mapping[str, Any]) -> frozenset[str]:
    """The options that stand on the command line."""
    context = click.get_current_context()
    return frozenset(name for name in given if context.get_parameter_source(name) is ParameterSource.COMMANDLINE)
