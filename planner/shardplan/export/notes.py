"""Properties of a planned training step that sharding formats cannot express, as warnings."""

from __future__ import annotations

from shardplan.errors import Diagnostic, warning
from shardplan.plan.types import Plan

_SAY_STATES = frozenset({"jax", "megatron"})
"""Formats that say where optimizer state is, or that it is sharded over the data-parallel ranks."""
_SAY_MICROBATCHES = frozenset({"megatron", "maxtext"})
"""Formats that say in how many microbatches a step is made."""


def left_to_programs(plan: Plan, format_name: str) -> list[Diagnostic]:
    """Warnings of what the program that reads the format must do itself to reach the planned time and memory."""
    found = []
    apart = [tensor.checkpoint for tensor in plan.tensors if tensor.optimizer is not None]
    if apart and format_name not in _SAY_STATES:
        some = ", ".join(apart[:3]) + (" ..." if len(apart) > 3 else "")
        summary = (
            f"the optimizer state of {some} is sharded apart from the weights (ZeRO-1); '{format_name}' says weights"
        )
        found.append(warning("not-said", summary))
    number = plan.model.get("microbatches", 1)
    if isinstance(number, int) and number > 1 and format_name not in _SAY_MICROBATCHES:
        summary = f"the plan is for a step of {number} microbatches, which the program that runs it has to make"
        found.append(warning("not-said", summary))
    return found
