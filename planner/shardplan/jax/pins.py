"""Pins: what a value is where it is made, where it is kept and where it is read, told to XLA.

One pin is not enough. Told only that tokens go in and heads come out, XLA gathers; told both ends, it sends an
all-to-all, a quarter of the bytes on four devices. So a value is pinned on both sides of every move of the plan.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardplan.errors import Diagnostic, ShardplanError, did_you_mean, error
from shardplan.jax.device_mesh import check_mesh
from shardplan.jax.layouts import form_layout, is_partial, path_name
from shardplan.jax.specs import division, partition_spec
from shardplan.jax.trees import Names, named_as, spelled, targets_of
from shardplan.layout.layout import Layout
from shardplan.layout.placement import R
from shardplan.layout.text import to_text
from shardplan.plan.orientation import checkpoint_layout, checkpoint_shape, graph_layout, graph_shape
from shardplan.plan.types import OperatorDecision, Plan, TensorDecision
from shardplan.runtime.lookup import tensors_by_name
from shardplan.runtime.names import parameters_by_name

_SHOWN = 8


def constrain(plan: Plan, mesh: Mesh, name: str, x: jax.Array, *, reader: str = "") -> jax.Array:
    """`x`, pinned to the layouts that the plan gives the value `name`: as it is made, kept, and read.

    `name`: a value of the graph, the path of a module (`model.layers.0.mlp`, for what it returns), or a parameter,
    whose dims are those of the checkpoint. With a `*` in place of the layer number it stands for that value of all
    layers, which must be laid out alike: the body of a scan. `reader`: an operator or a module whose way of reading the
    value is meant, where readers differ; the value that `constrain` without a reader returned is then given.

    Partial sums are pinned where the plan sums them, as the whole value that then is cut (an all-reduce and a slice:
    what compilers make a reduce-scatter of); those that operators hand on as they are are left to XLA. `x` may have its
    dims in a finer division (a fused q, k, v as [..., 3, heads * width]); other sizes than planned are taken if the
    dims divide.

    Raises `ShardplanError`: `unknown-tensor`, `wrong-mesh`, `several-outputs`, `unknown-reader`, `layers-differ`,
    `wrong-rank`, `segmented-dim`, `indivisible-dim`.
    """
    check_mesh(plan, mesh)
    return _pinned(plan, mesh, name, x, reader=reader)


def constrain_tree(plan: Plan, mesh: Mesh, tree: Any, *, names: Names | None = None) -> Any:
    """`tree`, a pytree of parameters, with every leaf pinned as `constrain` does: as it is kept, and as it is read.

    Where the plan stores a weight in pieces and gathers it for use (ZeRO-3), this is the gather; call it where the
    weights are used: in the body of a scan with the weights of one layer, so that one layer at a time is whole.
    `names`: as in `shardings`; a name with `*` may be that of a leaf that stacks layers, or of one layer's. Leaves that
    are none of the plan's stay as they are. Raises `ShardplanError` as `constrain`.
    """
    check_mesh(plan, mesh)
    known = parameters_by_name(plan)

    def pinned(path: tuple[Any, ...], x: jax.Array) -> jax.Array:
        targets, _ = targets_of(path_name(path), names, known)
        first, perm = spelled(targets[0])
        if first is None or first not in known:
            return x
        name, _ = spelled(named_as(path_name(path), names))
        assert name is not None
        return _pinned(plan, mesh, name, x, perm=perm)

    return jax.tree_util.tree_map_with_path(pinned, tree)


def _pinned(
    plan: Plan, mesh: Mesh, name: str, x: jax.Array, *, reader: str = "", perm: tuple[int, ...] = ()
) -> jax.Array:
    """`x`, whose dim i is the plan's dim perm[i], pinned to the layouts of `name` one after the other."""
    layouts, shape = _layouts(plan, name, reader)
    shape = graph_shape(shape, perm)
    divided, stacked = division(x.shape, shape), False
    if divided is None and "*" in name and x.ndim:
        divided, stacked = division(x.shape[1:], shape), True
    if divided is None:
        if x.ndim != len(shape):
            summary = f"the array pinned as '{name}' has shape {list(x.shape)}, the plan has {list(shape)}"
            raise ShardplanError(error("wrong-rank", summary))
        divided, stacked = tuple((size,) for size in x.shape), False
    for layout in layouts:
        spec = partition_spec(graph_layout(layout, perm), plan.mesh, divided, name)
        x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(None, *spec) if stacked else spec))
    return x


