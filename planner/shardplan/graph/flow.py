"""Data flow of values and gradients: who makes and reads each tensor, which tensors need a gradient, and which are
saved.

Everything here depends only on the model, its rules and the mode; layouts and costs come later.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shardplan.errors import Diagnostic, error
from shardplan.model.types import CONTROL, Border, Model, Operator
from shardplan.rules.types import Rule

_SMALL_CONSTANT_BYTES = 1 << 20
"""Known constants up to this size are present on every device without a choice."""

_MOST_TRIED, _MOST_SHOWN = 4096, 16
"""Numbers of microbatches that are tried, and named, as alternatives to an impossible one."""
_CACHE_WRITERS = frozenset({"Concat", "ScatterND", "ScatterElements", "TensorScatter", "Attention"})


@dataclass(frozen=True)
class Flow:
    """`makers[name]`: (operator index, result position); `readers[name]`: [(operator index, operand position)].

    `planned`: tensors that get a layout, in graph order (parameters and inputs before their first reader).
    `needs_grad`: tensors with a gradient; empty for inference. `weightlike`: computed from weights and constants only,
    so the same for every microbatch. `saved`: values that backward reads. `lives_in`: loops inside of which a value is
    made; `kept_until`: last operator of the loop that reads a value from outside; `windows`: first and last operator of
    the loop whose entries an operator takes from one value, or puts into one. `runs_at[i]`: the operator at whose
    position operator i counts: itself; for a view of weights, which exists as soon as its operand does, the first
    operator that reads it.
    """

    makers: Mapping[str, tuple[int, int]]
    readers: Mapping[str, Sequence[tuple[int, int]]]
    planned: tuple[str, ...]
    needs_grad: frozenset[str]
    weightlike: frozenset[str]
    saved: frozenset[str]
    lives_in: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kept_until: Mapping[str, int] = field(default_factory=dict)
    windows: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    runs_at: tuple[int, ...] = ()

    def is_of_weights(self, operator: Operator) -> bool:
        """Whether an operator reads only weights, constants, and values computed from them."""
        return self.weightlike.issuperset(filter(None, operator.outputs))

    def first_use(self, name: str) -> int:
        """The operator at whose position a value is read first."""
        return min((self.runs_at[index] for index, _ in self.readers.get(name, ())), default=self._maker(name))

    def first_reader(self, name: str) -> int:
        return self.readers[name][0][0] if self.readers.get(name) else self._maker(name)

    def last_reader(self, name: str) -> int:
        """The last operator for which a value must be present; if a loop reads it, the last one inside."""
        if name in self.kept_until:
            return self.kept_until[name]
        return self.readers[name][-1][0] if self.readers.get(name) else self._maker(name)

    def _maker(self, name: str) -> int:
        """The operator that makes a value; the first one for inputs without readers."""
        return self.makers[name][0] if name in self.makers else 0


def trace(model: Model, rules: Sequence[Rule], *, training: bool) -> Flow:
    """The flow of `model`, whose operator i has the rule `rules[i]`."""
    makers: dict[str, tuple[int, int]] = {}
    readers: dict[str, list[tuple[int, int]]] = {}
    lives_in = {name: operator.makes_in for operator in model.operators for name in operator.outputs if name}
    planned: dict[str, None] = dict.fromkeys(name for name in model.inputs if not _is_small_constant(model, name))
    for index, operator in enumerate(model.operators):
        for position, name in enumerate(operator.inputs):
            if name and not _is_small_constant(model, name):
                readers.setdefault(name, []).append((index, position))
                planned.setdefault(name)
        for position, name in enumerate(operator.outputs):
            if name:
                makers[name] = (index, position)
                planned.setdefault(name)
    needs_grad = with_gradients(model) if training else frozenset()
    weightlike = weightlike_of(model)
    return Flow(
        makers=makers,
        readers=readers,
        planned=tuple(planned),
        needs_grad=needs_grad,
        weightlike=weightlike,
        saved=_saved(model, rules, needs_grad) if training else frozenset(),
        lives_in=lives_in,
        kept_until=_kept_until(model, readers, lives_in) if model.trips else {},
        windows=_windows(model) if model.trips else {},
        runs_at=_runs_at(model, rules, weightlike, readers),
    )


def carried_pairs(model: Model) -> list[tuple[int, int]]:
    """The operators that begin and end the iterations of a loop for one carried value, as pairs of numbers."""
    found: dict[tuple[object, ...], list[int]] = {}
    for index, operator in enumerate(model.operators):
        if operator.domain == CONTROL and operator.op_type in {Border.ENTER, Border.LEAVE}:
            found.setdefault((operator.loops, operator.attributes["carry"]), []).append(index)
    return [(pair[0], pair[1]) for pair in found.values() if len(pair) == 2]


def _windows(model: Model) -> dict[int, tuple[int, int]]:
    """For operators that slice or stack values of a loop: its first and its last operator."""
    inside: dict[tuple[str, ...], list[int]] = {}
    for index, operator in enumerate(model.operators):
        for depth in range(len(operator.loops)):
            inside.setdefault(operator.loops[: depth + 1], []).append(index)
    return {
        index: (inside[operator.loops][0], inside[operator.loops][-1])
        for index, operator in enumerate(model.operators)
        if operator.domain == CONTROL and operator.op_type in {Border.EACH, Border.STACK}
    }


def _kept_until(
    model: Model, readers: Mapping[str, Sequence[tuple[int, int]]], lives_in: Mapping[str, tuple[str, ...]]
) -> dict[str, int]:
    """For values that a loop reads from outside in every iteration, the operator until which they are needed."""
    ends = {
        operator.loops[: depth + 1]: index
        for index, operator in enumerate(model.operators)
        for depth in range(len(operator.loops))
    }
    kept_until = {}
    for name, found in readers.items():
        home = len(lives_in.get(name, ()))
        inside = [
            model.operators[index].loops[: home + 1]
            for index, _ in found
            if _is_read_every_iteration(model, index, home)
        ]
        if inside:
            kept_until[name] = max(found[-1][0], *(ends[loops] for loops in inside))
    return kept_until


def _is_read_every_iteration(model: Model, reader: int, home: int) -> bool:
    """Whether a value that lives in `home` loops is read by an operator in every iteration of one more."""
    operator = model.operators[reader]
    once = operator.reads_in if operator.op_type == Border.ENTER else operator.loops
    return len(once) > home


def training_obstacles(model: Model) -> list[Diagnostic]:
    """Why `model` cannot be trained, with the names of the nodes that prevent it; empty if it can."""
    hint = "plan it for serving: --mode inference"
    if not model.fed and not any(parameter.trainable for parameter in model.parameters):
        return [error("not-trainable", f"'{model.name}' has no float weights to train", hint=hint)]
    weights = {parameter.tensor for parameter in model.parameters}
    inputs = set(model.inputs)
    outputs = set(model.outputs)
    for operator in model.operators:
        reason = _quantised(operator, model, weights) or _writes_cache(operator, model, inputs, outputs)
        if reason:
            summary = f"'{model.name}' cannot be trained: node '{operator.name}' ({operator.kind}) {reason}"
            return [error("not-trainable", summary, hint=hint)]
    return []


def microbatch_obstacles(model: Model, microbatches: int) -> list[Diagnostic]:
    """Inputs whose batch, dim 0, cannot be cut into so many equal microbatches. Where the first input, or what another
    part of the model feeds, has several rows, others may have one for all of them, such as masks."""
    shapes = {name: model.tensor(name).shape for name in (*model.fed, *model.inputs)}
    rows = {name: shape[model.fed.get(name, 0)] for name, shape in shapes.items() if shape}
    fewest = min(2, next(iter(rows.values()), 1))
    batches = {name: count for name, count in rows.items() if name not in model.fed and count >= fewest}
    whole = next((name for name, batch in batches.items() if batch % microbatches), None)
    if whole is None:
        return []
    common = math.gcd(*batches.values())
    divisors = [count for count in range(1, min(common, _MOST_TRIED) + 1) if common % count == 0]
    shown = ", ".join(map(str, divisors[:_MOST_SHOWN])) + (", …" if divisors[_MOST_SHOWN:] else "")
    summary = f"dim 0 of input '{whole}' is {batches[whole]} and cannot be cut into {microbatches} microbatches"
    return [error("microbatches", summary, hint=f"--microbatches takes a divisor of the batch: {shown}")]


def _quantised(operator: Operator, model: Model, weights: set[str]) -> str:
    for name in operator.inputs:
        if name in weights:
            tensor = model.tensor(name)
            bits = tensor.dtype.startswith(("int", "uint", "float8", "float4"))
            if bits and ("Linear" in operator.op_type or "NBits" in operator.op_type or operator.op_type == "QMoE"):
                return f"reads the quantised weight '{name}' ({tensor.dtype}), which takes no gradient"
    return ""


def _writes_cache(operator: Operator, model: Model, inputs: set[str], outputs: set[str]) -> str:
    if operator.op_type not in _CACHE_WRITERS:
        return ""
    caches = [name for name in operator.inputs if name in inputs and model.tensor(name).is_float]
    made = [name for name in operator.outputs if name in outputs]
    if caches and made:
        return f"extends the cache '{caches[0]}' into the output '{made[0]}': this is one step of decoding"
    return ""


def needed_operands(operator: Operator, rule: Rule, needs_grad: frozenset[str]) -> list[int]:
    """Positions of the operands whose values the operator's backward reads."""
    takes_gradient = [name in needs_grad for name in operator.inputs]
    return [position for position in rule.saved_when(takes_gradient) if position < len(operator.inputs)]


