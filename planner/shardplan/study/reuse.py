"""Where another plan keeps its inputs and weights, as constraints: programs that share weights share their layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal

from shardplan.constraints.types import Constraint, Dims
from shardplan.patterns import literal
from shardplan.plan.orientation import checkpoint_layout, dim_axes
from shardplan.plan.types import Plan, TensorDecision
from shardplan.yaml_source import Mark

Kept = Literal["inputs", "parameters", "outputs"]
SECTIONS: Final[tuple[Kept, ...]] = ("inputs", "parameters", "outputs")
_ROLES: Final[dict[Kept, str]] = {"inputs": "input", "parameters": "parameter", "outputs": "output"}


def constraints_of(
    plan: Plan, file: str, sections: Sequence[Kept] = ("inputs", "parameters")
) -> tuple[Constraint, ...]:
    """One constraint for every tensor of these sections of `plan`, which was read from `file`: it is kept as there."""
    return tuple(_all(plan, file, sections))


def _all(plan: Plan, file: str, sections: Sequence[Kept]) -> Iterator[Constraint]:
    for section in sections:
        for tensor in plan.tensors:
            if tensor.role == _ROLES[section]:
                yield _constraint(plan, file, section, tensor)


def _constraint(plan: Plan, file: str, section: Kept, tensor: TensorDecision) -> Constraint:
    layout = checkpoint_layout(tensor.layout, tensor.perm)
    dims = dim_axes(layout, len(tensor.shape), plan.mesh.names)
    entries = [f"[{', '.join(axes)}]" if len(axes) > 1 else axes[0] if axes else "null" for axes in dims]
    text = f"[{', '.join(entries)}]" if any(dims) else "replicate"
    name = literal(tensor.checkpoint or tensor.name)
    spec = Dims(tuple(map(tuple, dims)))
    return Constraint(section, name, spec, text, Mark(file, 1, 1), is_pin=True, is_reused=True)
