"""The exact reductions of a problem with memory, repeated until none applies."""

from __future__ import annotations

from shardplan.solve.dominate import dominate
from shardplan.solve.eliminate import eliminate
from shardplan.solve.follow import flatten, follow
from shardplan.solve.graph import Graph
from shardplan.solve.memory import tighten

ROUNDS = 4
MANY, WORTH = 5000, 0.98
"""With so many nodes another round is worth its time when the last one left less than this share."""


def presolve(graph: Graph, limit: int) -> None:
    """Forbidden choices, moments and choices that memory decides, followers, free nodes of small degree, dominated
    choices."""
    graph.settle()
    tighten(graph, limit)
    graph.settle()
    left = len(graph.alive) + graph.pairs
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
        before, left = left, len(graph.alive) + graph.pairs
        if not changed or (len(graph.alive) > MANY and left > WORTH * before):
            return
