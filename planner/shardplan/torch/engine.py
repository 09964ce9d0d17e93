"""Operations on local parts, with the moves of the plan between them.

Every operation is a `Call` over factors. Its operands are brought to the layouts in which the plan's operator reads
them, its results to those in which the plan keeps them; in between everything is local, and autograd of the local
operations gives local gradients in exactly the layouts that the dual pairs say. So what is sent is what the moves send,
forward and backward. A move that no plan asked for is made where operands disagree, and recorded.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import torch

from shardplan.layout.layout import Layout
from shardplan.layout.text import to_text
from shardplan.plan.types import Plan, TensorDecision
from shardplan.torch.graph import Key, PlanGraph, plan_graph
from shardplan.torch.grid import Grid
from shardplan.torch.moves import Route, Router
from shardplan.torch.settle import settle
from shardplan.torch.signature import CONSTANT
from shardplan.torch.values import Call, Site, Value


class Backend(Protocol):
    """Where operations happen: at once on tensors, or as nodes of a graph that is being written."""

    def move(self, local: Any, route: Route, label: str) -> Any:
        """The local tensor after a move."""

    def bring(self, locals_: Sequence[Any], routes: Sequence[Route]) -> list[Any]:
        """New weights from where the optimizer made them, together."""

    def together(self, locals_: Sequence[Any], routes: Sequence[Route], news: Sequence[Any]) -> list[Any]:
        """Weights as they are, or `news` in their place; their gradients go home together."""

    def describe(self, local: Any) -> tuple[torch.dtype, bool]:
        """Its dtype, and whether a gradient comes back to it."""


@dataclass
class Record:
    """What happened in one forward pass. `done`: (tensor, reader) of moves of the plan; `extra`: moves that no plan
    asked for, by what they are; `unknown`: operations without a rule, run on whole operands."""

    done: set[tuple[str, str]] = field(default_factory=set)
    extra: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)


class Engine:
    """Runs calls under a plan."""

    def __init__(self, plan: Plan, grid: Grid, backend: Backend) -> None:
        self.plan, self.grid, self.backend = plan, grid, backend
        self.graph: PlanGraph = plan_graph(plan)
        self.router = Router(plan)
        self.record = Record()
        self.is_beside_plan = False

    @contextlib.contextmanager
    def beside_plan(self) -> Iterator[None]:
        """While operations run that are none of the plan's, and are not recorded."""
        graph, record = self.graph, self.record
        self.graph, self.record, self.is_beside_plan = PlanGraph(graph.signatures), Record(), True
        try:
            yield
        finally:
            self.graph, self.record, self.is_beside_plan = graph, record, False

    def with_backend(self, backend: Backend) -> Engine:
        """The same plan, worked out once, for another backend."""
        other = object.__new__(Engine)
        other.__dict__.update(self.__dict__, backend=backend, record=Record())
        return other

    def updated(self, value: Value, kept: Layout, decision: TensorDecision) -> Value:
        """A weight whose optimizer state is sharded apart from it, as the plan keeps it, `kept` in the value's dims."""
        target = kept if value.grad else kept.forward
        source = value.layout if value.grad else value.layout.forward
        route = self.router.update(source, target, value.shape, decision)
        return replace(value, local=self.backend.move(value.local, route, decision.name), layout=target, forms={})

    def constant(self, tensor: Any, shape: Sequence[int]) -> Value:
        """A tensor that every process has whole."""
        dtype, grad = self.backend.describe(tensor)
        layout = Layout.replicated(len(self.grid.mesh))
        return Value(tensor, layout, tuple(shape), dtype, grad, Key(CONSTANT, tuple(shape)))

    def run(self, call: Call) -> list[Value]:
        """The results of a call, kept as the plan keeps them."""
        if not call.ready:
            if call.chains:
                call.keys = [key.chained(value.key for value in call.operands) for key in call.keys]
            call.operands = [self.read(value, call.keys) for value in call.operands]
        settled = settle(call, self.grid.mesh)
        operands = [self.convert(value, layout) for value, layout in zip(call.operands, settled.operands, strict=True)]
        site = Site(
            self.grid.mesh, self.grid.coordinates, settled.operands, settled.results, tuple(call.shapes), settled.splits
        )
        made = call.run([value.local for value in operands], site)
        locals_ = made if isinstance(made, (tuple, list)) else (made,)
        return [
            self.result(local, layout, shape, key)
            for local, layout, shape, key in zip(locals_, settled.results, call.shapes, call.keys, strict=True)
        ]

    def result(self, local: Any, layout: Layout, shape: Sequence[int], key: Key) -> Value:
        """A value that has been made, moved to where the plan keeps it."""
        dtype, grad = self.backend.describe(local)
        value = Value(local, layout if grad else layout.forward, tuple(shape), dtype, grad, key)
        planned = self.graph.values.get(key)
        return value if planned is None else self._move(value, planned.layout, planned.name, "")

    def convert(self, value: Value, layout: Layout, *, inner: bool = False) -> Value:
        """A value in another layout, which no plan asked for if anything is sent, unless it is `inner` to an
        operator."""
        wanted = layout if value.grad else layout.forward
        return value if value.layout == wanted else self._move(value, wanted, "", "", inner=inner)

    def kept(self, value: Value) -> Value:
        """A value as the plan keeps it when its chain of elementwise operators has ended, be it longer or shorter."""
        end = self.graph.ends.get(value.key[:3])
        if end is None or value.key == end:
            return value
        if "kept" not in value.forms:
            value.forms["kept"] = self._to_end(value, end)
        return value.forms["kept"]

    def _to_end(self, value: Value, end: Key) -> Value:
        """Through the moves of the links of a chain that the program does not have."""
        while value.key in self.graph.steps:
            read, after = self.graph.steps[value.key]
            value = replace(self._move(self.served(value), read.layout, read.tensor, read.reader), key=after, forms={})
            value = self._move(value, self.graph.values[after].layout, self.graph.values[after].name, "")
        planned = self.graph.values[end]
        return replace(self._move(value, planned.layout, planned.name, ""), key=end)

    def served(self, value: Value) -> Value:
        """A value as the plan serves it to its readers: brought there for the first, let go with the last."""
        planned = self.graph.values.get(value.key)
        if planned is None:
            return value
        if "served" not in value.forms:
            value.forms["served"] = self._move(value, planned.served, planned.name, "")
            value.reads = 0
        value.reads += 1
        last = value.reads >= self.graph.readers[value.key]
        return value.forms.pop("served") if last else value.forms["served"]

    def read(self, value: Value, results: Sequence[Key]) -> Value:
        """A value as the operator of the plan reads it that makes `results`."""
        for result in results:
            read = self.graph.reads.get((value.key, result))
            if read is None and value.key[:3] != result[:3]:
                value = self.kept(value)
                read = self.graph.reads.get((value.key, result))
            if read is not None:
                return self._move(self.served(value), read.layout, read.tensor, read.reader)
        return value

    def _move(self, value: Value, layout: Layout, tensor: str, reader: str, *, inner: bool = False) -> Value:
        target = layout if value.grad else layout.forward
        if tensor:
            self.record.done.add((tensor, reader))
        if value.layout == target:
            return value
        route = self.router.route(value.layout, target, value.shape, tensor, reader, has_gradient=value.grad)
        if route.sends and not route.planned and not inner:
            mesh = self.grid.mesh
            self.record.extra[f"{to_text(value.layout, mesh)} -> {to_text(target, mesh)} of {list(value.shape)}"] += 1
        local = self.backend.move(value.local, route, tensor)
        return Value(local, target, value.shape, value.dtype, value.grad, value.key)


class Op(NamedTuple):
    """An operation as it was called: `args` and `kwargs` hold values where tensors were."""

    name: str
    func: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any] = MappingProxyType({})


Rule = Callable[[Engine, Op], Any]
