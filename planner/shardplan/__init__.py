"""Plan how a neural network is split over a device mesh, prove the plan optimal, and save it as a file.

`make_plan` makes a plan of a model, `save` writes it, `load` reads it and `check` says whether it still holds;
`price` says what a given configuration takes, `robustness` what a plan is worth where the profile is wrong, `report`
shows it in a browser or a notebook, `slices` says what a rank holds; `shardplan.torch` and `shardplan.jax` apply it.
`cost_graph` is what a plan is chosen from, as a networkx graph. What cannot be done is said in a `ShardplanError`.

>>> plan = shardplan.make_plan("model.onnx", "4x4")
>>> shardplan.save(plan, "plans/model.4x4.plan.json")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardplan.api import check, load, make_plan, price, robustness, save
    from shardplan.errors import ShardplanError
    from shardplan.reports.notebook import report
    from shardplan.runtime.shards import slices
    from shardplan.study.cost_graph import cost_graph

__version__ = "0.1.0"
__all__ = [
    "ShardplanError",
    "__version__",
    "check",
    "cost_graph",
    "load",
    "make_plan",
    "price",
    "report",
    "robustness",
    "save",
    "slices",
]

_ELSEWHERE = {
    "ShardplanError": ("shardplan.errors", "ShardplanError"),
    "check": ("shardplan.api", "check"),
    "cost_graph": ("shardplan.study.cost_graph", "cost_graph"),
    "load": ("shardplan.api", "load"),
    "make_plan": ("shardplan.api", "make_plan"),
    "price": ("shardplan.api", "price"),
    "report": ("shardplan.reports.notebook", "report"),
    "robustness": ("shardplan.api", "robustness"),
    "save": ("shardplan.api", "save"),
    "slices": ("shardplan.runtime.shards", "slices"),
}
_ADAPTERS = frozenset({"jax", "torch"})


def __getattr__(name: str) -> object:
    """Import what is asked for when it is asked for: `import shardplan` alone loads nothing else."""
    import importlib

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
