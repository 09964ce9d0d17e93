"""The node of a written graph at which the gradient of a program's own `autograd.Function` is what it says."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from shardplan.torch.applied_plan import AppliedPlan
from shardplan.torch.eager.autograd_functions import AppliedFunction, backward_of
from shardplan.torch.eager.planned_tensor import Planned
from shardplan.torch.exported.own_functions import Call, Saved
from shardplan.torch.exported.writer import Writer
from shardplan.torch.propagation.engine import Engine
from shardplan.torch.propagation.values import Value
from shardplan.torch.rules.dispatch import apply
from shardplan.torch.rules.elementwise import as_value


@dataclass(frozen=True)
class Operands:
    """Values that a call's backward has to do with: `inputs`, by position, take gradients, and `saved` are read."""

    inputs: Sequence[tuple[int, Value]]
    saved: Sequence[Value]


class OwnBackward(nn.Module):  # type: ignore[misc]
    """A node that gives the results of a call their gradients. Of `outputs`, `inputs` (by position) and `saved` all but
    what this process has of them, which the node is given."""

    def __init__(self, applied: AppliedPlan, call: Call, outputs: Sequence[Value], of: Operands) -> None:
        super().__init__()
        self.applied, self.call = applied, call
        self.outputs = [_without_local(value) for value in outputs]
        self.inputs = [(position, _without_local(value)) for position, value in of.inputs]
        self.saved = [_without_local(value) for value in of.saved]

    def forward(self, *locals_: Tensor) -> tuple[Tensor, ...]:
        """The results; `locals_`: these, then the inputs, then what is saved."""
        given = iter(locals_)
        outputs = [replace(value, local=next(given)) for value in self.outputs]
        inputs = [(position, replace(value, local=next(given))) for position, value in self.inputs]
        saved = [replace(value, local=next(given)) for value in self.saved]
        engine = self.applied.engine

        def prepared() -> Callable[..., Any]:
            return functools.partial(backward_of(self.call.function), _context(self.call, saved, engine))

        opened = AppliedFunction(prepared, self.call.results, engine, inputs, Planned.of).opened()
        return tuple(opened.result(at, each).local for at, each in zip(self.call.marked, outputs, strict=True))


def _without_local(value: Value) -> Value:
    return replace(value, local=None, forms={})


def _context(call: Call, saved: Sequence[Value], engine: Engine) -> Any:
    """What a `backward` is given."""

    def found(place: Saved) -> Planned:
        return Planned.of(saved[place.place], engine)

    kept, attributes = pytree.tree_map_only(Saved, found, (call.kept, call.attributes))
    return SimpleNamespace(saved_tensors=kept, needs_input_grad=call.needed, **attributes)


def with_own_backward(
    call: Call, given: tuple[Sequence[Any], Sequence[Any], Sequence[Any]], applied: AppliedPlan, engine: Engine,
    writer: Writer,
) -> list[Any]:  # fmt: skip
    """The results of a call with the gradients that its backward gives. `given`: results, inputs and what is saved."""
    results, inputs, saved = ([as_value(engine, each) for each in several] for several in given)
    places = [position for position, needed in enumerate(call.needed) if needed]
    takers = [(position, value) for position, value in zip(places, inputs, strict=True) if value.grad]
    plain = [apply(engine, torch.detach, [value], {}) if value.grad else value for value in results]
    if not takers:
        return plain
    of = Operands(takers, [apply(engine, torch.detach, [each], {}) if each.grad else each for each in saved])
    written = AppliedFunction(_never, call.results, engine, takers, Planned.of)
    outputs = [written.read(number, value) for number, value in zip(call.marked, plain, strict=True)]
    operands = [*plain, *(each for _, each in takers), *of.saved]
    locals_ = writer.results_of(
        OwnBackward(applied, call, plain, of),
        [each.local for each in operands],
        [each.local.meta.detach().requires_grad_() for each in plain],
    )
    return [replace(value, local=local) for value, local in zip(outputs, locals_, strict=True)]


def _never() -> Callable[..., Any]:
    """Where a graph is written nothing runs."""
    raise AssertionError
