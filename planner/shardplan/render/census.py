"""What a model is made of: operators by family, their share of FLOPs and bytes, and what falls back to replication."""

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
class Census:
    """`families` by falling FLOPs, then bytes; `fallbacks` by kind; forward FLOPs of one step of the whole model."""

    families: tuple[Family, ...]
    fallbacks: tuple[Fallback, ...]
    flops: float
    bytes: int


def take_census(model: Model) -> Census:
    """Count the operators of `model`. Raises `ShardplanError` where shapes contradict an operator."""
    counted = [(operator, rule, _bytes(operator, model)) for operator, rule in _ruled(model)]
    by_family: dict[str, list[tuple[Operator, Rule, int]]] = {}
    for item in counted:
        by_family.setdefault(family_of(item[0].kind), []).append(item)
    families = [_family(name, items) for name, items in by_family.items()]
    without: dict[str, list[tuple[Operator, Rule, int]]] = {}
    for item in counted:
        if item[1].fallback:
            without.setdefault(item[0].kind, []).append(item)
    return Census(
        families=tuple(sorted(families, key=lambda family: (-family.flops, -family.bytes, family.name))),
        fallbacks=tuple(_fallback(kind, items) for kind, items in sorted(without.items())),
        flops=sum(rule.flops for _, rule, _ in counted),
        bytes=sum(moved for _, _, moved in counted),
    )


def _ruled(model: Model) -> Iterable[tuple[Operator, Rule]]:
    return zip(model.operators, model_rules(model), strict=True)


def _bytes(operator: Operator, model: Model) -> int:
    return sum(model.tensors[name].size_bytes for name in (*operator.inputs, *operator.outputs) if name)


def _family(name: str, items: list[tuple[Operator, Rule, int]]) -> Family:
    kinds: dict[str, int] = {}
    for operator, _, _ in items:
        kinds[operator.kind] = kinds.get(operator.kind, 0) + 1
    ordered = dict(sorted(kinds.items(), key=lambda item: (-item[1], item[0])))
    return Family(name, ordered, sum(rule.flops for _, rule, _ in items), sum(moved for _, _, moved in items))


def _fallback(kind: str, items: list[tuple[Operator, Rule, int]]) -> Fallback:
    return Fallback(
        kind=kind,
        count=len(items),
        first=items[0][0].name,
        flops=sum(rule.flops for _, rule, _ in items),
        bytes=sum(moved for _, _, moved in items),
    )
