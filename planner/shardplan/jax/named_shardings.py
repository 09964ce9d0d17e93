"""Shardings of pytrees and of single tensors, from the layouts of a plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardplan.errors import ShardplanError, error
from shardplan.jax.device_mesh import check_mesh
from shardplan.jax.partition_specs import division, partition_spec
from shardplan.jax.pytrees import Leaf, Names, match_leaves, spelled, targets_of
from shardplan.jax.value_layouts import Form, is_partial, values_of
from shardplan.layout.text import to_text
from shardplan.plan.orientation import checkpoint_layout, checkpoint_shape, graph_layout
from shardplan.plan.types import Plan, TensorDecision
from shardplan.runtime.lookup import find_tensor
from shardplan.runtime.names import parameters_by_name

ALONE: Final = "params"
"""The name of parameters that are one array, which has no path."""


def shardings(
    plan: Plan,
    mesh: Mesh,
    tree: Any,
    *,
    names: Names | None = None,
    ignore: Iterable[str] = (),
    strict: bool = True,
    form: Form = "kept",
) -> Any:
    """A pytree like `tree` (of arrays or `ShapeDtypeStruct`s) of the `NamedSharding`s that the plan gives its leaves.

    `names`: from the path of a leaf (keys joined by dots) to the checkpoint name, or to (name, perm) where leaf dim i
    is checkpoint dim perm[i], or to a name with `*` in place of the layer number where the leaf stacks all layers; see
    `flax_names`. Without it paths are checkpoint names. `ignore`: patterns of leaves and of parameters that need no
    partner; such leaves are replicated. `strict`: refuse leaves and parameters without a partner. Counters and keys of
    random numbers, which are no weights, are replicated where the plan does not name them.

    `form`: how the parameters are `kept`; `served`, after the gather that the plan makes once for all readers (ZeRO-3);
    or `read`, as the operators take them; `optimizer`: their optimizer state, where the plan shards it apart (ZeRO-1).

    Raises `ShardplanError` with everything that does not fit: as `runtime.names.match_names`, `wrong-mesh`,
    `wrong-stack`, `wrong-part`, `split-part`, `layers-differ`, `segmented-dim`, `indivisible-dim`; `bad-argument` for
    another form.
    """
    check_mesh(plan, mesh)
    paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    by_path = {path_name(path): leaf for path, leaf in paths}
    known = parameters_by_name(plan)
    shapes = {
        path: tuple(leaf.shape) for path, leaf in by_path.items() if _is_weight(leaf) or _is_known(path, names, known)
    }
    leaves = match_leaves(plan, shapes, names, ignore=ignore, strict=strict)
    found = [
        NamedSharding(mesh, leaf_spec(plan, leaves[path], form) if path in leaves else PartitionSpec())
        for path in by_path
    ]
    return jax.tree_util.tree_unflatten(structure, found)


def _is_weight(leaf: Any) -> bool:
    """Whether a leaf holds floating-point numbers."""
    return jnp.issubdtype(leaf.dtype, jnp.inexact)


def _is_known(path: str, names: Names | None, known: Mapping[str, TensorDecision]) -> bool:
    """Whether the plan names a parameter that a leaf holds."""
    return any(spelled(target)[0] in known for target in targets_of(path, names, known)[0])


def sharding(
    plan: Plan, mesh: Mesh, name: str, *, form: Form = "kept", shape: tuple[int, ...] | None = None
) -> NamedSharding:
    """The `NamedSharding` of one tensor of the plan: an input, an output, a parameter (dims as in the checkpoint), or a
    value of the graph. `shape`: of the array, where it divides the plan's dims further (a fused q, k, v).

    Raises `ShardplanError`: `unknown-tensor`, `wrong-mesh`, `partial-values`, `segmented-dim`, `indivisible-dim`.
    """
    check_mesh(plan, mesh)
    decision = find_tensor(plan, name)
    planned = checkpoint_shape(decision.shape, decision.perm)
    layout = checkpoint_layout(values_of(plan).form(decision, form), decision.perm)
    if is_partial(layout):
        summary = f"'{name}' is {form} as {to_text(layout, plan.mesh)}: partial sums, which no JAX sharding can express"
        raise ShardplanError(
            error("partial-values", summary, hint="leave it to XLA, and pin the value that is made of it")
        )
    divided = division(shape or planned, planned) or tuple((size,) for size in planned)
    return NamedSharding(mesh, partition_spec(layout, plan.mesh, divided, name))


def state_shardings(plan: Plan, mesh: Mesh, state: Any, *, names: Names | None = None) -> Any:
    """A pytree like `state` of `NamedSharding`s, where `state` is an optimizer state (of optax, say) or a whole train
    state. A leaf whose path ends like the path of a weight, and that has its shape, is sharded as the plan keeps the
    optimizer state of that weight; one more dim before that shape (the history of L-BFGS) is not sharded. Every other
    leaf (counts, rates) is replicated. `names`: as in `shardings`, applied to the ends of paths.

    Raises `ShardplanError` as `shardings`.
    """
    check_mesh(plan, mesh)
    paths, structure = jax.tree_util.tree_flatten_with_path(state)
    by_path = {path_name(path): tuple(leaf.shape) for path, leaf in paths}
    known = parameters_by_name(plan)
    specs: dict[str, PartitionSpec] = {}
    for path, shape in by_path.items():
        specs[path] = PartitionSpec()
        for more in range(min(2, len(shape) + 1)):
            if leaf := _leaf_of(plan, path, shape[more:], names, known):
                specs[path] = PartitionSpec(*[None] * more, *leaf_spec(plan, leaf, "optimizer"))
                break
    found = [NamedSharding(mesh, specs[path]) for path in by_path]
    return jax.tree_util.tree_unflatten(structure, found)


def _leaf_of(
    plan: Plan, path: str, shape: tuple[int, ...], names: Names | None, known: Mapping[str, TensorDecision]
) -> Leaf | None:
    """The weight that the longest matching end of a path names, if the leaf has the shape of that weight. Every path
    ends like that of parameters that are one array."""
    keys = path.split(".")
    for place in range(len(keys)):
        end = ".".join(keys[place:])
        targets, _ = targets_of(end, names, known)
        if targets and all(spelled(target)[0] in known for target in targets):
            try:
                return match_leaves(plan, {end: shape}, names, strict=False).get(end)
            except ShardplanError:  # a statistic of another shape
                return None
    return _leaf_of(plan, ALONE, shape, names, known) if path != ALONE and set(known) == {ALONE} else None


def leaf_spec(plan: Plan, leaf: Leaf, form: Form) -> PartitionSpec:
    """The spec of a leaf; the dim that stacks layers is not sharded."""
    decision = leaf.first.decision
    layout = checkpoint_layout(values_of(plan).form(decision, form), decision.perm)
    if leaf.part is not None:
        layout = leaf.part.layout(layout, plan.mesh)
    spec = partition_spec(graph_layout(layout, leaf.perm), plan.mesh, leaf.divided, leaf.path)
    return PartitionSpec(None, *spec) if leaf.stacked else spec


def path_name(path: tuple[Any, ...]) -> str:
    """Keys of a path joined by dots: `layers.0.kernel`; `params` where the tree is one array. The `value` of the boxes
    in which flax keeps arrays is left out."""
    if not path:
        return ALONE
    if len(path) > 1 and path[-1] == jax.tree_util.GetAttrKey("value"):
        path = path[:-1]
    return str(jax.tree_util.keystr(path, simple=True, separator="."))
