"""Execution of moves: the collectives of one tensor, or of a bucket of tensors, on what this process holds.

Every collective that the adapter sends for a plan, but for inter-stage send/receive, is issued by `MoveExecutor.run`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from shardplan.torch.collectives.coalesced import run_coalesced
from shardplan.torch.collectives.routes import TensorSteps

if TYPE_CHECKING:
    from shardplan.torch.process_groups import ProcessGroups, Purpose


class MoveExecutor:
    """Runs the collectives of moves over the process groups of a plan."""

    def __init__(self, groups: ProcessGroups) -> None:
        self.groups = groups

    def run(
        self, locals_: Sequence[Tensor], moves: Sequence[TensorSteps], purpose: Purpose | None = None
    ) -> list[Tensor]:
        """Local tensors after their moves; several moves have the same collectives and are sent as one bucket.

        `purpose`: of what is sent outside of the forward and backward pass.
        """
        with self.groups.sending(purpose):
            return run_coalesced(locals_, moves, self.groups)
