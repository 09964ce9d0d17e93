"""Execution of moves: the collectives of one tensor, or of a bucket of tensors, on what this process holds.

Every collective that the adapter sends for a plan, but for inter-stage send/receive, is issued by `MoveExecutor`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from shardplan.torch.collectives.coalesced import Flight, run_coalesced, start_coalesced
from shardplan.torch.collectives.order import Label, OrderCheck
from shardplan.torch.collectives.routes import TensorSteps

if TYPE_CHECKING:
    from shardplan.torch.process_groups import ProcessGroups, Purpose


class MoveExecutor:
    """Runs the collectives of moves over the process groups of a plan. `order`: compares them with other processes."""

    def __init__(self, groups: ProcessGroups) -> None:
        self.groups, self.order = groups, OrderCheck(groups)

    def run(
        self,
        locals_: Sequence[Tensor],
        moves: Sequence[TensorSteps],
        label: Label,
        purpose: Purpose | None = None,
        *,
        is_backward: bool = False,
    ) -> list[Tensor]:
        """Local tensors after their moves; several moves have the same collectives and are sent as one bucket.

        `purpose`: of what is sent outside of the forward and backward pass. Raises `ShardplanError` (`another-order`),
        where in the first steps another process is about to make another move.
        """
        self.order.compare(label, moves, is_backward=is_backward)
        with self.groups.sending(purpose):
            return run_coalesced(locals_, moves, self.groups)

    def start(self, locals_: Sequence[Tensor], moves: Sequence[TensorSteps], label: Label) -> Flight:
        """The same for gradients, which are waited for later. Raises as `run`."""
        self.order.compare(label, moves, is_backward=True)
        return start_coalesced(locals_, moves, self.groups)
