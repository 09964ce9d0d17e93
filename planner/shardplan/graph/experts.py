"""Weights that have a matrix for each expert, and what they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from shardplan.model.types import Model
from shardplan.rules.types import Rule

RANK_OF_EXPERTS: Final = 3
"""All experts stand in one tensor, [experts, inner, outer]."""


def experts_of(model: Model) -> frozenset[str]:
    """Weights that have a matrix for each expert: of that rank, and multiplied."""
    multiplied = {name for one in model.operators if one.op_type in ("MatMul", "Einsum", "Gemm") for name in one.inputs}
    return frozenset(
        weight.tensor
        for weight in model.parameters
        if weight.tensor in multiplied and len(model.tensor(weight.tensor).shape) == RANK_OF_EXPERTS
    )


def results_of_experts(model: Model, rules: Sequence[Rule]) -> frozenset[str]:
    """The results of experts, brought back to their tokens, that only sums weighed by the router's shares read."""
    experts, weighed, others = experts_of(model), set[str](), set[str]()
    if not experts:
        return frozenset()
    makers = {name: index for index, operator in enumerate(model.operators) for name in operator.outputs}
    for operator, rule in zip(model.operators, rules, strict=True):
        is_sum = operator.op_type == "Einsum" and rule.cost == "memory"
        for name in filter(None, operator.inputs):
            is_result = is_sum and _made_by_experts(name, model, rules, makers, experts)
            (weighed if is_result else others).add(name)
    return frozenset(weighed - others)


def _made_by_experts(
    name: str, model: Model, rules: Sequence[Rule], makers: Mapping[str, int], experts: frozenset[str]
) -> bool:
    """Whether a value is what a product with the experts' weights makes, moved about."""
    while name in makers:
        operator, rule = model.operators[makers[name]], rules[makers[name]]
        if experts.intersection(operator.inputs):
            return True
        if rule.cost != "view" and operator.op_type != "GatherND":
            return False
        name = operator.inputs[0]
    return False
