"""Limits on untrusted ONNX files, checked before anything is computed: operator sets, functions, loops, sizes.

After these checks, readers may rely on: names are text on one line; versions of operator sets are in range; local
functions end and are few operators when inlined; `If`, `Loop` and `Scan` have the graphs, inputs and outputs that the
standard asks for; stored tensors have no negative dims, and neither dims, ranks nor element counts beyond `Budget`.
Operands and results of plain operators are checked when they are typed, by ONNX's own schemas (`node_types`).
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import onnx

from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.escapes import CONTROLS
from shardplan.units import counted, whole_number

_NEWEST_OPSET = 10_000
_DIM = 1 << 40
_PLAIN_SCAN_SINCE = 9
_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
_MOST_SHOWN = 20
_NAMES_SHOWN = 5
_HIDDEN = re.compile(f"[{CONTROLS}]")
_NOT_EINSUM = re.compile("[^A-Za-z,.> -]")
Function = tuple[str, str, str]
"""Domain, name and overload of a local function."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of a model; `SHARDPLAN_MAX_OPERATORS` and the like in the environment change them, for one command
    `--budget operators=N`.

    `operators`: with local functions inlined and nested graphs counted; `rank`, `elements`: of one tensor; `nesting`:
    of graphs in graphs, and of functions that call functions.
    """

    operators: int = 200_000
    rank: int = 16
    elements: int = 1 << 50
    nesting: int = 64

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> Budget:
        """The budget from the environment. Raises `ShardplanError` for a value that is not a positive integer."""
        given, problems = {}, []
        for entry in fields(cls):
            variable = variable_of(entry.name)
            text = environment.get(variable, "").strip()
            if number := whole_number(text):
                given[entry.name] = number
            elif text:
                problems.append(
                    error("bad-budget", f"{variable} is {text[:40]!r}", hint="give a positive whole number")
                )
        if problems:
            raise ShardplanError(*problems)
        return cls(**given)


BUDGETS = tuple(entry.name for entry in fields(Budget))


def variable_of(name: str) -> str:
    """The environment variable that changes a field of `Budget`."""
    return f"SHARDPLAN_MAX_{name.upper()}"


def _more(name: str) -> str:
    return f"--budget {name}=N or {variable_of(name)}=N allows more"


UNREADABLE = (LookupError, ValueError, TypeError, ArithmeticError, AttributeError, AssertionError, RuntimeError)
"""What reading a node may raise when its operands and attributes are none that its operator takes."""


def unplannable(label: str, problem: Exception) -> Diagnostic:
    """The error for a node that passed these checks and still cannot be read."""
    detail = f"{type(problem).__name__}: {problem}"[:500]
    hint = "check the model with onnx.checker; if it is valid, this is a defect of shardplan"
    return error("cannot-plan-node", f"cannot plan {label}", detail=detail, hint=hint)


def guard(proto: onnx.ModelProto, budget: Budget) -> None:
    """Raises `ShardplanError` with everything in `proto` that exceeds the limits or is malformed; nothing is
    changed."""
    problems = _name_problems(proto) or [*_opset_problems(proto), *_function_problems(proto, budget)]
    if not problems:
        problems += _graph_problems(proto, budget)
    if problems:
        raise ShardplanError(*problems[:_MOST_SHOWN])


def beyond(dims: Sequence[int | None], budget: Budget) -> str:
    """What is wrong with the dims of a tensor, `""` if nothing is; unknown dims count as one."""
    known = [dim for dim in dims if dim is not None]
    if any(dim < 0 for dim in known):
        return "a dim is negative"
    if len(dims) > budget.rank:
        return f"it has {counted(len(dims), 'dim')}, at most {budget.rank} are allowed ({_more('rank')})"
    if any(dim > _DIM for dim in known):
        return f"a dim is larger than {_DIM}"
    if math.prod(known) > budget.elements:
        return f"it has more than {budget.elements} elements ({_more('elements')})"
    return ""


def _name_problems(proto: onnx.ModelProto) -> list[Diagnostic]:
    """Names that are no UTF-8, or more than one line of visible text."""
    found = dict.fromkeys(name for name in _names(proto) if isinstance(name, bytes) or _HIDDEN.search(name))
    kinds: dict[str, list[str | bytes]] = {
        "bytes that are not UTF-8": [name for name in found if isinstance(name, bytes)],
        "characters that control what is printed": [name for name in found if isinstance(name, str)],
    }
    return [_names_refused(what, names) for what, names in kinds.items() if names]


def _names_refused(what: str, names: Sequence[str | bytes]) -> Diagnostic:
    """One error for all names with the same fault: an exporter that writes one such name writes many."""
    shown = [repr(name)[:80] for name in names[:_NAMES_SHOWN]]  # what is not printable is written out
    more = [f"and {len(names) - len(shown)} more"] if len(names) > len(shown) else []
    summary = f"the model has {counted(len(names), 'name')} with {what}"
    return error("bad-name", summary, detail="\n".join([*shown, *more]), hint="export the model again with other names")


def _names(proto: onnx.ModelProto) -> Iterator[str | bytes]:
    """All text of a model that is printed or looked up; what is no UTF-8 comes as bytes."""
    yield from (entry.domain for entry in proto.opset_import)
    for graph in _graphs(proto):
        if isinstance(graph, onnx.GraphProto):
            yield from (tensor.name for tensor in graph.initializer)
            for value in (*graph.input, *graph.output, *graph.value_info):
                yield value.name
                yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim if dim.dim_param)
        else:
            yield from (graph.name, graph.domain, *graph.input, *graph.output)
        for node in graph.node:
            yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
            yield from (entry.name for entry in node.attribute)


def _graphs(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    """The graph, the local functions, and all graphs nested in either."""
    waiting = [proto.graph, *proto.functions]
    while waiting:
        graph = waiting.pop()
        yield graph
        for node in graph.node:
            waiting.extend(nested(node))


def _opset_problems(proto: onnx.ModelProto) -> Iterator[Diagnostic]:
    entries = [*proto.opset_import, *(entry for function in proto.functions for entry in function.opset_import)]
    for domain, version in dict.fromkeys((entry.domain or "ai.onnx", entry.version) for entry in entries):
        if not 1 <= version <= _NEWEST_OPSET:
            text = f"the model imports version {version} of operator set {domain}, which does not exist"
            yield error("bad-opset", text, hint="export the model again, or correct its opset_import")


def _function_problems(proto: onnx.ModelProto, budget: Budget) -> Iterator[Diagnostic]:
    """Functions that call themselves, and what is too much when inlined: found by counting, without inlining."""
    functions = {(entry.domain, entry.name, entry.overload): entry for entry in proto.functions}
    sizes: dict[Function, int] = {}

    def size_of(nodes: Iterable[onnx.NodeProto], callers: tuple[Function, ...], depth: int) -> int:
        if depth > budget.nesting:
            raise ShardplanError(_too_deep(budget))
        count = 0
        for node in nodes:
            called = (node.domain, node.op_type, node.overload)
            count += inlined(called, callers, depth) if called in functions else 1
            for graph in nested(node):
                count += size_of(graph.node, callers, depth + 1)
        return count

    def inlined(called: Function, callers: tuple[Function, ...], depth: int) -> int:
        if called in callers:
            text = f"local function '{called[1]}' calls itself"
            raise ShardplanError(error("bad-function", text, detail=" -> ".join(name for _, name, _ in callers)))
        if called not in sizes:
            sizes[called] = size_of(functions[called].node, (*callers, called), depth + 1)
        return sizes[called]

    try:
        count = size_of(proto.graph.node, (), 0)
    except ShardplanError as problem:
        yield from problem.diagnostics
        return
    if count > budget.operators:
        shown = str(count) if count < 10**15 else "more than 10^15"
        text = f"the model has {shown} operators when its functions are inlined, and {budget.operators} are allowed"
        yield error("too-many-operators", text, hint=_more("operators"))


def _too_deep(budget: Budget) -> Diagnostic:
    text = f"graphs and functions are nested more than {budget.nesting} deep"
    return error("nested-too-deep", text, hint=_more("nesting"))


def nested(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs in the attributes of `node`, those inside them not included."""
    for entry in node.attribute:
        if entry.type in _GRAPHS:
            yield from [entry.g] if entry.HasField("g") else entry.graphs


