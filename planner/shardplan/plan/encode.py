"""A plan as text: JSON, two spaces, fixed key order, one decision per line, so that `git diff` of two plans reads well.

Equal plans give equal bytes: there is no time, host, absolute path or rounding in it. Times are integer nanoseconds in
the decisions and microseconds with three decimals, the same integers, in the summary. Parameters are written in
checkpoint orientation; operators and moves speak of the graph's own dims.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.text import to_text
from shardplan.plan.orientation import checkpoint_layout, checkpoint_shape, dim_axes, dim_segments
from shardplan.plan.types import (
    CollectiveStep,
    Move,
    OperatorDecision,
    Pipeline,
    Plan,
    Stage,
    Summary,
    TensorDecision,
    Transfer,
)

FORMAT_VERSION = "1.0"
PIPELINE_VERSION = "1.1"
"""Of a plan with stages."""
RECOMPUTING_VERSION = "1.2"
"""Of a plan that says for single operators that they run again in backward."""
BUCKETS_VERSION = "1.3"
"""Of a plan whose weights' gradients are sent together."""
MAJOR = 1
LINE_WIDTH = 110
Record = dict[str, object]


def dumps(plan: Plan) -> str:
    """The plan file's text, with a final newline."""
    writer = _Encoder(plan.mesh)
    by_role = {role: [t for t in plan.tensors if t.role in roles] for role, roles in SECTIONS.items()}
    details = {
        "hidden_us": plan.summary.hidden_ns / 1000,
        "overlap_weight": plan.summary.overlap_weight,
        "step_bound_us": plan.summary.step_bound_ns / 1000,
        "scheduled_us": plan.summary.scheduled_ns / 1000,
        "reproducible": plan.summary.reproducible,
        "warnings": list(plan.warnings),
    }
    sections = [
        _section("format_version", _version(plan)),
        _section("model", plan.model),
        _section("cluster", plan.cluster),
        _section("mesh", _mesh_record(plan)),
        _section("summary", summary_record(plan.summary)),
        _section("details", details),
        _rows("parameters", [writer.parameter(t) for t in by_role["parameters"]]),
        _rows("inputs", [writer.boundary(t) for t in by_role["inputs"]]),
        _rows("outputs", [writer.boundary(t) for t in by_role["outputs"]]),
        _rows("tensors", [writer.tensor(t) for t in by_role["tensors"]]),
        _rows("operators", [writer.operator(operator) for operator in plan.operators]),
        _rows("moves", [writer.move(move) for move in plan.moves]),
        _rows("blocks", [row for number, block in enumerate(plan.blocks) for row in _block_rows(number, block)]),
    ]
    if plan.pipeline is not None:
        sections.append(_pipeline(plan.pipeline))
    return "{\n" + ",\n".join(sections) + "\n}\n"


def _version(plan: Plan) -> str:
    """The least version whose readers understand all that the plan says."""
    parts = [stage.plan for stage in plan.pipeline.stages] if plan.pipeline else [plan]
    if any(move.bucket is not None for part in parts for move in part.moves):
        return BUCKETS_VERSION
    if any(operator.again for part in parts for operator in part.operators):
        return RECOMPUTING_VERSION
    return PIPELINE_VERSION if plan.pipeline else FORMAT_VERSION


def _pipeline(pipeline: Pipeline) -> str:
    """The stages, each with its plan written as any plan is, four places further in."""
    transfers = [
        _Encoder(pipeline.stages[transfer.sender].plan.mesh).transfer(
            transfer, _Encoder(pipeline.stages[transfer.receiver].plan.mesh)
        )
        for transfer in pipeline.transfers
    ]
    rows = ",\n".join(f"      {_inline(row)}" for row in transfers)
    parts = [
        f'"schedule": {_inline(pipeline.schedule)}',
        f'"bubble": {_inline(pipeline.bubble)}',
        f'"transfers": [\n{rows}\n    ]' if rows else '"transfers": []',
        '"stages": [\n' + ",\n".join(_stage(stage) for stage in pipeline.stages) + "\n    ]",
    ]
    return '  "pipeline": {\n    ' + ",\n    ".join(parts) + "\n  }"


def _stage(stage: Stage) -> str:
    head = {
        "name": stage.name,
        "first_device": stage.first_device,
        "units": stage.units,
        "in_flight": stage.in_flight,
    }
    lines = [f"        {_inline(key)}: {_inline(value)}," for key, value in head.items()]
    first, *rest = dumps(stage.plan).rstrip("\n").splitlines()
    plan = "\n".join([f'        "plan": {first}', *(f"        {line}" for line in rest)])
    return "      {\n" + "\n".join(lines) + "\n" + plan + "\n      }"


