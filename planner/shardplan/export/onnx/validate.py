"""Validation of multi-device annotations, which ONNX's checker does not check; for our own files and others'.

Source: docs/IR.md of onnx ("Multi-Device Configuration") and the messages' definitions in onnx.proto, IR version 11.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import onnx

from shardplan.errors import Diagnostic, did_you_mean, error
from shardplan.units import counted

FIRST_IR_VERSION = 11
_CODE = "bad-annotation"
Shapes = Mapping[str, tuple[int | None, ...]]
"""Value -> its dims, None where one is not known."""


def validate_annotations(model: onnx.ModelProto) -> list[Diagnostic]:
    """Everything that is wrong with the annotations of `model`, in the order of the file; empty if nothing is.

    Dims are compared where the file states them, for values of the main graph and of nested ones.
    """
    sizes, problems = _configurations(model)
    for graph, shapes in _nested(model.graph, {}):
        for position, node in enumerate(graph.node):
            where = f"node '{node.name}' ({node.op_type})" if node.name else f"node {position} ({node.op_type})"
            problems += [error(_CODE, f"{where}: {text}", hint=hint) for text, hint in _node(node, sizes, shapes)]
    if model.ir_version < FIRST_IR_VERSION and (model.configuration or problems or _any_annotated(model.graph)):
        hint = f"set ir_version to {FIRST_IR_VERSION}"
        summary = (
            f"the model has IR version {model.ir_version}; annotations are part of ONNX from {FIRST_IR_VERSION} on"
        )
        problems.insert(0, error(_CODE, summary, hint=hint))
    return problems


def _configurations(model: onnx.ModelProto) -> tuple[dict[str, int], list[Diagnostic]]:
    """Name -> number of devices; and what is wrong with the configurations themselves."""
    sizes: dict[str, int] = {}
    problems = []
    for place, entry in enumerate(model.configuration):
        where = f"configuration '{entry.name}'" if entry.name else f"configuration {place}"
        if not entry.name:
            problems.append(error(_CODE, f"{where} has no name"))
        if entry.name in sizes:
            problems.append(error(_CODE, f"{where} is there twice"))
        if entry.num_devices < 1:
            problems.append(error(_CODE, f"{where} has {entry.num_devices} devices; there is at least 1"))
        if entry.device and len(entry.device) != entry.num_devices:
            counts = f"{counted(len(entry.device), 'device')} and has num_devices {entry.num_devices}"
            problems.append(error(_CODE, f"{where} names {counts}"))
        problems += [error(_CODE, f"{where} names device '{name}' twice") for name in _repeated(entry.device)]
        sizes[entry.name] = entry.num_devices
    return sizes, problems


def _nested(graph: onnx.GraphProto, around: Shapes) -> Iterator[tuple[onnx.GraphProto, Shapes]]:
    """A graph and those nested in it, each with the dims of all values that its nodes can see."""
    shapes = dict(around)
    for info in (*graph.input, *graph.output, *graph.value_info):
        if info.type.tensor_type.HasField("shape"):
            dims = info.type.tensor_type.shape.dim
            shapes[info.name] = tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in dims)
    shapes |= {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    yield graph, shapes
    for node in graph.node:
        for attribute in node.attribute:
            for inner in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                yield from _nested(inner, shapes)


def _any_annotated(graph: onnx.GraphProto) -> bool:
    return any(node.device_configurations for inner, _ in _nested(graph, {}) for node in inner.node)


Finding = tuple[str, str]
"""What is wrong, and a hint."""


def _node(node: onnx.NodeProto, sizes: Mapping[str, int], shapes: Shapes) -> Iterator[Finding]:
    for name in _repeated(entry.configuration_id for entry in node.device_configurations):
        yield f"it is annotated twice for configuration '{name}'", ""
    for entry in node.device_configurations:
        if entry.configuration_id not in sizes:
            names = ", ".join(sorted(sizes)) or "none"
            hint = did_you_mean(entry.configuration_id, sizes) or f"the configurations are: {names}"
            yield f"there is no configuration '{entry.configuration_id}'", hint
        if entry.pipeline_stage < 0:
            yield f"pipeline stage {entry.pipeline_stage} is negative", ""
        known = [name for name in (*node.input, *node.output) if name]
        for name in _repeated(spec.tensor_name for spec in entry.sharding_spec):
            yield f"the sharding of '{name}' is stated twice", ""
        for spec in entry.sharding_spec:
            if spec.tensor_name not in known:
                hint = did_you_mean(spec.tensor_name, known) or f"its tensors are: {', '.join(known)}"
                yield f"it neither reads nor makes '{spec.tensor_name}'", hint
                continue
            for text in _spec(spec, sizes.get(entry.configuration_id), shapes.get(spec.tensor_name)):
                yield f"sharding of '{spec.tensor_name}': {text}", ""


def _spec(spec: onnx.ShardingSpecProto, devices: int | None, shape: tuple[int | None, ...] | None) -> Iterator[str]:
    yield from _devices(spec, devices)
    count = 1
    for entry in spec.sharded_dim:
        yield from _dim(entry, shape)
        count *= math.prod(simple.num_shards for simple in entry.simple_sharding)
    rank = None if shape is None else len(shape)
    places = [entry.axis if rank is None or entry.axis >= 0 else entry.axis + rank for entry in spec.sharded_dim]
    for place in _repeated(places):
        yield f"axis {place} is sharded twice"
    if len(spec.device) != count:
        yield f"it has {counted(count, 'shard')} and lists {counted(len(spec.device), 'device')}"


def _devices(spec: onnx.ShardingSpecProto, devices: int | None) -> Iterator[str]:
    """Every entry of `device` is a device or the key of a group; no device holds two shards."""
    groups = {entry.key: list(entry.value) for entry in spec.index_to_device_group_map}
    yield from _groups(spec, groups)
    holders = [device for key in spec.device for device in groups.get(key, [key] if key >= 0 else [])]
    for device in sorted(set(holders)):
        if device < 0 or (devices is not None and device >= devices):
            yield f"there is no device {device}; there are {devices}"
    for device in _repeated(holders):
        yield f"device {device} holds two shards"


def _groups(spec: onnx.ShardingSpecProto, groups: Mapping[int, list[int]]) -> Iterator[str]:
    """Every group is there once, has members, and holds a shard."""
    for key in _repeated(entry.key for entry in spec.index_to_device_group_map):
        yield f"group {key} is there twice"
    for key in spec.device:
        if key < 0 and key not in groups:
            yield f"there is no group {key}"
    for key, members in groups.items():
        if not members:
            yield f"group {key} is empty"
        if key not in spec.device:
            yield f"group {key} holds no shard"


def _dim(entry: onnx.ShardedDimProto, shape: tuple[int | None, ...] | None) -> Iterator[str]:
    if not entry.simple_sharding:
        yield f"axis {entry.axis} states no sharding"
    for simple in entry.simple_sharding:
        if simple.num_shards < 1:
            yield f"axis {entry.axis} is cut into {simple.num_shards} shards; there is at least 1"
        elif simple.HasField("dim_value") and simple.dim_value % simple.num_shards:
            yield f"axis {entry.axis}: {simple.dim_value} does not divide into {simple.num_shards} shards"
    if shape is None:
        return
    rank = len(shape)
    if not -rank <= entry.axis < rank:
        yield f"axis {entry.axis} is outside of its {counted(rank, 'dim')}"
        return
    size = shape[entry.axis]
    stated = [simple.dim_value for simple in entry.simple_sharding if simple.HasField("dim_value")]
    if size is not None and entry.simple_sharding and len(stated) == len(entry.simple_sharding):
        product = math.prod(stated)
        if product != size:
            yield f"axis {entry.axis} is stated to have {counted(product, 'element')} and has {size}"


def _repeated(values: Iterable[object]) -> list[object]:
    """Those that are there more than once, in order."""
    return [value for value, count in Counter(values).items() if count > 1]
