"""Elimination of nodes with at most two neighbours, in rounds of independent nodes, equal nodes together.

Eliminating one node at a time from left to right would make a chain of 80 equal layers 80 different products. A round
takes nodes that are not neighbours, cheapest products first and equal ones together, so that equal layers stay equal,
every product is computed once (`Tables`), and the chain halves with each round. They share no neighbour either, but for
hubs: of the thousands of neighbours of a hub, one in each round would be too slow. A node with one choice needs no
special step: the normal form of its tables is zero, so it has no neighbours.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from shardplan.solve.constants import HUB_NEIGHBOURS
from shardplan.solve.reduce.graph import Graph


def eliminate(graph: Graph) -> None:
    """Removes nodes without memory and with at most two neighbours, and drops infinite choices, until there
    are none."""
    queue = _Queue(graph)
    graph.touched.update(graph.alive)
    while True:
        queue.update()
        if not queue.classes:
            return
        spent: set[int] = set()
        for node in queue.cheapest():
            around = graph.neighbours[node]
            if node in spent or not spent.isdisjoint(around):
                continue
            spent.add(node)
            spent.update(other for other in around if len(graph.neighbours[other]) <= HUB_NEIGHBOURS)
            queue.forget(node)
            graph.minimise(node)


Entry = tuple[int, int, list[int], int]
"""What a node's place in the queue depends on: its work, costs and tables, and its number."""


class _Queue:
    """The nodes that can be eliminated, by the magnitude of the work: equal nodes side by side, else by number."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.entries: dict[int, Entry] = {}
        self.classes: dict[int, list[Entry]] = {}

    def forget(self, node: int) -> None:
        """Removes a node from the queue."""
        entry = self.entries.pop(node, None)
        if entry is not None:
            magnitude = entry[0].bit_length()
            row = self.classes[magnitude]
            del row[bisect_left(row, entry)]
            if not row:
                del self.classes[magnitude]

    def update(self) -> None:
        """Updates the nodes whose neighbourhood changed."""
        graph = self.graph
        while graph.touched:
            touched, graph.touched = graph.touched, {}
            for node in touched:
                if node not in graph.alive:
                    continue
                graph.drop_infinite(node)
                self.forget(node)
                if len(graph.neighbours[node]) <= 2 and not graph.uses[node]:
                    self.entries[node] = entry = self._entry(node)
                    insort(self.classes.setdefault(entry[0].bit_length(), []), entry)

    def cheapest(self) -> list[int]:
        """The nodes of the lowest class of work."""
        return [entry[-1] for entry in self.classes[min(self.classes)]]

    def _entry(self, node: int) -> Entry:
        graph = self.graph
        around = graph.neighbours[node]
        work = graph.sizes[node] if around else 0
        for other in around:
            work *= graph.sizes[other]
        return work, graph.costs[node], sorted(around.values()), node
