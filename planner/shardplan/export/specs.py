"""Layouts as one list of mesh axes per dim, for the formats that use them, and what such lists cannot express."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shardplan.errors import Diagnostic, error
from shardplan.layout.layout import Layout
from shardplan.plan.orientation import checkpoint_layout, checkpoint_shape, dim_axes
from shardplan.plan.types import Plan, TensorDecision

_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Spec:
    """A tensor as a format names it: parameters by checkpoint name and in the checkpoint's dims.

    `axes`: per dim, the names of the mesh axes that shard it, major first. `partial`: axes over which the values are
    still to be summed.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    axes: tuple[tuple[str, ...], ...]
    partial: tuple[str, ...]


def specs(plan: Plan, role: str) -> tuple[Spec, ...]:
    """Parameters, inputs or outputs, in the plan's order."""
    return tuple(_spec(plan, tensor) for tensor in plan.tensors if tensor.role == role)


def segmented(plan: Plan) -> Iterator[str]:
    """Tensors with segmented shards (a fused q, k, v), which a list of axes per dim would cut elsewhere."""
    for tensor in plan.tensors:
        if tensor.role in {"parameter", "input", "output"}:
            for dim, segments in checkpoint_layout(tensor.layout, tensor.perm).dims():
                if segments:
                    yield f"{tensor.checkpoint or tensor.name}: dim {dim} in segments of {list(segments)}"


def plain(text: object) -> str:
    """A name from a file, made safe for the text of a program: without characters that end a string or a line."""
    return re.sub(r"[^\w .,:;=@/+*()\[\]<>-]", "_", str(text))


def solve_for(target: str) -> str:
    """The hint for a plan that a format cannot express."""
    return f"solve --for {target} finds the best plan that it can express, and what that costs"


def cannot_say(form: str, what: str, lines: Iterable[str], hint: str = "") -> list[Diagnostic]:
    """One error with everything that `form` cannot express; empty if there is nothing. Of lines that differ only in
    numbers (equal layers) the first is shown."""
    alike: dict[str, list[str]] = {}
    for line in lines:
        alike.setdefault(re.sub(r"\d+", "*", line), []).append(line)
    if not alike:
        return []
    found = [f"{same[0]} (and {len(same) - 1} more like this)" if same[1:] else same[0] for same in alike.values()]
    shown = [*found[:_SHOWN], f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else found
    return [error("cannot-say", f"{form} cannot express {what}", detail="\n".join(shown), hint=hint)]


def _spec(plan: Plan, tensor: TensorDecision) -> Spec:
    layout: Layout = checkpoint_layout(tensor.layout, tensor.perm)
    shape = checkpoint_shape(tensor.shape, tensor.perm)
    names = plan.mesh.names
    partial = tuple(names[axis] for axis, placement in enumerate(layout.placements) if placement.kind == "P")
    axes = tuple(tuple(by) for by in dim_axes(layout, len(shape), names))
    return Spec(tensor.checkpoint or tensor.name, shape, tensor.dtype, axes, partial)
