"""Lightning attention, after MiniMax-01 (Li et al. 2025): linear attention whose heads forget at rates that are fixed.

With queries, keys and values behind a SiLU, and r_h = 2^(-8 h / heads) for head h = 1, 2, ...,

    S_t = exp(-r_h) S_{t-1} + k_t v_t^T        y_t = S_t^T q_t

and what all heads make is normalised together, and gated. Layers further on forget more slowly, which changes no plan:
all have the rates of the first one.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from shardplan.model.types import AttributeValue
from shardplan.models.graph import GraphWriter, Linear
from shardplan.models.spec import TransformerSpec


def lightning_attention(graph: GraphWriter, spec: TransformerSpec, x: str, module: str, linear: Linear) -> str:
    """[batch, seq, hidden] -> the same, through lightning attention with the heads of `spec`."""
    rows, heads, width = (spec.batch, spec.seq), spec.heads, spec.width
    inner = heads * width
    shape, by_head, packed = (*rows, inner), (*rows, heads, 3 * width), (*rows, 3 * inner)

    def apply(op_type: str, operands: list[str], size: tuple[int, ...] = shape) -> str:
        return graph.apply(op_type, operands, size, module)

    made = linear(x, f"{module}.qkv_proj", spec.hidden, 3 * inner)
    made = apply("Mul", [made, apply("Sigmoid", [made], packed)], packed)
    made = apply("Reshape", [made, graph.integers(*by_head)], by_head)
    parts = graph.split(made, by_head, (width,) * 3, module)
    flat = [apply("Reshape", [part, graph.integers(*shape)]) for part in parts]
    rates = graph.long_constant("lightning.rates", (heads,), partial(_rates, heads), spec.dtype)
    decay = apply("Expand", [rates, graph.integers(*rows, heads)], (*rows, heads))
    results = [(shape, graph.dtype), ((spec.batch, heads, width, width), graph.dtype)]
    attributes: dict[str, AttributeValue] = {
        "q_num_heads": heads,
        "kv_num_heads": heads,
        "scale": 1.0,
        "update_rule": "gated",
    }
    y = graph.apply_many("LinearAttention", [*flat, "", decay], results, module, attributes=attributes)[0]
    norm, epsilon = f"{module}.norm", spec.look.epsilon
    weight = graph.weight(f"{norm}.weight", (inner,))
    y = graph.apply("RMSNormalization", [y, weight], shape, norm, axis=-1, epsilon=epsilon)
    gate = apply("Sigmoid", [linear(x, f"{module}.output_gate", spec.hidden, inner)])
    return linear(apply("Mul", [y, gate]), f"{module}.out_proj", inner, spec.hidden)


def _rates(heads: int) -> NDArray[np.float32]:
    return (-(2.0 ** (-8 * np.arange(1, heads + 1) / heads))).astype(np.float32)
