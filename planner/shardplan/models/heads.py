"""Heads of a group that have the same queries or keys."""

from __future__ import annotations

from shardplan.models.graph import GraphWriter


def repeated(graph: GraphWriter, x: str, rows: tuple[int, int], sizes: tuple[int, int, int], module: str) -> str:
    """What holds [batch, seq, groups * size] -> [batch, seq, heads * size], the same for the heads of a group. `rows`:
    batch and sequence; `sizes`: groups, heads of each, and size."""
    groups, heads, size = sizes

    def reshaped(value: str, shape: tuple[int, ...]) -> str:
        return graph.reshape(value, shape, module)

    shape = (*rows, groups, heads, size)
    x = graph.apply("Expand", [reshaped(x, (*rows, groups, 1, size)), graph.integers(*shape)], shape, module)
    return reshaped(x, (*rows, groups * heads * size))
