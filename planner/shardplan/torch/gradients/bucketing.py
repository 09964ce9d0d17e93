"""Gradient bucketing: one collective for the gradients of several weights, as the plan's buckets say.

A weight is read from the shard of its process: with ZeRO-1 it is first gathered from the optimizer's shard to the kept
layout, then moved to the reader's layout. If the plan moves the gradients of several weights in one bucket, one
autograd function handles all of them. Its forward returns a stand-in for each weight; its backward runs when the
gradients of all stand-ins are available, and sends them in one collective. Each weight gets its value when it is read
(`_Valued`), in its reader's layout, as a local part (whole, a slice, or masked): new weights of one bucket of gradients
may arrive at different times. Readers see weights with partial gradients.

If the plan reduces gradients beside compute, they are awaited at the end of backward
(`shardplan.torch.gradients.flights`); so are gradients that are sent alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from shardplan.layout.layout import Layout
from shardplan.layout.legal import local_shape
from shardplan.plan.step.buckets import buckets_of
from shardplan.plan.types import Move, Plan, TensorDecision
from shardplan.runtime.names import Named
from shardplan.torch.collectives.order import Label, digest_of
from shardplan.torch.collectives.routes import Route
from shardplan.torch.gradients.flights import Flights, Receiver, placeholders, receiver_of, send_early
from shardplan.torch.gradients.moves import Context
from shardplan.torch.parameters.orientation import in_module_dims
from shardplan.torch.propagation.engine import Engine
from shardplan.torch.propagation.values import Value

Bucket = tuple[str, ...]
"""Weights by the plan's names."""


@dataclass(frozen=True)
class Buckets:
    """The buckets of a plan, by weight. `to_optimizer`: of the gradient's move to the optimizer's shard; `updates`: of
    the updated weight's move from there; `from_reader`: of the gradient's move `moves` from the reader, which then gets
    the weight in the dual pair `read_layouts`."""

    to_optimizer: Mapping[str, Bucket] = field(default_factory=dict)
    updates: Mapping[str, Bucket] = field(default_factory=dict)
    from_reader: Mapping[str, Bucket] = field(default_factory=dict)
    read_layouts: Mapping[str, Layout] = field(default_factory=dict)
    moves: Mapping[str, Move] = field(default_factory=dict)
    beside: bool = False
    """Gradients are reduced beside compute."""
    alone: frozenset[str] = frozenset()
    """Weights with gradients that are reduced so, and in no bucket."""
    gathered: frozenset[str] = frozenset()
    """Weights that are gathered beside compute, or new ones so brought to where they are kept."""

    @classmethod
    def of(cls, plan: Plan) -> Buckets:
        """The buckets of `plan`."""
        decisions = {tensor.name: tensor for tensor in plan.tensors}
        read_layouts = _read_layouts(plan, decisions)
        to_optimizer, updates, from_reader, moves = {}, {}, {}, {}
        for bucket in buckets_of(plan.moves).values():
            home = [_goes_to_optimizer(move, decisions[move.tensor]) for move in bucket]
            for move, goes in zip(bucket, home, strict=True):
                # gradients from readers and those on to the optimizer are there at different times: sent apart, though
                # plans of older releases have both in one bucket
                names = tuple(other.tensor for other, beside in zip(bucket, home, strict=True) if beside == goes)
                if move.phase == "update":
                    updates[move.tensor] = names
                elif goes:
                    to_optimizer[move.tensor] = names
                elif read_layouts[move.tensor, move.reader].gradient == move.source:
                    from_reader[move.tensor], moves[move.tensor] = names, move
        read = {name: read_layouts[name, move.reader] for name, move in moves.items()}
        alone = {move.tensor for move in plan.moves if move.kind == "deferred" and move.bucket is None}
        gathered = {move.tensor for move in plan.moves if move.kind == "prefetched" and not move.regather}
        return cls(
            to_optimizer, updates, from_reader, read, moves, plan.summary.reduces_beside, frozenset(alone),
            frozenset(gathered),
        )  # fmt: skip

    def without_bucketed_moves(self, plan: Plan) -> Plan:
        """The plan for operations: without the moves of `from_reader`, which the bucket makes."""
        changed = [
            replace(tensor, layout=self.read_layouts[tensor.name], served=self.read_layouts[tensor.name])
            if tensor.name in self.read_layouts
            else tensor
            for tensor in plan.tensors
        ]
        return replace(plan, tensors=tuple(changed))


def _read_layouts(plan: Plan, decisions: Mapping[str, TensorDecision]) -> dict[tuple[str, str], Layout]:
    """(tensor, reader) -> the layout in which it is read; (tensor, `""`) -> the one in which it is served."""
    found = {(name, ""): decision.served for name, decision in decisions.items()}
    for operator in plan.operators:
        for name, layout in zip(operator.inputs, operator.reads, strict=True):
            if layout is not None:
                found.setdefault((name, operator.name), layout)
    return found


