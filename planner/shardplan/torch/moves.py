"""Moves of a plan as differentiable functions on what this process holds.

A move from the dual pair `source` to `target` (see `shardplan.layout.placement`) brings the value from `source.forward`
to `target.forward`, and its gradient from `target.gradient` to `source.gradient`. The collectives are those of the
plan; a move that the plan does not have is lowered to the fewest bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from shardplan.layout.layout import Layout
from shardplan.layout.legal import legal_for
from shardplan.layout.lower import Step, by_bytes, lower
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import P, S
from shardplan.plan.types import Move, Plan, TensorDecision
from shardplan.program.retrace import retrace
from shardplan.torch.grid import Grid
from shardplan.torch.microbatch import microbatches_of
from shardplan.torch.steps import run_steps


@dataclass(frozen=True)
class Route:
    """A move worked out. `again`: the value is not saved for backward but brought again by these steps. `planned`: it
    is the plan's. `once`: the gradients of all microbatches come back together, with the last of them. `update`: the
    new weight comes from where the optimizer made it, once for all microbatches."""

    source: Layout
    target: Layout
    shape: tuple[int, ...]
    forward: tuple[Step, ...]
    backward: tuple[Step, ...]
    again: tuple[Step, ...] | None
    planned: bool
    once: bool = False
    update: bool = False

    @property
    def sends(self) -> bool:
        """Whether anything is sent in either direction."""
        return any(not step.collective.is_free for step in (*self.forward, *self.backward))

    @property
    def is_identity(self) -> bool:
        return not self.forward and not self.backward


class Router:
    """The moves of a plan by what they do; what has been worked out is remembered."""

    def __init__(self, plan: Plan) -> None:
        self.mesh: Mesh = plan.mesh
        self._micro = microbatches_of(plan)
        self._moves: dict[tuple[str, str, str, bool, Layout, Layout], Move] = {}
        for move in plan.moves:
            key = (move.tensor, move.reader, move.phase, move.regather, move.source.forward, move.target.forward)
            self._moves.setdefault(key, move)
        self._routes: dict[tuple[object, ...], Route] = {}

    def route(
        self, source: Layout, target: Layout, shape: tuple[int, ...], tensor: str = "", reader: str = "",
        *, has_gradient: bool = True,
    ) -> Route:  # fmt: skip
        """From `source` to `target`, for `reader` of `tensor` in the plan (`""`: to store or serve it)."""
        key = (source, target, shape, tensor, reader, has_gradient)
        if key not in self._routes:
            self._routes[key] = self._make(source, target, shape, tensor, reader, has_gradient=has_gradient)
        return self._routes[key]

    def _make(
        self, source: Layout, target: Layout, shape: tuple[int, ...], tensor: str, reader: str, *, has_gradient: bool
    ) -> Route:
        forward, known = self._steps(source.forward, target.forward, shape, (tensor, reader, "forward", False))
        backward: tuple[Step, ...] = ()
        if has_gradient:
            gradient = (tensor, reader, "backward", False)
            backward, _ = self._steps(target.gradient, source.gradient, shape, gradient)
        again, repeated = self._steps(source.forward, target.forward, shape, (tensor, reader, "backward", True))
        planned = bool(tensor) and (known or not forward)
        once = bool(backward) and self._is_once(tensor, reader, target, source)
        return Route(source, target, shape, forward, backward, again if repeated and forward else None, planned, once)

    def update(self, source: Layout, target: Layout, shape: tuple[int, ...], decision: TensorDecision) -> Route:
        """A weight from where the optimizer makes it, `source`, to where it is kept, `target`, and its gradient back.

        `decision` has the same two layouts in the dims of the plan.
        """
        key = ("update", source, target, shape, decision.name)
        if key not in self._routes:
            self._routes[key] = self._update(source, target, shape, decision)
        return self._routes[key]

    def _update(self, source: Layout, target: Layout, shape: tuple[int, ...], decision: TensorDecision) -> Route:
        assert decision.optimizer is not None
        ends = decision.optimizer.forward, decision.layout.forward
        gradients = decision.layout.gradient, decision.optimizer.gradient
        forward, _ = self._retraced(source.forward, target.forward, shape, (decision.name, "", "update", False, *ends))
        back = (decision.name, "", "backward", False, *gradients)
        backward, _ = self._retraced(target.gradient, source.gradient, shape, back)
        once = bool(backward) and self._micro > 1
        return Route(source, target, shape, forward, backward, None, planned=True, once=once, update=True)

    def home(self, source: Layout, target: Layout, shape: tuple[int, ...], planned: Move) -> Route:
        """A weight that stays where it is, and its gradient back as the plan's move `planned` says, from that of the
        pair `target` to that of `source`."""
        key = ("home", source, target, shape, planned.tensor)
        if key not in self._routes:
            of = (planned.tensor, planned.reader, "backward", False, planned.source.forward, planned.target.forward)
            backward, _ = self._retraced(target.gradient, source.gradient, shape, of)
            self._routes[key] = Route(source, target, shape, (), backward, None, planned=True, once=self._micro > 1)
        return self._routes[key]

    def _is_once(self, tensor: str, reader: str, start: Layout, goal: Layout) -> bool:
        """Whether the plan moves this gradient, a weight's, once for all microbatches."""
        found = self._moves.get((tensor, reader, "backward", False, start.gradient, goal.gradient))
        return found is not None and found.count < self._micro

    def _steps(
        self, start: Layout, goal: Layout, shape: tuple[int, ...], of: tuple[str, str, str, bool]
    ) -> tuple[tuple[Step, ...], bool]:
        """The steps between two plain layouts, and whether they are those of the plan."""
        return self._retraced(start, goal, shape, (*of, start, goal))

    def _retraced(
        self, start: Layout, goal: Layout, shape: tuple[int, ...], of: tuple[str, str, str, bool, Layout, Layout]
    ) -> tuple[tuple[Step, ...], bool]:
        """As the plan's move `of` takes them, which may be written in other dims."""
        if start == goal:
            return (), True
        move = self._moves.get(of)
        if move is not None:
            collectives = tuple(step.collective for step in move.steps)
            found = retrace(self.mesh, shape, start, goal, collectives, [S(dim) for dim in range(len(shape))])
            if found is not None:
                return found, True
        legal = legal_for(self.mesh, shape)
        way = () if any(p.kind == "P" for p in (*start.placements, *goal.placements)) else (P(),)
        return lower(self.mesh, start, goal, by_bytes(self.mesh), shards=way, legal=legal), False


