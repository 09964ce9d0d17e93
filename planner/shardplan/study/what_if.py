"""What-if: a requested layout or split, planned with everything else free, compared with the given plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardplan.constraints.parse import parse_recorded
from shardplan.constraints.types import Constraint
from shardplan.errors import Diagnostic, ShardplanError
from shardplan.model.types import Model
from shardplan.patterns import literal
from shardplan.plan.diff import PlanDiff, diff_plans
from shardplan.plan.interrupted import unless_interrupted
from shardplan.plan.types import Plan
from shardplan.planning import Planner
from shardplan.planning.standing import OnProgress
from shardplan.study.instance import read, recorded_request
from shardplan.study.named_decisions import NamedDecisions
from shardplan.study.shares import Share, shares_of


@dataclass(frozen=True, slots=True)
class WhatIf:
    """`spec`: the requested choice; `plan`: the fastest plan with it. `diff`: from the given plan to that one; `terms`:
    the differences in step time by term, the largest first; their sum is the difference of the steps."""

    spec: str
    plan: Plan
    diff: PlanDiff
    terms: tuple[Share, ...]


def what_if(
    plan: Plan, file: str, model: Model, found: NamedDecisions, spec: str, on_progress: OnProgress | None = None
) -> WhatIf:
    """The fastest plan in which the `found` tensors are kept, or operators split, as `spec` says (the form of `--pin`).

    Raises `ShardplanError`: what is wrong with `spec`, or why no plan can have it; `InfeasibleError` if it does not
    fit, `LimitError` if the search ends early.
    """
    pins = tuple(_pin(found, name, spec) for name in _names(found))
    asked = recorded_request(plan, file, model)
    instance = read(replace(asked, constraints=(*asked.constraints, *pins)))
    try:
        other = unless_interrupted(Planner(model, instance.cluster, instance.options, on_progress).plan())
    except ShardplanError as problem:
        raise type(problem)(*_once(problem.diagnostics)) from None
    return WhatIf(spec, other, diff_plans(plan, other), _terms(shares_of(plan), shares_of(other)))


def _once(diagnostics: Sequence[Diagnostic]) -> list[Diagnostic]:
    """The first of equal faults of several pins, which are the same for identical layers."""
    return list({(diagnostic.code, diagnostic.file): diagnostic for diagnostic in reversed(diagnostics)}.values())[::-1]


def _names(found: NamedDecisions) -> list[str]:
    return [*(t.checkpoint or t.name for t in found.tensors), *(o.name for o in found.operators)]


def _pin(found: NamedDecisions, name: str, spec: str) -> Constraint:
    section = "operators" if found.operators else "parameters" if found.tensors[0].checkpoint else "tensors"
    return parse_recorded(f"{section}: {literal(name)}: {spec}", f"--instead '{spec}'")


def _terms(before: Sequence[Share], after: Sequence[Share]) -> tuple[Share, ...]:
    was = {(share.name, share.what): share for share in before}
    now = {(share.name, share.what): share for share in after}
    changed = []
    for name, what in {**was, **now}:
        old, new = was.get((name, what)), now.get((name, what))
        delta = (new.time_ns if new else 0) - (old.time_ns if old else 0)
        either = new or old
        assert either is not None
        if delta:
            changed.append(Share(name, what, either.count, delta))
    return tuple(sorted(changed, key=lambda share: (-abs(share.time_ns), share.name, share.what)))
