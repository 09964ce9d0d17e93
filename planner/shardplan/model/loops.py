"""`Loop` and `Scan`: the body enters the graph once, between operators for the values that go in and out.

| operator | reads                       | makes                                                          |
|----------|-----------------------------|----------------------------------------------------------------|
| `Enter`  | the first value             | what an iteration begins with: the first value, then `Leave`'s |
| `Each`   | a value with one dim more   | the entry that belongs to the iteration                        |
| `Count`  | nothing                     | the number of the iteration                                    |
| `Leave`  | what an iteration ends with | what the last iteration ended with                             |
| `Stack`  | a value of every iteration  | all of them, along one dim more                                |

`Enter` and `Leave` of one carried value have the same `carry`. Operators inside have the loop's name in `Node.loops`;
its trip count is a constant, the length of what is scanned, or `--trip NAME=N`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.model.dims import trip_flag
from shardplan.model.draft import Draft, Node
from shardplan.model.nested import fresh_nodes, graph_of, inner_values, is_plain, moved_out
from shardplan.model.node_types import Typed
from shardplan.model.types import CONTROL, Border
from shardplan.units import counted

Known = Mapping[str, np.ndarray[Any, Any]]
_MOST_TURNS = 1 << 31
"""A limit above this is none: exporters write the largest integer for `while` loops."""
_PLAIN_SCAN_SINCE = 9


@dataclass(frozen=True, slots=True)
class _Parts:
    """Values that go into or out of a loop. `carried`: (first value, value inside, value at the end of an iteration,
    result); `each`, `stacks`: (outer, inner, axis, backwards). `condition`: whether the next iteration runs."""

    carried: list[tuple[str, str, str, str]]
    each: list[tuple[str, str, int, int]]
    stacks: list[tuple[str, str, int, int]]
    count: str = ""
    condition: str = ""


def unrolled(
    draft: Draft, node: Node, typed: Mapping[str, Typed], known: Known, trips: Mapping[str, int]
) -> tuple[list[Node], int] | None:
    """The nodes of the body of a `Loop` or `Scan` with its border, and the trip count; None for anything else.

    Also None if the body has values other than tensors, or never runs: the node then stays as it is. Raises
    `ShardplanError` if the trip count is unknown, or `trips` contradicts the file.
    """
    if node.domain or node.op_type not in {"Loop", "Scan"}:
        return None
    body = graph_of(node.proto, "body")
    if body is None or not is_plain(body) or any(name and typed[name].kind != "tensor" for name in node.inputs):
        return None
    if node.op_type == "Scan" and draft.opsets[""] < _PLAIN_SCAN_SINCE:
        return None
    names = {name: f"{node.name}/{name}" for name in inner_values(body)}
    if node.op_type == "Loop":
        parts = _loop_parts(draft, node, body, names, known)
        iterations = _loop_iterations(node, known, trips, ends_early=bool(parts.condition))
    else:
        parts = _scan_parts(node, body, names, typed)
        iterations = _scan_iterations(node, parts, typed, trips)
    if not iterations:
        return None
    inside = (*node.loops, node.name)
    before, after = _border(node, parts, iterations)
    nodes = [*before, *moved_out(draft, node, body, names), *after]
    for entry in nodes:
        entry.loops = inside
    return nodes, iterations


def _loop_parts(draft: Draft, node: Node, body: onnx.GraphProto, names: Mapping[str, str], known: Known) -> _Parts:
    inputs, outputs = [names[v.name] for v in body.input], [names.get(v.name, v.name) for v in body.output]
    first = [*node.inputs[2:]]
    results = [*node.proto.output]
    carried = list(zip(first, inputs[2:], outputs[1:], results, strict=False))
    stacks = [
        (outer, inner, 0, 0) for outer, inner in zip(results[len(first) :], outputs[1 + len(first) :], strict=False)
    ]
    given = node.inputs[1] if len(node.inputs) > 1 else ""
    goes_on = not given or (given in known and bool(known[given].reshape(-1)[0]))
    if goes_on and _always(body, known):
        draft.initializers[inputs[1]] = numpy_helper.from_array(np.array(True), inputs[1])
        return _Parts(carried, [], stacks, inputs[0])
    if not given:
        given = f"{node.name}/begins"
        draft.initializers[given] = numpy_helper.from_array(np.array(True), given)
    return _Parts([(given, inputs[1], outputs[0], f"{node.name}/goes_on"), *carried], [], stacks, inputs[0], outputs[0])


def _always(body: onnx.GraphProto, known: Known) -> bool:
    """Whether no iteration ends the loop: the body returns the condition it was given, or a constant."""
    name, maker = body.output[0].name, None
    for entry in reversed(body.node):
        if name in entry.output:
            if entry.op_type != "Identity":
                maker = entry
                break
            name = entry.input[0]
    if name == body.input[1].name:
        return True
    stored = next((tensor for tensor in body.initializer if tensor.name == name), None)
    if maker is not None and maker.op_type == "Constant":
        stored = next((entry.t for entry in maker.attribute if entry.name == "value"), None)
    if stored is not None:
        return bool(numpy_helper.to_array(stored).reshape(-1)[0])
    return maker is None and name in known and bool(known[name].reshape(-1)[0])


def _loop_iterations(node: Node, known: Known, trips: Mapping[str, int], *, ends_early: bool) -> int:
    limit = known.get(node.inputs[0]) if node.inputs and node.inputs[0] else None
    most = max(0, int(limit.reshape(-1)[0])) if limit is not None else _MOST_TURNS
    given = trips.get(node.name)
    if most >= _MOST_TURNS:
        if given is None:
            raise ShardplanError(_open_loop(node) if limit is None or ends_early else _endless(node, most))
        return given
    if given is not None and (given > most or (given < most and not ends_early)):
        raise ShardplanError(_contradicted(node, given, most, "at most " if ends_early else ""))
    return most if given is None else given


def without_iterations(
    node: Node, known: Known, typed: Mapping[str, Typed], found: Sequence[Typed]
) -> tuple[Typed, ...]:
    """The types of the results of a node, `found` by its body, where it is a `Loop` that never runs: a carried value is
    the first one, and nothing is stacked."""
    limit = known.get(node.inputs[0]) if node.op_type == "Loop" and not node.domain and node.inputs else None
    if limit is None or int(limit.reshape(-1)[0]) > 0:
        return tuple(found)
    carried = [typed[name] for name in node.inputs[2:]]
    stacked = [entry if entry.shape is None else replace(entry, shape=(0, *entry.shape[1:])) for entry in found]
    return (*carried, *stacked[len(carried) :])


def _open_loop(node: Node) -> Diagnostic:
    return error(
        "unbound-trip",
        f"the trip count of {node.label} depends on data, so its cost is not known",
        hint=f"give the trip count: {trip_flag(node.name, 'N')}",
    )


def _endless(node: Node, limit: int) -> Diagnostic:
    return error(
        "unbound-trip",
        f"the trip count of {node.label} is stored as {limit:,}; a loop that is planned has fewer than "
        f"{_MOST_TURNS:,} iterations",
        hint=f"give the trip count to plan for: {trip_flag(node.name, 'N')}",
    )


def _contradicted(node: Node, given: int, most: int, at_most: str) -> Diagnostic:
    return error(
        "bad-trip",
        f"--trip {node.name}={given}: {node.label} has {at_most}{counted(most, 'iteration')}",
        hint="leave the option away",
    )


def _scan_parts(node: Node, body: onnx.GraphProto, names: Mapping[str, str], typed: Mapping[str, Typed]) -> _Parts:
    inputs, outputs = [names[v.name] for v in body.input], [names.get(v.name, v.name) for v in body.output]
    lists = {entry.name: list(entry.ints) for entry in node.proto.attribute}
    scanned = next(int(entry.i) for entry in node.proto.attribute if entry.name == "num_scan_inputs")
    states = len(node.inputs) - scanned
    count = len(outputs) - states
    axes, backwards = (lists.get(f"scan_input_{what}") or [0] * scanned for what in ("axes", "directions"))
    made_axes, made_backwards = (lists.get(f"scan_output_{what}") or [0] * count for what in ("axes", "directions"))
    ranks = [len(typed[name].shape or ()) for name in node.inputs[states:]]
    axes = [axis + rank if axis < 0 else axis for axis, rank in zip(axes, ranks, strict=True)]
    each = list(zip(node.inputs[states:], inputs[states:], axes, backwards, strict=True))
    results = [*node.proto.output]
    carried = list(zip(node.inputs[:states], inputs[:states], outputs[:states], results, strict=False))
    stacks = list(zip(results[states:], outputs[states:], made_axes, made_backwards, strict=False))
    return _Parts(carried, each, stacks)


def _scan_iterations(node: Node, parts: _Parts, typed: Mapping[str, Typed], trips: Mapping[str, int]) -> int:
    """The length of what is scanned; 0, which keeps the node whole, where it is not known."""
    outer, _, axis, _ = parts.each[0]
    shape = typed[outer].shape
    iterations = (shape[axis] if shape is not None and axis < len(shape) else None) or 0
    given = trips.get(node.name)
    if given is not None and given != iterations:
        raise ShardplanError(_contradicted(node, given, iterations, ""))
    return iterations


def _border(node: Node, parts: _Parts, iterations: int) -> tuple[list[Node], list[Node]]:
    before, after = [], []
    condition = [parts.condition] if parts.condition else []
    for number, (first, inside, ends, result) in enumerate(parts.carried):
        before.append(_made(Border.ENTER, [first], inside, carry=number))
        after.append(_made(Border.LEAVE, [ends, *condition], result or f"{inside}/last", carry=number))
    before += [
        _made(Border.EACH, [outer], inner, axis=axis, backwards=backwards)
        for outer, inner, axis, backwards in parts.each
    ]
    if parts.count:
        before.append(_made(Border.COUNT, [], parts.count))
    after += [
        _made(Border.STACK, [inner, *condition], outer, axis=axis, backwards=backwards, turns=iterations)
        for outer, inner, axis, backwards in parts.stacks
        if outer
    ]
    for proto in (*before, *after):
        proto.name = f"{node.name}/{proto.op_type}:{proto.output[0].removeprefix(f'{node.name}/')}"
    return fresh_nodes(node, before), fresh_nodes(node, after)


def _made(kind: str, reads: list[str], makes: str, **attributes: int) -> onnx.NodeProto:
    return helper.make_node(kind, reads, [makes], domain=CONTROL, **attributes)