def _graph_problems(proto: onnx.ModelProto, budget: Budget) -> Iterator[Diagnostic]:
    scans_plainly = all(entry.version >= _PLAIN_SCAN_SINCE for entry in proto.opset_import if entry.domain in _DEFAULT)
    for graph in _graphs(proto):
        if isinstance(graph, onnx.GraphProto):
            yield from _stored_problems(graph, budget)
        if graph is not proto.graph:  # whose own names are checked where it is read
            yield from _twice_problems(graph)
        for node in graph.node:
            yield from _node_problems(node, scans_plainly, budget)


def _stored_problems(graph: onnx.GraphProto, budget: Budget) -> Iterator[Diagnostic]:
    for tensor in graph.initializer:
        yield from _tensor_problems(f"initializer '{tensor.name}'", tensor, budget)
    for value in (*graph.input, *graph.output, *graph.value_info):
        sizes = [dim.dim_value if dim.dim_value > 0 else None for dim in value.type.tensor_type.shape.dim]
        if found := beyond(sizes, budget):
            yield error("too-large", f"value '{value.name}' cannot be planned: {found}")


def _tensor_problems(label: str, tensor: onnx.TensorProto, budget: Budget) -> Iterator[Diagnostic]:
    if found := beyond(tensor.dims, budget):
        dims = ", ".join(str(dim) for dim in tensor.dims[:8])
        yield error("bad-tensor", f"{label} has dims [{dims}{', ...' * (len(tensor.dims) > 8)}]: {found}")


