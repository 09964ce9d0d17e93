"""The engine: runs operations on local tensors, with the moves of the plan between them.

Every operation is a `Call` over factors. Its operands are moved to the layouts in which the plan's operator reads them,
its results to those in which the plan keeps them. The operation itself is local; autograd of local operations gives
local gradients in the layouts of the dual pairs; so all communication is in the moves, forward and backward. Where
operands disagree, a move is made that the plan does not have, and recorded.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol
from weakref import WeakValueDictionary

import torch

from shardplan.layout.layout import Layout
from shardplan.layout.text import to_text
from shardplan.plan.types import Plan, TensorDecision
from shardplan.torch.collectives.order import Label, digest_of
from shardplan.torch.collectives.routes import Route, Router
from shardplan.torch.placements import nameable
from shardplan.torch.process_groups import ProcessGroups
from shardplan.torch.propagation.anchors import anchors_of
from shardplan.torch.propagation.lineage import Lineage, lineage_of, values_in
from shardplan.torch.propagation.plan_graph import Key, PlanGraph, plan_graph
from shardplan.torch.propagation.sharding import Sharding, propagate
from shardplan.torch.propagation.signatures import CONSTANT
from shardplan.torch.propagation.values import Call, Site, Value


class Backend(Protocol):
    """What operations run on: local tensors, at once, or nodes of a graph under construction."""

    @property
    def tells_lineage(self) -> bool:
        """Whether moves are told apart by the lineage of what they move."""

    def content(self, constant: Any) -> float:
        """What tells a constant from others (see `shardplan.torch.collectives.order.content_of`)."""

    def move(self, local: Any, route: Route, label: Label) -> Any:
        """The local tensor after a move."""

    def hold(self, names: Sequence[str], locals_: Sequence[Any]) -> None:
        """What this process holds of weights that are gathered beside compute, by the plan's names."""

    def passed(self, local: Any, operator: int) -> None:
        """The plan's operator of this number has been run, with the result `local`."""

    def gather_updated(self, locals_: Sequence[Any], routes: Sequence[Route], label: Label) -> list[Any]:
        """Updated weights, gathered from the shards of the optimizer as one bucket."""

    def await_gradients(self, locals_: Sequence[Any]) -> list[Any]:
        """Weights whose gradients are waited for when nothing is left to compute."""

    def bucket_gradients(self, locals_: Sequence[Any], routes: Sequence[Route], label: Label) -> list[Any]:
        """Stand-ins of weights where `routes` lead; their gradients are sent as one bucket."""

    def valued(self, stand_in: Any, local: Any, route: Route | None, label: Label) -> Any:
        """A weight with its value, `local`, or the part of it to which `route` leads; its gradient goes to the
        stand-in."""

    def describe(self, local: Any) -> tuple[torch.dtype, bool]:
        """Its dtype, and whether it takes a gradient."""


@dataclass
class Record:
    """What one forward pass did. `realised`: (tensor, reader) of moves of the plan; `unplanned`: moves that the plan
    does not have, by layouts and shape; `without_rule`: operations without a rule, run on gathered operands; `unnamed`:
    trained weights that its results depend on and the plan does not name."""

    realised: set[tuple[str, str]] = field(default_factory=set)
    unplanned: Counter[str] = field(default_factory=Counter)
    without_rule: Counter[str] = field(default_factory=Counter)
    unnamed: set[str] = field(default_factory=set)


