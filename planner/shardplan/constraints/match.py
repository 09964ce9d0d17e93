"""The tensors and operators of a model that a constraint matches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shardplan.constraints.types import Constraint
from shardplan.errors import Diagnostic, ShardplanError, did_you_mean, error
from shardplan.folding import folded
from shardplan.folding import pattern as pattern_of
from shardplan.model.types import Model
from shardplan.patterns import matches
from shardplan.units import whole_number

_SHOWN = 8
"""Number of names, or patterns of names, that an error lists."""
_CALLED = {
    "inputs": "input",
    "outputs": "output",
    "parameters": "parameter",
    "tensors": "tensor",
    "operators": "operator",
    "any": "tensor",
}


@dataclass(frozen=True, slots=True)
class Target:
    """A tensor in the graph; `perm` as in `Parameter` when it was named as a weight of the checkpoint."""

    tensor: str
    perm: tuple[int, ...] = ()


class Names:
    """All names of the things of one model."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.parameters: dict[str, Target] = {}
        for parameter in model.parameters:
            target = Target(parameter.tensor, parameter.perm)
            for name in (parameter.name, *parameter.aliases, parameter.onnx):
                self.parameters.setdefault(name, target)
        weights = {parameter.tensor for parameter in model.parameters}
        made = [name for operator in model.operators for name in operator.outputs if name]
        self.tensors = {name: Target(name) for name in (*model.inputs, *made) if name not in weights}
        self.weights = {name: Target(name) for name in sorted(weights)}

    def targets(self, constraint: Constraint) -> tuple[Target, ...]:
        """The tensors that a constraint matches, each once, in graph order.

        Raises `ShardplanError` (`no-match`) with the nearest name if there is none.
        """
        section, pattern = constraint.section, constraint.pattern
        if section in ("inputs", "outputs"):
            names = getattr(self.model, section)
            number = whole_number(pattern[1:]) if pattern.startswith("#") and pattern not in names else None
            if number is not None:
                found = [Target(name) for name in names[number : number + 1]]
            else:
                found = [Target(name) for name in _matching(pattern, names)]
            known: Iterable[str] = names
        elif section == "parameters":
            found, known = _found(pattern, self.parameters), self.parameters
        elif section == "tensors":
            found = [*_found(pattern, {**self.tensors, **self.weights}), *self._of_module(pattern)]
            known = self.tensors
        else:
            found = _found(pattern, self.parameters)
            found = found or [*_found(pattern, self.tensors), *self._of_module(pattern)]
            known = (*sorted(self.parameters), *sorted(self.tensors))
        if not found:
            raise ShardplanError(_no_match(constraint, known))
        return tuple({target.tensor: target for target in found}.values())

    def operators(self, constraint: Constraint) -> tuple[int, ...]:
        """Numbers of the operators whose name, module path or type matches. Raises `ShardplanError` as `targets`."""
        found = [
            number
            for number, operator in enumerate(self.model.operators)
            if any(matches(name, constraint.pattern) for name in (operator.name, operator.module, operator.kind))
        ]
        if not found:
            known = {name for op in self.model.operators for name in (op.name, op.module, op.kind) if name}
            raise ShardplanError(_no_match(constraint, known))
        return tuple(found)

    def _of_module(self, pattern: str) -> list[Target]:
        return [
            Target(name)
            for operator in self.model.operators
            if operator.module and matches(operator.module, pattern)
            for name in operator.outputs
            if name
        ]


def _matching(pattern: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if matches(name, pattern)]


def _found(pattern: str, targets: Mapping[str, Target]) -> list[Target]:
    return [targets[name] for name in _matching(pattern, targets)]


def _no_match(constraint: Constraint, known: Iterable[str]) -> Diagnostic:
    names = list(dict.fromkeys(known)) if constraint.section == "any" else sorted(known)
    what = _CALLED[constraint.section]
    number = whole_number(constraint.pattern[1:]) if constraint.pattern.startswith("#") else None
    if number is not None:
        summary = f"there is no {what} number {number + 1}; the model has {len(names)}"
        return error("no-match", summary, **constraint.where)
    summary = f"no {what} matches '{constraint.pattern}'"
    hint = (
        did_you_mean(constraint.pattern, _rewritten(constraint.pattern, names))
        or did_you_mean(constraint.pattern, names)
        or _with_stars(constraint.pattern, names)
    )
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(pattern_of(name), []).append(name)
    kinds = [folded(group, names) for group in alike.values()]
    shown = ", ".join(kinds[:_SHOWN]) + (", …" if len(kinds) > _SHOWN else "")
    return error("no-match", summary, detail=f"there are {shown}" if names else "", hint=hint, **constraint.where)


def _rewritten(pattern: str, names: Iterable[str]) -> set[str]:
    """`pattern` with every part that differs from a name's replaced by that, from the end: a suggestion."""
    parts, found = pattern.split("."), set()
    for name in names:
        theirs = name.split(".")[-len(parts) :]
        if len(theirs) == len(parts):
            meant = ".".join(own if matches(its, own) else its for own, its in zip(parts, theirs, strict=True))
            found |= {meant} if matches(name, meant) else set()
    return found


def _with_stars(pattern: str, names: Iterable[str]) -> str:
    """The suggestion for a pattern that is only contained in names."""
    inside = [name for name in names if pattern.strip("*") and pattern.strip("*") in name]
    if not inside:
        return ""
    more = f" and {len(inside) - 1} more" if len(inside) > 1 else ""
    return f"'*{pattern.strip('*')}*' matches '{inside[0]}'{more}"
