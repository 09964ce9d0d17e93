"""Checks of plan files: does everything in a plan still follow from its model, its cluster and its own decisions?

A plan file is a lock file: it has a digest of its content, names its inputs, and everything in it follows from these
and from its decisions. All of this is checked; a wrong field is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from shardplan.cost.named import measure_of
from shardplan.errors import InfeasibleError, ShardplanError, error
from shardplan.model.types import Model
from shardplan.plan.diff import diff_plans
from shardplan.plan.file import read_signed, read_whole
from shardplan.plan.format.digest import SCHEDULED, minor_of
from shardplan.plan.format.digest import edited as edited_since
from shardplan.plan.format.document_diff import Difference, differences
from shardplan.plan.format.encode import document, plain
from shardplan.plan.format.signature import UnsignedError, signing_command
from shardplan.plan.interrupted import unless_interrupted
from shardplan.plan.legality import faults as illegal
from shardplan.plan.types import Plan
from shardplan.plan.views.timeline import unscheduled
from shardplan.planning.instance import ABOVE_DEVICE
from shardplan.planning.standing import OnProgress
from shardplan.study.derive import NotDerivableError, derived
from shardplan.study.freshness import AS_RECORDED, Given, input_changes, model_now
from shardplan.study.instance import read, recorded_request
from shardplan.study.repair import NO_REPAIR, OTHER_SIZES, Repair, repair_of
from shardplan.study.solve import solve
from shardplan.study.sources import source
from shardplan.units import percent, size

Status = Literal["fresh", "stale", "invalid", "infeasible", "not optimal", "unreadable"]
_SAME = 1e-6
"""Relative: objectives this close are equal."""
_SHOWN = 8
_WITHOUT_MODEL = "not compared with its model: give it with --model"
_NOT_DERIVED = ("format_version", "digest", "sources")


@dataclass(frozen=True, slots=True)
class Verdict:
    """`findings`: what is wrong with the plan, one sentence each; `notes`: facts that are not faults. `differences`:
    every field that does not follow from the plan's decisions."""

    status: Status
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()
    repair: Repair = NO_REPAIR

    @property
    def code(self) -> str:
        """The code of the diagnostic, such as `stale-plan`."""
        return self.status.replace(" ", "-") + "-plan"


def check_file(
    file: str, given: Given = AS_RECORDED, *, resolve: bool = False, on_progress: OnProgress | None = None
) -> Verdict:
    """The verdict on the plan in `file`, with the inputs that it records, or those `given`.

    Checked in this order: its signature, if required; legality of its decisions; its digest; its model, profile and
    constraints; its memory against the limit; every field against its decisions; and with `resolve`, its bound, and
    whether its step is still the shortest. Raises `ShardplanError` if the plan or an input cannot be read, `LimitError`
    if a search ends early.
    """
    try:
        found, plan = read_whole(file) if given.signers is None else read_signed(file, given.signers)
    except UnsignedError as problem:
        return Verdict("invalid", (problem.diagnostics[0].summary,), repair=Repair(signing_command(file)))
    verdict = _verdict(
        found, plan, file, lambda: model_now(plan, file, given), given, resolve=resolve, on_progress=on_progress
    )
    if verdict.status == "fresh" or verdict.repair is not NO_REPAIR:
        return verdict
    return replace(verdict, repair=repair_of(plan, file, given.model, given.cluster))


def check_document(found: Mapping[str, Any], plan: Plan, file: str, model: Model | None, given: Given) -> Verdict:
    """The verdict on a document, with the plan read from it."""
    return _verdict(found, plan, file, lambda: model, given, resolve=False)


def check_plan(plan: Plan, file: str, model: Model | None = None) -> Verdict:
    """The verdict on a plan that is in no file, and on its model if that is given."""
    return _verdict(plain(document(plan)), plan, file, lambda: model, Given(alone=model is None), resolve=False)


def _verdict(
    found: Mapping[str, Any], plan: Plan, file: str, model_of: Callable[[], Model | None], given: Given, *,
    resolve: bool, on_progress: OnProgress | None = None,
) -> Verdict:  # fmt: skip
    if faults := tuple(illegal(plan)):
        return Verdict("invalid", faults)
    edited = tuple(edited_since(found))
    try:
        model = model_of()
        stale = tuple(input_changes(plan, file, model, given))
    except ShardplanError as problem:
        first = problem.diagnostics[0]
        if first.code != "stale-plan":
            raise
        found_stale = (first.summary, *first.detail.splitlines())
        return Verdict("invalid" if edited else "stale", (*edited, *found_stale), repair=Repair(missing=OTHER_SIZES))
    if stale:
        return Verdict("invalid" if edited else "stale", (*edited, *stale))
    verdict = _of_content(found, plan, file, model, edited)
    if verdict.status == "fresh" and resolve and model is None:
        summary = "it cannot be solved again: it does not say which model it is of"
        raise ShardplanError(error("no-model", summary, file=file, hint="give it: --model MODEL"))
    if verdict.status != "fresh" or not resolve or model is None:
        return verdict
    return _solve_again(plan, file, model, on_progress)


