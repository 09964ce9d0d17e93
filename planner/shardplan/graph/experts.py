"""Weights that have a matrix for each expert."""

from __future__ import annotations

from typing import Final

from shardplan.model.types import Model

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
