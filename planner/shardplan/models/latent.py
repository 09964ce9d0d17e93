"""Multi-head latent attention, after DeepSeek-V2: keys and values of all heads are projected from one small latent."""

from __future__ import annotations

from collections.abc import Callable

from shardplan.models.graph import GraphWriter, Linear
from shardplan.models.spec import TransformerSpec

Norm = Callable[[str, str, tuple[int, ...]], str]


def latent_heads(
    graph: GraphWriter, spec: TransformerSpec, x: str, module: str, linear: Linear, norm: Norm
) -> tuple[str, str, str]:
    """[batch, seq, hidden] -> queries and keys [batch, heads, seq, head_size], values [batch, heads, seq, value_size];
    of a head the first `rope_size` are to be rotated. `norm`: (value, module, shape)."""
    rows, heads, width, rope = (spec.batch, spec.seq), spec.heads, spec.width, spec.rope_size
    value = spec.value_size or width - rope
    q, inner = x, spec.hidden
    if spec.q_rank:
        latent = linear(x, f"{module}.q_a_proj", spec.hidden, spec.q_rank)
        q, inner = norm(latent, f"{module}.q_a_layernorm", (*rows, spec.q_rank)), spec.q_rank
    q = linear(q, f"{module}.q_b_proj" if spec.q_rank else f"{module}.q_proj", inner, heads * width)
    down = linear(x, f"{module}.kv_a_proj_with_mqa", spec.hidden, spec.kv_rank + rope)
    latent, turned = graph.split(down, (*rows, spec.kv_rank + rope), (spec.kv_rank, rope), module)
    latent = norm(latent, f"{module}.kv_a_layernorm", (*rows, spec.kv_rank))
    both = linear(latent, f"{module}.kv_b_proj", spec.kv_rank, heads * (width - rope + value))
    both = by_head(graph, both, rows, heads, width - rope + value, module)
    shape = (spec.batch, heads, spec.seq, width - rope + value)
    plain, v = graph.split(both, shape, (width - rope, value), module)
    turned = graph.apply("Unsqueeze", [turned, graph.integers(1)], (spec.batch, 1, spec.seq, rope), module)
    shared = (spec.batch, heads, spec.seq, rope)
    turned = graph.apply("Expand", [turned, graph.integers(*shared)], shared, module)
    k = graph.apply("Concat", [turned, plain], (spec.batch, heads, spec.seq, width), module, axis=3)
    return by_head(graph, q, rows, heads, width, module), k, v


def by_head(graph: GraphWriter, x: str, rows: tuple[int, int], heads: int, width: int, module: str) -> str:
    """[batch, seq, heads * width] -> [batch, heads, seq, width]."""
    shape = (*rows, heads, width)
    x = graph.reshape(x, shape, module)
    return graph.apply("Transpose", [x], (rows[0], heads, rows[1], width), module, perm=(0, 2, 1, 3))