def _mesh_record(plan: Plan) -> Record:
    """Axes with their links; and, where the innermost link is that of a machine, how many machines there are."""
    axes = list(zip(plan.mesh.axes, plan.axis_links, strict=True))
    record: Record = {
        "axes": [{"name": axis.name, "size": axis.size, "link": link} for axis, link in axes],
        "devices": plan.mesh.size,
    }
    innermost = _innermost_level(plan.cluster)
    if innermost and innermost.get("topology") != "torus":
        inside = math.prod(axis.size for axis, link in axes if link == innermost.get("name"))
        record |= {"hosts": plan.mesh.size // inside, "devices_per_host": inside}
    return record


def _innermost_level(cluster: Mapping[str, object]) -> Mapping[str, object] | None:
    profile = cluster.get("profile")
    levels = profile.get("levels") if isinstance(profile, Mapping) else None
    return levels[0] if isinstance(levels, Sequence) and levels else None


SECTIONS: dict[str, tuple[str, ...]] = {
    "parameters": ("parameter",),
    "inputs": ("input",),
    "outputs": ("output",),
    "tensors": ("activation", "constant"),
}
"""Section of the file -> roles of the tensors in it."""


def summary_record(summary: Summary) -> Record:
    """The summary as `solve --json` and the plan file state it: microseconds and bytes."""
    memory = summary.memory
    return {
        "outcome": summary.outcome,
        "objective": summary.objective_ns / 1000,
        "step_us": summary.step_ns / 1000,
        "bound_us": summary.bound_ns / 1000,
        "gap": summary.gap,
        "compute_us": summary.compute_ns / 1000,
        "communication_us": summary.communication_ns / 1000,
        "memory_bytes": memory.total,
        "memory_limit_bytes": summary.memory_limit_bytes,
        "memory": {
            "parameters": memory.parameters,
            "gradients": memory.gradients,
            "optimizer": memory.optimizer,
            "activations": memory.activations,
            "temporaries": memory.temporaries,
        },
    }


def infeasible_summary(memory_limit_bytes: int) -> Record:
    """The keys of `summary_record` when it is proven that nothing fits: all null but the outcome and the limit."""
    keys = ("objective", "step_us", "bound_us", "gap", "compute_us", "communication_us", "memory_bytes")
    known: Record = {"memory_limit_bytes": memory_limit_bytes, "memory": None}
    return {"outcome": "infeasible", **dict.fromkeys(keys), **known}


class _Encoder:
    """Rows of the decision sections for one mesh."""

    def __init__(self, mesh: Mesh) -> None:
        self._names = mesh.names
        self._text = lru_cache(maxsize=None)(lambda layout: to_text(layout, mesh))

    def parameter(self, tensor: TensorDecision) -> Record:
        layout = checkpoint_layout(tensor.layout, tensor.perm)
        served = checkpoint_layout(tensor.served, tensor.perm)
        shape = checkpoint_shape(tensor.shape, tensor.perm)
        return {
            "name": tensor.checkpoint,
            "tensor": tensor.name,
            "onnx": tensor.onnx,
            "perm": tensor.perm,
            "aliases": tensor.aliases,
            "trainable": tensor.trainable,
            **self._stored(tensor, shape, layout, served, dims=True),
            **self._optimizer(tensor),
        }

    def _optimizer(self, tensor: TensorDecision) -> Record:
        if tensor.optimizer is None:
            return {}
        return {"optimizer": self._text(checkpoint_layout(tensor.optimizer, tensor.perm))}

    def boundary(self, tensor: TensorDecision) -> Record:
        return {"name": tensor.name, **self._stored(tensor, tensor.shape, tensor.layout, tensor.served, dims=True)}

    def tensor(self, tensor: TensorDecision) -> Record:
        role: Record = {"role": tensor.role} if tensor.role == "constant" else {}
        stored = self._stored(tensor, tensor.shape, tensor.layout, tensor.served, dims=False)
        return {"name": tensor.name, **role, **stored}

    def _stored(
        self, tensor: TensorDecision, shape: tuple[int, ...], layout: Layout, served: Layout, *, dims: bool
    ) -> Record:
        row: Record = {"shape": shape, "dtype": tensor.dtype, "layout": self._text(layout)}
        if dims:
            row["dims"] = dim_axes(layout, len(shape), self._names)
            segments = dim_segments(layout)
            if segments:
                row["segments"] = segments
        if served != layout:
            row["served"] = self._text(served)
        row["bytes_per_device"] = tensor.bytes_per_device
        if tensor.saved:
            row["saved"] = True
        if tensor.recomputed:
            row["recomputed"] = True
        return row

    def operator(self, operator: OperatorDecision) -> Record:
        return {
            "name": operator.name,
            "op": operator.op_type,
            "module": operator.module,
            "equation": operator.equation,
            "split": dict(zip(self._names, operator.split, strict=True)),
            "inputs": operator.inputs,
            "reads": [layout and self._text(layout) for layout in operator.reads],
            "outputs": operator.outputs,
            "makes": [layout and self._text(layout) for layout in operator.makes],
            "compute_ns": operator.compute_ns,
            **({"backward_ns": operator.backward_ns} if operator.backward_ns else {}),
            **({"inner_ns": operator.inner_ns} if operator.inner_ns else {}),
            **({"again": operator.again} if operator.again else {}),
        }

    def move(self, move: Move) -> Record:
        row: Record = {
            "tensor": move.tensor,
            "from": self._text(move.source),
            "to": self._text(move.target),
            "reader": move.reader,
            "phase": move.phase,
        }
        if move.regather:
            row["regather"] = True
        row["collectives"] = [self._step(step) for step in move.steps]
        row["count"] = move.count
        row["hidden"] = move.hidden
        if move.bucket is not None:
            row["bucket"] = move.bucket
        row["time_ns"] = move.time_ns
        return row

    def transfer(self, transfer: Transfer, receiver: _Encoder) -> Record:
        """A row of the pipeline's transfers; `self` writes the sender's layouts and `receiver` the receiver's."""
        return {
            "tensor": transfer.tensor,
            "sender": transfer.sender,
            "receiver": transfer.receiver,
            "from": self._text(transfer.source),
            "to": receiver._text(transfer.target),
            "forward": [receiver._step(step) for step in transfer.forward],
            "backward": [self._step(step) for step in transfer.backward],
            "count": transfer.count,
            "hidden": transfer.hidden,
            "time_ns": transfer.time_ns,
        }

    def _step(self, step: CollectiveStep) -> Record:
        return {
            "kind": step.collective.kind,
            "axes": [self._names[axis] for axis in step.collective.axes],
            "share": str(step.collective.share),
            "bytes": step.payload_bytes,
            "time_ns": step.time_ns,
        }


def _block_rows(number: int, block: tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]) -> list[Record]:
    """One row per copy of a repeated block; its operators as half-open runs of positions, in corresponding order."""
    names, copies = block
    return [{"block": number, "name": name, "operators": _runs(copy)} for name, copy in zip(names, copies, strict=True)]


