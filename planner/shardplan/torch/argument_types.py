"""Checks that functions of `shardplan.torch` are given a model, a plan and a mesh, and nothing in their place."""

from __future__ import annotations

from os import PathLike
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from shardplan.errors import ShardplanError, error
from shardplan.plan.types import Plan


def check_plan(given: Any) -> None:
    """Raises `ShardplanError` (`bad-argument`) for what is no plan."""
    if isinstance(given, (str, PathLike)):
        raise ShardplanError(
            error("bad-argument", f"'{given}' is the path of a plan", hint="load it: shardplan.load(path)")
        )
    if not isinstance(given, Plan):
        hint = "give what shardplan.load or shardplan.torch.plan returns"
        raise ShardplanError(error("bad-argument", f"the plan is of type {type(given).__name__}", hint=hint))


def check_mesh(given: Any) -> None:
    """Raises `ShardplanError` (`bad-argument`) for what is no mesh."""
    if not isinstance(given, DeviceMesh):
        hint = "make it with shardplan.torch.mesh(plan)"
        raise ShardplanError(error("bad-argument", f"the mesh is of type {type(given).__name__}", hint=hint))


def check_model(given: Any) -> None:
    """Raises `ShardplanError` (`bad-argument`) for what is no module."""
    if not isinstance(given, nn.Module):
        summary = f"the model is of type {type(given).__name__}, and not a torch.nn.Module"
        raise ShardplanError(error("bad-argument", summary, hint="the order of arguments is: model, plan, mesh"))
