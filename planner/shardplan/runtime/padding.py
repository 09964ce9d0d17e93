"""Refusal of plans with padded dims by adapters that run a model unchanged."""

from __future__ import annotations

from shardplan.errors import ShardplanError, error
from shardplan.plan.padding import pads_of
from shardplan.plan.types import Plan


def unpadded(plan: Plan) -> Plan:
    """`plan`, which must have no padded dims. Raises `ShardplanError` (`padded-plan`)."""
    pads = pads_of(plan)
    if not pads:
        return plan
    first, size = next(iter(pads.items()))
    more = f" (and {len(pads) - 1} more)" if len(pads) > 1 else ""
    summary = f"the plan holds {first} as {size:,}{more}, and what is to apply it takes the model as it is"
    hint = "solve without --pad and --uneven, or give the model that size; export --to onnx-spmd writes padded programs"
    raise ShardplanError(error("padded-plan", summary, hint=hint))