def _is_small_constant(model: Model, name: str) -> bool:
    tensor = model.tensors[name]
    return tensor.role == "constant" and (name in model.constants or tensor.size_bytes <= _SMALL_CONSTANT_BYTES)


def with_gradients(model: Model) -> frozenset[str]:
    """Float tensors on a path from a trainable parameter (or from a value of another stage) to a float output, possibly
    through further iterations of a loop."""
    back_edges = [
        (model.operators[last].inputs[0], model.operators[first].outputs[0]) for first, last in carried_pairs(model)
    ]
    downstream = {parameter.tensor for parameter in model.parameters if parameter.trainable} | set(model.fed)
    for _ in range(len(back_edges) + 1):
        for operator in model.operators:
            if any(name in downstream for name in operator.inputs):
                downstream.update(name for name in operator.outputs if name and model.tensor(name).is_float)
        downstream.update(begins for ends, begins in back_edges if ends in downstream)
    upstream = {name for name in model.outputs if model.tensor(name).is_float}
    for _ in range(len(back_edges) + 1):
        for operator in reversed(model.operators):
            if any(name in upstream for name in operator.outputs):
                upstream.update(name for name in operator.inputs if name and model.tensor(name).is_float)
        upstream.update(ends for ends, begins in back_edges if begins in upstream)
    return frozenset(downstream & upstream)


