"""One pass over the graph in execution order: the shape of every value, and the values of shape arithmetic.

Each node is typed by `node_types` from the shapes and small known values of its inputs, completed by what the file
stores, and computed (`evaluate`) when all its inputs are known. A node is typed once per distinct signature, so
repeated layers cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from shardplan.errors import Diagnostic, ShardplanError, error, warning
from shardplan.model.attributes import array_of, attributes_of, has_data
from shardplan.model.border_types import border_types
from shardplan.model.branches import both_branches, spliced, taken_branch
from shardplan.model.dims import Binding, flag
from shardplan.model.draft import Draft, Node
from shardplan.model.evaluate import LIMIT_ELEMENTS, NEVER, SIZED_BY_VALUES, value_of
from shardplan.model.limits import UNREADABLE, unplannable
from shardplan.model.loops import unrolled, without_iterations
from shardplan.model.node_types import UNKNOWN, NodeTyper, Outcome, Typed, show
from shardplan.model.shapes import Shape
from shardplan.model.types import CONTROL
from shardplan.model.weights import Weights

Array = np.ndarray[Any, Any]
_DATA_LIMIT_ELEMENTS = 4096
"""Contents above this many elements decide no shape, and are not handed to shape functions."""


@dataclass(slots=True)
class Inferred:
    """`typed`: every value. `known`: values of small constants, weights excluded. `reasons`: node name -> why its
    outputs are not known. `problems`, `warnings`: contradictions, and stored shapes that no longer hold."""

    typed: dict[str, Typed]
    known: dict[str, Array]
    reasons: dict[str, str] = field(default_factory=dict)
    problems: list[Diagnostic] = field(default_factory=list)
    warnings: list[Diagnostic] = field(default_factory=list)


def infer(draft: Draft, binding: Binding, weights: Weights) -> Inferred:
    """Infer every value of `draft` under `binding`; what is inside of `If`, `Loop` and `Scan` moves into `draft`."""
    inferred = Inferred({}, {})
    for name, stored in draft.inputs.items():
        inferred.typed[name] = Typed(stored.elem_type, binding.shape_of(name, stored))
    _Pass(draft, binding, weights, inferred).run()
    return inferred


class _Pass:
    """The state of one pass: what is known so far, and outcomes by signature."""

    def __init__(self, draft: Draft, binding: Binding, weights: Weights, inferred: Inferred) -> None:
        self.draft = draft
        self.binding = binding
        self.weights = weights
        self.out = inferred
        self.typer = NodeTyper(draft)
        self.outcomes: dict[Hashable, Outcome] = {}
        self.data_keys: dict[str, Hashable] = {}
        self.stale = 0
        self.first_stale = ""
        self.entered: dict[str, Typed] = {}

    def run(self) -> None:
        self._read_initializers()
        self.draft.nodes = [placed for node in self.draft.nodes for placed in self._guarded(node)]

    def _guarded(self, node: Node) -> list[Node]:
        """`_typed_nodes`, with an error that names the node for exceptions from malformed nodes. Raises
        `ShardplanError`."""
        try:
            return self._typed_nodes(node)
        except UNREADABLE as problem:
            raise ShardplanError(unplannable(node.label, problem)) from problem

    def _typed_nodes(self, node: Node) -> list[Node]:
        """`node`, or what stands for it, with all types inferred."""
        branch = taken_branch(node, self.out.known)
        if branch is not None:
            return self._all_typed(spliced(self.draft, node, branch))
        found = len(self.out.problems)
        pieces = self._inlined(node)
        if pieces is not None:
            placed = self._all_typed(pieces)
            if all(self.out.typed[name].is_static for entry in placed for name in entry.outputs if name):
                return placed
        because = self.out.problems[found:] if pieces is not None else []
        del self.out.problems[len(self.out.problems) - len(because) :]
        self._visit(node)
        if not all(self.out.typed[name].is_static for name in node.outputs if name):
            self.out.problems += because
        return [node]

    def _inlined(self, node: Node) -> list[Node] | None:
        """The inner nodes of a control-flow node, with its border; None for other nodes, and if it cannot be
        inlined."""
        pieces = both_branches(self.draft, node)
        if pieces is None:
            try:
                loop = unrolled(self.draft, node, self.out.typed, self.out.known, self.binding.trips)
            except ShardplanError as problem:
                self.out.problems += problem.diagnostics
                return None
            if loop is None:
                return None
            pieces, self.draft.trips[node.name] = loop
        self.draft.opsets[CONTROL] = 1
        return pieces

    def _all_typed(self, pieces: list[Node]) -> list[Node]:
        self._read_initializers()
        return [placed for piece in pieces for placed in self._typed_nodes(piece)]

    def _read_initializers(self) -> None:
        for name, tensor in self.draft.initializers.items():
            if name not in self.out.typed:
                self.out.typed[name] = Typed(tensor.data_type, tuple(tensor.dims))
                if name not in self.weights.trained:
                    self._read_constant(name, tensor)

    def _read_constant(self, name: str, tensor: onnx.TensorProto) -> None:
        if math.prod(tensor.dims) > LIMIT_ELEMENTS or not has_data(tensor):
            return
        try:
            self.out.known[name] = array_of(tensor)
        except (ValueError, TypeError, RuntimeError) as problem:
            text = f"constant '{name}' is stored with dims {list(tensor.dims)}, which its data does not fill"
            self.out.problems.append(error("bad-tensor", text, detail=str(problem)))

    def _visit(self, node: Node) -> None:
        outcome = self._at_border(node) if node.domain == CONTROL else self._outcome(node)
        types = without_iterations(node, self.out.known, self.out.typed, outcome.types)
        for name, found in zip(node.outputs, types, strict=False):
            if name:
                self.out.typed[name] = self._with_stored(node, name, found)
        for name in node.outputs[len(types) :]:
            self.out.typed[name] = self._with_stored(node, name, UNKNOWN)
        if outcome.reason:
            self.out.reasons[node.name] = outcome.reason
        if node.op_type == "CastLike" and not node.domain:
            self._name_type(node)
        if node.name not in self.weights.made_by:
            self._compute(node)

    def _name_type(self, node: Node) -> None:
        """`CastLike` reads only the type of its second operand: as a `Cast` it does not wait for the value."""
        elem_type = self.out.typed[node.outputs[0]].elem_type
        if not elem_type:
            return
        cast = onnx.NodeProto()
        cast.CopyFrom(node.proto)
        cast.op_type, cast.input[:] = "Cast", node.inputs[:1]
        cast.attribute.append(onnx.helper.make_attribute("to", elem_type))
        node.proto, node.op_type, node.inputs = cast, "Cast", node.inputs[:1]

    def _at_border(self, node: Node) -> Outcome:
        outcome = border_types(node, self.out.typed, self.entered)
        if outcome.problem:
            self.out.problems.append(error(outcome.problem, outcome.reason))
        return outcome

    def _outcome(self, node: Node) -> Outcome:
        signature = (
            node.op_type,
            node.domain,
            tuple([entry.SerializeToString() for entry in node.proto.attribute]),
            tuple([self.out.typed[name] if name else None for name in node.inputs]),
            tuple([self._data_key(name) for name in node.inputs]),
            len(node.outputs),
            tuple(node.captured),
        )
        outcome = self.outcomes.get(signature)
        if outcome is None:
            data = {name: self.out.known[name] for name in node.reads if self._data_key(name) is not None}
            outcome = self.outcomes[signature] = self.typer.infer(node, self.out.typed, data)
            if outcome.problem:
                self.out.problems.append(self._contradiction(node, outcome))
        return outcome

    def _data_key(self, name: str) -> Hashable:
        """The content of a small known value, as a key; None when unknown."""
        value = self.out.known.get(name)
        if value is None or value.size > _DATA_LIMIT_ELEMENTS:
            return None
        if name not in self.data_keys:
            content = tuple(value.reshape(-1).tolist()) if value.dtype == object else value.tobytes()
            self.data_keys[name] = (value.shape, str(value.dtype), content)
        return self.data_keys[name]

    def _with_stored(self, node: Node, name: str, found: Typed) -> Typed:
        """What was inferred, completed by what the file stores."""
        stored = self.draft.stored.get(name)
        if stored is None or found.kind != "tensor":
            return found
        kept = self.binding.shape_of(name, stored)
        elem_type = found.elem_type or stored.elem_type
        if found.shape is None:
            return Typed(elem_type, kept)
        if kept is None or kept == found.shape:
            return Typed(elem_type, found.shape)
        merged = found.shape
        if len(kept) == len(merged):
            merged = tuple([old if new is None else new for new, old in zip(merged, kept, strict=True)])
        agree = len(kept) == len(merged) and all(old in (None, new) for new, old in zip(merged, kept, strict=True))
        if not agree:
            self._note_stale(node, name, kept, merged)
        return Typed(elem_type, merged)

    def _note_stale(self, node: Node, name: str, stored: Shape, found: Shape) -> None:
        """One warning for all stale shapes: a file whose input sizes were edited has many."""
        self.stale += 1
        if self.stale == 1:
            self.first_stale = f"'{name}' of {node.label}: stored {show(stored)}, inferred {show(found)}"
        count = "1 stored shape does" if self.stale == 1 else f"{self.stale} stored shapes do"
        summary = f"{count} not follow from the model's inputs, and {'is' if self.stale == 1 else 'are'} ignored"
        self.out.warnings[:] = [warning("stale-shape", summary, detail=self.first_stale)]

    def _contradiction(self, node: Node, outcome: Outcome) -> Diagnostic:
        names = dict.fromkeys(filter(None, node.inputs))
        lines = [f"{name}: {show(self.out.typed[name].shape)}" for name in names]
        if outcome.problem == "invalid-node":
            return error("invalid-node", f"{node.label} is not valid ONNX", detail="\n".join([*lines, outcome.reason]))
        if outcome.reason != "Incompatible dimensions":
            lines.append(outcome.reason)
        flags = " ".join(flag(name, size) for name, size in sorted(self.binding.sizes.items()))
        hint = f"check {flags}" if flags else ""
        return error(outcome.problem, f"Incompatible dimensions at {node.label}", detail="\n".join(lines), hint=hint)

    def _compute(self, node: Node) -> None:
        known = self.out.known
        if node.op_type in ("Shape", "Size") and not node.domain:
            self._compute_shape(node)
            return
        if (
            node.op_type in NEVER
            or node.domain == CONTROL
            or node.captured
            or not all(name in known for name in node.reads)
        ):
            return
        stored = next(
            (entry.t for entry in node.proto.attribute if entry.name == "value" and entry.HasField("t")), None
        )
        if node.op_type == "Constant" and stored is not None:
            self._read_constant(node.outputs[0], stored)
            return
        outputs = [self.out.typed[name] for name in node.outputs if name]
        by_values = node.op_type in SIZED_BY_VALUES and not node.domain
        if any(typed.elements > LIMIT_ELEMENTS or not (typed.is_static or by_values) for typed in outputs):
            return
        inputs = [known[name] if name else None for name in node.inputs]
        values = value_of(node.proto, attributes_of(node.proto), inputs, self.draft.opsets[node.domain])
        for name, value in zip(node.outputs, values or (), strict=False):
            if name and by_values:
                found = Typed(self.out.typed[name].elem_type, value.shape)
                self.out.typed[name] = self._with_stored(node, name, found)
            if name and value.shape == self.out.typed[name].shape:
                known[name] = value

    def _compute_shape(self, node: Node) -> None:
        shape = self.out.typed[node.inputs[0]].shape
        if shape is None:
            return
        bounds = {entry.name: int(entry.i) for entry in node.proto.attribute}
        part = shape[bounds.get("start") : bounds.get("end")]
        if None in part:
            return
        value = np.array(part if node.op_type == "Shape" else math.prod(entry or 0 for entry in part), np.int64)
        value.flags.writeable = False
        self.out.known[node.outputs[0]] = value