@dataclass
class Regathered:
    """Stands for a moved value in autograd's memory: what it was moved from, and how to move it again.

    `uses`: how often it is saved; the value is brought once for all uses that are asked for one after the other.
    """

    source: Tensor
    bring: Callable[[Tensor], Tensor]
    uses: int = 0
    _value: Tensor | None = field(default=None, repr=False)
    _asked: int = 0

    def value(self) -> Tensor:
        if self._value is None:
            self._value = self.bring(self.source)
        found = self._value
        self._asked += 1
        if self._asked >= self.uses:
            self._value, self._asked = None, 0
        return found


Brought = TypeVar("Brought", Tensor, list[Tensor])


class Held:
    """What outlives a microbatch: gradients of weights that wait for the last one, new weights that were brought for
    the first. `is_first`, `is_last`: which one the forward pass now under way is."""

    def __init__(self) -> None:
        self.is_first = self.is_last = True
        self._sums: dict[int, Tensor] = {}
        self._weights: dict[int, Any] = {}

    def turn(self, number: int, count: int) -> None:
        """Microbatch `number` of `count` runs forward."""
        self.is_first, self.is_last = number == 0, number == count - 1

    def brought(self, route: Route, bring: Callable[[], Brought]) -> Brought:
        """A weight from where the optimizer made it, or several of which this is the first, brought for the first
        microbatch, let go with the last."""
        found = self._weights.pop(id(route), None)
        made = bring() if found is None or self.is_first else found
        if not self.is_last:
            self._weights[id(route)] = made
        return made

    def added(self, route: Route, gradient: Tensor | None, *, is_last: bool) -> Tensor | None:
        """The sum over the microbatches with the last of them, None before, or if there was no gradient in any."""
        before = self._sums.pop(id(route), None)
        total = before if gradient is None else gradient if before is None else before + gradient
        if is_last or total is None:
            return total
        self._sums[id(route)] = total
        return None

    def drop(self) -> None:
        """Forget what was held: a step begins."""
        self._sums.clear()
        self._weights.clear()


def _updated(local: Tensor, route: Route, grid: Grid) -> Tensor:
    with grid.sending("update"):
        return run_steps(local, route.source, route.forward, route.shape, grid)


class _Moved(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, local: Tensor, route: Route, grid: Grid, held: Held) -> Tensor:
        ctx.route, ctx.grid, ctx.held, ctx.is_last = route, grid, held, held.is_last
        if not route.forward:
            return local.view_as(local)
        if route.update:
            return held.brought(route, lambda: _updated(local, route, grid)).detach()
        made = run_steps(local, route.source, route.forward, route.shape, grid)
        return made if made is not local else local.view_as(local)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, None]:
        route, total = ctx.route, gradient
        if route.once:
            total = ctx.held.added(route, gradient, is_last=ctx.is_last)
        if total is None:
            return None, None, None, None
        return run_steps(total, route.target.gradient, route.backward, route.shape, ctx.grid), None, None, None


def move(local: Tensor, route: Route, grid: Grid, held: Held) -> Tensor:
    """The local tensor after a move; where nothing is to be done, the same."""
    if route.is_identity:
        return local
    return _Moved.apply(local, route, grid, held)


def own(local: Tensor) -> Tensor:
    """`local` in memory of its own if a move has handed it on as it was: autograd forbids to change that in place."""
    is_handed_on = local._is_view() and isinstance(local.grad_fn, _Moved._backward_cls)  # noqa: SLF001 - no public name
    return local.clone() if is_handed_on else local
