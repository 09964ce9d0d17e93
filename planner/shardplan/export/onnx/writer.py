"""The program that every device runs, as one ONNX graph: operators on local shapes, collectives between them."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.layout.collective import Collective
from shardplan.layout.layout import Layout
from shardplan.layout.legal import local_shape
from shardplan.layout.lower import Step
from shardplan.layout.placement import R
from shardplan.layout.text import to_text
from shardplan.model.draft import CAPTURED
from shardplan.model.types import CONTROL, AttributeValue, Operator
from shardplan.program.moves import emit_steps
from shardplan.program.nodes import DOMAIN, DOMAIN_VERSION, Graph, Node
from shardplan.program.operators.registry import describe
from shardplan.program.reference.random import DRAWING
from shardplan.program.types import Compute, Program, Site, Transfer, Value

OLDEST_OPSET = 9


class ProgramWriter:
    """Writes the instructions of a program one after the other.

    A tensor's kept form has the tensor's own name; other forms are named after it (`x/made`, `x/served`, and
    `x/read/<operator>:<position>`). A form that is like the one before it has no name of its own. `notes`: on the
    collectives of moves, by name of the node.
    """

    def __init__(self, program: Program) -> None:
        self.program, model = program, program.model
        versions = {operator.domain: operator.version for operator in model.operators}
        self.opset = versions.get("", model.opset) or OLDEST_OPSET
        if self.opset < OLDEST_OPSET:
            summary = f"'{model.name}' has opset {self.opset}; programs are written from opset {OLDEST_OPSET} on"
            raise ShardplanError(error("cannot-export", summary, hint="convert the model to a newer opset"))
        self.imports = {**versions, "": self.opset, DOMAIN: DOMAIN_VERSION}
        self.graph = Graph(program.mesh, self.opset, model.tensors)
        self.names: dict[Value, str] = {}
        self.weights: list[tuple[str, Value]] = []
        self.notes: dict[str, dict[str, str]] = {}
        targets = (i.target for i in program.instructions if isinstance(i, Transfer))
        self.kept = {target.tensor: target.layout for target in targets if target.form == "kept"}

    def write(self) -> Graph:
        """All instructions. Raises `ShardplanError` (`cannot-export`) with every operator that has no ONNX form."""
        for value in self.program.loads:
            self._load(value)
        problems: list[Diagnostic] = []
        for instruction in self.program.instructions:
            try:
                if isinstance(instruction, Transfer):
                    self._transfer(instruction)
                elif isinstance(instruction, Compute):
                    self._compute(instruction)
                else:
                    raise _no_control_flow(f"loop '{instruction.loop}'")
            except ShardplanError as problem:
                problems += problem.diagnostics
        if problems:
            raise ShardplanError(*problems)
        return self.graph

    def _load(self, value: Value) -> None:
        """Inputs and weights have the names of their tensors; of known constants a device takes its part."""
        tensor, model = self.program.tensor(value), self.program.model
        known = model.constants.get(value.tensor)
        name = self.names[value] = value.tensor if value.form == "kept" else self.graph.name(f"{value.tensor}/loaded")
        self._describe(value, name)
        if tensor.role == "input":
            return
        if known is None:
            self.weights.append((name, value))
            return
        whole = Layout.replicated(len(self.program.mesh))
        if value.layout == whole:
            self.graph.constants[name] = np.asarray(known)
            return
        step = place_step(whole, value.layout)
        emit_steps(self.graph, self.graph.array(np.asarray(known)), tensor, whole, step, name)

    def _describe(self, value: Value, name: str) -> None:
        tensor = self.program.tensor(value)
        self.graph.describe(name, tensor.dtype, local_shape(value.layout, self.program.mesh, tensor.shape))

    def _transfer(self, transfer: Transfer) -> None:
        source = self.names.get(transfer.source, transfer.source.tensor)
        if transfer.problem:
            summary = f"the plan cannot be carried out at tensor '{transfer.source.tensor}': {transfer.problem}"
            raise ShardplanError(error("inconsistent-plan", summary, hint="solve again"))
        if not transfer.steps:
            self.names[transfer.target] = source
            return
        name = self._name(transfer.target)
        first = len(self.graph.nodes)
        tensor = self.program.tensor(transfer.source)
        emit_steps(self.graph, source, tensor, transfer.source.layout, transfer.steps, name)
        self.names[transfer.target] = name
        self._note(first, transfer)

    def _note(self, first: int, transfer: Transfer) -> None:
        """Say on every collective which tensor it moves, between which layouts, and with what payload."""
        payloads = iter(transfer.payload_bytes)
        layouts = [transfer.source.layout, *(step.target for step in transfer.steps)]
        names = [to_text(layout, self.program.mesh) for layout in layouts]
        moving = [
            (before, after, payload)
            for before, after, step, payload in zip(names, names[1:], transfer.steps, payloads, strict=False)
            if not step.collective.is_free
        ]
        nodes = [node for node in self.graph.nodes[first:] if node.domain == DOMAIN]
        for node, (before, after, payload) in zip(nodes, moving, strict=True):
            notes = {"tensor": transfer.source.tensor, "from": before, "to": after, "payload_bytes": str(payload)}
            self.notes[node.name] = notes

    def _name(self, value: Value) -> str:
        if value.form == "kept":
            return value.tensor
        ending = f"/{value.reader}" if value.reader else ""
        return self.graph.name(f"{value.tensor}/{value.form}{ending}")

    def _compute(self, compute: Compute) -> None:
        site = compute.site
        _refuse_opaque(site.operator)
        reads = ["" if value is None else self.names[value] for value in compute.reads]
        makes = ["" if value is None else self._made(value) for value in compute.makes]
        first = len(self.graph.nodes)
        describe(self.graph, site, compute.local, reads, makes)
        for node in self.graph.nodes[first:]:
            if node.kernel is not None:
                raise _no_form(site, node)

    def _made(self, value: Value) -> str:
        """The name of a result: the tensor's own unless it is moved before it is kept."""
        name = value.tensor if self.kept[value.tensor] == value.layout else self._name(value)
        self.names[value] = name
        self._describe(value, name)
        return name