def _goes_to_optimizer(move: Move, decision: TensorDecision) -> bool:
    if decision.optimizer is None or move.reader or move.phase != "backward":
        return False
    return (move.source, move.target) == (decision.layout.gradient, decision.optimizer.gradient)


class BucketedWeights:
    """The weights of one forward pass. `shards`: by the plan's names, the parameter and its local part (a tensor, or
    its place in a graph)."""

    def __init__(self, engine: Engine, buckets: Buckets, shards: Mapping[str, tuple[Named, Any]]) -> None:
        self.engine, self.buckets, self.shards = engine, buckets, dict(shards)
        if buckets.beside:
            self._await_last()
        held = [name for name in self.shards if name in buckets.gathered]
        if held:
            engine.backend.hold(held, [self.shards[name][1] for name in held])
        self._stand_ins: dict[str, Any] = {}
        """Of weights in the kept layout; and, in `_readers`, in the layouts of their readers."""
        self._readers: dict[str, Any] = {}
        self._kept: dict[str, Any] = {}
        self._updated: dict[str, Any] = {}
        self._read: dict[str, Any] = {}

    def value(self, name: str, shard: Value) -> Value:
        """The weight as operations read it; `shard`: its local part."""
        named, _ = self.shards[name]
        if name in self.buckets.from_reader:
            local, layout = self._read_local(name), in_module_dims(self.buckets.read_layouts[name], named)
        else:
            local, layout = self._kept_local(name), in_module_dims(named.decision.layout, named)
        _, grad = self.engine.backend.describe(local)
        return replace(shard, local=local, layout=layout if grad else layout.forward, forms={})

    def _await_last(self) -> None:
        """Waits at the end of backward for the buckets that move gradients to the shards, and for single gradients."""
        home = self.buckets.to_optimizer
        read = {name: bucket for name, bucket in self.buckets.from_reader.items() if name not in home}
        alone = {name: (name,) for name in self.shards if name in self.buckets.alone}
        known: set[str] = set()
        for bucket in dict.fromkeys([*home.values(), *read.values(), *alone.values()]):
            names = [name for name in self._trained(bucket) if name not in known]
            known.update(names)
            if names:
                made = self.engine.backend.await_gradients([self.shards[name][1] for name in names])
                self.shards |= {name: (self.shards[name][0], own) for name, own in zip(names, made, strict=True)}

    def _kept_local(self, name: str) -> Any:
        """In the layout that the plan keeps."""
        named, local = self.shards[name]
        if named.decision.optimizer is None:
            return local
        if not self._trained([name]):
            return self._updated_local(name)
        if name not in self._kept:
            made = self._updated_local(name)
            self._kept[name] = self.engine.backend.valued(self._stand_in(name), made, None, Label(name))
        return self._kept[name]

    def _stand_in(self, name: str) -> Any:
        """What the gradient of the weight in the kept layout goes to: its stand-in, or its shard if it stays there."""
        named, local = self.shards[name]
        if named.decision.optimizer is None:
            return local
        if name not in self._stand_ins:
            bucket = self._trained(self.buckets.to_optimizer.get(name, (name,)))
            routes = [self._update_route(each) for each in bucket]
            self._stand_ins |= self._bucketed(bucket, [self.shards[each][1] for each in bucket], routes)
        return self._stand_ins[name]

    def _updated_local(self, name: str) -> Any:
        """The same without its gradient: gathered from the optimizer's shard."""
        if name not in self._updated:
            bucket = [each for each in self.buckets.updates.get(name, (name,)) if each in self.shards]
            routes = [self._update_route(each) for each in bucket]
            locals_ = [self.shards[each][1] for each in bucket]
            made = self.engine.backend.gather_updated(locals_, routes, _label(bucket))
            self._updated |= dict(zip(bucket, made, strict=True))
        return self._updated[name]

    def _read_local(self, name: str) -> Any:
        """In the layout of its reader."""
        if name not in self._read:
            bucket = self._trained(self.buckets.from_reader[name])
            if name not in bucket:
                route = self._read_route(name)
                kept = self._kept_local(name)
                self._read[name] = self.engine.backend.move(kept, route, Label(name)) if route.forward else kept
                return self._read[name]
            if name not in self._readers:
                routes = [self._read_route(each) for each in bucket]
                self._readers |= self._bucketed(bucket, [self._stand_in(each) for each in bucket], routes)
            named, local = self.shards[name]
            kept = local if named.decision.optimizer is None else self._updated_local(name)
            route = self._read_route(name)
            self._read[name] = self.engine.backend.valued(self._readers[name], kept, route, Label(name))
        return self._read[name]

    def _bucketed(self, bucket: Sequence[str], locals_: Sequence[Any], routes: Sequence[Route]) -> dict[str, Any]:
        made = self.engine.backend.bucket_gradients(locals_, routes, _label(bucket))
        return dict(zip(bucket, made, strict=True))

    def _trained(self, names: Sequence[str]) -> list[str]:
        """Those that this process has and that take a gradient."""
        return [name for name in names if name in self.shards and self.engine.backend.describe(self.shards[name][1])[1]]

    def _update_route(self, name: str) -> Route:
        named, _ = self.shards[name]
        kept = in_module_dims(named.decision.layout, named)
        return self.engine.router.update_route(named.layout, kept, named.shape, named.decision)

    def _read_route(self, name: str) -> Route:
        named, _ = self.shards[name]
        planned = named.decision.layout, self.buckets.read_layouts[name]
        kept, read = (in_module_dims(layout, named) for layout in planned)
        ends = planned[0].forward, planned[1].forward
        return self.engine.router.gradient_route(kept, read, named.shape, self.buckets.moves[name], ends)