def _of_content(
    found: Mapping[str, Any], plan: Plan, file: str, model: Model | None, edited: tuple[str, ...]
) -> Verdict:
    """The verdict on the file's content, when its inputs are unchanged."""
    wrong: tuple[Difference, ...] = ()
    if model is not None:
        try:
            wrong = tuple(_wrong_fields(found, plan, file, model, is_intact=not edited))
        except NotDerivableError as problem:
            return Verdict("invalid", (*edited, *_shortened(problem.faults)))
    named = _shortened([str(one) for one in wrong])
    if impossible := (*edited, *_limits_beyond(plan, plan.warnings)):
        return Verdict("invalid", (*impossible, *named), differences=wrong)
    used, limit = plan.summary.memory.total, plan.summary.memory_limit_bytes
    if used > limit:
        return Verdict("infeasible", (f"it needs {size(used)} of the {size(limit)} that a device may use",))
    if model is None and minor_of(found) >= SCHEDULED and (late := tuple(unscheduled(plan))):
        return Verdict("invalid", late)
    if wrong:
        what = "1 field does" if len(wrong) == 1 else f"{len(wrong)} fields do"
        first = f"{what} not follow from its decisions: it was made by another version, or changed by hand"
        return Verdict("stale", (first, *named), differences=wrong)
    return Verdict("fresh", notes=() if model is not None else (_WITHOUT_MODEL,))


def _limits_beyond(plan: Plan, warnings: Sequence[str]) -> Iterator[str]:
    """A sentence that a plan, or one of its stages, may use more memory than a device has, though the `warnings` of the
    whole plan do not say that it was asked for."""
    for stage in plan.pipeline.stages if plan.pipeline else ():
        yield from (f"{stage.name}: {text}" for text in _limits_beyond(stage.plan, warnings))
    if plan.pipeline is None and not any(f"warning[{ABOVE_DEVICE}]" in text for text in warnings):
        profile = plan.cluster.get("profile")
        device = profile.get("device") if isinstance(profile, Mapping) else None
        has_bytes = device.get("memory_bytes") if isinstance(device, Mapping) else None
        limit_bytes = plan.summary.memory_limit_bytes
        if isinstance(has_bytes, int) and limit_bytes > has_bytes:
            found = f"summary.memory_limit_bytes is {size(limit_bytes)}, and a device has {size(has_bytes)}"
            yield f"{found}: no warning of the plan says that this was asked for"


def _shortened(texts: list[str] | tuple[str, ...]) -> list[str]:
    rest = len(texts) - _SHOWN
    return [*texts[:_SHOWN], f"and {rest} more"] if rest > 1 else list(texts)


def _wrong_fields(
    found: Mapping[str, Any], plan: Plan, file: str, model: Model, *, is_intact: bool
) -> Iterator[Difference]:
    """Every field of the file that does not follow from the decisions of the plan for `model`."""
    expected = plain(document(derived(plan, file, model)))
    if is_intact and plan.pipeline is None and not source(plan, "model"):  # its file may have another name now
        expected["model"]["name"] = found["model"]["name"]
    is_older = "digest" not in found
    for key in _NOT_DERIVED if is_older else _NOT_DERIVED[1:]:
        expected.pop(key, None)
    shown = {key: value for key, value in found.items() if key in expected or key not in _NOT_DERIVED}
    yield from differences(shown, expected)


def _solve_again(plan: Plan, file: str, model: Model, on_progress: OnProgress | None) -> Verdict:
    try:
        best = unless_interrupted(solve(read(recorded_request(plan, file, model)), on_progress).plan)
    except InfeasibleError as problem:
        return Verdict("infeasible", (problem.diagnostics[0].summary,))
    was, now = plan.summary, best.summary
    measure = measure_of(plan.model.get("cost_model"))
    slower = was.step_ns - now.step_ns
    if slower > _SAME * was.step_ns:
        found = (
            f"a step of {measure.text(now.step_ns)} is possible; this plan takes {measure.text(was.step_ns)}, "
            f"{percent(slower / max(now.step_ns, 1))} more"
        )
        return Verdict("not optimal", (found,))
    if was.reproducible and now.reproducible and was.bound_ns - now.bound_ns > _SAME * was.step_ns:
        found = f"its lower bound is {measure.text(was.bound_ns)}, and {measure.text(now.bound_ns)} is what is proven"
        return Verdict("invalid", (found,))
    same = not diff_plans(plan, best).changes
    return Verdict("fresh", notes=() if same else ("another plan of the same step exists",))


def unreadable(problem: ShardplanError) -> Verdict:
    """The verdict on a file that could not be read as a plan or not be checked."""
    return Verdict("unreadable", tuple(diagnostic.summary for diagnostic in problem.diagnostics))
