"""Sharding constraints on the values of a function: the layouts in which the plan makes, keeps and reads them.

One constraint is not enough. Given only the layouts of tokens before and of heads after an attention, XLA gathers;
given the layouts before and after each move, it sends an all-to-all, a quarter of the bytes on four devices. So a value
is constrained on both sides of every move of the plan.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.jax.device_mesh import check_automatic
from shardplan.jax.fused_weights import Part
from shardplan.jax.named_shardings import path_name
from shardplan.jax.partition_specs import Division, division, partition_spec, pin_text
from shardplan.jax.pytrees import Names, named_as, spelled, targets_of
from shardplan.jax.value_layouts import listed, values_of
from shardplan.layout.layout import Layout
from shardplan.layout.lower import by_bytes, lower
from shardplan.layout.mesh import Mesh as PlanMesh
from shardplan.layout.placement import Placement
from shardplan.layout.text import to_text
from shardplan.plan.orientation import checkpoint_layout, checkpoint_shape, graph_layout, graph_shape
from shardplan.plan.types import Plan, TensorDecision
from shardplan.runtime.names import parameters_by_name


def constrain(plan: Plan, mesh: Mesh, name: str, x: jax.Array, *, reader: str = "") -> jax.Array:
    """`x`, constrained to the layouts that the plan gives the value `name`: as it is made, kept, and read.

    `name`: a value of the graph, the path of a module (`model.layers.0.mlp`, for the value that it returns), or a
    parameter, whose dims are those of the checkpoint. With `*` in place of the layer number, as in the body of a scan,
    it stands for that value of all layers, which must have one layout. `reader`: an operator or a module, where readers
    read the value in different layouts; `x` is then the result of `constrain` without a reader.

    Partial sums are constrained where the plan sums them, as a whole value that is then split (all-reduce and slice,
    which compilers turn into a reduce-scatter); partial sums that operators pass on unsummed are left to XLA. `x` may
    divide dims further (a fused q, k, v as [..., 3, heads * width]); other sizes than planned are taken if the dims
    divide.

    Raises `ShardplanError`: `unknown-tensor`, `wrong-mesh`, `explicit-mesh`, `inside-shard-map`, `several-outputs`,
    `unknown-reader`, `layers-differ`, `wrong-rank`, `segmented-dim`, `indivisible-dim`.
    """
    check_automatic(plan, mesh)
    return constrain_permuted(plan, mesh, name, x, reader=reader)


def constrain_tree(plan: Plan, mesh: Mesh, tree: Any, *, names: Names | None = None) -> Any:
    """`tree`, a pytree of parameters, with every leaf constrained as `constrain` does: as it is kept, and as it is
    read.

    Where the plan stores a weight sharded and gathers it for use (ZeRO-3), this is the gather. Call it where the
    weights are used: in the body of a scan with the weights of one layer, so that only one layer at a time is whole.
    `names`: as in `shardings`; a name with `*` may be that of a leaf that stacks layers, or of a leaf of one layer.
    Leaves that are not in the plan are unchanged. Raises `ShardplanError` as `constrain`.
    """
    check_automatic(plan, mesh)
    known = parameters_by_name(plan)

    def constrained(path: tuple[Any, ...], x: jax.Array) -> jax.Array:
        targets, _ = targets_of(path_name(path), names, known)
        if spelled(targets[0])[0] not in known:
            return x
        target = named_as(path_name(path), names)
        name, perm = spelled(target)
        assert name is not None
        return constrain_permuted(plan, mesh, name, x, perm=perm, part=target if isinstance(target, Part) else None)

    return jax.tree_util.tree_map_with_path(constrained, tree)


def constrain_permuted(
    plan: Plan,
    mesh: Mesh,
    name: str,
    x: jax.Array,
    *,
    reader: str = "",
    perm: tuple[int, ...] = (),
    part: Part | None = None,
) -> jax.Array:
    """As `constrain`, for an `x` whose dim i is the plan's dim perm[i] (or a part of it)."""
    layouts, shape = _layouts(plan, name, reader)
    if part is not None:
        layouts, shape = tuple(part.layout(layout, plan.mesh) for layout in layouts), part.shape(shape)
    shape = graph_shape(shape, perm)
    divided, stacked = division(x.shape, shape), False
    if divided is None and "*" in name and x.ndim:
        divided, stacked = division(x.shape[1:], shape), True
    if divided is None:
        if x.ndim != len(shape):
            summary = f"the array pinned as '{name}' has shape {list(x.shape)}, the plan has {list(shape)}"
            raise ShardplanError(error("wrong-rank", summary))
        divided, stacked = tuple((size,) for size in x.shape), False
    for spec in _specs([graph_layout(layout, perm) for layout in layouts], plan.mesh, divided, name):
        x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(None, *spec) if stacked else spec))
    return x


