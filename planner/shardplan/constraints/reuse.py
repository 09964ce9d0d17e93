"""Constraints taken from the plan of another model, renamed for the model at hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardplan.constraints.types import Constraint
from shardplan.errors import Diagnostic, ShardplanError, error, warning
from shardplan.model.types import Model
from shardplan.patterns import literal
from shardplan.units import counted


def adapted(constraints: Sequence[Constraint], model: Model) -> tuple[tuple[Constraint, ...], tuple[Diagnostic, ...]]:
    """`constraints`, with the names in those from plans replaced by the names of `model`: an equal name, else the only
    one that ends with the other (`model.norm.weight` and `decoder.model.norm.weight`). Names that `model` lacks are
    left out, with a warning for each plan.

    Raises `ShardplanError` (`no-match`) if nothing of a plan is in `model`.
    """
    names: dict[str, tuple[str, ...]] = {
        "inputs": model.inputs,
        "outputs": model.outputs,
        "parameters": tuple(name for parameter in model.parameters for name in (parameter.name, *parameter.aliases)),
    }
    found: list[Constraint] = []
    matched: dict[str, list[bool]] = {}
    for constraint in constraints:
        if not constraint.is_reused:
            found.append(constraint)
            continue
        name = _same(constraint.pattern, tuple(map(literal, names[constraint.section])))
        matched.setdefault(constraint.mark.file, []).append(bool(name))
        found += [replace(constraint, pattern=name, is_reused=False)] if name else []
    summary = f"nothing that it fixes is in '{model.name}'"
    if strangers := [error("no-match", summary, file=file) for file, hits in matched.items() if not any(hits)]:
        raise ShardplanError(*strangers)
    partly = [
        warning(
            "no-match", f"it fixes {counted(len(hits), 'tensor')}; {sum(hits)} of them in '{model.name}'", file=file
        )
        for file, hits in matched.items()
        if not all(hits)
    ]
    return tuple(found), tuple(partly)


def _same(name: str, names: Sequence[str]) -> str:
    """The corresponding name, `""` if there is none or several."""
    if name in names:
        return name
    near = {other for other in names if other.endswith(f".{name}") or name.endswith(f".{other}")}
    return min(near) if len(near) == 1 else ""
