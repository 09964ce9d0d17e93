"""Output of `inspect`: a model as tables and as a document."""

from __future__ import annotations

import dataclasses

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shardplan.model.types import Model
from shardplan.render.console import emit, table
from shardplan.render.operator_statistics import Family, OperatorStatistics
from shardplan.render.solve import facts, model_line
from shardplan.units import counted, flop, percent, size

_KINDS_SHOWN = 6


def inspect_document(model: Model, statistics: OperatorStatistics) -> dict[str, object]:
    """The statistics of operators as plain data, with what is read and returned."""
    weights = [model.tensors[parameter.tensor] for parameter in model.parameters]
    return {
        "model": model.name,
        "opset": model.opset,
        "producer": model.producer,
        "dims": dict(model.dims),
        "inputs": [_value(model, name) for name in model.inputs],
        "outputs": [_value(model, name) for name in model.outputs],
        "operators": len(model.operators),
        "parameters": len(model.parameters),
        "parameter_elements": sum(weight.elements for weight in weights),
        "parameter_bytes": sum(weight.size_bytes for weight in weights),
        **({"loops": dict(model.trips)} if model.trips else {}),
        "blocks": [{"copies": len(block.copies), "operators": len(block.copies[0])} for block in model.blocks],
        "flops": statistics.flops,
        "bytes": statistics.bytes,
        "families": [dataclasses.asdict(family) for family in statistics.families],
        "fallbacks": [dataclasses.asdict(fallback) for fallback in statistics.fallbacks],
    }


def _value(model: Model, name: str) -> dict[str, object]:
    tensor = model.tensors[name]
    return {"name": name, "shape": list(tensor.shape), "dtype": tensor.dtype}


def show_inspection(console: Console, model: Model, statistics: OperatorStatistics) -> None:
    """Inputs, blocks, families, and what falls back."""
    rows = [("model", model_line(model)), ("opset", _origin(model))]
    rows += [("reads", _values(model, model.inputs)), ("returns", _values(model, model.outputs))]
    rows += [
        (
            "blocks",
            f"{len(block.copies)} x {counted(len(block.copies[0]), 'operator')}: {block.names[0]} … {block.names[-1]}",
        )
        for block in model.blocks
    ]
    rows += [("loops", _loop(model, name, iterations)) for name, iterations in model.trips.items()]
    emit(console, facts(*rows), "", _families(statistics), "")
    _show_fallbacks(console, statistics)


def _loop(model: Model, name: str, iterations: int) -> str:
    inside = sum(name in operator.loops for operator in model.operators)
    return f"{name}: {counted(iterations, 'iteration')}, {counted(inside, 'operator')}"


def _origin(model: Model) -> str:
    return f"{model.opset}, written by {model.producer}" if model.producer else str(model.opset)


def _values(model: Model, names: tuple[str, ...], most: int = 4) -> str:
    shown = [f"{name} {model.tensors[name].dtype}{list(model.tensors[name].shape)}" for name in names[:most]]
    return ", ".join(shown) + (f" and {len(names) - most} more" if len(names) > most else "")


def _families(statistics: OperatorStatistics) -> Table:
    rows = table("family", ">operators", ">of FLOPs", ">of bytes", "*kinds")
    for family in statistics.families:
        rows.add_row(
            family.name,
            f"{family.count:,}",
            percent(family.flops / statistics.flops if statistics.flops else 0.0),
            percent(family.bytes / statistics.bytes if statistics.bytes else 0.0),
            _kinds(family),
        )
    rows.add_row(
        "total",
        f"{sum(f.count for f in statistics.families):,}",
        flop(statistics.flops),
        size(statistics.bytes),
        style="bold",
    )
    return rows


def _kinds(family: Family) -> str:
    shown = [f"{kind} ×{number}" if number > 1 else kind for kind, number in family.kinds.items()]
    rest = len(shown) - _KINDS_SHOWN
    return ", ".join(shown[:_KINDS_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _show_fallbacks(console: Console, statistics: OperatorStatistics) -> None:
    if not statistics.fallbacks:
        emit(console, Text("every operator has a sharding rule", style="green"))
        return
    rows = table("replicated, as no rule is known", ">operators", ">of FLOPs", ">of bytes", "*first")
    for fallback in statistics.fallbacks:
        rows.add_row(
            fallback.kind,
            f"{fallback.count:,}",
            percent(fallback.flops / statistics.flops if statistics.flops else 0.0),
            percent(fallback.bytes / statistics.bytes if statistics.bytes else 0.0),
            fallback.first,
        )
    emit(console, rows)
