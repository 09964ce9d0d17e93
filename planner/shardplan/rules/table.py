"""Lookup of an operator's rule in the tables of all families, with a cache."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import lru_cache

from shardplan.errors import ShardplanError, error
from shardplan.model.limits import UNREADABLE, unplannable
from shardplan.model.types import Model, Operator
from shardplan.rules import (
    attention,
    contraction,
    control,
    convolution,
    gather,
    loss,
    microsoft,
    normalization,
    pointwise,
    pooling,
    quantization,
    recurrent,
    reduction,
    views,
    whole,
)
from shardplan.rules.body import has_body
from shardplan.rules.composed import composed
from shardplan.rules.equation import EquationError
from shardplan.rules.older import aligned
from shardplan.rules.row import Entry, Row, make_rule
from shardplan.rules.signature import Signature, sign
from shardplan.rules.types import Rule

TABLES: Mapping[str, tuple[Entry, ...]] = {
    "pointwise": pointwise.TABLE,
    "contraction": contraction.TABLE,
    "convolution": convolution.TABLE,
    "pooling": pooling.TABLE,
    "reduction": reduction.TABLE,
    "normalization": normalization.TABLE,
    "attention": attention.TABLE,
    "recurrent": recurrent.TABLE,
    "views": views.TABLE,
    "gather": gather.TABLE,
    "quantization": quantization.TABLE,
    "loss": loss.TABLE,
    "microsoft": microsoft.TABLE,
    "whole": whole.TABLE,
    "control": control.TABLE,
}
FAMILIES: Mapping[str, tuple[str, ...]] = {
    family: tuple(sorted({kind for entry in table for kind in entry.kinds})) for family, table in TABLES.items()
}
UNKNOWN = Rule("", (), fallback=True)


def _index() -> tuple[dict[str, tuple[Entry, ...]], dict[str, str]]:
    """Kind -> its lines, oldest opset first; kind -> its family."""
    lines: dict[str, tuple[Entry, ...]] = {}
    families: dict[str, str] = {}
    for family, table in TABLES.items():
        for entry in table:
            for kind in entry.kinds:
                lines[kind] = tuple(sorted((*lines.get(kind, ()), entry), key=lambda entry: entry.since))
                families[kind] = family
    return lines, families


_ENTRIES, _FAMILY = _index()


def family_of(kind: str) -> str:
    """The family of an operator kind, `"unknown"` when no table has it."""
    return _FAMILY.get(kind, "unknown")


def signature(operator: Operator, model: Model) -> Hashable:
    """All that the rule of `operator` depends on; equal signatures have the same (identical) rule."""
    return _signature(operator, model) or operator.kind


def _signature(operator: Operator, model: Model) -> Signature | None:
    """The signature of an operator that has a line in a table, or a body in its schema."""
    entry = _entry(operator.kind, operator.version)
    if entry is not None:
        return sign(operator, model, entry.reads) if entry.row else None
    if operator.kind in _ENTRIES or not has_body(operator.kind, operator.version):
        return None
    return sign(operator, model, tuple(range(len(operator.inputs))))


def rule_for(operator: Operator, model: Model) -> Rule:
    """How `operator` may be split. Pure, and worked out once per signature.

    Operators that no table has, or whose form has no line, get the rule composed from the body that their schema gives
    them. Where there is none, and where results depend on data, the rule has `fallback` set: they are replicated.
    Raises `ShardplanError` when the shapes in the model contradict the operator.
    """
    signature = _signature(operator, model)
    if signature is None:
        return UNKNOWN
    try:
        return rule_of(signature)
    except EquationError as problem:
        shapes = ", ".join(str(list(model.tensors[name].shape)) for name in operator.inputs if name)
        raise ShardplanError(
            error(
                "shape-mismatch",
                f"operator '{operator.name}' ({operator.kind}) cannot have operands of shape {shapes}",
                detail=str(problem),
                hint="check the model with onnx.checker, and the sizes given with --dim",
            )
        ) from None
    except UNREADABLE as problem:
        raise ShardplanError(unplannable(f"operator '{operator.name}' ({operator.kind})", problem)) from problem


@lru_cache(maxsize=8192)
def rule_of(signature: Signature) -> Rule:
    """The rule of a signature; `EquationError` when its shapes contradict the operator."""
    entry = _entry(signature.kind, signature.version)
    line = entry.row if entry else None
    if callable(line):
        line = line(signature)
    if isinstance(line, Row):
        return make_rule(aligned(line, signature), signature)
    return composed(signature, rule_for) or UNKNOWN


def _entry(kind: str, version: int) -> Entry | None:
    """The line for this opset version: the last one that is not newer."""
    return next((entry for entry in reversed(_ENTRIES.get(kind, ())) if entry.since <= version), None)