def _twice_problems(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[Diagnostic]:
    """Values that a nested graph or a function defines a second time."""
    handed = [value.name for value in graph.input] if isinstance(graph, onnx.GraphProto) else list(graph.input)
    seen: set[str] = set()
    for name in (*handed, *(name for node in graph.node for name in node.output if name)):
        if name in seen:
            yield error("duplicate-value", f"value '{name}' is made twice in the graph or function '{graph.name}'")
        seen.add(name)


_DEFAULT = {"", "ai.onnx"}


def _node_problems(node: onnx.NodeProto, scans_plainly: bool, budget: Budget) -> Iterator[Diagnostic]:
    label = f"node '{node.name or node.op_type}' ({node.op_type})"
    for entry in node.attribute:
        if entry.type == onnx.AttributeProto.TENSOR:
            yield from _tensor_problems(f"attribute '{entry.name}' of {label}", entry.t, budget)
    check = _CHECKED.get(node.op_type) if node.domain in _DEFAULT else None
    if check is not None and (node.op_type != "Scan" or scans_plainly):
        found = next(check(node), "")
        if found:
            yield error("invalid-node", f"{label} is not valid ONNX", detail=found)


def _graph(node: onnx.NodeProto, name: str) -> onnx.GraphProto | None:
    return next((entry.g for entry in node.attribute if entry.name == name and entry.HasField("g")), None)


def _if(node: onnx.NodeProto) -> Iterator[str]:
    branches = [_graph(node, name) for name in ("then_branch", "else_branch")]
    graphs = [graph for graph in branches if graph is not None]
    if len(graphs) < len(branches):
        yield "it has not both branches"
        return
    if len(node.input) != 1 or not node.input[0]:
        yield f"it reads {counted(len(node.input), 'value')}, and must read one, a condition"
    yield from _nameless(*graphs)
    made = [len(graph.output) for graph in graphs]
    if any(count != len(node.output) for count in made):
        yield f"it makes {counted(len(node.output), 'value')}, and its branches {made[0]} and {made[1]}"
    if any(len(graph.input) for graph in graphs):
        yield "a branch reads what it is handed"


def _loop(node: onnx.NodeProto) -> Iterator[str]:
    body = _graph(node, "body")
    if body is None:
        yield "it has no body"
        return
    yield from _nameless(body)
    if not all(node.input[2:]):
        yield "it carries a value without a name"
    if len(node.input) < 2:
        yield f"it reads {counted(len(node.input), 'value')}, and must read a limit and a condition first"
    carried = len(node.input) - 2
    if len(body.input) != carried + 2:
        yield f"its body reads {counted(len(body.input), 'value')}, and is given {carried + 2}"
    if len(body.output) < carried + 1:
        yield f"its body makes {counted(len(body.output), 'value')}, and must make a condition and {carried} to hand on"
    yield from _results(node, len(body.output) - 1)


def _scan(node: onnx.NodeProto) -> Iterator[str]:
    body = _graph(node, "body")
    if body is None:
        yield "it has no body"
        return
    yield from _nameless(body)
    if not all(node.input):
        yield "it reads a value without a name"
    scanned = next((entry.i for entry in node.attribute if entry.name == "num_scan_inputs"), 0)
    if not 1 <= scanned <= len(node.input):
        yield f"it scans {scanned} and reads {counted(len(node.input), 'value')}"
    if len(body.input) != len(node.input):
        yield f"its body reads {counted(len(body.input), 'value')}, and is given {len(node.input)}"
    states = len(node.input) - scanned
    if len(body.output) < states:
        yield f"its body makes {counted(len(body.output), 'value')}, and must make {states} to hand on"
    for what, count in (("input", scanned), ("output", len(body.output) - states)):
        for kind in ("axes", "directions"):
            entries = _integers(node, f"scan_{what}_{kind}")
            if entries and len(entries) != count:
                yield f"scan_{what}_{kind} has {counted(len(entries), 'entry')} for {counted(count, 'value')}"
    yield from _results(node, len(body.output))


def _nameless(*graphs: onnx.GraphProto) -> Iterator[str]:
    if not all(value.name for graph in graphs for value in (*graph.input, *graph.output)):
        yield "a graph in it takes or gives a value without a name"


def _results(node: onnx.NodeProto, made: int) -> Iterator[str]:
    if len(node.output) > made:
        yield f"it makes {counted(len(node.output), 'value')}, and its body {made}"


def _integers(node: onnx.NodeProto, name: str) -> Sequence[int]:
    return next((entry.ints for entry in node.attribute if entry.name == name), ())


def _split(node: onnx.NodeProto) -> Iterator[str]:
    told = next((entry.i for entry in node.attribute if entry.name == "num_outputs"), len(node.output))
    if told != len(node.output):
        yield f"it makes {counted(len(node.output), 'value')}, and num_outputs is {told}"


def _einsum(node: onnx.NodeProto) -> Iterator[str]:
    equation = next((entry.s.decode(errors="replace") for entry in node.attribute if entry.name == "equation"), "")
    if strange := _NOT_EINSUM.search(equation):
        yield f"its equation has {strange[0]!r}, which is no letter from a to z or A to Z"


_CHECKED = {"Einsum": _einsum, "If": _if, "Loop": _loop, "Scan": _scan, "Split": _split}
"""Kinds of which onnx's own inference relies on more than it looks at: it may end the process, or
never end."""
