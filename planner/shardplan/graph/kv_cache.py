"""The KV cache that serving keeps beside the graph: the bytes that each attention operator holds.

An exported prefill graph has no cache; the request says for how many tokens a server reserves one. Keys and values are
stored as the operator reads them: sharded with the batch, and by heads up to the number of key heads, beyond that
replicated.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardplan.cost.moves import Index
from shardplan.errors import Diagnostic, error
from shardplan.graph.flow import Flow
from shardplan.graph.strategies import StrategySpace
from shardplan.model.types import DTYPE_BITS, Model
from shardplan.rules.types import Rule

_ATTENTION = frozenset({"Attention", "com.microsoft.GroupQueryAttention", "com.microsoft.MultiHeadAttention"})
_PASSING = frozenset({"Reshape", "Transpose", "Unsqueeze", "Expand", "Squeeze", "RotaryEmbedding", "Identity"})
"""Operators that may be between the projection of the keys and the attention, such as exporters' repetition of key
heads."""
_PAST_KEYS = 4


def cache_obstacles(model: Model, *, training: bool) -> list[Diagnostic]:
    """Why no cache can be reserved for `model`; empty if it can."""
    if training:
        hint = "add --mode inference"
        return [error("kv-cache", "a cache of keys and values is for serving, and this is training", hint=hint)]
    inner = [operator for operator in model.operators if operator.kind in _ATTENTION]
    if not inner:
        summary = f"'{model.name}' has no attention operator whose keys and values could be cached"
        return [error("kv-cache", summary, hint="export with fused attention, or lower --memory-limit by the cache")]
    if any(len(operator.inputs) > _PAST_KEYS and operator.inputs[_PAST_KEYS] for operator in inner):
        summary = f"'{model.name}' already reads its cache: it is planned as an input of the graph"
        return [error("kv-cache", summary, hint="leave --kv-cache out, and give the cache's length with --dim")]
    return []


def cache_bytes(model: Model, index: int, flow: Flow, strategies: StrategySpace, tokens: int) -> Index | None:
    """Bytes that operator `index` keeps for `tokens` cached tokens, per strategy; `None` if it is not attention."""
    operator = model.operators[index]
    if operator.kind not in _ATTENTION or len(operator.inputs) < 3:
        return None
    keys, values = (_per_token(model, flow, name) for name in operator.inputs[1:3])
    head_size = _head_size(model, strategies.rule, operator.inputs[1])
    key_heads = max(1, keys // head_size)
    over_heads = np.minimum(strategies.splits_of(("h", "g")), key_heads)
    ways = strategies.splits_of(("b",)) * over_heads
    bits = DTYPE_BITS[model.tensor(operator.inputs[1]).dtype]
    held: Index = -(-(keys + values) * tokens * bits // (8 * ways))
    return held


def _per_token(model: Model, flow: Flow, name: str) -> int:
    """Elements of a key or value per token before heads were repeated: the minimum on the way from its projection."""
    fewest = model.tensor(name).elements
    tokens = _tokens(model.tensor(name).shape)
    while name in flow.makers:
        operator = model.operators[flow.makers[name][0]]
        if operator.op_type not in _PASSING:
            break
        name = operator.inputs[0]
        fewest = min(fewest, model.tensor(name).elements)
    return fewest // tokens


def _tokens(shape: Sequence[int]) -> int:
    """Tokens of an operand [batch, seq, heads * size] or [batch, heads, seq, size]."""
    return max(1, shape[0] * shape[-2])


def _head_size(model: Model, rule: Rule, keys: str) -> int:
    shape = model.tensor(keys).shape
    return shape[-1] if len(shape) == 4 else max(1, shape[-1] // max(1, rule.sizes.get("h", 1)))
