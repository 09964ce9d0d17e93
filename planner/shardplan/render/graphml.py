"""Cost graphs and plans as GraphML, which graph tools read: numbers and texts, with arrays reduced to their ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import networkx as nx
import numpy as np

from shardplan.escapes import one_line
from shardplan.layout.text import to_text
from shardplan.plan.types import Move, Plan
from shardplan.units import NS_PER_S

Value = str | int | float


def graphml(graph: nx.MultiDiGraph) -> str:
    r"""The GraphML document of a graph whose attributes are texts, numbers, tuples and arrays of numbers.

    An array `cost_s` becomes `least_cost_s` and `most_cost_s` of what is finite, `choices` their number and the
    `cheapest` by `cost_s`, another tuple its text. Characters that nobody sees, or that XML has not, are written out
    (`\x01`).
    """
    plain = nx.MultiDiGraph(**_reduced(graph.graph))
    plain.add_nodes_from((_text(node), _reduced(about)) for node, about in graph.nodes(data=True))
    for number, (source, target, about) in enumerate(graph.edges(data=True)):
        plain.add_edge(_text(source), _text(target), f"e{number}", **_reduced(about))
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + "\n".join(nx.generate_graphml(plain)) + "\n"


def plan_graphml(plan: Plan) -> str:
    """The GraphML document of what a plan chooses, with the nodes `operator:NAME` and `kept:NAME` of the cost graph.

    Stages of a pipeline stand side by side, their nodes named `STAGE/operator:NAME`.
    """
    graph = nx.MultiDiGraph(
        model=str(plan.model.get("name")), mesh=str(plan.mesh), step_s=plan.summary.step_ns / NS_PER_S
    )
    if plan.pipeline is None:
        _add_plan(graph, plan, "")
    else:
        for stage in plan.pipeline.stages:
            _add_plan(graph, stage.plan, f"{stage.name}/")
    return graphml(graph)


def _add_plan(graph: nx.MultiDiGraph, plan: Plan, prefix: str) -> None:
    moves: dict[tuple[str, str], list[Move]] = {}
    for move in plan.moves:
        moves.setdefault((move.tensor, move.reader), []).append(move)
    known = {tensor.name for tensor in plan.tensors}
    for tensor in plan.tensors:
        graph.add_node(
            f"{prefix}kept:{tensor.name}", kind="kept", name=tensor.name, role=tensor.role, dtype=tensor.dtype,
            shape=tensor.shape, choice=to_text(tensor.layout, plan.mesh), served=to_text(tensor.served, plan.mesh),
            memory_bytes=tensor.bytes_per_device, **_moved(moves.get((tensor.name, ""), [])),
        )  # fmt: skip
    for operator in plan.operators:
        node = f"{prefix}operator:{operator.name}"
        split = zip(operator.split, plan.mesh.names, strict=True)
        graph.add_node(
            node, kind="operator", name=operator.name, op_type=operator.op_type, module=operator.module,
            choice=" ".join(f"{label}@{axis}" for label, axis in split if label != "-") or "-",
            compute_s=operator.compute_ns / NS_PER_S, communication_s=operator.inner_ns / NS_PER_S,
        )  # fmt: skip
        for name in operator.inputs:
            if name in known:
                moved = _moved(moves.get((name, operator.name), []))
                graph.add_edge(f"{prefix}kept:{name}", node, kind="read", tensor=name, **moved)
        for name in operator.outputs:
            if name in known:
                graph.add_edge(node, f"{prefix}kept:{name}", kind="made", tensor=name)


def _moved(moves: list[Move]) -> dict[str, Value]:
    """What moves take per step, and their collectives."""
    names = dict.fromkeys(step.collective.kind for move in moves for step in move.steps)
    return {"moves_s": sum(move.time_ns for move in moves) / NS_PER_S, "collectives": " ".join(names)}


def _reduced(about: Mapping[str, Any]) -> dict[str, Value]:
    return dict(pair for key, value in about.items() for pair in _values(key, value, about))


def _values(key: str, value: Any, about: Mapping[str, Any]) -> Iterator[tuple[str, Value]]:
    if isinstance(value, np.ndarray):
        finite = value[np.isfinite(value)]
        if finite.size:
            yield f"least_{key}", finite.min().item()
            yield f"most_{key}", finite.max().item()
    elif key == "choices":
        yield key, len(value)
        yield "cheapest", _text(value[int(np.argmin(about["cost_s"]))])
    elif isinstance(value, tuple):
        yield key, "x".join(map(str, value))
    else:
        yield key, _text(value) if isinstance(value, str) else value


def _text(text: str) -> str:
    return one_line(text)