def _layouts(plan: Plan, name: str, reader: str) -> tuple[tuple[Layout, ...], tuple[int, ...]]:
    """The layouts to pin one after the other, and the planned shape, in checkpoint dims for a parameter."""
    decisions = _decisions(plan, name)
    found: dict[tuple[Layout, ...], TensorDecision] = {}
    for decision, layer in decisions:
        chain = [_read_by(plan, decision, reader.replace("*", layer))] if reader else _chain(plan, decision)
        plain = [checkpoint_layout(layout, decision.perm) for layout in chain if not is_partial(layout)]
        distinct = [layout for place, layout in enumerate(plain) if place == 0 or layout != plain[place - 1]]
        found.setdefault(tuple(distinct), decision)
    if len(found) > 1:
        lines = [
            f"{decision.name}: {' -> '.join(to_text(layout, plan.mesh) for layout in layouts) or 'partial'}"
            for layouts, decision in found.items()
        ]
        summary = f"'{name}' stands for values that the plan lays out differently"
        hint = "solve again with all layers alike (--pin), or write the layers out"
        raise ShardplanError(error("layers-differ", summary, detail="\n".join(lines), hint=hint))
    ((layouts, decision),) = found.items()
    return layouts, checkpoint_shape(decision.shape, decision.perm)


def _chain(plan: Plan, decision: TensorDecision) -> list[Layout]:
    """Made, kept, served, read. What is made partial and kept whole or cut is whole in between."""
    made = [
        layout.forward if is_partial(decision.layout) else _summed(layout)
        for operator in plan.operators
        for output, layout in zip(operator.outputs, operator.makes, strict=True)
        if output == decision.name and layout is not None
    ]
    return [*made, *(form_layout(plan, decision, form) for form in ("kept", "served", "read"))]


def _summed(layout: Layout) -> Layout:
    """The layout after an all-reduce of what is partial."""
    placements = (R if placement.kind == "P" else placement for placement in layout.forward.placements)
    return Layout.of(*placements, order=layout.order)


def _read_by(plan: Plan, decision: TensorDecision, reader: str) -> Layout:
    found = {
        layout.forward
        for operator in plan.operators
        if operator.name == reader or _is_inside(operator, reader)
        for name, layout in zip(operator.inputs, operator.reads, strict=True)
        if name == decision.name and layout is not None
    }
    if len(found) != 1:
        what = "no operator there reads it" if not found else "its operators read it in different ways"
        readers = [operator.name for operator in plan.operators if decision.name in operator.inputs]
        summary = f"'{reader}' is no reader of '{decision.name}': {what}"
        raise ShardplanError(error("unknown-reader", summary, detail=f"it is read by {_listed(readers)}"))
    return found.pop()


def _decisions(plan: Plan, name: str) -> list[tuple[TensorDecision, str]]:
    """The tensors that `name` stands for, each with the number of its layer (for a `*`)."""
    if "*" not in name:
        return [(_decision(plan, name), "")]
    pattern = re.compile(r"(\d+)".join(re.escape(part) for part in name.split("*")))
    known = [*tensors_by_name(plan), *(_modules(plan))]
    numbered = {match[0]: match[1] for candidate in known if (match := pattern.fullmatch(candidate))}
    if not numbered:
        raise ShardplanError(_unknown(plan, name))
    ordered = sorted(numbered.items(), key=lambda item: (int(item[1]), item[0]))
    return [(_decision(plan, full), layer) for full, layer in ordered]


def _decision(plan: Plan, name: str) -> TensorDecision:
    known = tensors_by_name(plan)
    if name in known:
        return known[name]
    outputs = _outputs(plan, name)
    if len(outputs) == 1:
        return known[outputs[0]]
    if not outputs:
        raise ShardplanError(_unknown(plan, name))
    summary = f"module '{name}' hands on {len(outputs)} values"
    raise ShardplanError(error("several-outputs", summary, hint=f"name one of them: {_listed(outputs)}"))


def _outputs(plan: Plan, module: str) -> list[str]:
    """Values made inside a module that are read outside of it, or by nobody."""
    known = tensors_by_name(plan)
    inside = [operator for operator in plan.operators if _is_inside(operator, module)]
    outside = {name for operator in plan.operators if not _is_inside(operator, module) for name in operator.inputs}
    within = {name for operator in inside for name in operator.inputs}
    made = [name for operator in inside for name in operator.outputs if name in known]
    return [name for name in made if name in outside or known[name].role == "output" or name not in within]


def _is_inside(operator: OperatorDecision, module: str) -> bool:
    return operator.module == module or operator.module.startswith(f"{module}.")


def _modules(plan: Plan) -> list[str]:
    """Paths of all modules, their parents included."""
    found: dict[str, None] = {}
    for operator in plan.operators:
        parts = operator.module.split(".") if operator.module else []
        found.update(dict.fromkeys(".".join(parts[: end + 1]) for end in range(len(parts))))
    return list(found)


def _unknown(plan: Plan, name: str) -> Diagnostic:
    hint = did_you_mean(name, [*tensors_by_name(plan), *_modules(plan)])
    hint = hint or "shardplan show --all lists the values of a plan"
    return error("unknown-tensor", f"the plan has no value, parameter or module '{name}'", hint=hint)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}" or "nothing"
