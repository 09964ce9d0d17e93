"""Plans that only say how a few weights are kept, to test what cuts them with."""

import dataclasses

from example_plans import example_plan

from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.plan.types import Plan, TensorDecision


def plan_of(mesh: Mesh, weights: dict[str, tuple], **fields: object) -> Plan:
    """`weights`: checkpoint name -> (shape, layout) as the checkpoint has them, and further fields of the decision."""
    tensors = tuple(weight(name, *given) for name, given in weights.items())
    links = ("net",) * len(mesh)
    known = {"mesh": mesh, "axis_links": links, "tensors": tensors, "operators": (), "moves": (), "blocks": ()}
    return example_plan(**{**known, **fields})


def weight(name: str, shape: tuple[int, ...], layout: Layout, perm: tuple[int, ...] = (), **fields: object):
    """The decision over one weight; `perm` as in `TensorDecision`."""
    graph_shape = tuple(shape[dim] for dim in perm) if perm else shape
    placed = (dataclasses.replace(p, dim=perm.index(p.dim)) if p.is_shard and perm else p for p in layout.placements)
    turned = Layout.of(*placed, order=layout.order)
    known = {"checkpoint": name, "onnx": name, "perm": perm, "trainable": True, "served": turned}
    return TensorDecision(
        f"{name}.value", "parameter", graph_shape, "float", turned, bytes_per_device=0, **known | fields
    )
