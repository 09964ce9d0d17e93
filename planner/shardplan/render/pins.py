"""Output about pins of the command line: what each of them matches in a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shardplan.constraints.match import Names
from shardplan.constraints.types import AxisUse, Constraint, Dims
from shardplan.errors import ShardplanError
from shardplan.folding import folded, pattern
from shardplan.units import counted

if TYPE_CHECKING:
    from shardplan.model.types import Model

_MOST_TOLD = 3
"""Kinds of names that a pin is said to match."""


def pin_lines(model: Model, constraints: Sequence[Constraint]) -> list[str]:
    """What each pin matched: `'*up.weight' fixes 12 tensors: layers.*.up.weight`. What matches nothing is refused
    by the planner, and not here."""
    names, lines = Names(model), []
    weights = {parameter.tensor: parameter.name for parameter in model.parameters}
    for pin in constraints:
        if not pin.is_pin or pin.is_reused:
            continue
        try:
            if isinstance(pin.spec, Dims | AxisUse):
                found, what = [weights.get(target.tensor, target.tensor) for target in names.targets(pin)], "tensor"
            else:
                found, what = [model.operators[number].name for number in names.operators(pin)], "operator"
        except ShardplanError:
            continue
        groups: dict[str, list[str]] = {}
        for name in found:
            groups.setdefault(pattern(name), []).append(name)
        told = [folded(group, group) for group in groups.values()]
        more = f" and {len(told) - _MOST_TOLD} more" if len(told) > _MOST_TOLD else ""
        lines.append(f"'{pin.pattern}' fixes {counted(len(found), what)}: {', '.join(told[:_MOST_TOLD])}{more}")
    return lines
