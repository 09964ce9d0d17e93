"""The exact reductions of a problem with memory, repeated until none applies."""

from __future__ import annotations

from shardplan.solve.constants import PRESOLVE_MANY, PRESOLVE_ROUNDS, PRESOLVE_WORTH
from shardplan.solve.reduce.aggregate import aggregate, flatten
from shardplan.solve.reduce.dominate import dominate
from shardplan.solve.reduce.eliminate import eliminate
from shardplan.solve.reduce.graph import Graph
from shardplan.solve.reduce.memory import tighten


def presolve(graph: Graph, limit: int) -> None:
    """Repeats all reductions: forbidden choices, moments and choices that memory decides, followers, elimination,
    dominated choices."""
    graph.propagate()
    tighten(graph, limit)
    graph.propagate()
    left = len(graph.alive) + graph.pairs
    for _ in range(PRESOLVE_ROUNDS):
        changed = aggregate(graph)
        graph.propagate()
        eliminate(graph)
        for node in graph.alive:
            flatten(graph, node)
        changed |= dominate(graph)
        graph.propagate()
        changed |= tighten(graph, limit)
        eliminate(graph)
        before, left = left, len(graph.alive) + graph.pairs
        if not changed or (len(graph.alive) > PRESOLVE_MANY and left > PRESOLVE_WORTH * before):
            return
