"""The graph of an ONNX file as plain Python, checked and in execution order; shapes as stored in the file."""

from __future__ import annotations

import ast
import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import onnx

from shardplan.errors import Diagnostic, ShardplanError, did_you_mean, error
from shardplan.units import counted, with_article

Dim = int | str | None
"""A stored dim: a size, a symbolic expression, or unknown."""

_SCOPES = "pkg.torch.onnx.name_scopes"
_FOLDED_FROM = "pkg.onnxscript.optimizer.folded_from"
CAPTURED = "captured"
"""Attribute of an operator with nested graphs: how many of its last inputs are outer values those graphs read."""


@dataclass(slots=True)
class Node:
    """One node; `captured` are outer values that its nested graphs read, `module` its dotted module path or `""`,
    `loops` the names of the loops that it runs in."""

    proto: onnx.NodeProto
    name: str
    op_type: str
    domain: str
    inputs: list[str]
    outputs: list[str]
    module: str
    captured: list[str]
    loops: tuple[str, ...] = ()

    @property
    def reads(self) -> list[str]:
        """All values that must exist before this node runs."""
        return [name for name in self.inputs if name] + self.captured

    @property
    def label(self) -> str:
        """How errors name the node."""
        kind = f"{self.domain}.{self.op_type}" if self.domain else self.op_type
        return f"node '{self.name}' ({kind})"


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored value's type: `elem_type` is the TensorProto number, `shape` None when the rank is unknown."""

    elem_type: int
    shape: tuple[Dim, ...] | None


@dataclass(slots=True)
class Draft:
    """A checked graph. `nodes` are in execution order; `inputs` are those without an initializer; `trips`: how often
    the loops run that have been taken apart; `merged`: initializers that are copies, and the stored one of each."""

    nodes: list[Node]
    inputs: dict[str, Stored]
    outputs: list[str]
    initializers: dict[str, onnx.TensorProto]
    stored: dict[str, Stored]
    folded_from: dict[str, tuple[str, ...]]
    opsets: dict[str, int]
    ir_version: int
    producer: str
    trips: dict[str, int] = field(default_factory=dict)
    merged: dict[str, str] = field(default_factory=dict)


def draft_graph(proto: onnx.ModelProto) -> Draft:
    """Check the graph of `proto` and put it in execution order.

    Raises `ShardplanError` with everything found: values made twice or never, cycles, operator sets not imported,
    inputs that are no tensors.
    """
    graph = proto.graph
    initializers, problems = _initializers(graph)
    nodes = draft_nodes(graph.node)
    opsets = {("" if entry.domain == "ai.onnx" else entry.domain): entry.version for entry in proto.opset_import}
    inputs = {value.name: value for value in graph.input if value.name not in initializers}
    outputs = [value.name for value in graph.output]
    stored = {*initializers, *(sparse.values.name for sparse in graph.sparse_initializer)}
    problems += _opset_problems(nodes, opsets)
    problems += _input_problems(graph, inputs)
    problems += _duplicate_problems(nodes, set(inputs), stored)
    problems += _missing_problems(nodes, set(inputs), stored, outputs)
    if not outputs:
        problems.append(error("no-outputs", "the graph has no outputs, so nothing in it is needed"))
    if problems:
        raise ShardplanError(*problems)
    infos = [*graph.value_info, *graph.output]
    return Draft(
        nodes=_in_order(nodes, {*inputs, *initializers}),
        inputs={name: stored_type(value.type.tensor_type) for name, value in inputs.items()},
        outputs=outputs,
        initializers=initializers,
        stored={
            value.name: stored_type(value.type.tensor_type) for value in infos if value.type.HasField("tensor_type")
        },
        folded_from=_folded_from([*graph.value_info, *graph.initializer]),
        opsets=opsets,
        ir_version=proto.ir_version,
        producer=" ".join(part for part in (proto.producer_name, proto.producer_version) if part),
    )