def _label(bucket: Sequence[str]) -> Label:
    more = f" and {len(bucket) - 1} more" if len(bucket) > 1 else ""
    return Label(f"{bucket[0]}{more}", digest_of(*bucket))


def gather_updated(locals_: Sequence[Tensor], routes: Sequence[Route], label: Label, context: Context) -> list[Tensor]:
    """Updated weights, gathered from the shards of the optimizer as one bucket; once for all microbatches."""

    def gathered() -> list[Tensor]:
        with torch.no_grad():
            moves = [route.forward_steps for route in routes]
            return context.prefetcher.gather([local.detach() for local in locals_], moves, label, "update")

    return context.accumulator.once_per_step(routes[0], gathered)


class _Bucketed(torch.autograd.Function):  # type: ignore[misc]
    """Stand-ins of weights, expanded zeros, whose gradients are sent as one bucket."""

    @staticmethod
    def forward(
        ctx: Any,
        routes: Sequence[Route],
        context: Context,
        label: Label,
        receivers: Sequence[Receiver],
        *locals_: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.routes, ctx.context, ctx.is_last, ctx.label = routes, context, context.accumulator.is_last, label
        ctx.receivers, ctx.shapes = receivers, [local.shape for local in locals_]
        ctx.receives = Flights() if receivers and routes[0].is_update else None
        if receivers:
            send_early(ctx)
        ctx.set_materialize_grads(False)
        mesh = context.executor.groups.mesh
        shapes = [local_shape(route.target.forward, mesh, route.shape) for route in routes]
        return tuple(local.new_zeros(()).expand(shape) for local, shape in zip(locals_, shapes, strict=True))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        arriving, moving_on = ctx.receives, None
        if arriving is not None and not ctx.is_last:
            gradients = arriving.arrive(gradients)
        totals = [
            ctx.context.accumulator.accumulate(route, gradient, is_last=ctx.is_last) if route.accumulates else gradient
            for route, gradient in zip(ctx.routes, gradients, strict=True)
        ]
        if arriving is not None:
            moving_on = arriving.moving_on(totals)
            totals = totals if moving_on else arriving.arrive(totals)
        present = [number for number, total in enumerate(totals) if total is not None]
        moves = [ctx.routes[number].backward_steps for number in present]
        label, sent = ctx.label.of("the gradients of"), [totals[number] for number in present]
        receivers = [ctx.receivers[number] for number in present] if ctx.receivers else []
        if receivers and all(receiver.is_open for receiver in receivers):
            flight = ctx.context.executor.start(moving_on or sent, moves, label, way="reduce", is_backward=True)
            made = placeholders(flight, receivers, [ctx.shapes[number] for number in present], sent[0])
        else:
            given = moving_on.wait() if moving_on else sent
            made = ctx.context.executor.run(given, moves, label, is_backward=True)
        by_number = dict(zip(present, made, strict=True))
        return (None, None, None, None, *(by_number.get(number) for number in range(len(totals))))


def bucket_gradients(
    locals_: Sequence[Tensor], routes: Sequence[Route], label: Label, context: Context
) -> list[Tensor]:
    """Stand-ins for the local parts of weights where `routes` lead, whose gradients go back as one bucket; awaited at
    once unless all may be in flight."""
    found = [receiver_of(local) for local in locals_]
    receivers = [receiver for receiver in found if receiver is not None]
    return list(_Bucketed.apply(routes, context, label, receivers if len(receivers) == len(found) else [], *locals_))


class _Valued(torch.autograd.Function):  # type: ignore[misc]
    """The value of a weight, whose gradient goes to its stand-in."""

    @staticmethod
    def forward(ctx: Any, stand_in: Tensor, local: Tensor) -> Tensor:
        del stand_in
        ctx.passes_on = True
        send_early(ctx)
        return local.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        del ctx
        return gradient, None


def valued(stand_in: Tensor, local: Tensor, route: Route | None, label: Label, context: Context) -> Tensor:
    """A weight with its value, `local`, or the part of it to which `route` leads: without communication or prefetching,
    with separate memory for each weight. Its gradient goes to `stand_in`."""
    made = local.detach()
    if route is not None and route.forward:
        with torch.no_grad():
            (made,) = context.executor.run([made], [route.forward_steps], label)
    found: Tensor = _Valued.apply(stand_in, made)
    return found
