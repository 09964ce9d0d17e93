"""What the runtimes that plans are exported to can express, as restrictions of the choices."""

from __future__ import annotations

from shardplan.planning.runtimes.table import RUNTIMES, Role, Runtime

__all__ = ["RUNTIMES", "Role", "Runtime"]
