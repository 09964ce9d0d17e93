"""Anchors: values of a program that are identified by the weight from which they are made.

If plan and program write an expression in different steps, the signatures of everything after it differ. A weight is
the same in both. If the plan makes one value from it, and the program makes a value of that shape from it, both are the
same value; and the operand beside the weight in the program is the operand beside it in the plan.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardplan.plan.types import OperatorDecision, Plan
from shardplan.torch.propagation.plan_graph import BIASED, Anchor, Key, PlanGraph, factor_of, product_of


def anchors_of(plan: Plan, graph: PlanGraph) -> dict[Key, Anchor]:
    """By key of a weight, or of a view of one, from which the plan makes one value."""
    parameters = (each.name for each in plan.tensors if each.role == "parameter")
    weights = {graph.keys[name].signature for name in parameters if name in graph.keys}
    made: dict[Key, set[Anchor]] = {}
    for operator in plan.operators:
        for operand, anchor in _made(graph, operator):
            if operand.signature in weights:
                made.setdefault(operand, set()).add(anchor)
    return {weight: next(iter(found)) for weight, found in made.items() if len(found) == 1}


def _made(graph: PlanGraph, operator: OperatorDecision) -> Iterator[tuple[Key, Anchor]]:
    """Every operand of an operator in the program's form, with its anchor if it is a weight."""
    results = [graph.keys[name] for name in operator.outputs if name in graph.keys]
    for result in results:
        operands = [name for name in operator.inputs if name in graph.keys]
        if operator.op_type in BIASED:
            yield from _factors(graph, operator, result)
            operands = [name for name in operator.inputs[2:] if name in graph.keys]
        for name in operands:
            others = {graph.keys[other] for other in operands if other != name}
            yield graph.keys[name], Anchor(result, others.pop() if len(others) == len(results) == 1 else None)


def _factors(graph: PlanGraph, operator: OperatorDecision, result: Key) -> Iterator[tuple[Key, Anchor]]:
    """The factors of what is added to: a program has the product first."""
    made = Key(product_of(graph, operator), result.shape)
    factors = [factor_of(graph, operator, place) for place in (0, 1)]
    for one, other in (factors, factors[::-1]):
        if one is not None:
            yield one, Anchor(made, other)