def _specs(layouts: Sequence[Layout], mesh: PlanMesh, divided: Division, name: str) -> list[PartitionSpec]:
    """The specs to constrain to in turn: the layouts, and the steps between two that take several collectives.

    XLA gathers the whole value where axes go to different dims, or one goes to a dim and another is gathered; given
    the steps, it sends what the plan sends.
    """
    specs = [partition_spec(layout, mesh, divided, name) for layout in layouts[:1]]
    for before, after in itertools.pairwise(layouts):
        with contextlib.suppress(ShardplanError):  # a dim that two axes on it do not divide: XLA chooses
            specs += [partition_spec(between, mesh, divided, name) for between in _between(before, after, mesh)]
        specs.append(partition_spec(after, mesh, divided, name))
    return specs


@functools.lru_cache(maxsize=4096)
def _between(before: Layout, after: Layout, mesh: PlanMesh) -> tuple[Layout, ...]:
    """The layouts on the way between two, of the cheapest sequence of collectives that XLA has."""
    found = [before]
    for step in lower(mesh, before, after, by_bytes(mesh)):
        found += [*_one_at_a_time(found[-1], step.target), step.target]
    return tuple(found[1:-1])


def _one_at_a_time(before: Layout, after: Layout) -> list[Layout]:
    """Layouts on the way of one all-to-all in which axes go to different dims. In each step the axes that go from one
    dim to the same other dim move together; axes that are minor in their dim move first."""
    pairs = list(zip(before.placements, after.placements, strict=True))
    ways = dict.fromkeys(pairs[axis] for axis in reversed(before.order) if _goes(*pairs[axis]))
    if len(ways) < 2:
        return []
    found, moved = [], set()
    for way in list(ways)[:-1]:
        moved.add(way)
        found.append(Layout.of(*(pair[pair in moved] for pair in pairs), order=before.order))
    return found


def _goes(before: Placement, after: Placement) -> bool:
    return before.is_shard and after.is_shard and before.dim != after.dim


def _layouts(plan: Plan, name: str, reader: str) -> tuple[tuple[Layout, ...], tuple[int, ...]]:
    """The layouts to constrain to in turn, and the planned shape, in checkpoint dims for a parameter."""
    values = values_of(plan)
    found: dict[tuple[Layout, ...], list[TensorDecision]] = {}
    for decision, layer in values.find(name):
        chain = values.read_by(decision, reader.replace("*", layer)) if reader else values.chain(decision)
        found.setdefault(tuple(checkpoint_layout(layout, decision.perm) for layout in chain), []).append(decision)
    if len(found) > 1:
        raise ShardplanError(_differing(plan, name, found))
    ((layouts, decisions),) = found.items()
    return layouts, checkpoint_shape(decisions[0].shape, decisions[0].perm)


def _differing(plan: Plan, name: str, found: Mapping[tuple[Layout, ...], Sequence[TensorDecision]]) -> Diagnostic:
    lines = [
        f"{' -> '.join(to_text(layout, plan.mesh) for layout in layouts) or 'partial'}: "
        f"{listed([decision.checkpoint or decision.name for decision in decisions], 4)}"
        for layouts, decisions in found.items()
    ]
    most = max(found, key=lambda layouts: (bool(layouts), len(found[layouts])))
    pin = f"{name}={pin_text(most[0], plan.mesh, len(found[most][0].shape))}"
    return error(
        "layers-differ",
        f"'{name}' stands for values that the plan lays out differently",
        detail="\n".join(lines),
        hint=f"solve again with all alike, such as --pin {shlex.quote(pin)}, or do not scan the layers that differ",
    )
