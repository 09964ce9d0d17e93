"""Aggregation: nodes whose choice a neighbour's choice determines are merged into it.

If every row of a table has one finite entry, the node at its columns follows the node at its rows. Followers of
followers form trees; a round composes their maps up to the roots and updates every edge once, so that long chains and
nodes with many followers cost no more than their edges.
"""

from __future__ import annotations

from shardplan.solve.reduce.graph import Follow, Graph, Use
from shardplan.solve.reduce.memory import stacked
from shardplan.solve.reduce.tables import NONE

Image = tuple[int, ...]


def aggregate(graph: Graph) -> bool:
    """Merges followers into their leaders, one round; returns whether there were any."""
    leaders = _leaders(graph)
    if not leaders:
        return False
    roots = _roots(leaders)
    edges = _detach(graph, roots)
    moved: dict[int, list[Use]] = {}
    for node, (root, image) in roots.items():
        moved.setdefault(root, []).extend(_merge(graph, node, root, image))
    for root, uses in moved.items():
        graph.add_uses(root, uses)
    for u, v, matrix in edges:
        _attach(graph, u, v, matrix, roots)
    return True


def _leaders(graph: Graph) -> dict[int, tuple[int, Image]]:
    """For every follower, its leader and its choice for each choice of the leader; without cycles."""
    leaders: dict[int, tuple[int, Image]] = {}
    group = list(range(len(graph.sizes)))  # union-find over trees

    def find(node: int) -> int:
        while group[node] != node:
            group[node] = node = group[group[node]]
        return node

    for u in graph.alive:
        for v, matrix in graph.neighbours[u].items():
            if v in leaders or find(u) == find(v):
                continue
            image = graph.tables.image(matrix)
            if image:
                leaders[v] = (u, image)
                group[find(v)] = find(u)
    return leaders


def _roots(leaders: dict[int, tuple[int, Image]]) -> dict[int, tuple[int, Image]]:
    """Maps composed up to the root of each tree."""
    roots: dict[int, tuple[int, Image]] = {}
    for start in leaders:
        path = []
        node = start
        while node in leaders and node not in roots:
            path.append(node)
            node = leaders[node][0]
        for follower in reversed(path):
            leader, image = leaders[follower]
            if leader in roots:
                root, above = roots[leader]
                roots[follower] = root, tuple(image[i] for i in above)
            else:
                roots[follower] = leader, image
    return roots


def _detach(graph: Graph, roots: dict[int, tuple[int, Image]]) -> list[tuple[int, int, int]]:
    """Removes all edges of followers."""
    edges = []
    for u in roots:
        for v, matrix in list(graph.neighbours[u].items()):
            edges.append((u, v, matrix))
            graph.unlink(u, v)
    return edges


def _merge(graph: Graph, node: int, root: int, image: Image) -> list[Use]:
    """Adds a follower's costs to its root's; its memory follows the root's choices."""
    tables = graph.tables
    graph.postsolve.append(Follow(node, root, image))
    del graph.alive[node]
    graph.add_cost(
        root, *tables.normal(tables.take(graph.costs[node], image)) if graph.costs[node] != NONE else (0.0, NONE)
    )
    uses = [Use(use.start, use.end, tables.take(use.amount, image)) for use in graph.uses[node]]
    graph.costs[node], graph.uses[node] = NONE, ()
    return uses


def _attach(graph: Graph, u: int, v: int, matrix: int, roots: dict[int, tuple[int, Image]]) -> None:
    """Adds an edge between the roots of its ends; within one tree it becomes a cost of the root's choices."""
    tables = graph.tables
    root, image = roots[u]
    matrix = tables.take(matrix, image)
    if v in roots:
        other, beyond = roots[v]
        matrix = tables.take(matrix ^ 1, beyond) ^ 1
    else:
        other = v
    if root == other:
        graph.add_cost(root, *tables.diagonal(matrix))
    else:
        graph.add_edge(root, other, tables.split(matrix))


def flatten(graph: Graph, node: int) -> None:
    """Makes the uses of a node disjoint in time, and merges equal neighbouring uses."""
    uses = graph.uses[node]
    if len(uses) < 2:
        return
    marks, levels = stacked(uses, graph.tables.arrays)
    graph.uses[node] = ()
    merged: list[Use] = []
    for start, end, level in zip(marks.tolist(), marks[1:].tolist(), levels, strict=False):
        number = graph.tables.add(level)
        if merged and merged[-1].end == start and merged[-1].amount == number:
            merged[-1] = Use(merged[-1].start, end, number)
        else:
            merged.append(Use(start, end, number))
    graph.add_uses(node, merged)
