"""`--to onnx`: the model's own file with ONNX's multi-device annotations (IR version 11).

Every node states the sharding of what it reads and makes. Semantics, from docs/IR.md of onnx ("Multi-Device
Configuration"): operands are brought into the stated sharding, the node runs, the results are delivered in theirs; all
communication is implied. There are no mesh axes and no partial sums in it: a result that the plan makes as partial sums
is stated as it is kept after they were added up.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import inliner

from shardplan.errors import Diagnostic, ShardplanError, error, warning
from shardplan.export.files import not_an_export, write_file
from shardplan.export.onnx.validate import FIRST_IR_VERSION, validate_annotations
from shardplan.export.types import Exported, Source
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import R
from shardplan.plan.types import OperatorDecision, Plan, TensorDecision
from shardplan.program.lower import check_fresh
from shardplan.text_files import is_file

_SHOWN = 5


def export_annotations(plan: Plan, source: Source, output: Path) -> Exported:
    """Write the annotated model to the file `output`. What annotations cannot express is told as warnings.

    Raises `ShardplanError`: `stale-plan` for a plan of another model, `no-file` for a described model,
    `output-not-an-export`, `unwritable-output`.
    """
    if source.path is None:
        hint = "export the model to ONNX first"
        raise ShardplanError(
            error("no-file", f"'{source.model.name}' is described; there is no file to annotate", hint=hint)
        )
    check_fresh(source.model, plan)
    _refuse_others(output)
    proto = onnx.load(source.path, load_external_data=False)
    if proto.functions:
        proto = inliner.inline_local_functions(proto)
    refused = _annotate(proto, plan)
    problems = validate_annotations(proto)
    assert not problems, problems
    refused += _lost_data(proto, source.path, output)
    write_file(proto.SerializeToString(deterministic=True), output)
    return Exported(refused=tuple(refused), files=(output.name,))


def _refuse_others(output: Path) -> None:
    """Refuse to write over a file that is not an annotated model. Raises `ShardplanError` (`output-not-an-export`)."""
    before = output.read_bytes() if is_file(output) else b""
    proto = onnx.ModelProto()
    with contextlib.suppress(DecodeError, UnicodeDecodeError, ValueError):
        proto.ParseFromString(before)
    if before and not proto.configuration:
        raise ShardplanError(not_an_export(output, "onnx"))


def configuration_name(mesh: Mesh) -> str:
    """`mesh_machine4_gpu4`."""
    return "_".join(["mesh", *(f"{axis.name}{axis.size}" for axis in mesh.axes)])


def _annotate(proto: onnx.ModelProto, plan: Plan) -> list[Diagnostic]:
    """Add the annotations of `plan`; returns what they do not say."""
    mesh = plan.mesh
    proto.ir_version = max(proto.ir_version, FIRST_IR_VERSION)
    name = configuration_name(mesh)
    del proto.configuration[:]
    places = ["".join(f"{axis.name[0]}{i}" for axis, i in zip(mesh.axes, at, strict=True)) for at in mesh.coordinates()]
    distinct = len(set(places)) == len(places)
    devices = places if distinct else [f"device{rank}" for rank in range(mesh.size)]
    proto.configuration.add(name=name, num_devices=mesh.size, device=devices)
    writer = _Annotation(plan, name)
    made_by = {output: decision for decision in plan.operators for output in decision.outputs if output}
    annotated = set()
    for node in proto.graph.node:
        del node.device_configurations[:]
        decisions = [made_by[output] for output in node.output if output in made_by]
        if decisions and _is_control_flow(node):
            writer.annotate_results(node, made_by)
        elif decisions:
            writer.annotate(node, decisions[0])
            annotated.add(decisions[0].name)
    inside = [decision.name for decision in plan.operators if decision.name not in annotated]
    return [*writer.refused(), *_not_stated("operators that are not nodes of the main graph are not annotated", inside)]


def _is_control_flow(node: onnx.NodeProto) -> bool:
    """Whether the plan has operators of the bodies of `node` in its place."""
    return any(a.type in {onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS} for a in node.attribute)


class _Annotation:
    """Writes the annotations of one plan, and remembers what they leave out."""

    def __init__(self, plan: Plan, name: str) -> None:
        self.mesh, self.name = plan.mesh, name
        self.tensors = {decision.name: decision for decision in plan.tensors}
        self.partial: dict[str, None] = {}
        self.uneven: dict[str, None] = {}
        self.twice: dict[str, None] = {}

    def annotate(self, node: onnx.NodeProto, decision: OperatorDecision) -> None:
        """The shardings of what `node` reads and makes."""
        entry = node.device_configurations.add(configuration_id=self.name)
        stated: dict[str, Layout] = {}
        for name, planned, layout in zip(node.input, decision.inputs, decision.reads, strict=False):
            if layout is not None and name:
                self._state(entry, stated, name, planned, layout)
        self._annotate_results(entry, stated, decision, dict(zip(decision.outputs, node.output, strict=False)))

    def annotate_results(self, node: onnx.NodeProto, made_by: Mapping[str, OperatorDecision]) -> None:
        """The shardings of what `node` makes, where each result comes out of an operator of its body."""
        entry = node.device_configurations.add(configuration_id=self.name)
        for name in node.output:
            if name in made_by:
                self._annotate_results(entry, {}, made_by[name], {name: name})

    def _annotate_results(
        self,
        entry: onnx.NodeDeviceConfigurationProto,
        stated: dict[str, Layout],
        decision: OperatorDecision,
        names: Mapping[str, str],
    ) -> None:
        """`names`: what the node calls results of the plan."""
        for planned, layout in zip(decision.outputs, decision.makes, strict=True):
            if layout is not None and names.get(planned):
                self._state(entry, stated, names[planned], planned, self._delivered(planned, layout))

    def _delivered(self, name: str, made: Layout) -> Layout:
        """Where the sums of a result are known: as it is made, kept, or served."""
        decision: TensorDecision = self.tensors[name]
        known = (layout.forward for layout in (made, decision.layout, decision.served))
        return next((layout for layout in known if all(p.kind != "P" for p in layout.placements)), made)

    def _state(
        self,
        entry: onnx.NodeDeviceConfigurationProto,
        stated: dict[str, Layout],
        name: str,
        planned: str,
        layout: Layout,
    ) -> None:
        plain = layout.forward
        if any(p.kind == "P" for p in plain.placements):
            self.partial[planned] = None
            plain = Layout.of(*(R if p.kind == "P" else p for p in plain.placements), order=plain.order)
        if any(len(set(p.segments)) > 1 for p in plain.placements):
            self.uneven[planned] = None
            plain = Layout.of(*(R if len(set(p.segments)) > 1 else p for p in plain.placements), order=plain.order)
        if stated.setdefault(name, plain) != plain:
            self.twice[planned] = None
        elif sum(spec.tensor_name == name for spec in entry.sharding_spec) == 0:
            shape = self.tensors[planned].shape if planned in self.tensors else ()
            entry.sharding_spec.append(sharding_spec(name, shape, plain, self.mesh))

    def refused(self) -> Iterator[Diagnostic]:
        """What was left out, by reason."""
        yield from _not_stated("partial sums cannot be stated; they are stated as added up", self.partial)
        yield from _not_stated(
            "shards of unequal segments cannot be stated; they are stated as replicated", self.uneven
        )
        yield from _not_stated("a node that reads a tensor in two layouts states the first", self.twice)


def _not_stated(what: str, names: Mapping[str, None] | Sequence[str]) -> list[Diagnostic]:
    found = list(names)
    if not found:
        return []
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return [warning("not-stated", what, detail=", ".join(f"'{name}'" for name in found[:_SHOWN]) + more)]


def sharding_spec(name: str, shape: Sequence[int], layout: Layout, mesh: Mesh) -> onnx.ShardingSpecProto:
    """The sharding of one tensor of `shape` in a plain layout without partial sums and unequal segments.

    `device` lists the shards in row-major order of the dims that are sharded; a shard that several devices hold is a
    negative key, whose devices the map lists.
    """
    spec = onnx.ShardingSpecProto(tensor_name=name)
    order: list[int] = []
    by_dim: dict[int, dict[tuple[int, ...], tuple[int, ...]]] = {}
    for (dim, segments), axes in layout.dims().items():
        by_dim.setdefault(dim, {})[segments] = axes
    for dim, shards in sorted(by_dim.items()):
        entry = spec.sharded_dim.add(axis=dim)
        plain = shards.get((), ())
        (segments,) = [found for found in shards if found] or [()]
        if segments:
            entry.simple_sharding.add(dim_value=len(segments), num_shards=mesh.ways(plain))
            entry.simple_sharding.add(dim_value=segments[0], num_shards=mesh.ways(shards[segments]))
        else:
            entry.simple_sharding.add(dim_value=shape[dim], num_shards=mesh.ways(plain))
        order += [*plain, *(shards[segments] if segments else ())]
    for members in _members(mesh, order):
        if len(members) == 1:
            spec.device.append(members[0])
            continue
        key = -1 - len(spec.index_to_device_group_map)
        spec.device.append(key)
        spec.index_to_device_group_map.add(key=key, value=members)
    return spec


def _members(mesh: Mesh, order: Sequence[int]) -> Iterator[list[int]]:
    """For every shard, in row-major order of the axes `order`, the ranks that hold it."""
    places = tuple(mesh.coordinates())
    for digits in itertools.product(*(range(mesh.shape[axis]) for axis in order)):
        wanted = dict(zip(order, digits, strict=True))
        yield [rank for rank, at in enumerate(places) if all(at[axis] == digit for axis, digit in wanted.items())]


def _lost_data(proto: onnx.ModelProto, source: Path, output: Path) -> list[Diagnostic]:
    """A warning where the annotated file does not lie beside the data that it refers to."""
    if source.parent.resolve() == output.parent.resolve():
        return []
    files = {
        entry.value
        for tensor in proto.graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location" and (source.parent / entry.value).is_file()
    }
    if not files:
        return []
    summary = f"the weights lie in files beside '{source}', not beside '{output}'"
    return [
        warning("data-elsewhere", summary, detail=", ".join(sorted(files)), hint="copy them, or write beside the model")
    ]
