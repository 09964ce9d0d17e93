"""Closed forms of the bytes that a model needs on one device besides activations: training state and KV cache."""

from __future__ import annotations

from shardplan.cost.recipes import state_bytes
from shardplan.model.types import DTYPE_BITS


def training_state_bytes(
    optimizer: str, dtype: str, parameters: int, *, parameter_ways: int = 1, gradient_ways: int = 1, state_ways: int = 1
) -> int:
    """Parameters, gradients and optimizer state of one device, each sharded so many ways and rounded up.

    With `state_ways = N` this is ZeRO stage 1, with gradients too stage 2, with all three stage 3.
    """
    each = state_bytes(optimizer, dtype)
    parts = ((each.parameter, parameter_ways), (each.gradient, gradient_ways), (each.state, state_ways))
    return sum(-(-int(parameters * size) // ways) for size, ways in parts)


def kv_cache_bytes(layers: int, kv_heads: int, head_size: int, tokens: int, dtype: str, *, ways: int = 1) -> int:
    """Keys and values of `tokens` cached tokens on one device, heads sharded `ways` ways.

    Beyond `kv_heads` ways the heads are replicated, so more ways save nothing.
    """
    heads = -(-kv_heads // min(ways, kv_heads))
    return 2 * layers * heads * head_size * tokens * DTYPE_BITS[dtype] // 8
