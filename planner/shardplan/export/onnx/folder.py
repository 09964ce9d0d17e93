"""`--to onnx-spmd`: a folder with the ONNX program of every rank, its shards of the weights, and a manifest.

    shardplan-spmd.json      what the program reads and makes, and how that is laid out over the mesh
    rank-0/program.onnx      the program: the same bytes for every rank
    rank-0/rank.data         this rank's coordinates and its shards of the weights
    rank-0/shared.data       weights that every device holds whole: the same bytes for every rank
    rank-1/...

Every rank's folder stands alone, with files of its own: ONNX refuses external data that is a link, or that lies outside
of the program's folder. Weights that the model's file does not have become inputs of the program.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

import shardplan
from shardplan.export.files import folder_in_place
from shardplan.export.onnx.protos import info_proto, node_proto
from shardplan.export.onnx.writer import ProgramWriter
from shardplan.export.types import Exported, Source
from shardplan.layout.layout import Layout
from shardplan.layout.legal import local_shape
from shardplan.layout.text import to_text
from shardplan.plan.types import Plan
from shardplan.program.lower import lower_program
from shardplan.program.machine.run import place
from shardplan.program.machine.values import iterate_stored
from shardplan.program.nodes import COORDINATES, DOMAIN, DOMAIN_VERSION, Array
from shardplan.program.types import Program, Value

MANIFEST, PROGRAM, RANK_DATA, SHARED_DATA = "shardplan-spmd.json", "program.onnx", "rank.data", "shared.data"
FORMAT_VERSION = "1.0"
IR_VERSION = 10
"""The first that has metadata on nodes."""
_ALIGNMENT = 64


def export_spmd(plan: Plan, source: Source, output: Path) -> Exported:
    """Write the folder `output`. Raises `ShardplanError`: `stale-plan` for a plan of another model, `cannot-export` for
    operators that have no form on one device, `unwritable-output`.
    """
    return write_folder(lower_program(source.model, plan), plan, source.path, output)


def write_folder(program: Program, plan: Plan, path: Path | None, output: Path) -> Exported:
    """Write the folder for a lowered program. `path`: the model's file, if it has one. Raises as `export_spmd`."""
    writer = ProgramWriter(program)
    writer.write()
    with folder_in_place(output, MANIFEST) as folder:
        weights = _Weights(folder, program, writer.weights)
        weights.write(path)
        proto = model_proto(writer, weights)
        written = proto.SerializeToString(deterministic=True)
        for rank in range(program.mesh.size):
            (folder / f"rank-{rank}" / PROGRAM).write_bytes(written)
        manifest = _manifest(plan, program, writer, weights)
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return Exported(files=tuple(files))