def stored_type(tensor: onnx.TypeProto.Tensor) -> Stored:
    """Element type and dims as the file has them."""
    if not tensor.HasField("shape"):
        return Stored(tensor.elem_type, None)
    return Stored(tensor.elem_type, tuple([_dim(dim) for dim in tensor.shape.dim]))


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    which = dim.WhichOneof("value")
    if which == "dim_value":
        return dim.dim_value if dim.dim_value >= 0 else None
    if which == "dim_param" and dim.dim_param and not dim.dim_param.startswith("unk__"):
        return str(dim.dim_param)
    return None


def _initializers(graph: onnx.GraphProto) -> tuple[dict[str, onnx.TensorProto], list[Diagnostic]]:
    found: dict[str, onnx.TensorProto] = {}
    problems = []
    for tensor in graph.initializer:
        if tensor.name in found:
            problems.append(error("duplicate-value", f"initializer '{tensor.name}' is stored twice"))
        found[tensor.name] = tensor
    for sparse in graph.sparse_initializer:
        text = f"initializer '{sparse.values.name}' is a sparse tensor, which cannot be planned"
        problems.append(error("sparse-tensor", text, hint="store it as a dense tensor"))
    return found, problems


def draft_nodes(protos: Iterable[onnx.NodeProto]) -> list[Node]:
    """Nodes with unique names: `MatMul_12` (its place in the file) where the file gives none, `name_2` for a repeat."""
    nodes = []
    taken: set[str] = set()
    for index, proto in enumerate(protos):
        wanted = proto.name or f"{proto.op_type}_{index}"
        name, copy = wanted, 2
        while name in taken:
            name, copy = f"{wanted}_{copy}", copy + 1
        taken.add(name)
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        outputs = list(proto.output)
        while outputs and not outputs[-1]:
            outputs.pop()
        node = Node(proto, name, proto.op_type, domain, list(proto.input), outputs, _module(proto), [])
        node.captured = sorted(set(_captured(proto)) - set(node.inputs))
        nodes.append(node)
    return nodes


def _captured(proto: onnx.NodeProto) -> Iterator[str]:
    """Outer values read by the graphs nested in `proto`."""
    for attribute in proto.attribute:
        if attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
            for graph in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                yield from _free_names(graph)


def _free_names(graph: onnx.GraphProto) -> set[str]:
    made = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    made |= {name for node in graph.node for name in node.output}
    read = {value.name for value in graph.output}
    for node in graph.node:
        read.update(name for name in node.input if name)
        read.update(_captured(node))
    return read - made


def _module(proto: onnx.NodeProto) -> str:
    """The dotted module path: the last but one scope of torch's metadata, or the folders of a path-like node name."""
    for entry in proto.metadata_props:
        if entry.key == _SCOPES:
            scopes = names_in(entry.value)
            return scopes[-2] if len(scopes) > 1 else ""
    folders = str(proto.name).rpartition("/")[0].strip("/")
    return folders.replace("/", ".")


def names_in(text: str) -> tuple[str, ...]:
    """The names in a metadata value, which is the repr of a Python list of strings; empty when it is not."""
    if text.startswith("['") and text.endswith("']") and '"' not in text and "\\" not in text:
        return tuple(text[2:-2].split("', '"))
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return ()
    return tuple(str(entry) for entry in value) if isinstance(value, list) else ()


def _folded_from(values: Iterable[onnx.ValueInfoProto | onnx.TensorProto]) -> dict[str, tuple[str, ...]]:
    found = {}
    for value in values:
        for entry in value.metadata_props:
            if entry.key == _FOLDED_FROM:
                found[value.name] = names_in(entry.value)
    return found


