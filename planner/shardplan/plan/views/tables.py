"""The tables of a plan as records: lists of dicts with one set of keys each, as `pandas.DataFrame` takes them.

Every value is a string, a number, a bool or a list of these. Times are whole nanoseconds per step, sizes bytes of one
device, layouts texts in the named form (`S(0)@machine`). Of a pipeline the rows are those of its stages, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.text import to_text
from shardplan.plan.orientation import checkpoint_layout, checkpoint_shape
from shardplan.plan.types import Move, OperatorDecision, Plan, TensorDecision
from shardplan.plan.views.breakdown import Exposure

Table = Literal["parameters", "tensors", "operators", "moves"]
Row = dict[str, object]


def table(plan: Plan, name: Table) -> list[Row]:
    """The rows of one table, in the order of the plan. Raises `KeyError` for a name that is not in `Table`."""
    if name not in _TABLES:
        raise KeyError(f"there is no table '{name}'; there are {', '.join(_TABLES)}")
    rows = _TABLES[name]
    if plan.pipeline is None:
        return [{"stage": "", **row} for row in rows(plan)]
    return [{"stage": stage.name, **row} for stage in plan.pipeline.stages for row in rows(stage.plan)]


def _parameters(plan: Plan) -> list[Row]:
    return [_parameter(tensor, plan.mesh) for tensor in plan.tensors if tensor.role == "parameter"]


def _parameter(tensor: TensorDecision, mesh: Mesh) -> Row:
    def stored(layout: Layout) -> str:
        return to_text(checkpoint_layout(layout.forward, tensor.perm), mesh)

    return {
        "name": tensor.checkpoint,
        "shape": list(checkpoint_shape(tensor.shape, tensor.perm)),
        "dtype": tensor.dtype,
        "layout": stored(tensor.layout),
        "served": stored(tensor.served),
        "optimizer": stored(tensor.optimizer or tensor.layout),
        "trainable": tensor.trainable,
        "bytes_per_device": tensor.bytes_per_device,
    }


def _tensors(plan: Plan) -> list[Row]:
    return [
        {
            "name": tensor.name,
            "role": tensor.role,
            "shape": list(tensor.shape),
            "dtype": tensor.dtype,
            "layout": to_text(tensor.layout.forward, plan.mesh),
            "served": to_text(tensor.served.forward, plan.mesh),
            "saved": tensor.saved,
            "recomputed": tensor.recomputed,
            "bytes_per_device": tensor.bytes_per_device,
        }
        for tensor in plan.tensors
    ]


def _operators(plan: Plan) -> list[Row]:
    return [_operator(operator, plan.mesh) for operator in plan.operators]


def _operator(operator: OperatorDecision, mesh: Mesh) -> Row:
    return {
        "name": operator.name,
        "op_type": operator.op_type,
        "module": operator.module,
        "equation": operator.equation,
        "split": [f"{factor}@{axis}" for axis, factor in zip(mesh.names, operator.split, strict=True)],
        "compute_ns": operator.compute_ns,
        "backward_ns": operator.backward_ns,
        "inner_ns": operator.inner_ns,
    }


def _moves(plan: Plan) -> list[Row]:
    exposure = Exposure(plan)
    return [_move(move, plan.mesh, round(exposure.exposed_ns(move))) for move in plan.moves]


def _move(move: Move, mesh: Mesh, exposed_ns: int) -> Row:
    emitted = [step.collective for step in move.steps if not step.collective.is_free]
    return {
        "tensor": move.tensor,
        "reader": move.reader,
        "phase": move.phase,
        "regather": move.regather,
        "kind": move.kind,
        "source": to_text(move.source, mesh),
        "target": to_text(move.target, mesh),
        "collectives": [f"{one.kind}@{','.join(mesh.names[axis] for axis in one.axes)}" for one in emitted],
        "count": move.count,
        "payload_bytes": sum(step.payload_bytes for step in move.steps),
        "time_ns": move.time_ns,
        "exposed_ns": exposed_ns,
    }


_TABLES: Mapping[str, Callable[[Plan], list[Row]]] = {
    "parameters": _parameters,
    "tensors": _tensors,
    "operators": _operators,
    "moves": _moves,
}
