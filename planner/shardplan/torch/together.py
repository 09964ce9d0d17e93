"""Weights on their way into a model, and their gradients on their way home, in the buckets of the plan.

A weight comes from where its process holds it: first to where the plan keeps it (with ZeRO-1 from the shard that the
optimizer updates), then as its reader takes it. Where the plan moves gradients of several weights together, one
function of autograd stands for all of them on that way. It hands the weights on one by one; its backward runs when the
gradients of all have come back, and sends them as one. All that comes after it sees weights with partial gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from shardplan.layout.layout import Layout
from shardplan.plan.buckets import buckets_of
from shardplan.plan.orientation import checkpoint_layout, graph_layout
from shardplan.plan.types import Move, Plan, TensorDecision
from shardplan.runtime.names import Named
from shardplan.torch.bundles import Path, run_together
from shardplan.torch.grid import Grid
from shardplan.torch.moves import Held, Route
from shardplan.torch.values import Value

Bucket = tuple[str, ...]
"""Weights by the plan's names."""


@dataclass(frozen=True)
class Shared:
    """Which weights go together. By weight: `homes`, `news`: its bucket on the way to the optimizer and back; `reads`:
    its bucket on the way from the reader; `pairs`, `moves`: as which it is then handed on, and the move home."""

    homes: Mapping[str, Bucket] = field(default_factory=dict)
    news: Mapping[str, Bucket] = field(default_factory=dict)
    reads: Mapping[str, Bucket] = field(default_factory=dict)
    pairs: Mapping[str, Layout] = field(default_factory=dict)
    moves: Mapping[str, Move] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan) -> Shared:
        """What `plan` sends together."""
        decisions = {tensor.name: tensor for tensor in plan.tensors}
        pairs = _pairs(plan, decisions)
        homes, news, reads, moves = {}, {}, {}, {}
        for together in buckets_of(plan.moves).values():
            names = tuple(move.tensor for move in together)
            for move in together:
                if move.phase == "update":
                    news[move.tensor] = names
                elif _goes_to_optimizer(move, decisions[move.tensor]):
                    homes[move.tensor] = names
                elif pairs[move.tensor, move.reader].gradient == move.source:
                    reads[move.tensor], moves[move.tensor] = names, move
        return cls(homes, news, reads, {name: pairs[name, move.reader] for name, move in moves.items()}, moves)

    def seen_by(self, engine: Plan) -> Plan:
        """The plan as what runs between weights and results sees it: gradients of `reads` may stay as they come."""
        changed = [
            replace(tensor, layout=self.pairs[tensor.name], served=self.pairs[tensor.name])
            if tensor.name in self.pairs
            else tensor
            for tensor in engine.tensors
        ]
        return replace(engine, tensors=tuple(changed))


def _pairs(plan: Plan, decisions: Mapping[str, TensorDecision]) -> dict[tuple[str, str], Layout]:
    """By tensor and reader, as which it is read; by tensor and `""`, as which it is served."""
    found = {(name, ""): decision.served for name, decision in decisions.items()}
    for operator in plan.operators:
        for name, layout in zip(operator.inputs, operator.reads, strict=True):
            if layout is not None:
                found.setdefault((name, operator.name), layout)
    return found


def _goes_to_optimizer(move: Move, decision: TensorDecision) -> bool:
    if decision.optimizer is None or move.reader:
        return False
    return (move.source, move.target) == (decision.layout.gradient, decision.optimizer.gradient)


