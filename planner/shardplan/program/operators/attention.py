"""Attention where queries or keys are split: masks that follow from positions, and softmax over the keys of a group.

Numbers that are summed over devices have single precision at least.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shardplan.model.attributes import integer
from shardplan.model.types import AttributeValue
from shardplan.program.nodes import Graph
from shardplan.program.operators.common import finish, finite, in_type, operator_node, positions, working_type
from shardplan.program.types import Local, Site

Attributes = Mapping[str, AttributeValue]
_POSITIONAL = frozenset({"is_causal", "left_window_size", "right_window_size"})


@dataclass(frozen=True, slots=True)
class Band:
    """Which keys a query sees: those from `first` to `last` places after its own (None: no bound), which is its number
    among the queries and `past` more. `others`: the attributes that do not say so."""

    first: int | None
    last: int | None
    past: int
    others: Attributes


def band_of(site: Site, local: Local) -> Band | None:
    """What positions mean on a device that has some of them; None where they mean nothing, or a device has all."""
    left, right = (integer(local.attributes, f"{side}_window_size", -1) for side in ("left", "right"))
    last = 0 if local.attributes.get("is_causal", 0) else None if right < 0 else right
    if (left < 0 and last is None) or not site.axes("s", "t"):
        return None
    others = {name: value for name, value in local.attributes.items() if name not in _POSITIONAL}
    return Band(None if left < 0 else -left, last, site.operand(4)[2] if site.has(4) else 0, others)


def attention(graph: Graph, site: Site, local: Local, reads: Sequence[str], makes: Sequence[str]) -> None:
    """`Attention` over split keys: each device attends to its keys, results count by their sums of exponentials.

    The scores come from the operator itself (mode 2: as they enter the softmax), with their mask and cap."""
    band = band_of(site, local)
    attributes = local.attributes if band is None else band.others
    reads = reads if band is None else _masked(graph, site, band, reads)
    axes, dtype = site.axes("t"), graph.dtype(makes[0])
    if not axes:
        operator_node(graph, site, attributes, reads, makes)
        return
    wanted = [*makes, "", "", ""][:4]
    mine, scores = graph.name(f"{makes[0]}/mine"), graph.name(f"{makes[0]}/scores")
    scoring = {**attributes, "qk_matmul_output_mode": 2}
    operator_node(graph, site, scoring, reads, [mine, wanted[1], wanted[2], scores])
    wide = working_type(dtype)
    held = in_type(graph, scores, dtype, wide)
    top = graph.all_reduce(graph.reduce("ReduceMax", held, [3]), axes, "max")
    powers = graph.op("Exp", graph.op("Sub", held, finite(graph, top, wide)))
    weight = graph.reduce("ReduceSum", powers, [3])
    total = graph.all_reduce(weight, axes)
    some = graph.op("Greater", total, graph.constant(0, wide))
    total = graph.op("Where", some, total, graph.constant(1, wide))
    weighted = _weighted(graph, site, local, in_type(graph, mine, dtype, wide), graph.op("Div", weight, total), wide)
    finish(graph, graph.all_reduce(weighted, axes), makes[0], wide)
    if wanted[3]:
        _scores(graph, site, attributes, reads, wanted[3], graph.op("Div", powers, total))


def _weighted(graph: Graph, site: Site, local: Local, made: str, share: str, wide: str) -> str:
    """The device's result times its share of every row; heads may be a dim or inside of one."""
    shape = site.local_result()
    if len(shape) == 4:
        return _counted(graph, made, share, wide)
    heads = integer(local.attributes, "q_num_heads")
    by_head = graph.reshape(made, [shape[0], shape[1], heads, -1])
    return graph.reshape(_counted(graph, by_head, graph.transpose(share, [0, 2, 1, 3]), wide), shape)


def _counted(graph: Graph, made: str, share: str, wide: str) -> str:
    """What a device made, times its share: nothing (not even a nan) for rows of which it has no key."""
    zero = graph.constant(0, wide)
    return graph.op("Where", graph.op("Equal", share, zero), zero, graph.op("Mul", made, share))


def _masked(graph: Graph, site: Site, band: Band, reads: Sequence[str]) -> Sequence[str]:
    """The operands with a mask that has the rows and columns of a band which the device holds."""
    rows = positions(graph, site.axes("s"), site.local_operand(0)[-2], (-1, 1))
    columns = positions(graph, site.axes("t"), band.past + site.local_operand(1)[-2])
    ahead = graph.op("Sub", columns, graph.op("Add", rows, graph.constant(band.past)))
    bounds = [graph.op("Greater", ahead, graph.constant(band.first - 1)) if band.first is not None else ""]
    bounds += [graph.op("Less", ahead, graph.constant(band.last + 1)) if band.last is not None else ""]
    seen = functools.reduce(lambda one, other: graph.op("And", one, other), filter(None, bounds))
    if site.has(3) and graph.dtype(reads[3]) == "bool":
        seen = graph.op("And", reads[3], seen)
    elif site.has(3):
        seen = graph.op("Where", seen, reads[3], graph.constant(-np.inf, graph.dtype(reads[3])))
    return [*reads[:3], seen, *reads[4:]]


def _scores(
    graph: Graph,
    site: Site,
    attributes: Attributes,
    reads: Sequence[str],
    to: str,
    probabilities: str,
) -> None:
    """The fourth result: probabilities over all keys, or what the operator itself gives of the scores."""
    if attributes.get("qk_matmul_output_mode", 0) == 3:
        finish(graph, probabilities, to, working_type(graph.dtype(to)))
        return
    operator_node(graph, site, attributes, reads, [graph.name(f"{to}/unused"), "", "", to])
