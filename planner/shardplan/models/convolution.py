"""Causal convolutions along the sequence, each channel by itself, and the short one that takes attention's place."""

from __future__ import annotations

from collections.abc import Sequence

from shardplan.models.graph import GraphWriter, Linear
from shardplan.models.spec import TransformerSpec

Shape = tuple[int, ...]


def causal_convolution(
    graph: GraphWriter,
    parts: Sequence[str],
    sizes: Sequence[int],
    rows: tuple[int, int],
    module: str,
    taps: int,
    *,
    bias: bool,
    activation: str = "silu",
) -> tuple[str, ...]:
    """Every channel of `parts`, each [batch, seq, its size], over its last `taps` tokens. Checkpoints hold one weight
    for all parts, `module`.weight [channels, 1, taps]. `activation`: `silu`, or `none`."""
    (batch, seq), channels = rows, sum(sizes)
    weight = graph.weight(f"{module}.weight", (channels, 1, taps))
    operands = [[weight] if len(parts) == 1 else graph.split(weight, (channels, 1, taps), sizes, module, axis=0)]
    if bias:
        shift = graph.weight(f"{module}.bias", (channels,))
        operands.append([shift] if len(parts) == 1 else graph.split(shift, (channels,), sizes, module))
    found = []
    for part, size, *own in zip(parts, sizes, *operands, strict=True):
        y = graph.apply("Transpose", [part], (batch, size, seq), module, perm=(0, 2, 1))
        results = [((batch, size, seq), graph.dtype), ((batch, size, taps - 1), graph.dtype)]
        made = {"activation": activation}
        y = graph.apply_many("CausalConvWithState", [y, *own], results, module, attributes=made)[0]
        found.append(graph.apply("Transpose", [y], (batch, seq, size), module, perm=(0, 2, 1)))
    return tuple(found)


def short_convolution(graph: GraphWriter, spec: TransformerSpec, x: str, module: str, linear: Linear) -> str:
    """[batch, seq, hidden] -> the same: a convolution of a few tokens between two gates, after LFM2."""
    rows, hidden = (spec.batch, spec.seq), spec.hidden
    sizes, wide = (hidden,) * 3, (spec.batch, spec.seq, spec.hidden)
    made = linear(x, f"{module}.in_proj", hidden, 3 * hidden)
    before, behind, value = graph.split(made, (*rows, 3 * hidden), sizes, f"{module}.in_proj")
    value = graph.apply("Mul", [before, value], wide, module)
    taps = spec.conv_size
    (value,) = causal_convolution(graph, [value], [hidden], rows, f"{module}.conv", taps, bias=False, activation="none")
    value = graph.apply("Mul", [behind, value], wide, module)
    return linear(value, f"{module}.out_proj", hidden, hidden)
