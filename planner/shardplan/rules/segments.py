"""Segmented shards through a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardplan.model.types import Model, Operator
from shardplan.rules.table import rule_for
from shardplan.rules.types import Rule

Variants = Mapping[tuple[str, int], tuple[tuple[int, ...], ...]]
"""(value, dim) -> the segmentations worth offering there."""


def rules_for(model: Model) -> tuple[Rule, ...]:
    """The rule of every operator, in order, with the segmented options that lead somewhere in this model.

    Operators with equal signatures and equal segmentations around them share one rule object."""
    rules = [rule_for(operator, model) for operator in model.operators]
    variants = segment_variants(model, rules)
    return tuple(expand(rule, operator, model, variants) for rule, operator in zip(rules, model.operators, strict=True))


def segment_variants(model: Model, rules: Sequence[Rule]) -> Variants:
    return {}


def expand(rule: Rule, operator: Operator, model: Model, variants: Variants) -> Rule:
    return rule