def _runs(indices: Sequence[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for index in indices:
        if runs and runs[-1][1] == index:
            runs[-1][1] = index + 1
        else:
            runs.append([index, index + 1])
    return runs


def _rows(name: str, rows: list[Record]) -> str:
    if not rows:
        return f'  "{name}": []'
    lines = ",\n".join(f"    {_inline(row)}" for row in rows)
    return f'  "{name}": [\n{lines}\n  ]'


def _section(name: str, value: object) -> str:
    return f'  "{name}": {_nested(value, indent=2, used=len(name) + 6, open_up=True)}'


def _nested(value: object, indent: int, used: int, *, open_up: bool = False) -> str:
    """`value` on one line where it fits, else one entry per line. `open_up`: mappings never on one line."""
    line = _inline(value)
    if (len(line) + used <= LINE_WIDTH and not (open_up and isinstance(value, Mapping))) or not value:
        return line
    pad = " " * (indent + 2)
    if isinstance(value, Mapping):
        entries = [
            f"{_inline(key)}: {_nested(entry, indent + 2, indent + len(key) + 6)}" for key, entry in value.items()
        ]
        return "{\n" + ",\n".join(pad + entry for entry in entries) + "\n" + " " * indent + "}"
    if isinstance(value, (list, tuple)):
        entries = [_nested(entry, indent + 2, indent + 2) for entry in value]
        return "[\n" + ",\n".join(pad + entry for entry in entries) + "\n" + " " * indent + "]"
    return line


def _inline(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=dict)
