"""Cost graph -> `Problem`: the same nodes and edges as arrays, in graph order, and the memory rows."""

from __future__ import annotations

from shardplan.graph.build import CostGraph, Node
from shardplan.graph.memory import Memory
from shardplan.solve.problem import Edge, Problem, Usage


def node_order(built: CostGraph) -> tuple[Node, ...]:
    """The nodes in the order in which `to_problem` numbers them."""
    return tuple(built.graph.nodes)


def to_problem(built: CostGraph, memory: Memory, limit_bytes: int | None) -> Problem:
    """Arrays for the solver; equal tables stay the same objects."""
    number = {node: index for index, node in enumerate(node_order(built))}
    return Problem(
        costs=tuple(data["cost"] for _, data in built.graph.nodes(data=True)),
        edges=tuple(
            Edge(number[data["source"]], number[data["target"]], data["table"])
            for _, _, data in built.graph.edges(data=True)
        ),
        usages=tuple(Usage(number[h.node], h.start, h.end, h.amount) for h in memory.holdings),
        limit=limit_bytes,
    )
