"""Routes of moves: the collectives that bring a tensor from one layout to another, and its gradient back.

The collectives are those of the plan's move; a move that the plan does not have is lowered to the fewest bytes.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

from shardplan.layout.collective import Collective
from shardplan.layout.layout import Layout
from shardplan.layout.legal import legal_for
from shardplan.layout.lower import Step, by_bytes, lower
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import P, S
from shardplan.plan.types import Move, Plan, TensorDecision
from shardplan.program.retrace import retrace
from shardplan.torch.microbatch_plan import microbatches_of


class TensorSteps(NamedTuple):
    """The collectives of one direction of a move: of a tensor of global `shape` from the plain layout `source`.
    `number`: of the plan's move; -1 for one that the plan does not have."""

    source: Layout
    steps: tuple[Step, ...]
    shape: tuple[int, ...]
    number: int = -1


class Found(NamedTuple):
    """The steps between two layouts. `planned`: they are the plan's, or nothing has to be sent; `number`: as in
    `TensorSteps`."""

    steps: tuple[Step, ...]
    planned: bool
    number: int = -1


@dataclass(frozen=True)
class Route:
    """The collectives of one move, forward and backward.

    `regather`: the moved value is not saved for backward but gathered again by these steps. `planned`: the plan has
    this move. `accumulates`: the gradient is accumulated over microbatches and moved with the last one. `is_update`:
    the value is an updated weight, gathered from the optimizer's shard once for all microbatches. `tensor`, `reader`:
    of the plan's move, `""` where it has none. `defers`: the plan moves the gradient beside compute, by itself.
    `numbers`: of the plan's moves of the value, of its gradient, and of the value again.
    """

    source: Layout
    target: Layout
    shape: tuple[int, ...]
    forward: tuple[Step, ...]
    backward: tuple[Step, ...]
    regather: tuple[Step, ...] | None
    planned: bool
    accumulates: bool = False
    is_update: bool = False
    tensor: str = ""
    reader: str = ""
    defers: bool = False
    numbers: tuple[int, int, int] = (-1, -1, -1)

    @property
    def sends(self) -> bool:
        """Whether anything is sent in either direction."""
        return any(not step.collective.is_free for step in (*self.forward, *self.backward))

    @property
    def is_identity(self) -> bool:
        return not self.forward and not self.backward

    @functools.cached_property
    def forward_steps(self) -> TensorSteps:
        """The collectives of the value."""
        return TensorSteps(self.source.forward, self.forward, self.shape, self.numbers[0])

    @functools.cached_property
    def backward_steps(self) -> TensorSteps:
        """The collectives of its gradient."""
        return TensorSteps(self.target.gradient, self.backward, self.shape, self.numbers[1])

    @functools.cached_property
    def regather_steps(self) -> TensorSteps:
        """The collectives that gather the value again."""
        return TensorSteps(self.source.forward, self.regather or (), self.shape, self.numbers[2])


