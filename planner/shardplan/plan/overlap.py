"""Exposed and overlapped communication of a plan, move by move."""

from __future__ import annotations

from shardplan.plan.types import Move, Plan


class Exposure:
    """How much each move lengthens a step: the time in which it runs alone, and its slowdown of the compute that it
    overlaps. The sum over all moves and operators is `summary.communication_ns`."""

    def __init__(self, plan: Plan) -> None:
        beside_ns = sum(move.time_ns * move.hidden for move in plan.moves)
        self._overlapped = min(1.0, plan.summary.hidden_ns / beside_ns) if beside_ns else 1.0

    def exposed_ns(self, move: Move) -> float:
        """Nanoseconds per step; the rest of the move's time is overlapped."""
        return move.time_ns * (1.0 - move.hidden * self._overlapped)
