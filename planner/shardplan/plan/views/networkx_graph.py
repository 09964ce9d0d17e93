"""A plan as a networkx graph: operators and tensors with their decisions, edges from producers to readers."""

from __future__ import annotations

import networkx as nx

from shardplan.plan.types import Plan
from shardplan.plan.views.tables import table


def to_networkx(plan: Plan) -> nx.MultiDiGraph:
    """The plan as a directed multigraph. Nodes are `("operator", name)` and `("tensor", name)`, in a pipeline with the
    stage's name in the middle; their attributes are the rows of `Plan.records`, and `kind`. Each operand and result has
    an edge with its `position`."""
    graph = nx.MultiDiGraph(name=str(plan.model.get("name")))
    for prefix, part in _parts(plan):
        for kind in ("tensor", "operator"):
            for row in table(part, "tensors" if kind == "tensor" else "operators"):
                graph.add_node((kind, *prefix, row["name"]), **{**row, "stage": "".join(prefix)}, kind=kind)
        for operator in part.operators:
            node = ("operator", *prefix, operator.name)
            for names, reads in ((operator.inputs, True), (operator.outputs, False)):
                for position, name in enumerate(names):
                    tensor = ("tensor", *prefix, name)
                    if tensor in graph:
                        graph.add_edge(*((tensor, node) if reads else (node, tensor)), position=position)
    return graph


def _parts(plan: Plan) -> list[tuple[tuple[str, ...], Plan]]:
    if plan.pipeline is None:
        return [((), plan)]
    return [((stage.name,), stage.plan) for stage in plan.pipeline.stages]
