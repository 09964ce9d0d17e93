"""Removal of nodes with at most two neighbours, in rounds of independent, equal-looking nodes.

One node at a time from left to right would make a chain of 80 equal layers 80 different products. A round takes nodes
that are no neighbours of each other, cheapest products first and equal ones together, so that equal layers stay
equal, every product is computed once (`Tables`), and the chain halves with each round. A node with one choice needs
no step of its own: the normal form of its tables is zero, so it has no neighbours.
"""

from __future__ import annotations

from shardplan.solve.graph import Graph


def eliminate(graph: Graph) -> None:
    """Remove nodes without memory and with at most two neighbours, and drop infinite choices, until there are none."""
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
            spent.update(around)
            queue.forget(node)
            graph.minimise(node)


class _Queue:
    """The nodes that may go, by the magnitude of the work that it takes."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.place: dict[int, int] = {}
        self.classes: dict[int, dict[int, None]] = {}

    def forget(self, node: int) -> None:
        """Take a node off the queue."""
        place = self.place.pop(node, None)
        if place is not None:
            del self.classes[place][node]
            if not self.classes[place]:
                del self.classes[place]

    def update(self) -> None:
        """Look again at the nodes whose surroundings changed."""
        graph = self.graph
        while graph.touched:
            touched, graph.touched = graph.touched, {}
            for node in touched:
                if node not in graph.alive:
                    continue
                graph.drop_infinite(node)
                self.forget(node)
                if len(graph.neighbours[node]) <= 2 and not graph.uses[node]:
                    self.place[node] = place = self._work(node).bit_length()
                    self.classes.setdefault(place, {})[node] = None

    def cheapest(self) -> list[int]:
        """The nodes of the least class of work, equal-looking ones side by side, else by number."""
        graph = self.graph
        return sorted(
            self.classes[min(self.classes)],
            key=lambda node: (self._work(node), graph.costs[node], sorted(graph.neighbours[node].values()), node),
        )

    def _work(self, node: int) -> int:
        graph = self.graph
        work = graph.sizes[node]
        for other in graph.neighbours[node]:
            work *= graph.sizes[other]
        return work if graph.neighbours[node] else 0
