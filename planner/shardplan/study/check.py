"""Is a plan still what its model and its cluster ask for?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from shardplan.cluster.mesh import cluster_digest, make_cluster
from shardplan.cluster.profile import list_profiles, load_profile
from shardplan.cost.named import measure_of
from shardplan.errors import InfeasibleError, ShardplanError
from shardplan.layout.legal import check as check_layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.text import to_text
from shardplan.model.types import Model
from shardplan.plan.diff import diff_plans
from shardplan.plan.recorded import cluster_of, is_of
from shardplan.plan.types import Plan
from shardplan.study.finished import finished
from shardplan.study.instance import read, recorded_request
from shardplan.study.solve import solve
from shardplan.units import percent, size

Status = Literal["fresh", "stale", "invalid", "infeasible", "not optimal", "unreadable"]
_SAME = 1e-6
"""Relative: objectives this close are equal."""
_BLOCK = re.compile(r".*?\.\d+(?=\.|$)")
_MOST_BLOCKS = 4


@dataclass(frozen=True, slots=True)
class Verdict:
    """`findings`: what speaks against the plan, one sentence each; `notes`: what does not, but is worth knowing."""

    status: Status
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def check_plan(plan: Plan, file: str, model: Model | None = None, *, resolve: bool = False) -> Verdict:
    """The verdict on `plan`, read from `file`.

    In this order: its decisions must be legal; its model (if given) and its profile (if it is a shipped one) unchanged;
    its memory within the limit; and with `resolve`, its step still the shortest. Raises `ShardplanError` when the plan
    does not say what is needed for that, `LimitError` when a search ends early.
    """
    if faults := tuple(_faults(plan)):
        return Verdict("invalid", faults)
    if stale := (*_model_changes(plan, model), *_profile_changes(plan, file)):
        return Verdict("stale", stale)
    used, limit = plan.summary.memory.total, plan.summary.memory_limit_bytes
    if used > limit:
        return Verdict("infeasible", (f"it needs {size(used)} of the {size(limit)} that a device may use",))
    return _solve_again(plan, file, model) if resolve and model is not None else Verdict("fresh")


def _faults(plan: Plan) -> Iterator[str]:
    for stage in plan.pipeline.stages if plan.pipeline else ():
        yield from (f"{stage.name}: {sentence}" for sentence in _faults(stage.plan))
    known = {tensor.name: tensor for tensor in plan.tensors}
    for tensor in plan.tensors:
        for sentence in check_layout(tensor.layout, plan.mesh, tensor.shape):
            yield f"'{tensor.name}' cannot be {to_text(tensor.layout, plan.mesh)}: {sentence}"
    for move in plan.moves:
        if move.tensor not in known:
            yield f"a move of '{move.tensor}', which is no tensor of the plan"
    position = {operator.name: number for number, operator in enumerate(plan.operators)}
    for number, operator in enumerate(plan.operators):
        if operator.again and position.get(operator.again, -1) < number:
            yield f"'{operator.name}' runs again before '{operator.again}', which is no operator after it"
        for name, layout in zip((*operator.inputs, *operator.outputs), (*operator.reads, *operator.makes), strict=True):
            if layout is not None and name not in known:
                yield f"'{operator.name}' uses '{name}', which is no tensor of the plan"


def _model_changes(plan: Plan, model: Model | None) -> tuple[str, ...]:
    if model is None or is_of(plan, model):
        return ()
    if plan.model.get("name") != model.name:
        return (f"it was made for '{plan.model.get('name')}', and this is another model, '{model.name}'",)
    parts = [stage.plan for stage in plan.pipeline.stages] if plan.pipeline else [plan]
    before = {operator.name: operator.module for part in parts for operator in part.operators}
    after = {operator.name: operator.module for operator in model.operators}
    added = _by_block({name: module for name, module in after.items() if name not in before})
    removed = _by_block({name: module for name, module in before.items() if name not in after})
    details = [*(f"+ {text}" for text in added), *(f"- {text}" for text in removed)]
    return ("model structure changed since this plan was made", *details)


def _by_block(modules: Mapping[str, str]) -> list[str]:
    """Nodes with their modules, gathered by repeated blocks: `model.layers.32 (41 nodes)`, the largest first."""
    blocks: dict[str, list[str]] = {}
    for name, module in modules.items():
        found = _BLOCK.match(module)
        blocks.setdefault(found[0] if found else module or "", []).append(name)
    ranked = sorted(blocks.items(), key=lambda block: (-len(block[1]), block[0]))
    shown = [_block_text(block, names) for block, names in ranked[:_MOST_BLOCKS]]
    rest = sum(len(names) for _, names in ranked[_MOST_BLOCKS:])
    return [*shown, f"{rest} nodes elsewhere"] if rest else shown


def _block_text(block: str, names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"'{names[0]}'"
    return f"{block} ({len(names)} nodes)" if block else f"{len(names)} nodes, among them '{min(names)}'"


def _profile_changes(plan: Plan, file: str) -> tuple[str, ...]:
    """A shipped profile is compared with the plan's copy of it; any other is only in the plan."""
    name = str(plan.cluster.get("name"))
    if name not in list_profiles():
        return ()
    now = make_cluster(load_profile(name), _mesh_text(plan.mesh))
    then = cluster_of(plan, file)
    return () if cluster_digest(now) == cluster_digest(then) else (f"the profile '{name}' changed since",)


def _mesh_text(mesh: Mesh) -> str:
    return "x".join(str(axis.size) for axis in mesh.axes)


def _solve_again(plan: Plan, file: str, model: Model) -> Verdict:
    try:
        best = finished(solve(read(recorded_request(plan, file, model))).plan)
    except InfeasibleError as problem:
        return Verdict("infeasible", (problem.diagnostics[0].summary,))
    was, now = plan.summary, best.summary
    slower = was.step_ns - now.step_ns
    if slower <= _SAME * was.step_ns:
        same = not diff_plans(plan, best).changes
        return Verdict("fresh", notes=() if same else ("another plan of the same step exists",))
    share, measure = slower / max(now.step_ns, 1), measure_of(plan.model.get("cost_model"))
    found = (
        f"a step of {measure.text(now.step_ns)} is possible; this plan takes {measure.text(was.step_ns)}, "
        f"{percent(share)} more"
    )
    return Verdict("not optimal", (found,))


def unreadable(problem: ShardplanError) -> Verdict:
    """The verdict on a file that could not be read as a plan, or whose questions could not be answered."""
    return Verdict("unreadable", tuple(diagnostic.summary for diagnostic in problem.diagnostics))
