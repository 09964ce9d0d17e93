"""Plans for gates: all numbers are derived again from the decisions if the model is available."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardplan.errors import Attempts, Diagnostic, ShardplanError, error, warning
from shardplan.model.types import Model
from shardplan.models import title_of_model
from shardplan.plan.diff import PlanDiff, diff_plans
from shardplan.plan.file import read_whole
from shardplan.plan.format.digest import edited
from shardplan.plan.recorded_request import is_of
from shardplan.plan.types import Plan
from shardplan.study.derive import NotDerivableError, derived
from shardplan.study.freshness import Given, model_now
from shardplan.units import size

_GATE = "no condition can be checked with it"
_OTHER = "stale-plan"
"""Code for a plan of another model."""


@dataclass(frozen=True, slots=True)
class Rederived:
    """A plan with what follows from its decisions, and warnings if its file differs. `model`: the one of those given
    that it was made for, if any."""

    plan: Plan
    said: tuple[Diagnostic, ...] = ()
    model: str | None = None


def all_rederived(files: Sequence[str], models: Sequence[str] = ()) -> tuple[Rederived, ...]:
    """The plans in `files` with everything that follows from their decisions derived again. `models`: in place of those
    that they record. A plan whose model is not available, or has changed, is as in its file.

    Raises `ShardplanError`: `edited-plan` for one that was edited and cannot be derived, `stale-plan` for a model of
    `models` that no plan was made for, or as reading the plans and these models does.
    """
    attempt = Attempts()
    found = [attempt(lambda file=file: _rederived(file, models)) for file in files]  # type: ignore[misc]
    attempt.finish()
    plans = tuple(filter(None, found))
    strangers = [model for model in models if model not in {one.model for one in plans}]
    if strangers:
        hint = "give the models of the plans, with --model, or let each be found as its plan records it"
        said = [error(_OTHER, f"none of the plans was made for the model '{one}'", hint=hint) for one in strangers]
        raise ShardplanError(*said)
    return plans


def _rederived(file: str, models: Sequence[str]) -> Rederived:
    found, plan = read_whole(file)
    faults = tuple(edited(found))
    given = named_for(plan, models)
    model = _model_of(plan, file, given)
    if model is None:
        if faults:
            hint = f"give its model with --model; without it {_GATE}"
            raise ShardplanError(error("edited-plan", faults[0], file=file, hint=hint))
        why = "its model is not at hand" if given is None else f"it was made for another model than '{given}'"
        return Rederived(plan, (warning("not-derived", f"its numbers are those of the file: {why}", file=file),))
    try:
        again = derived(plan, file, model)
    except NotDerivableError as problem:
        detail = "\n".join(problem.faults[:4])
        summary = f"its decisions make no plan of its model, so {_GATE}"
        raise ShardplanError(error("invalid-plan", summary, detail=detail, file=file)) from None
    changes = diff_plans(plan, again)
    if changes.is_empty and not faults:
        return Rederived(plan, model=given)
    summary = faults[0] if faults else "it says otherwise than what is derived from its decisions"
    detail, hint = "\n".join(_said(changes)), "what is derived counts"
    said = warning("edited-plan" if faults else "not-derived", summary, detail=detail, hint=hint, file=file)
    return Rederived(again, (said,), given)


def named_for(plan: Plan, models: Sequence[str]) -> str | None:
    """The one of `models`, as given by `--model`, that bears the plan's name, or the only one."""
    named = [given for given in models if title_of_model(given) == plan.model.get("name")]
    return named[0] if named else models[0] if len(models) == 1 else None


def _said(changes: PlanDiff) -> Iterator[str]:
    """The sums that differ, as in the file and as derived."""
    for effect in changes.effects:
        if effect.delta:
            text = size if effect.name == "memory" else changes.measures[0].text
            yield f"{effect.name} is {text(effect.before)} in the file, {text(effect.after)} by its decisions"


def _model_of(plan: Plan, file: str, given: str | None) -> Model | None:
    """The model that the plan was made for: the one `given`, or as it records; None if that is not available, or is
    another one. Raises `ShardplanError` where the one given cannot be read."""
    try:
        model = model_now(plan, file, Given(given))
    except ShardplanError as problem:
        if given is None or problem.diagnostics[0].code == _OTHER:
            return None
        raise
    return model if model is not None and is_of(plan, model) else None