class Router:
    """Finds the routes of moves and caches them."""

    def __init__(self, plan: Plan) -> None:
        self.mesh: Mesh = plan.mesh
        self._micro = microbatches_of(plan)
        self._beside = plan.summary.reduces_beside
        self._moves: dict[tuple[str, str, str, bool, Layout, Layout], tuple[int, Move]] = {}
        for number, move in enumerate(plan.moves):
            key = (move.tensor, move.reader, move.phase, move.regather, move.source.forward, move.target.forward)
            self._moves.setdefault(key, (number, move))
        self._routes: dict[tuple[object, ...], Route] = {}

    def route(
        self, source: Layout, target: Layout, shape: tuple[int, ...], tensor: str = "", reader: str = "",
        *, has_gradient: bool = True,
    ) -> Route:  # fmt: skip
        """From `source` to `target`, for `reader` of `tensor` in the plan (`""`: to keep or serve it)."""
        key = (source, target, shape, tensor, reader, has_gradient)
        if key not in self._routes:
            self._routes[key] = self._make(source, target, shape, tensor, reader, has_gradient=has_gradient)
        return self._routes[key]

    def _make(
        self, source: Layout, target: Layout, shape: tuple[int, ...], tensor: str, reader: str, *, has_gradient: bool
    ) -> Route:
        forward = self._steps(source.forward, target.forward, shape, (tensor, reader, "forward", False))
        backward = Found((), planned=True)
        if has_gradient:
            gradient = (tensor, reader, "backward", False)
            backward = self._steps(target.gradient, source.gradient, shape, gradient)
        again = self._steps(source.forward, target.forward, shape, (tensor, reader, "backward", True))
        return Route(
            source,
            target,
            shape,
            forward.steps,
            backward.steps,
            again.steps if again.planned and forward.steps else None,
            planned=bool(tensor) and (forward.planned or not forward.steps),
            accumulates=bool(backward.steps) and self._accumulates(tensor, reader, target, source),
            tensor=tensor,
            reader=reader,
            defers=self._defers(backward),
            numbers=(forward.number, backward.number, again.number),
        )

    def _defers(self, backward: Found) -> bool:
        """Whether the plan moves this gradient beside compute, and not in a bucket."""
        move = next((move for number, move in self._moves.values() if number == backward.number), None)
        sends = any(not step.collective.is_free for step in backward.steps)
        return self._beside and sends and move is not None and move.kind == "deferred" and move.bucket is None

    def update_route(self, source: Layout, target: Layout, shape: tuple[int, ...], decision: TensorDecision) -> Route:
        """An updated weight from the optimizer's layout `source` to the kept layout `target`, and its gradient back.

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
        forward = self._retraced(source.forward, target.forward, shape, (decision.name, "", "update", False, *ends))
        back = (decision.name, "", "backward", False, *gradients)
        backward = self._retraced(target.gradient, source.gradient, shape, back)
        accumulates = bool(backward.steps) and self._micro > 1
        return Route(
            source, target, shape, forward.steps, backward.steps, None, planned=True, accumulates=accumulates,
            is_update=True, numbers=(forward.number, backward.number, -1),
        )  # fmt: skip

    def gradient_route(
        self, source: Layout, target: Layout, shape: tuple[int, ...], planned: Move, ends: tuple[Layout, Layout]
    ) -> Route:
        """The route of a weight that stays, or of which a device takes a part, and of its gradient: back as the plan's
        move `planned` says, from the gradient of the pair `target` to that of `source`. `ends`: the plain layouts of
        the value in the dims of the plan."""
        key = ("home", source, target, shape, planned.tensor)
        if key not in self._routes:
            name, reader = planned.tensor, planned.reader
            forward = self._retraced(source.forward, target.forward, shape, (name, reader, "forward", False, *ends))
            again = self._retraced(source.forward, target.forward, shape, (name, reader, "backward", True, *ends))
            back = (name, reader, "backward", False, planned.source.forward, planned.target.forward)
            backward = self._retraced(target.gradient, source.gradient, shape, back)
            self._routes[key] = Route(
                source, target, shape, forward.steps, backward.steps,
                again.steps if again.planned and forward.steps else None,
                planned=True, accumulates=self._micro > 1, tensor=name, reader=reader,
                numbers=(forward.number, backward.number, again.number),
            )  # fmt: skip
        return self._routes[key]

    def _accumulates(self, tensor: str, reader: str, start: Layout, goal: Layout) -> bool:
        """Whether the plan moves this weight's gradient once for all microbatches."""
        found = self._moves.get((tensor, reader, "backward", False, start.gradient, goal.gradient))
        return found is not None and found[1].count < self._micro

    def _steps(self, start: Layout, goal: Layout, shape: tuple[int, ...], of: tuple[str, str, str, bool]) -> Found:
        """The steps between two plain layouts."""
        return self._retraced(start, goal, shape, (*of, start, goal))

    def _retraced(
        self, start: Layout, goal: Layout, shape: tuple[int, ...], of: tuple[str, str, str, bool, Layout, Layout]
    ) -> Found:
        """The steps of the plan's move `of`, whose layouts may be written in other dims."""
        if start == goal:
            return Found((), planned=True)
        number, move = self._moves.get(of, (-1, None))
        if move is not None:
            collectives = tuple(step.collective for step in move.steps)
            found = _planned_steps(self.mesh, shape, start, goal, collectives)
            if found is not None:
                return Found(found, True, number)
        return Found(_fewest_bytes(self.mesh, shape, start, goal), planned=False)


@functools.lru_cache(maxsize=4096)
def _planned_steps(
    mesh: Mesh, shape: tuple[int, ...], start: Layout, goal: Layout, collectives: tuple[Collective, ...]
) -> tuple[Step, ...] | None:
    """The steps by which exactly these collectives lead from `start` to `goal`; shared by all layers of a kind."""
    return retrace(mesh, shape, start, goal, collectives, [S(dim) for dim in range(len(shape))])


@functools.lru_cache(maxsize=4096)
def _fewest_bytes(mesh: Mesh, shape: tuple[int, ...], start: Layout, goal: Layout) -> tuple[Step, ...]:
    """The steps of a move that no plan has."""
    way = () if any(p.kind == "P" for p in (*start.placements, *goal.placements)) else (P(),)
    return lower(mesh, start, goal, by_bytes(mesh), shards=way, legal=legal_for(mesh, shape))