class Engine:
    """Runs calls under a plan. `constants`: tensors of the plan that the program has whole on every process.

    `is_running`: whether a forward pass is under way; `takes_gradients`: whether it, or the last one, takes gradients;
    `weight_of` gives the replacement of a weight while the model runs, for the tensor in which it is stored, or None.
    `written`: the operands that the current operation has written into; None between operations.
    For the current operation: `_operation`, the lineage of its results, and `_moves`, the number of its moves.
    `returned`: results of the program's functions that others have read in this pass, with their versions then, by
    autograd node and number of the result; `functions`: those functions of which results have been read, by the
    identity of the node, which they hold.
    """

    def __init__(
        self, plan: Plan, groups: ProcessGroups, backend: Backend, constants: Container[str] = frozenset()
    ) -> None:
        self.plan, self.groups, self.backend = plan, groups, backend
        self.graph: PlanGraph = plan_graph(plan, constants)
        self.graph.anchors = anchors_of(plan, self.graph)
        self.router = Router(plan)
        self._shardings: dict[Hashable, Sharding] = {}
        self._makers = {name: number for number, one in enumerate(plan.operators) for name in one.outputs}
        self.record = Record()
        self.is_beside_plan = False
        self.is_running = self.takes_gradients = False
        self.weight_of: Callable[[Any], Any] = lambda _: None
        self.returned: dict[tuple[Any, int], tuple[Value, int]] = {}
        self.functions: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self._operation: Lineage | None = None
        self._moves = 0
        self.written: list[Value] | None = None

    @contextlib.contextmanager
    def beside_plan(self) -> Iterator[None]:
        """Context: operations outside of the plan run; nothing is looked up in the plan or recorded."""
        graph, record = self.graph, self.record
        self.graph, self.record, self.is_beside_plan = PlanGraph(graph.signatures), Record(), True
        try:
            yield
        finally:
            self.graph, self.record, self.is_beside_plan = graph, record, False

    def lasting(self) -> torch.set_grad_enabled:
        """Context: a form of a value is made that later readers share; its gradient comes back even if the first of
        them reads with gradients off (`torch.no_grad`, the `forward` of a function of the program)."""
        return torch.set_grad_enabled(self.takes_gradients or torch.is_grad_enabled())

    def with_backend(self, backend: Backend) -> Engine:
        """The same plan for another backend."""
        other = object.__new__(Engine)
        other.__dict__.update(self.__dict__, backend=backend, record=Record())
        return other

    def updated(self, value: Value, kept: Layout, decision: TensorDecision) -> Value:
        """A weight whose optimizer state has another layout, moved from there to `kept`, in the value's dims."""
        target = kept if value.grad else kept.forward
        source = value.layout if value.grad else value.layout.forward
        route = self.router.update_route(source, target, value.shape, decision)
        local = self.backend.move(value.local, route, Label(decision.name))
        return replace(value, local=local, layout=target, forms={})

    def constant(self, tensor: Any, shape: Sequence[int]) -> Value:
        """A tensor that every process has whole."""
        dtype, grad = self.backend.describe(tensor)
        layout = Layout.replicated(len(self.groups.mesh))
        return Value(tensor, layout, tuple(shape), dtype, grad, Key(CONSTANT, tuple(shape)))

    def run_rule(self, rule: Rule, op: Op) -> Any:
        """The results of an operation by its rule, with their lineage, if moves are identified by it."""
        if not self.backend.tells_lineage:
            return rule(self, op)
        before = self._operation, self._moves
        told = lineage_of(op.name, (op.args, op.kwargs), self.backend.content)
        self._operation, self._moves = told, 0
        try:
            made = rule(self, op)
        finally:
            self._operation, self._moves = before
        for number, value in enumerate(values_in(made)):
            value.lineage = value.lineage or told.then(number)
        return made

    def run(self, call: Call) -> list[Value]:
        """The results of a call, kept as the plan keeps them."""
        if not call.ready:
            if call.chains:
                call.keys = [key.chained(value.key for value in call.operands) for key in call.keys]
            call.keys = self._anchored(call)
            call.operands = [self.read(value, call.keys) for value in call.operands]
        sharding = self._sharding(call)
        operands = [self.convert(value, layout) for value, layout in zip(call.operands, sharding.operands, strict=True)]
        site = Site(
            self.groups.mesh,
            self.groups.coordinates,
            sharding.operands,
            sharding.results,
            tuple(call.shapes),
            sharding.splits,
        )
        made = call.run([value.local for value in operands], site)
        locals_ = made if isinstance(made, (tuple, list)) else (made,)
        return [
            self.result(local, layout, shape, key)
            for local, layout, shape, key in zip(locals_, sharding.results, call.shapes, call.keys, strict=True)
        ]

    def _anchored(self, call: Call) -> Sequence[Key]:
        """The keys of a call's results. If the plan does not know them, and an operand is a weight, the key of what the
        plan makes from that weight; then the operand beside the weight gets its key from the plan too."""
        graph = self.graph
        if len(call.keys) != 1 or call.keys[0] in graph.values:
            return call.keys
        anchors = ((place, graph.anchors.get(value.key)) for place, value in enumerate(call.operands))
        found = next(((p, each) for p, each in anchors if each and each.result.shape == call.keys[0].shape), None)
        if found is None:
            return call.keys
        place, anchor = found
        unknown = [value for number, value in enumerate(call.operands) if number != place and self._is_unknown(value)]
        if len(unknown) == 1 and anchor.partner is not None and anchor.partner.shape == unknown[0].shape:
            unknown[0].key = anchor.partner
        return [anchor.result]

    def _is_unknown(self, value: Value) -> bool:
        """Whether a value is no constant, and none that the plan knows."""
        return value.key.signature != CONSTANT and value.key not in self.graph.values

    def _sharding(self, call: Call) -> Sharding:
        """The split of a call; a program makes the same calls in every step."""
        question = call.question
        if question not in self._shardings:
            self._shardings[question] = propagate(call, self.groups.mesh)
        return self._shardings[question]

    def result(self, local: Any, layout: Layout, shape: Sequence[int], key: Key) -> Value:
        """A result, moved to the layout that the plan keeps."""
        dtype, grad = self.backend.describe(local)
        value = Value(local, layout if grad else layout.forward, tuple(shape), dtype, grad, key)
        planned = self.graph.values.get(key)
        if planned is None:
            return value
        if planned.name in self._makers:
            self.backend.passed(local, self._makers[planned.name])
        return self._move(value, planned.layout, planned.name, "")

    def convert(self, value: Value, layout: Layout, *, inner: bool = False) -> Value:
        """A value in another layout; recorded as unplanned if anything is sent, unless it is `inner` to an operator."""
        wanted = layout if value.grad else layout.forward
        return value if value.layout == wanted else self._move(value, wanted, "", "", inner=inner)

    def kept(self, value: Value) -> Value:
        """A value in the kept layout of the end of its chain of elementwise operators; the chain may have more or fewer
        links in the plan than in the program."""
        end = self.graph.ends.get(value.key[:3])
        if end is None or value.key == end:
            return value
        if "kept" not in value.forms:
            with self.lasting():
                value.forms["kept"] = self._to_end(value, end)
        return value.forms["kept"]

    def as_output(self, value: Value) -> Value:
        """A value as the program returns it: kept, in a layout that is one of torch's."""
        value = self.kept(value)
        return self.convert(value, nameable(value.layout, self.groups.mesh))

    def _to_end(self, value: Value, end: Key) -> Value:
        """Through the moves of the links of a chain that the program does not have."""
        while value.key in self.graph.steps:
            read, after = self.graph.steps[value.key]
            value = replace(self._move(self.served(value), read.layout, read.tensor, read.reader), key=after, forms={})
            value = self._move(value, self.graph.values[after].layout, self.graph.values[after].name, "")
        planned = self.graph.values[end]
        return replace(self._move(value, planned.layout, planned.name, ""), key=end)

    def served(self, value: Value) -> Value:
        """A value in the layout in which the plan serves it: moved for the first reader, freed with the last."""
        planned = self.graph.values.get(value.key)
        if planned is None:
            return value
        if "served" not in value.forms:
            with self.lasting():
                value.forms["served"] = self._move(value, planned.served, planned.name, "")
            value.reads = 0
        value.reads += 1
        last = value.reads >= self.graph.readers[value.key]
        return value.forms.pop("served") if last else value.forms["served"]

    def read(self, value: Value, results: Sequence[Key]) -> Value:
        """A value in the layout in which the operator of the plan that makes `results` reads it."""
        for result in results:
            read = self.graph.reads.get((value.key, result))
            if read is None and value.key[:3] != result[:3]:
                value = self.kept(value)
                read = self.graph.reads.get((value.key, result))
            if read is not None:
                return self._move(self.served(value), read.layout, read.tensor, read.reader)
        return value

    def read_whole(self, value: Value, signature: int) -> Value:
        """As `read`, where an operator of the plan that makes results of `signature`, of whatever shape, reads a value
        whole: one that the plan has no rule for either."""
        chain, whole = value.key[:3], Layout.replicated(len(self.groups.mesh))
        made = [
            result
            for (read, result), how in self.graph.reads.items()
            if read[:3] == chain and result.signature == signature and how.layout == whole
        ]
        return self.read(value, made)

    def has_read(self, value: Value, result: Key) -> bool:
        """Whether an operator of the plan that makes `result` reads a value, or the end of its chain."""
        end = self.graph.ends.get(value.key[:3], value.key)
        return (value.key, result) in self.graph.reads or (end, result) in self.graph.reads

    def knows(self, key: Key) -> bool:
        """Whether the plan has a value of this key."""
        return key in self.graph.values

    def write(self, target: Any, made: Value) -> None:
        """Sets `target`, a value or a constant, to `made`, after an in-place operation."""
        if not isinstance(target, Value):
            whole = self.convert(made, Layout.replicated(len(self.groups.mesh)), inner=True)
            target.copy_(whole.local.detach())
            return
        dtype, grad = self.backend.describe(made.local)
        source = replace(made, grad=grad, layout=made.layout if grad else made.layout.forward, forms={})
        kept = self.convert(source, target.layout, inner=True)
        target.local, target.layout, target.dtype, target.grad = kept.local, kept.layout, dtype, grad
        target.forms, target.reads, target.lineage = {}, 0, made.lineage
        if self.written is not None:
            self.written.append(target)

    def _move(self, value: Value, layout: Layout, tensor: str, reader: str, *, inner: bool = False) -> Value:
        target = layout if value.grad else layout.forward
        if tensor:
            self.record.realised.add((tensor, reader))
        if value.layout == target:
            return value
        route = self.router.route(value.layout, target, value.shape, tensor, reader, has_gradient=value.grad)
        if route.sends and not route.planned and not inner:
            mesh = self.groups.mesh
            self.record.unplanned[
                f"{to_text(value.layout, mesh)} -> {to_text(target, mesh)} of {list(value.shape)}"
            ] += 1
        local = self.backend.move(value.local, route, self._label(value, tensor, reader))
        return Value(local, target, value.shape, value.dtype, value.grad, value.key, lineage=value.lineage)

    def _label(self, value: Value, tensor: str, reader: str) -> Label:
        """The label of a move: the value, and the number of the move within the current operation."""
        if not self.backend.tells_lineage:
            return Label(tensor)
        self._moves += 1
        told = [lineage for lineage in (self._operation, value.lineage) if lineage is not None]
        number = self._moves if self._operation is not None else 0
        content = math.fsum(sorted({content for lineage in told for content in lineage.constants}))
        digest = digest_of(number, *(lineage.digest for lineage in told))
        return Label(f"{tensor} for {reader}" if reader else tensor, digest, content)


class Op(NamedTuple):
    """An operation as it was called: `args` and `kwargs` hold values where tensors were."""

    name: str
    func: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any] = MappingProxyType({})


Rule = Callable[[Engine, Op], Any]
