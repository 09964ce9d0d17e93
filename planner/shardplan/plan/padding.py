"""The padded dims of a plan."""

from __future__ import annotations

from collections.abc import Mapping

from shardplan.model.size_names import PAD
from shardplan.plan.types import Plan


def pads_of(plan: Plan) -> dict[str, int]:
    """By dim, such as `input_ids[0]`, the padded size."""
    dims = plan.model.get("dims")
    found = dims.items() if isinstance(dims, Mapping) else ()
    return {name.removeprefix(PAD): size for name, size in found if name.startswith(PAD)}
