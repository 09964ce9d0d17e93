"""Plan how a neural network is split over a device mesh, prove the plan optimal, and save it as a file.

`load` reads a plan, `slices` says what a rank holds; `shardplan.torch` and `shardplan.jax` apply plans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardplan.plan.file import read_plan as load
    from shardplan.runtime.shards import slices

__version__ = "0.1.0"
__all__ = ["__version__", "load", "slices"]

_ELSEWHERE = {
    "load": ("shardplan.plan.file", "read_plan"),
    "slices": ("shardplan.runtime.shards", "slices"),
}
_ADAPTERS = frozenset({"jax", "torch"})


def __getattr__(name: str) -> object:
    """Import what is asked for when it is asked for: `import shardplan` alone loads nothing else."""
    import importlib  # noqa: PLC0415

    if name in _ADAPTERS:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _ELSEWHERE:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    module, attribute = _ELSEWHERE[name]
    found: object = getattr(importlib.import_module(module), attribute)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ADAPTERS})
