"""The exact reductions of a problem with memory, repeated until none applies."""

from __future__ import annotations

from shardplan.solve.dominate import dominate
from shardplan.solve.eliminate import eliminate
from shardplan.solve.follow import flatten, follow
from shardplan.solve.graph import Graph
from shardplan.solve.memory import tighten

ROUNDS = 4


def presolve(graph: Graph, limit: int) -> None:
    """Forbidden choices, moments and choices that memory decides, followers, free nodes of small degree, dominated
    choices."""
    graph.settle()
    tighten(graph, limit)
    graph.settle()
    for _ in range(ROUNDS):
        changed = follow(graph)
        graph.settle()
        eliminate(graph)
        for node in graph.alive:
            flatten(graph, node)
        changed |= dominate(graph)
        graph.settle()
        changed |= tighten(graph, limit)
        eliminate(graph)
        if not changed:
            return
