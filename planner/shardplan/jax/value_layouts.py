"""Layouts in which a plan's values are made, kept and read, by the name of a value, a module or a weight."""

from __future__ import annotations

import re
import weakref
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from shardplan.errors import Diagnostic, ShardplanError, did_you_mean, error
from shardplan.layout.layout import Layout
from shardplan.layout.placement import R
from shardplan.plan.types import OperatorDecision, Plan, TensorDecision
from shardplan.runtime.lookup import tensors_by_name

Form = Literal["kept", "served", "read", "optimizer"]
_known: dict[int, Values] = {}


def values_of(plan: Plan) -> Values:
    """The index of `plan`; made once."""
    found = _known.get(id(plan))
    if found is None:
        found = _known[id(plan)] = Values(plan)
        weakref.finalize(plan, _known.pop, id(plan), None)
    return found


class Values:
    """What a plan says of its values, by name. Layouts are of the forward pass, in the dims of the graph."""

    def __init__(self, plan: Plan) -> None:
        self.mesh = plan.mesh
        self.tensors: Mapping[str, TensorDecision] = dict(tensors_by_name(plan))
        self.made: dict[str, tuple[OperatorDecision, Layout]] = {}
        self.readers: dict[str, list[tuple[OperatorDecision, Layout]]] = {}
        self.modules: dict[str, list[OperatorDecision]] = {}
        self._matches: dict[str, tuple[tuple[str, str], ...]] = {}
        for operator in plan.operators:
            for name, layout in zip(operator.outputs, operator.makes, strict=True):
                if layout is not None:
                    self.made[name] = (operator, layout.forward)
            for name, layout in zip(operator.inputs, operator.reads, strict=True):
                if layout is not None:
                    self.readers.setdefault(name, []).append((operator, layout.forward))
            parts = operator.module.split(".") if operator.module else []
            for end in range(len(parts)):
                self.modules.setdefault(".".join(parts[: end + 1]), []).append(operator)

    def form(self, decision: TensorDecision, form: Form) -> Layout:
        """A tensor in one of its forms. `read`: as all its readers take it; `served` where they do not agree, or take
        partial sums (of a weight: whole). `optimizer`: the state of its optimizer, and the gradient that this takes.
        Raises `ShardplanError` (`bad-argument`) for another form."""
        if form not in get_args(Form):
            hint = did_you_mean(form, get_args(Form))
            summary = f"there is no form {form!r} of a tensor: it is one of {', '.join(get_args(Form))}"
            raise ShardplanError(error("bad-argument", summary, hint=hint))
        if form == "kept":
            return decision.layout.forward
        if form == "optimizer":
            return (decision.optimizer or decision.layout).forward
        read = {_sayable(decision, layout) for _, layout in self.readers.get(decision.name, ())}
        if form == "read" and len(read) == 1 and not is_partial(layout := read.pop()):
            return layout
        return decision.served.forward

    def chain(self, decision: TensorDecision) -> tuple[Layout, ...]:
        """The layouts that a value has one after the other: made, kept, served, read. What is made partial and kept
        or read whole or cut is whole in between. What is read partial too has none, unless it is added to a value that
        is cut: then it is cut as well, and so is the sum, which costs what summing the sum costs."""
        layouts = [self.form(decision, "kept"), self.form(decision, "served"), self.form(decision, "read")]
        if decision.name in self.made:
            operator, made = self.made[decision.name]
            addend = self._addend(operator, decision)
            if is_partial(decision.layout):
                addends = {self._addend(reader, decision) for reader, _ in self.readers.get(decision.name, ())}
                addend = addends.pop() if len(addends) == 1 else None
                layouts += [] if addend is None else [_summed(made), addend]
                if addend is None and not is_partial(layouts[-1]):
                    layouts.insert(0, _summed(made))
            else:
                layouts.insert(0, addend if addend is not None and is_partial(made) else _summed(made))
        whole = [layout for layout in layouts if not is_partial(layout)]
        return tuple(layout for place, layout in enumerate(whole) if place == 0 or layout != whole[place - 1])

    def _addend(self, operator: OperatorDecision, like: TensorDecision) -> Layout | None:
        """The layout of a value of the same shape that an operator adds to partial sums, itself no sum yet."""
        for name, layout in zip(operator.inputs, operator.reads, strict=True):
            other = self.tensors.get(name)
            if layout is None or other is None or not is_partial(layout) or other.shape != like.shape:
                continue
            if not is_partial(other.served):
                return other.served.forward
        return None

    def read_by(self, decision: TensorDecision, reader: str) -> tuple[Layout, ...]:
        """How an operator, or all operators of a module, read a value; empty if partial, but for a weight.

        Raises `ShardplanError` (`unknown-reader`)."""
        readers = self.readers.get(decision.name, [])
        at = [layout for operator, layout in readers if operator.name == reader or _is_inside(operator, reader)]
        found = {_sayable(decision, layout) for layout in at}
        if len(found) != 1:
            what = "no operator there reads it" if not found else "its operators read it in different ways"
            summary = f"'{reader}' is no reader of '{decision.name}': {what}"
            detail = f"it is read by {listed([operator.name for operator, _ in readers])}"
            raise ShardplanError(error("unknown-reader", summary, detail=detail))
        return tuple(layout for layout in found if not is_partial(layout))

    def find(self, name: str) -> list[tuple[TensorDecision, str]]:
        """The tensors that `name` stands for, each with the number of its layer (for a `*`), in the order of layers.

        Raises `ShardplanError` (`unknown-tensor`, `several-outputs`)."""
        return [(self._decision(full), layer) for full, layer in self._spelled(name)]

    def _spelled(self, name: str) -> tuple[tuple[str, str], ...]:
        """(full name, number of the layer) of all that `name` matches."""
        if "*" not in name:
            return ((name, ""),)
        if name not in self._matches:
            self._matches[name] = self._match(name)
        return self._matches[name]

    def _match(self, name: str) -> tuple[tuple[str, str], ...]:
        pattern = re.compile(r"(\d+)".join(re.escape(part) for part in name.split("*")))
        numbered = {m[0]: m[1] for full in (*self.tensors, *self.modules) if (m := pattern.fullmatch(full))}
        if not numbered:
            raise ShardplanError(self._unknown(name))
        return tuple(sorted(numbered.items(), key=lambda item: (int(item[1]), item[0])))

    def _decision(self, name: str) -> TensorDecision:
        if name in self.tensors:
            return self.tensors[name]
        outputs = self._outputs(name)
        if len(outputs) == 1:
            return self.tensors[outputs[0]]
        if not outputs:
            raise ShardplanError(self._unknown(name))
        summary = f"module '{name}' hands on {len(outputs)} values"
        raise ShardplanError(error("several-outputs", summary, hint=f"name one of them: {listed(outputs)}"))

    def _outputs(self, module: str) -> list[str]:
        """Values made inside a module that are read outside of it, or by nobody."""
        found = []
        for operator in self.modules.get(module, ()):
            for name in operator.outputs:
                if name not in self.tensors:
                    continue
                inside = [_is_inside(reader, module) for reader, _ in self.readers.get(name, ())]
                if not all(inside) or not inside or self.tensors[name].role == "output":
                    found.append(name)
        return found

    def _unknown(self, name: str) -> Diagnostic:
        names = [*self.tensors, *self.modules]
        hint = did_you_mean(name, names) or f"names are those of `plan.tensors`, such as {listed(list(self.made), 3)}"
        return error("unknown-tensor", f"the plan has no value, parameter or module '{name}'", hint=hint)


def is_partial(layout: Layout) -> bool:
    """Whether values are still to be summed."""
    return any(placement.kind == "P" for placement in layout.placements)


def _summed(layout: Layout) -> Layout:
    """The layout after an all-reduce of what is partial."""
    placements = (R if placement.kind == "P" else placement for placement in layout.placements)
    return Layout.of(*placements, order=layout.order)


def _is_inside(operator: OperatorDecision, module: str) -> bool:
    return operator.module == module or operator.module.startswith(f"{module}.")


def listed(names: Sequence[str], most: int = 8) -> str:
    """The first names and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}" or "nothing"


def _sayable(decision: TensorDecision, layout: Layout) -> Layout:
    """How a value is read as a sharding says it: a weight of which every device adds a part to a sum is whole, or a
    compiler gathers it only when it is as large as the sum."""
    return _summed(layout) if decision.role == "parameter" else layout
