"""The padded dims of a plan, and their refusal by adapters that run a model unchanged."""

from __future__ import annotations

from collections.abc import Mapping

from shardplan.errors import ShardplanError, error
from shardplan.model.size_names import PAD
from shardplan.plan.types import Plan


def pads_of(plan: Plan) -> dict[str, int]:
    """By dim, such as `input_ids[0]`, the padded size."""
    dims = plan.model.get("dims")
    found = dims.items() if isinstance(dims, Mapping) else ()
    return {name.removeprefix(PAD): size for name, size in found if name.startswith(PAD)}


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
