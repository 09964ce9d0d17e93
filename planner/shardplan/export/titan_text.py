"""Python text of a torchtitan module: the code around the sharding configs."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from shardplan.escapes import quoted
from shardplan.export.specs import plain
from shardplan.export.titan_axes import TitanAxes
from shardplan.plan.types import Plan

Sides = dict[str, "str | tuple[str, ...] | dict[str, str]"]
"""Field of a `ShardingConfig` -> the text of its layouts: by name of a state, by place of an input or a result."""

_HEAD = '''"""Shardings of {model} on {mesh} for torchtitan, made by shardplan from a plan.

    set_sharding_configs(model)  # a model of torchtitan's Modules, before model.parallelize(parallel_dims)

The parallelism that the plan is for: {degrees}.
Layouts have types of spmd_types: `R` is whole and its gradient a partial sum, `I` is whole and so is its gradient.
"""

import inspect
import re

from spmd_types import I, P, R, S, V
from torchtitan.distributed.parallel_dims import MeshAxisName
from torchtitan.protocols.sharding import LocalMapConfig, ShardingConfig, SpmdLayout

DP, CP, TP = MeshAxisName.DP, MeshAxisName.CP, MeshAxisName.TP
WHOLE = SpmdLayout({{DP: R, CP: R, TP: R}})

MODULES = {{
'''
_TAIL = '''}


def sharding_config(path, arguments=("input",), buffers=()):
    """The ShardingConfig of the module at `path`, None where the plan has none for it.

    `arguments`: of its forward, in order. `buffers`: names of its buffers, which stay whole.
    """
    found = [sides for name, sides in MODULES.items() if re.fullmatch(re.escape(name).replace(r"\\*", r"\\d+"), path)]
    if not found:
        return None
    sides = dict(found[0])
    sides["state_shardings"] = dict.fromkeys(buffers, WHOLE) | sides["state_shardings"]
    for side in ("in_src_shardings", "in_dst_shardings"):
        if side in sides:
            if len(sides[side]) > len(arguments):
                raise ValueError(f"{path}: the plan has {len(sides[side])} inputs, forward takes {list(arguments)}")
            sides[side] = dict(zip(arguments, sides[side]))
    return ShardingConfig(**sides)


def set_sharding_configs(model, rename=str):
    """Give every module of `model` its ShardingConfig. `rename`: from the path of a module to what the plan calls it.

    Modules that have buffers only stay whole. ValueError where a module has parameters that the plan does not know,
    or the plan has modules that `model` does not.
    """
    unknown, given = [], set()
    for path, module in model.named_modules():
        arguments = list(inspect.signature(type(module).forward).parameters)[1:]
        buffers = [name for name, _ in module.named_buffers(recurse=False)]
        config = sharding_config(rename(path), arguments, buffers)
        if config is None and buffers:
            config = ShardingConfig(state_shardings=dict.fromkeys(buffers, WHOLE))
        states = set() if config is None else set(config.state_shardings)
        unknown += [f"{path}.{name}" for name, _ in module.named_parameters(recurse=False) if name not in states]
        if config is not None:
            module._sharding_config = config
            given.add(re.sub(r"(?<=\\.)\\d+(?=\\.)", "*", rename(path)))
    missing = [name for name in MODULES if re.sub(r"(?<=\\.)\\d+(?=\\.)", "*", name) not in given]
    if unknown or missing:
        raise ValueError(f"not in the plan: {unknown or 'nothing'}; not in the model: {missing or 'nothing'}")
'''


def module_text(plan: Plan, axes: TitanAxes, modules: Mapping[str, Sides], *, sharded_weights: Collection[str]) -> str:
    """The whole file. `sharded_weights`: some weights are kept in pieces over `dp` and gathered for use."""
    sizes = {axis: axes.size(axis) for axis in axes.members}
    degrees = {
        "data_parallel_shard_degree": sizes["dp"] if sharded_weights else 1,
        "data_parallel_replicate_degree": 1 if sharded_weights else sizes["dp"],
        "context_parallel_degree": sizes["cp"],
        "tensor_parallel_degree": sizes["tp"],
    }
    said = ", ".join(f"{name}={degree}" for name, degree in degrees.items() if degree > 1) or "one device"
    head = _HEAD.format(model=plain(plan.model.get("name", "a model")), mesh=plain(plan.mesh), degrees=said)
    return head + "".join(f"    {quoted(name)}: {_sides(sides)},\n" for name, sides in modules.items()) + _TAIL


def _sides(sides: Sides) -> str:
    rows = "".join(f"        {quoted(side)}: {_value(value)},\n" for side, value in sides.items())
    return "{\n" + rows + "    }"


def _value(value: str | tuple[str, ...] | dict[str, str]) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, tuple):
        return "(" + "".join(f"{text}, " for text in value).rstrip() + ")"
    pad = " " * 12
    rows = "".join(f"{pad}{quoted(name)}: {text},\n" for name, text in value.items())
    return "{\n" + rows + " " * 8 + "}"
