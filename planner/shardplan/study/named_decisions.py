"""Resolution of names in a plan: names of the checkpoint, of the graph, or as printed in tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from shardplan.constraints.match import Names
from shardplan.constraints.types import Constraint, Dims
from shardplan.errors import ShardplanError, error
from shardplan.folding import folded, pattern
from shardplan.model.types import Model
from shardplan.patterns import matches
from shardplan.plan.types import OperatorDecision, Plan, TensorDecision
from shardplan.yaml_source import Mark

_SHOWN = 12
_TIMES = re.compile(r"\s+(?:×\d+|\(×\d+\))$")
_OUTPUT = "output of "
_OPERATOR = re.compile(r"(?:operator )?(?P<module>\S.*?) \((?P<kind>\w+)\)")
_VALUE = re.compile(r"(?P<module>[^:]+): (?P<value>.+)")


@dataclass(frozen=True, slots=True)
class NamedDecisions:
    """Decisions of one kind: on tensors of one shape, or operators with one equation; the other is empty."""

    tensors: tuple[TensorDecision, ...] = ()
    operators: tuple[OperatorDecision, ...] = ()


def find(plan: Plan, model: Model, name: str) -> NamedDecisions:
    """What `name` matches: a weight, a value or an operator; a pattern of these; or a line of `show` and `explain`,
    such as `layers.*.mlp.up (MatMul)` or `output of layers.0.mlp`.

    Raises `ShardplanError`: `no-match`, `too-many` (the matches are of several kinds).
    """
    name = _TIMES.sub("", name)
    tensors, operators = _as_printed(plan, name) or _as_called(plan, model, name)
    labels = _labels(plan)
    dearest_first = sorted(operators, key=lambda operator: -operator.compute_ns)
    groups = {**_alike(dearest_first, labels), **_alike(tensors, labels)}
    kinds = {*map(_kind, tensors), *map(_kind, operators)}
    if len(kinds) > 1:
        shown = [f"{label} ×{count}" if count > 1 else label for label, count in groups.items()]
        rest = [f"and {len(shown) - _SHOWN} more"] if len(shown) > _SHOWN else []
        matching = len(tensors) + len(operators)
        summary = f"'{name}' matches {matching} things of {len(kinds)} kinds; explain one of them at a time"
        detail, hint = "\n".join([*shown[:_SHOWN], *rest]), f"write it as it stands here: '{next(iter(groups))}'"
        raise ShardplanError(error("too-many", summary, detail=detail, hint=hint))
    return NamedDecisions(tuple(tensors), tuple(operators))


def _as_printed(plan: Plan, name: str) -> tuple[list[TensorDecision], list[OperatorDecision]] | None:
    """The things with this name in a table; None if there are none."""
    modules = _modules(plan)
    if name.startswith(_OUTPUT):
        wanted = name.removeprefix(_OUTPUT)
        found = [t for t in plan.tensors if t.role != "parameter" and matches(modules.get(t.name, ""), wanted)]
        return (found, []) if found else None
    if match := _OPERATOR.fullmatch(name):
        made = [o for o in plan.operators if o.op_type == match["kind"] and matches(o.module, match["module"])]
        return ([], made) if made else None
    if match := _VALUE.fullmatch(name):
        found = [
            tensor
            for tensor in plan.tensors
            if matches(modules.get(tensor.name, ""), match["module"]) and matches(tensor.name, match["value"])
        ]
        return (found, []) if found else None
    return None


def _as_called(plan: Plan, model: Model, name: str) -> tuple[list[TensorDecision], list[OperatorDecision]]:
    """Tensors of this name; else operators; else everything of a module of this name."""
    wanted, names = Constraint("any", name, Dims(()), "", Mark("", 0, 0), is_pin=True), Names(model)
    decisions = {tensor.name: tensor for tensor in plan.tensors}
    try:
        targets = [target.tensor for target in names.targets(wanted)]
    except ShardplanError as unmatched:
        operators = [o for o in plan.operators if matches(o.name, name) or matches(o.op_type, name)]
        if operators:
            return [], operators
        known = replace(unmatched.diagnostics[0], file=None, summary=f"no tensor or operator matches '{name}'")
        raise ShardplanError(known) from None
    found = [decisions[target] for target in targets if target in decisions]
    if not found:
        raise ShardplanError(error("no-match", f"'{name}' is a small constant, present on every device"))
    weights = {parameter.tensor for parameter in model.parameters}
    of_module = not any(target in weights or matches(target, name) for target in targets)
    return found, [o for o in plan.operators if of_module and matches(o.module, name)]


def _kind(one: TensorDecision | OperatorDecision) -> tuple[object, ...]:
    if isinstance(one, TensorDecision):
        return (one.shape, one.dtype, one.role)
    return (one.op_type, one.equation)


def _labels(plan: Plan) -> dict[str, str]:
    """Name in the graph -> a name by which `find` finds it."""
    modules = _modules(plan)
    found = {o.name: f"{o.module} ({o.op_type})" if o.module else o.name for o in plan.operators}
    for tensor in plan.tensors:
        module = modules.get(tensor.name, "")
        found[tensor.name] = tensor.checkpoint or (f"{module}: {tensor.name}" if module else tensor.name)
    return found


def _alike(these: Sequence[TensorDecision | OperatorDecision], labels: dict[str, str]) -> dict[str, int]:
    """Labels of corresponding things in identical layers as one, with their number."""
    groups: dict[str, list[str]] = {}
    for one in these:
        groups.setdefault(pattern(labels[one.name]), []).append(labels[one.name])
    everything = [labels[one.name] for one in these]
    return {_folded(group, everything): len(group) for group in groups.values()}


def _folded(group: Iterable[str], everything: Sequence[str]) -> str:
    return folded(list(dict.fromkeys(group)), everything)


def _modules(plan: Plan) -> dict[str, str]:
    """Value -> the module of the operator that makes it."""
    return {name: operator.module for operator in plan.operators for name in operator.outputs}
