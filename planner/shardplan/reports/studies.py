"""Reports of several plans: two side by side, sweeps, comparisons, the meshes that were tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardplan.escapes import one_line
from shardplan.plan.diff import PlanDiff
from shardplan.plan.types import Plan
from shardplan.render.meshes import mesh_note
from shardplan.render.solve import plan_line
from shardplan.reports.plan import mesh_record, summary_bar
from shardplan.study.compare import BEST, Contender
from shardplan.study.meshes import MeshTrial, best_of
from shardplan.study.sweep import Point, Sweep, pareto
from shardplan.units import counted

_NS_PER_US = 1000


def diff_report(old: Plan, new: Plan, files: tuple[str, str], found: PlanDiff) -> dict[str, object]:
    """Two plans: what each takes, and [kind, name, how many, before, after, bytes, ns] of every change."""
    shown = (found.effect("step"), *found.spent, found.effect("memory"))
    return {
        "kind": "diff",
        "title": f"{old.model.get('name')}: {files[0]} and {files[1]}",
        "causes": [one_line(text) for text in found.causes],
        "unchanged": found.unchanged,
        "sides": [_side(plan, file) for plan, file in zip((old, new), files, strict=True)],
        "effects": [[effect.name, effect.before, effect.after] for effect in shown],
        "held": [[effect.name, effect.before, effect.after] for effect in found.held],
        "changes": [
            [one.kind, one_line(one.name), one.count, one_line(one.before), one_line(one.after), one.bytes_delta,
             one.time_ns_delta]
            for one in found.changes
        ],
    }  # fmt: skip


def _side(plan: Plan, file: str) -> dict[str, object]:
    return {
        "file": one_line(file),
        "line": one_line(plan_line(plan)),
        "summary": summary_bar(plan),
        "mesh": mesh_record(plan),
    }


def sweep_report(found: Sweep) -> dict[str, object]:
    """All points of a sweep, those marked that no other point is better than in step, memory and devices."""
    best = pareto(found.points)
    planned = [point for point in found.points if point.step_us is not None]
    return {
        "kind": "sweep",
        "title": f"{found.model}: {counted(len(planned), 'plan')}",
        "items": found.items,
        "points": [_point(point, best=point in best) for point in planned],
        "failed": [
            [one_line(str(point.request)), one_line(point.reason)] for point in found.points if point not in planned
        ],
    }


def _point(point: Point, *, best: bool) -> dict[str, object]:
    request = point.request
    return {
        "cluster": one_line(request.cluster),
        "mesh": one_line(point.mesh or request.mesh),
        "microbatches": request.microbatches,
        "remat": request.remat,
        "stages": str(request.stages or ""),
        "devices": point.devices,
        "step": round((point.step_us or 0) * _NS_PER_US),
        "memory": point.memory_bytes or 0,
        "rate": point.tokens_per_s,
        "cost": point.cost_usd,
        "best": best,
    }


def comparison_report(title: str, contenders: Sequence[Contender], limit_bytes: int) -> dict[str, object]:
    """Plans that people write by hand beside the best one."""
    return {
        "kind": "comparison",
        "title": title,
        "limit": limit_bytes,
        "plans": [
            {"name": one_line(one.name), "fits": one.fits, "best": one.name == BEST,
             "why": one.why_not, "summary": summary_bar(one.plan) if one.plan else None}
            for one in contenders
        ],
    }  # fmt: skip


def with_meshes(report: Mapping[str, object], trials: Sequence[MeshTrial]) -> dict[str, object]:
    """The report of a plan with the meshes that it was chosen from: [mesh, step ns, bound ns, bytes of a device, how it
    stands beside the best], without a plan None for step and bytes."""
    best = best_of(trials)
    tried = [
        [one_line(one.text), one.step_ns, one.bound_ns, one.plan and one.plan.summary.memory.total,
         one_line(mesh_note(one, best))]
        for one in trials
    ]  # fmt: skip
    return {**report, "tried": tried}