def weightlike_of(model: Model) -> frozenset[str]:
    """The values of `model` that are weights and constants, or computed from these only."""
    known = {name for name, tensor in model.tensors.items() if tensor.role in ("parameter", "constant")}
    for operator in model.operators:
        carries = operator.domain == CONTROL and operator.op_type == Border.ENTER
        if not carries and all(not name or name in known for name in operator.inputs):
            known.update(name for name in operator.outputs if name)
    return frozenset(known)


def _runs_at(
    model: Model, rules: Sequence[Rule], weightlike: frozenset[str], readers: Mapping[str, Sequence[tuple[int, int]]]
) -> tuple[int, ...]:
    """`Flow.runs_at`."""
    runs_at = list(range(len(model.operators)))
    for index, (operator, rule) in reversed(list(enumerate(zip(model.operators, rules, strict=True)))):
        made = [name for name in operator.outputs if name]
        if rule.cost in ("view", "free") and weightlike.issuperset(made):
            reading = [runs_at[reader] for name in made for reader, _ in readers.get(name, ())]
            runs_at[index] = min(reading, default=index)
    return tuple(runs_at)


def storage_of(model: Model, rules: Sequence[Rule]) -> dict[str, tuple[str, str]]:
    """The storage of views: the value that they are views of, and the part of it ("" for all of it)."""
    storage: dict[str, tuple[str, str]] = {}
    for operator, rule in zip(model.operators, rules, strict=True):
        if rule.cost == "view" and operator.inputs and operator.inputs[0]:
            source = operator.inputs[0]
            root, part = storage.get(source, (source, ""))
            whole = model.tensor(source).elements
            for name in filter(None, operator.outputs):
                storage[name] = root, part if model.tensor(name).elements == whole else name
    return storage


def views_of_weights(model: Model, rules: Sequence[Rule]) -> dict[str, tuple[int, str]]:
    """Views of weights and constants, and views of these, in graph order: the operator that makes each, and the value
    that it shows. Results of the model, and entries that a loop takes from a value, are values of their own."""
    known = {name for name, tensor in model.tensors.items() if tensor.role in ("parameter", "constant")}
    views: dict[str, tuple[int, str]] = {}
    for index, (operator, rule) in enumerate(zip(model.operators, rules, strict=True)):
        if rule.cost != "view" or operator.domain == CONTROL or not operator.inputs:
            continue
        source = operator.inputs[0]
        if source in known or source in views:
            made = [name for name in operator.outputs if name and name not in model.outputs]
            views |= dict.fromkeys(made, (index, source))
    return views


def read_in_backward(operator: Operator, rule: Rule, needs_grad: frozenset[str]) -> list[str]:
    """Values that the backward of an operator reads: operands, then results of its own."""
    if not any(name in needs_grad for name in operator.outputs):
        return []
    read = [operator.inputs[i] for i in needed_operands(operator, rule, needs_grad)]
    made = [operator.outputs[i] for i in rule.saved_results if i < len(operator.outputs)]
    return [name for name in (*read, *made) if name]


def _saved(model: Model, rules: Sequence[Rule], needs_grad: frozenset[str]) -> frozenset[str]:
    """Activations that backward reads. Views share storage: of a value and its views only one counts, but views of
    different parts of a value (the queries, keys and values of a packed projection) each count."""
    storage = storage_of(model, rules)
    saved: dict[tuple[str, str], str] = {}
    for operator, rule in zip(model.operators, rules, strict=True):
        for name in read_in_backward(operator, rule, needs_grad):
            stored = storage.get(name, (name, ""))
            if model.tensor(stored[0]).role == "activation":  # weights and inputs are there all the time
                saved.setdefault(stored, name)
    return frozenset(saved.values())