def place_step(whole: Layout, layout: Layout) -> tuple[Step, ...]:
    """From a replicated value to a plain layout: its shards are cut off, then all but one give up what is partial."""
    shards = Layout.of(*(p if p.is_shard else R for p in layout.placements), order=layout.order)
    steps: list[Step] = []
    for kind, target in (("slice", shards), ("mask", layout)):
        before = steps[-1].target if steps else whole
        axes = tuple(a for a, (p, q) in enumerate(zip(before.placements, target.placements, strict=True)) if p != q)
        if axes:
            steps.append(Step(Collective(kind, axes, Fraction(0)), target))  # type: ignore[arg-type]
    return tuple(steps)


def _refuse_opaque(operator: Operator) -> None:
    """Refuse what holds a graph inside, or stands where a branch was."""
    inside = CAPTURED in operator.attributes or any(map(_is_opaque, operator.attributes.values()))
    if operator.domain == CONTROL or inside:
        raise _no_control_flow(f"operator '{operator.name}' ({operator.kind})")


def _no_form(site: Site, node: Node) -> ShardplanError:
    """What to raise for an operator that only the machine runs, at `site` or in the function that it stands for."""
    what = f"operator '{site.operator.name}' ({site.kind}) cannot be exported"
    if node.op_type in {*DRAWING, "Dropout"}:
        hint = "export the model for inference"
        return ShardplanError(error("cannot-export", f"{what}: devices would draw other numbers", hint=hint))
    split = ", ".join(site.options[axis].label for axis in site.communicates)  # type: ignore[union-attr]
    why = f"no ONNX program is known for this kind when {split} is split, because devices then communicate inside it"
    return ShardplanError(error("cannot-export", f"{what}: {why}", hint="pin the operator to another split"))


def _no_control_flow(what: str) -> ShardplanError:
    return ShardplanError(error("cannot-export", f"{what} cannot be exported: control flow is not written"))


def _is_opaque(value: AttributeValue) -> bool:
    return isinstance(value, str) and value.startswith("sha256:")
