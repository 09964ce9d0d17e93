"""Statistics of a model's operators by family: counts, FLOPs, bytes, and which have no rule and are replicated."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shardplan.model.types import Model, Operator
from shardplan.rules import family_of, model_rules
from shardplan.rules.types import Rule


@dataclass(frozen=True, slots=True)
class Family:
    """Operators of one family. `kinds`: kind -> how often; `bytes`: of operands and results together."""

    name: str
    kinds: dict[str, int]
    flops: float
    bytes: int

    @property
    def count(self) -> int:
        return sum(self.kinds.values())


@dataclass(frozen=True, slots=True)
class Fallback:
    """Operators of one kind that have no rule and are replicated: how many, the first of them, what they carry."""

    kind: str
    count: int
    first: str
    flops: float
    bytes: int


@dataclass(frozen=True, slots=True)
class OperatorStatistics:
    """`families` by falling FLOPs, then bytes; `fallbacks` by kind; forward FLOPs of one step of the whole model."""

    families: tuple[Family, ...]
    fallbacks: tuple[Fallback, ...]
    flops: float
    bytes: int


@dataclass(frozen=True, slots=True)
class _Counted:
    """One operator with what it does in all iterations of the loops around it."""

    operator: Operator
    fallback: bool
    flops: float
    bytes: int


def operator_statistics(model: Model) -> OperatorStatistics:
    """Count the operators of `model`. Raises `ShardplanError` where shapes contradict an operator."""
    counted = [_count(operator, rule, model) for operator, rule in _ruled(model)]
    by_family: dict[str, list[_Counted]] = {}
    for item in counted:
        by_family.setdefault(family_of(item.operator.kind), []).append(item)
    families = [_family(name, items) for name, items in by_family.items()]
    without: dict[str, list[_Counted]] = {}
    for item in counted:
        if item.fallback:
            without.setdefault(item.operator.kind, []).append(item)
    return OperatorStatistics(
        families=tuple(sorted(families, key=lambda family: (-family.flops, -family.bytes, family.name))),
        fallbacks=tuple(_fallback(kind, items) for kind, items in sorted(without.items())),
        flops=sum(item.flops for item in counted),
        bytes=sum(item.bytes for item in counted),
    )


def _ruled(model: Model) -> Iterable[tuple[Operator, Rule]]:
    return zip(model.operators, model_rules(model), strict=True)


def _count(operator: Operator, rule: Rule, model: Model) -> _Counted:
    iterations = model.iterations(operator.loops)
    size_bytes = sum(model.tensors[name].size_bytes for name in (*operator.inputs, *operator.outputs) if name)
    return _Counted(operator, rule.fallback, iterations * rule.flops, iterations * size_bytes)


def _family(name: str, items: list[_Counted]) -> Family:
    kinds: dict[str, int] = {}
    for item in items:
        kinds[item.operator.kind] = kinds.get(item.operator.kind, 0) + 1
    ordered = dict(sorted(kinds.items(), key=lambda item: (-item[1], item[0])))
    return Family(name, ordered, sum(item.flops for item in items), sum(item.bytes for item in items))


def _fallback(kind: str, items: list[_Counted]) -> Fallback:
    return Fallback(
        kind=kind,
        count=len(items),
        first=items[0].operator.name,
        flops=sum(item.flops for item in items),
        bytes=sum(item.bytes for item in items),
    )
