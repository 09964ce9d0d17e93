"""Immediate execution: moves run at once on the tensors of this process, for modules and for the nodes of a graph."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from shardplan.runtime.issue_order import IssueOrder, Mark, Marks
from shardplan.torch.collectives.executor import MoveExecutor
from shardplan.torch.collectives.order import Label, OrderCheck
from shardplan.torch.collectives.routes import Route
from shardplan.torch.gradients.accumulation import GradientAccumulator
from shardplan.torch.gradients.bucketing import bucket_gradients, gather_updated, valued
from shardplan.torch.gradients.flights import await_gradients
from shardplan.torch.gradients.moves import Context, move
from shardplan.torch.gradients.prefetch import Prefetcher
from shardplan.torch.gradients.regather import Regathered
from shardplan.torch.process_groups import ProcessGroups

WHOLE = (Tensor, nn.Parameter)
"""Types of tensors that a process has whole."""


class LocalExecution:
    """The `Backend` on local tensors, and the hooks by which autograd saves the source of what is gathered again."""

    def __init__(self, groups: ProcessGroups, links: Sequence[str] = (), order: IssueOrder | None = None) -> None:
        """`links`: level of every mesh axis; `order`: of what is gathered beside compute, if anything."""
        executor, self.issue_order = MoveExecutor(groups, links), order or IssueOrder()
        self.context = Context(executor, GradientAccumulator(), Prefetcher(executor, self.issue_order))
        self._marks = Marks(self.issue_order)
        self._regathers: dict[int, tuple[StorageWeakRef, Regathered]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> LocalExecution:
        """The moves of a copy of a graph are executed as its own are."""
        return self

    def begin(self, kind: Hashable) -> None:
        """A forward pass of `kind` begins: passes of one kind make the same moves."""
        self._marks.begin()
        self.context.prefetcher.begin(kind, is_first=self.accumulator.is_first)

    def hold(self, names: Sequence[str], locals_: Sequence[Tensor]) -> None:
        """Local shards of weights that are prefetched, by the plan's names."""
        self.context.prefetcher.hold(dict(zip(names, locals_, strict=True)))

    def passed(self, local: Tensor, operator: int) -> None:
        """The plan's operator of this number has been run, with the result `local`."""
        mark = self._marks.at(operator)
        if mark is not None:
            self.reached(local, mark)

    def reached(self, local: Tensor, mark: Mark) -> None:
        """The program is at `mark` with the result `local`; backward will be there when its gradient is available."""
        prefetcher = self.context.prefetcher
        prefetcher.reached(mark.up_to)
        backward = prefetcher.backward
        if backward is not None and local.requires_grad:
            local.register_hook(lambda _: backward.reached(mark))

    @property
    def accumulator(self) -> GradientAccumulator:
        return self.context.accumulator

    @property
    def order(self) -> OrderCheck:
        return self.context.executor.order

    @property
    def tells_lineage(self) -> bool:
        """Whether moves are compared with those of other processes."""
        return self.order.is_active

    def content(self, constant: Tensor) -> float:
        """A number that distinguishes a constant from others."""
        return self.order.content(constant) if type(constant) in WHOLE else 0.0

    def move(self, local: Tensor, route: Route, label: Label) -> Tensor:
        """The local tensor after a move; one that the plan gathers again in backward is not saved for it."""
        made = move(local, route, self.context, label)
        self._gather_again(local, made, route, label)
        return made

    def _gather_again(self, local: Tensor, made: Tensor, route: Route, label: Label) -> None:
        """Lets autograd save `local` in place of the moved tensor, if the plan gathers that again in backward."""
        if route.regather and torch.is_grad_enabled() and (made.requires_grad or not made.is_floating_point()):
            steps, executor, again = route.regather_steps, self.context.executor, label.of("again")
            regather = Regathered(
                local.detach(),
                lambda source: executor.run([source], [steps], again, is_backward=True)[0],
                lambda source: executor.start([source], [steps], again, way="gather", is_backward=True),
            )
            if self.context.prefetcher.backward is not None:
                self.context.prefetcher.backward.add(steps.number, regather)
            storage = StorageWeakRef(made.untyped_storage())
            self._regathers[storage.cdata] = storage, regather

    def gather_updated(self, locals_: Sequence[Tensor], routes: Sequence[Route], label: Label) -> list[Tensor]:
        """Updated weights, gathered from the shards of the optimizer as one bucket."""
        return gather_updated(locals_, routes, label, self.context)

    @staticmethod
    def await_gradients(locals_: Sequence[Tensor]) -> list[Tensor]:
        """Weights whose gradients are awaited when no compute is left."""
        return await_gradients(locals_)

    def bucket_gradients(self, locals_: Sequence[Tensor], routes: Sequence[Route], label: Label) -> list[Tensor]:
        """Stand-ins of weights whose gradients are sent as one bucket."""
        return bucket_gradients(locals_, routes, label, self.context)

    def valued(self, stand_in: Tensor, local: Tensor, route: Route | None, label: Label) -> Tensor:
        """A weight with its value; its gradient is that of the stand-in."""
        made = valued(stand_in, local, route, label, self.context)
        if route is not None:
            self._gather_again(local, made, route, label)
        return made

    def describe(self, local: Tensor) -> tuple[torch.dtype, bool]:
        """Dtype of a tensor, and whether it takes a gradient."""
        return local.dtype, local.requires_grad

    def end(self) -> None:
        """The forward pass has ended: nothing more is saved."""
        self._regathers.clear()
        self.context.prefetcher.end()

    def pack(self, saved: Tensor) -> Any:
        """What autograd saves in place of a tensor. It has no history: a function that saves its own result would keep
        itself alive in a way that Python's garbage collector cannot see; autograd adds the history again."""
        if type(saved) is not Tensor:
            return saved
        regather = self._regathered(saved) if self._regathers else None
        if regather is None:
            return saved if saved.grad_fn is None else saved.detach()
        regather.uses += 1
        return regather, saved.size(), saved.stride(), saved.storage_offset()

    def _regathered(self, saved: Tensor) -> Regathered | None:
        """What gathers a tensor again, if the plan does not keep it."""
        identity = saved.untyped_storage()._cdata  # noqa: SLF001 - there is no public identity of a storage
        storage, regather = self._regathers.get(identity, (None, None))
        return None if storage is None or storage.expired() else regather

    @staticmethod
    def unpack(packed: Any) -> Tensor:
        """The tensor that autograd has saved as `packed`."""
        if isinstance(packed, Tensor):
            return packed
        regather, size, stride, offset = packed
        return regather.value().as_strided(size, stride, offset)
