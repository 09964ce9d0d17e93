"""Decisions of a plan that are impossible for every model."""

from __future__ import annotations

from collections.abc import Iterator

from shardplan.layout.legal import check as check_layout
from shardplan.layout.text import to_text
from shardplan.plan.types import Plan


def faults(plan: Plan) -> Iterator[str]:
    """What is impossible whatever the model: layouts that do not divide, moves and operators of unknown tensors."""
    for stage in plan.pipeline.stages if plan.pipeline else ():
        yield from (f"{stage.name}: {sentence}" for sentence in faults(stage.plan))
    known = {tensor.name: tensor for tensor in plan.tensors}
    for tensor in plan.tensors:
        for sentence in check_layout(tensor.layout, plan.mesh, tensor.shape):
            yield f"'{tensor.name}' cannot be {to_text(tensor.layout, plan.mesh)}: {sentence}"
    for move in plan.moves:
        if move.tensor not in known:
            yield f"a move of '{move.tensor}', which is no tensor of the plan"
    position = {operator.name: number for number, operator in enumerate(plan.operators)}
    for number, operator in enumerate(plan.operators):
        before = operator.recomputed_before
        if before and position.get(before, -1) < number:
            yield f"'{operator.name}' is recomputed before '{before}', which is no operator after it"
        for name, layout in zip((*operator.inputs, *operator.outputs), (*operator.reads, *operator.makes), strict=True):
            if layout is not None and name not in known:
                yield f"'{operator.name}' uses '{name}', which is no tensor of the plan"
