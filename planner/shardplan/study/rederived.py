"""Plans for gates: all numbers are derived again from the decisions if the model is available."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardplan.errors import Diagnostic, ShardplanError, error, warning
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


def rederived(file: str, models: Sequence[str] = ()) -> tuple[Plan, tuple[Diagnostic, ...]]:
    """The plan in `file` with everything that follows from its decisions derived again, and warnings if the file
    differs. `models`: in place of the one that it records. A plan whose model is not available, or has changed, is
    returned as in its file.

    Raises `ShardplanError`: `edited-plan` for one that was edited and cannot be derived, or as `read_plan`.
    """
    found, plan = read_whole(file)
    faults = tuple(edited(found))
    model = _model_of(plan, file, models)
    if model is None:
        if faults:
            hint = f"give its model with --model; without it {_GATE}"
            raise ShardplanError(error("edited-plan", faults[0], file=file, hint=hint))
        said = warning("not-derived", "its numbers are those of the file: its model is not at hand", file=file)
        return plan, (said,)
    try:
        again = derived(plan, file, model)
    except NotDerivableError as problem:
        detail = "\n".join(problem.faults[:4])
        summary = f"its decisions make no plan of its model, so {_GATE}"
        raise ShardplanError(error("invalid-plan", summary, detail=detail, file=file)) from None
    changes = diff_plans(plan, again)
    if changes.is_empty and not faults:
        return plan, ()
    summary = faults[0] if faults else "it says otherwise than what is derived from its decisions"
    detail, hint = "\n".join(_said(changes)), "what is derived counts"
    return again, (warning("edited-plan" if faults else "not-derived", summary, detail=detail, hint=hint, file=file),)


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


def _model_of(plan: Plan, file: str, models: Sequence[str]) -> Model | None:
    """The model that the plan was made for; None if it is not available."""
    try:
        model = model_now(plan, file, Given(named_for(plan, models)))
    except ShardplanError:
        return None
    return model if model is not None and is_of(plan, model) else None