def _opset_problems(nodes: list[Node], opsets: dict[str, int]) -> list[Diagnostic]:
    missing: dict[str, Node] = {}
    for node in nodes:
        if node.domain not in opsets:
            missing.setdefault(node.domain, node)
    return [
        error(
            "missing-opset",
            f"the model imports no operator set for domain '{domain or 'ai.onnx'}', but {node.label} needs one",
            hint="export the model again, or add the domain to its opset_import",
        )
        for domain, node in sorted(missing.items())
    ]


def _input_problems(graph: onnx.GraphProto, inputs: dict[str, onnx.ValueInfoProto]) -> list[Diagnostic]:
    problems = []
    seen: set[str] = set()
    for value in graph.input:
        if value.name in seen:
            problems.append(error("duplicate-value", f"graph input '{value.name}' is declared twice"))
        seen.add(value.name)
    for name, value in inputs.items():
        if not value.type.HasField("tensor_type"):
            kind = str(value.type.WhichOneof("value") or "value without type").removesuffix("_type").replace("_", " ")
            problems.append(
                error("not-a-tensor", f"graph input '{name}' is {with_article(kind)}; only tensors can be planned")
            )
    return problems


def _duplicate_problems(nodes: list[Node], inputs: set[str], initializers: set[str]) -> list[Diagnostic]:
    makers = dict.fromkeys(inputs, "as a graph input") | dict.fromkeys(initializers, "as an initializer")
    problems = []
    for node in nodes:
        for name in filter(None, node.outputs):
            if name in makers:
                text = f"value '{name}' is made twice: {makers[name]} and by {node.label}"
                problems.append(error("duplicate-value", text))
            makers[name] = f"by {node.label}"
    return problems


def _missing_problems(
    nodes: list[Node], inputs: set[str], initializers: set[str], outputs: list[str]
) -> list[Diagnostic]:
    made = inputs | initializers | {name for node in nodes for name in node.outputs}
    problems = []
    for node in nodes:
        for name in node.reads:
            if name not in made:
                text = f"{node.label} reads '{name}', which no node, graph input or initializer makes"
                problems.append(error("missing-value", text, hint=did_you_mean(name, made)))
    for name in outputs:
        if name not in made:
            text = f"graph output '{name}' is made by no node, graph input or initializer"
            problems.append(error("missing-value", text, hint=did_you_mean(name, made)))
    return problems


def _in_order(nodes: list[Node], made: set[str]) -> list[Node]:
    """File order where it is executable (as ONNX asks), else the executable order nearest to it."""
    readers: dict[str, list[int]] = {}
    waits = []
    for index, node in enumerate(nodes):
        needed = {name for name in node.reads if name not in made}
        waits.append(len(needed))
        for name in needed:
            readers.setdefault(name, []).append(index)
    ready = [index for index, count in enumerate(waits) if not count]
    ordered = []
    while ready:
        node = nodes[heapq.heappop(ready)]
        ordered.append(node)
        for reader in (reader for name in node.outputs for reader in readers.get(name, ())):
            waits[reader] -= 1
            if not waits[reader]:
                heapq.heappush(ready, reader)
    if len(ordered) < len(nodes):
        raise ShardplanError(_cycle([node for node, count in zip(nodes, waits, strict=True) if count]))
    return ordered


def _cycle(stuck: list[Node]) -> Diagnostic:
    """The shortest statement of why `stuck` nodes wait for each other: one cycle among them."""
    makers = {name: node for node in stuck for name in node.outputs if name}
    path: list[Node] = []
    node = stuck[0]
    while node not in path:
        path.append(node)
        node = next(makers[name] for name in node.reads if name in makers)
    cycle = path[path.index(node) :][::-1]
    start = min(range(len(cycle)), key=lambda index: stuck.index(cycle[index]))
    names = [entry.name for entry in cycle[start:] + cycle[:start]]
    shown = [*names[:8], "..."] if len(names) > 8 else names
    text = f"the graph has a cycle of {counted(len(names), 'node')}"
    return error("cyclic-graph", text, detail=" -> ".join([*shown, names[0]]), hint="an ONNX graph must be acyclic")
