"""What crosses the borders between units: the bytes of each value and of its gradient."""

from __future__ import annotations

from shardplan.graph.flow import with_gradients
from shardplan.graph.options import PlanOptions
from shardplan.pipeline.cut_points import Chain


def border_sizes(chain: Chain, options: PlanOptions) -> tuple[tuple[int, int], ...]:
    """By border, the bytes of the value and of its gradient in one microbatch; 0 where it has no gradient. The runtime
    sends a gradient in the type of its value, whatever the optimizer keeps the gradients of weights in."""
    differentiable = with_gradients(chain.model) if options.training else frozenset()
    values = [-(-chain.model.tensor(border).size_bytes // options.microbatches) for border in chain.borders]
    return tuple(
        (size_bytes, size_bytes if border in differentiable else 0)
        for border, size_bytes in zip(chain.borders, values, strict=True)
    )