class _Weights:
    """Data files of a folder under way. `entries`: initializers by name, as the program refers to them."""

    def __init__(self, folder: Path, program: Program, wanted: Sequence[tuple[str, Value]]) -> None:
        self.folder, self.program, self.mesh = folder, program, program.mesh
        self.wanted: dict[str, list[tuple[str, Value]]] = {}
        for name, value in wanted:
            self.wanted.setdefault(value.tensor, []).append((name, value))
        self.entries: dict[str, TensorProto] = {}

    def write(self, path: Path | None) -> None:
        """Coordinates and all weights that the model at `path` has."""
        with contextlib.ExitStack() as stack:
            files: dict[str, list[BinaryIO]] = {RANK_DATA: [], SHARED_DATA: []}
            for rank in range(self.mesh.size):
                (self.folder / f"rank-{rank}").mkdir()
                for name, opened in files.items():
                    opened.append(stack.enter_context((self.folder / f"rank-{rank}" / name).open("wb")))
            places = [np.array(place, np.int64) for place in self.mesh.coordinates()]
            self._append(COORDINATES, places, files, RANK_DATA)
            for tensor, array in self._stored(path):
                for name, value in self.wanted.get(tensor, ()):
                    is_shared = value.layout == Layout.replicated(len(self.mesh))
                    held = [array] * self.mesh.size if is_shared else place(array, value.layout, self.mesh)
                    self._append(name, held, files, SHARED_DATA if is_shared else RANK_DATA)

    def _stored(self, path: Path | None) -> Iterator[tuple[str, Array]]:
        return iter(()) if path is None else iterate_stored(path, self.program.model)

    def _append(self, name: str, arrays: Sequence[Array], files: Mapping[str, list[BinaryIO]], location: str) -> None:
        """One array per rank; all are equally long, so the initializer is the same for every rank."""
        entry = TensorProto()
        for array, file in zip(arrays, files[location], strict=True):
            entry = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
            data = entry.raw_data
            offset = -(-file.tell() // _ALIGNMENT) * _ALIGNMENT
            file.seek(offset)
            file.write(data)
            entry.ClearField("raw_data")
            entry.data_location = TensorProto.EXTERNAL
            for key, text in (("location", location), ("offset", str(offset)), ("length", str(len(data)))):
                entry.external_data.add(key=key, value=text)
        self.entries[name] = entry


def model_proto(writer: ProgramWriter, weights: _Weights) -> ModelProto:
    """The program as a model: weights that are there are initializers, the others inputs."""
    graph, program = writer.graph, writer.program
    absent = [name for name, _ in writer.weights if name not in weights.entries]
    inputs, outputs = [*program.model.inputs, *absent], list(program.model.outputs)
    outside = {*inputs, *outputs, *weights.entries, *graph.constants}
    infos = {name: info_proto(name, described) for name, described in graph.described.items()}
    nodes = [node_proto(node, writer.notes.get(node.name, {})) for node in graph.nodes]
    constants = [numpy_helper.from_array(array, name) for name, array in graph.constants.items()]
    made = helper.make_graph(
        nodes, program.model.name, [infos[name] for name in inputs], [infos[name] for name in outputs],
        [*weights.entries.values(), *constants],
        value_info=[info for name, info in infos.items() if name not in outside],
    )  # fmt: skip
    imports = [helper.make_opsetid(domain, version) for domain, version in sorted(writer.imports.items())]
    proto: ModelProto = helper.make_model(made, opset_imports=imports, ir_version=IR_VERSION)
    proto.producer_name, proto.producer_version = "shardplan", shardplan.__version__
    return proto


def _manifest(plan: Plan, program: Program, writer: ProgramWriter, weights: _Weights) -> dict[str, object]:
    model, mesh = program.model, program.mesh
    parameters = {parameter.tensor: parameter for parameter in model.parameters}
    loaded = []
    for name, value in writer.weights:
        parameter = parameters.get(value.tensor)
        identity = {"checkpoint": parameter.name, "perm": list(parameter.perm)} if parameter else {}
        loaded.append({**_described(program, name, value), **identity, "present": name in weights.entries})
    kept = {decision.name: decision.layout.forward for decision in plan.tensors}

    def boundary(names: Sequence[str]) -> list[dict[str, object]]:
        return [_described(program, name, Value(name, "kept", kept[name])) for name in names]

    return {
        "format": DOMAIN,
        "format_version": FORMAT_VERSION,
        "domain_version": DOMAIN_VERSION,
        "model": {"name": model.name, "digest": plan.model.get("digest", "")},
        "mesh": [{"name": axis.name, "size": axis.size} for axis in mesh.axes],
        "ranks": mesh.size,
        "inputs": boundary(model.inputs),
        "outputs": boundary(model.outputs),
        "weights": loaded,
        "collectives": list(_collectives(writer)),
    }


def _described(program: Program, name: str, value: Value) -> dict[str, object]:
    tensor = program.tensor(value)
    return {
        "name": name,
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "local_shape": list(local_shape(value.layout, program.mesh, tensor.shape)),
        "layout": to_text(value.layout, program.mesh),
    }


def _collectives(writer: ProgramWriter) -> Iterator[dict[str, object]]:
    """In the order in which they run, with the move of the plan that each is part of."""
    for node in writer.graph.nodes:
        if node.domain == DOMAIN:
            notes = writer.notes.get(node.name, {})
            described: dict[str, object] = {"node": node.name, "kind": node.op_type, "axis": node.attributes["axis"]}
            yield described | {key: int(text) if key == "payload_bytes" else text for key, text in notes.items()}
