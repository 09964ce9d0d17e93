"""Conversions between a plan's values and the form of its file: the functions that the table in
`shardplan.plan.format.fields` names.

`get` functions take a value to what is written; `make` functions take the attributes that were read to a value; checks
take (what was read, attributes read before it, the context) to what is wrong, or `""`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from shardplan.layout.collective import Collective
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Axis, Mesh
from shardplan.plan.format.kinds import Context, RecordError, shown
from shardplan.plan.types import CollectiveStep, OperatorDecision, Plan, Summary, TensorDecision

T = TypeVar("T")
MOST_DEVICES: Final = 2**24
_ROUNDED_NS: Final = 2
_ROUNDED_GAP: Final = 1e-6
"""How far numbers of the summary that follow from each other may be apart: each is rounded by itself."""
Blocks = tuple[tuple[tuple[str, ...], tuple[tuple[int, ...], ...]], ...]


def made(kind: Callable[..., T], **fixed: object) -> Callable[[dict[str, Any]], T]:
    """A `make` function of a record: from attributes to a value of a type."""
    return lambda found: kind(**fixed, **found)


class PlacedAxis(NamedTuple):
    """A mesh axis and the name of its link."""

    name: str
    size: int
    link: str


def placed_axes(plan: Plan) -> Iterator[PlacedAxis]:
    """The axes of the mesh, outermost first."""
    return (PlacedAxis(axis.name, axis.size, link) for axis, link in zip(plan.mesh.axes, plan.axis_links, strict=True))


def devices_per_host(plan: Plan) -> int | None:
    """Devices of the mesh on one machine; None where the innermost link is not that of a machine."""
    profile = plan.cluster.get("profile")
    levels = profile.get("levels") if isinstance(profile, Mapping) else None
    innermost = levels[0] if isinstance(levels, Sequence) and levels else None
    if not isinstance(innermost, Mapping) or innermost.get("topology") == "torus":
        return None
    return math.prod(axis.size for axis in placed_axes(plan) if axis.link == innermost.get("name"))


def hosts(plan: Plan) -> int | None:
    """The number of machines; None as in `devices_per_host`."""
    inside = devices_per_host(plan)
    return plan.mesh.size // inside if inside else None


def laid_mesh(found: Mapping[str, Any]) -> dict[str, Any]:
    """The mesh and its links, from the axes. Raises `RecordError` for an impossible number of devices."""
    mesh = Mesh(tuple(Axis(axis.name, axis.size) for axis in found["axes"]))
    if mesh.size > MOST_DEVICES:
        raise RecordError(f"a mesh of {mesh.size:,} devices; at most {MOST_DEVICES:,} can be planned for")
    return {"mesh": mesh, "links": tuple(axis.link for axis in found["axes"])}


def in_rank(layout: Layout, found: Mapping[str, Any], _: Context) -> str:
    """A check: a layout shards only dims that exist."""
    rank = len(found["shape"])
    beyond = [str(one) for one in layout.placements if one.is_shard and one.dim >= rank]
    return f"but {beyond[0]} is not a dim of a tensor of rank {rank}" if beyond else ""


def permutes(perm: tuple[int, ...], found: Mapping[str, Any], _: Context) -> str:
    """A check: a `perm` is a permutation of the dims."""
    rank = len(found["shape"])
    return f"expected a permutation of the {rank} dims" if perm and sorted(perm) != list(range(rank)) else ""


def rest_of_step(communication_ns: int, found: Mapping[str, Any], _: Context) -> str:
    """A check: exposed communication is no more than what compute leaves of the step; a priced run also waits for its
    host."""
    rest_ns = found["step_ns"] - found["compute_ns"]
    return "" if communication_ns - rest_ns <= _ROUNDED_NS else f"but step_us - compute_us is {rest_ns / 1000}"


def gap_of_bound(gap: float, found: Mapping[str, Any], _: Context) -> str:
    """A check: the gap is that between the objective and its bound."""
    objective_ns, bound_ns = found["objective_ns"], found["bound_ns"]
    if objective_ns <= 0:
        return ""
    expected = (objective_ns - bound_ns) / objective_ns
    same = abs(gap - expected) <= _ROUNDED_GAP + _ROUNDED_NS / objective_ns
    return "" if same else f"but (objective - bound_us) / objective is {expected:.6g}"


def as_many_as(names: str) -> Callable[[tuple[object, ...], Mapping[str, Any], Context], str]:
    """A check that there is one entry for each of `names`."""

    def check(entries: tuple[object, ...], found: Mapping[str, Any], _: Context) -> str:
        wanted = len(found[names])
        return f"expected {wanted}, one for each of '{names}'" if len(entries) != wanted else ""

    return check


def collective_step(found: Mapping[str, Any]) -> CollectiveStep:
    """One collective of a move."""
    collective = Collective(found["kind"], found["axes"], found["share"])
    return CollectiveStep(collective, found["payload_bytes"], found["time_ns"])


class BlockCopy(NamedTuple):
    """One copy of a repeated block: its operators as half-open runs of positions, in corresponding order."""

    block: int
    name: str
    operators: Sequence[Sequence[int]]


def block_copies(plan: Plan) -> Iterator[BlockCopy]:
    """The copies of all blocks, one after the other."""
    for number, (names, copies) in enumerate(plan.blocks):
        for name, copy in zip(names, copies, strict=True):
            yield BlockCopy(number, name, _runs(copy))


def _runs(indices: Sequence[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for index in indices:
        if runs and runs[-1][1] == index:
            runs[-1][1] = index + 1
        else:
            runs.append([index, index + 1])
    return runs


def blocks_of(copies: Sequence[BlockCopy], operators: int) -> Blocks:
    """The copies grouped by block. Raises `RecordError` for positions without an operator."""
    groups: dict[int, list[tuple[str, tuple[int, ...]]]] = {}
    for copy in copies:
        beyond = [list(run) for run in copy.operators if not run[0] <= run[1] <= operators]
        if beyond:
            raise RecordError(f"'{copy.name}' has operators {beyond[0]}, and there are {operators}")
        held = tuple(index for start, stop in copy.operators for index in range(start, stop))
        groups.setdefault(copy.block, []).append((copy.name, held))
    return tuple((tuple(name for name, _ in group), tuple(held for _, held in group)) for group in groups.values())


def are_stages(receiver: int, found: Mapping[str, Any], on: Context) -> str:
    """A check: sender and receiver of a transfer are stages. Raises `RecordError`."""
    sender, count = found["sender"], len(on.stages)
    if max(sender, receiver) >= count:
        raise RecordError(f"a transfer from stage {sender} to {receiver}, and there are {count} stages")
    return ""


def tensors_of(*roles: str) -> Callable[[Plan], list[TensorDecision]]:
    """The tensors of a plan that have one of these roles, in order."""
    return lambda plan: [tensor for tensor in plan.tensors if tensor.role in roles]


def whole_plan(found: Mapping[str, Any]) -> Plan:
    """The plan made of its sections. Raises `RecordError` if they do not fit together."""
    details, mesh = dict(found["details"]), found["mesh"]
    warnings, summary = details.pop("warnings"), Summary(**found["summary"], **details)
    _check_objective(summary)
    tensors = (*found["parameters"], *found["inputs"], *found["outputs"], *found["tensors"])
    _check_unique(tensors, "tensor")
    _check_unique(found["operators"], "operator")
    return Plan(
        mesh=mesh["mesh"],
        axis_links=mesh["links"],
        summary=summary,
        tensors=tensors,
        warnings=warnings,
        blocks=blocks_of(found["blocks"], len(found["operators"])),
        **{name: found[name] for name in ("model", "cluster", "sources", "operators", "moves", "pipeline")},
    )


def _check_objective(summary: Summary) -> None:
    """Raises `RecordError` if the objective is not the step, as it is since format 1.4."""
    scheduled = not summary.scheduled_ns and summary.overlap_weight == 1.0
    if scheduled and abs(summary.objective_ns - summary.step_ns) > _ROUNDED_NS:
        said = f"objective is {summary.objective_ns / 1000} and step_us {summary.step_ns / 1000}"
        raise RecordError(f"summary: {said}, and a plan minimises its step")


def _check_unique(decisions: Sequence[TensorDecision | OperatorDecision], what: str) -> None:
    """Raises `RecordError` if two rows are about the same tensor or operator."""
    names = set()
    for decision in decisions:
        if decision.name in names:
            raise RecordError(f"two rows are about the {what} {shown(decision.name)}")
        names.add(decision.name)


def itself(plan: Plan) -> Plan:
    """The `get` function of a section that describes the plan as a whole."""
    return plan