class Weights:
    """The weights of one forward pass: `held` is what this process holds, by the plan's names."""

    def __init__(self, engine: Any, shared: Shared, held: Mapping[str, tuple[Named, Any]]) -> None:
        self.engine, self.shared, self.held = engine, shared, held
        self._kept: dict[str, Any] = {}
        self._news: dict[str, Any] = {}
        self._read: dict[str, Any] = {}

    def value(self, name: str, raw: Value) -> Value:
        """The weight as the model reads it, of `raw`, as it is held."""
        named, _ = self.held[name]
        local, layout = self._at_kept(name), _in_module(named.decision.layout, named)
        if name in self.shared.reads:
            local, layout = self._at_read(name), _in_module(self.shared.pairs[name], named)
        _, grad = self.engine.backend.describe(local)
        return replace(raw, local=local, layout=layout if grad else layout.forward, forms={})

    def _at_kept(self, name: str) -> Any:
        named, local = self.held[name]
        if named.decision.optimizer is None:
            return local
        if name not in self._kept:
            bucket = self._trained(self.shared.homes.get(name, (name,)))
            if name not in bucket:
                return self._new(name)
            routes = [self._update_route(each) for each in bucket]
            news = [self._new(each) for each in bucket]
            made = self.engine.backend.together([self.held[each][1] for each in bucket], routes, news)
            self._kept |= dict(zip(bucket, made, strict=True))
        return self._kept[name]

    def _new(self, name: str) -> Any:
        """A weight as the optimizer has made it, where the plan keeps it."""
        if name not in self._news:
            bucket = [each for each in self.shared.news.get(name, (name,)) if each in self.held]
            routes = [self._update_route(each) for each in bucket]
            made = self.engine.backend.bring([self.held[each][1] for each in bucket], routes)
            self._news |= dict(zip(bucket, made, strict=True))
        return self._news[name]

    def _at_read(self, name: str) -> Any:
        if name not in self._read:
            bucket = self._trained(self.shared.reads[name])
            if name not in bucket:
                return self._at_kept(name)
            routes = [self._read_route(each) for each in bucket]
            made = self.engine.backend.together([self._at_kept(each) for each in bucket], routes, [])
            self._read |= dict(zip(bucket, made, strict=True))
        return self._read[name]

    def _trained(self, names: Sequence[str]) -> list[str]:
        """Those that are there and take a gradient."""
        return [name for name in names if name in self.held and self.engine.backend.describe(self.held[name][1])[1]]

    def _update_route(self, name: str) -> Route:
        named, _ = self.held[name]
        target = _in_module(named.decision.layout, named)
        route: Route = self.engine.router.update(named.layout, target, named.shape, named.decision)
        return route

    def _read_route(self, name: str) -> Route:
        named, _ = self.held[name]
        kept, pair = (_in_module(layout, named) for layout in (named.decision.layout, self.shared.pairs[name]))
        route: Route = self.engine.router.home(kept, pair, named.shape, self.shared.moves[name])
        return route


def _in_module(layout: Layout, named: Named) -> Layout:
    return graph_layout(checkpoint_layout(layout, named.decision.perm), named.perm)


def bring(locals_: Sequence[Tensor], routes: Sequence[Route], grid: Grid, held: Held) -> list[Tensor]:
    """New weights from where the optimizer made them, together; once for all microbatches."""

    def brought() -> list[Tensor]:
        with grid.sending("update"), torch.no_grad():
            paths = [Path(route.source.forward, route.forward, route.shape) for route in routes]
            return run_together([local.detach() for local in locals_], paths, grid)

    return held.brought(routes[0], brought)


class _Together(torch.autograd.Function):  # type: ignore[misc]
    """Weights as they are, or `news` in their place; their gradients are sent together."""

    @staticmethod
    def forward(
        ctx: Any, routes: Sequence[Route], grid: Grid, held: Held, news: Sequence[Tensor], *locals_: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.routes, ctx.grid, ctx.held, ctx.is_last = routes, grid, held, held.is_last
        ctx.set_materialize_grads(False)
        return tuple(tensor.detach() for tensor in news or locals_)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        totals = [
            ctx.held.added(route, gradient, is_last=ctx.is_last) if route.once else gradient
            for route, gradient in zip(ctx.routes, gradients, strict=True)
        ]
        there = [number for number, total in enumerate(totals) if total is not None]
        paths = [_path_home(ctx.routes[number]) for number in there]
        made = dict(zip(there, run_together([totals[number] for number in there], paths, ctx.grid), strict=True))
        return (None, None, None, None, *(made.get(number) for number in range(len(totals))))


def _path_home(route: Route) -> Path:
    return Path(route.target.gradient, route.backward, route.shape)


def together(
    locals_: Sequence[Tensor], routes: Sequence[Route], news: Sequence[Tensor], grid: Grid, held: Held
) -> list[Tensor]:
    """The local parts of weights, handed on as one: their gradients go home by `routes`, together. `news`: what is
    handed on in their place."""
    return list(_Together.apply(routes, grid, held, news, *locals_))
