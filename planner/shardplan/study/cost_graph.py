"""The cost graph of a model on a mesh as a networkx graph: choices of all operators and tensors, seconds and bytes.

It is the problem that the planner solves, before anything is chosen or left out, for programs that ask it questions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from shardplan.errors import Diagnostic, warn
from shardplan.graph.build import CostGraph, Node
from shardplan.graph.memory import Holding, MemoryRows
from shardplan.graph.operators import OperatorSpace
from shardplan.graph.problem import as_serial
from shardplan.graph.tensors import TensorSpace
from shardplan.layout.mesh import Mesh
from shardplan.layout.text import to_text
from shardplan.planning import Planner
from shardplan.request import request_of
from shardplan.study.instance import read
from shardplan.units import PS_PER_S

if TYPE_CHECKING:
    from shardplan.graph.options import Mode, Remat
    from shardplan.model.types import Model


def cost_graph(
    model: str | Path | Model,
    mesh: str | None = None,
    *,
    cluster: str | Path = "h100-dgx",
    mode: Mode = "training",
    dims: Mapping[str, int] | None = None,
    optimizer: str = "adam-mixed",
    shard_optimizer: bool = False,
    microbatches: int = 1,
    remat: Remat = "none",
    kv_cache_tokens: int = 0,
    cost_model: str = "shardplan",
    strict: bool = False,
    on_warning: Callable[[Diagnostic], None] | None = None,
) -> nx.MultiDiGraph:
    """The cost graph of `model` on `mesh`: a directed networkx multigraph, from inputs and weights to outputs.

    >>> graph = shardplan.cost_graph("model.onnx", "4x4")
    >>> graph.nodes["operator:layers.0.fc"]["choices"]
    ('-', 'm@gpu', ...)

    Arguments are those of `make_plan`; under `remat="auto"` nothing is rematerialised, as that is a choice of its own.
    `on_warning` hears of what is worth a warning; by default they are Python's.
    A node is `KIND:NAME`. Kinds: `operator`; `kept`, the layout in which a tensor is made or stored; `served`, that in
    which its readers get it, where there are several; `updated`, that of a weight's optimizer state, if it may differ.

    | node        | attribute         | meaning                                                                        |
    |-------------|-------------------|--------------------------------------------------------------------------------|
    | all         | `kind`, `name`    |                                                                                |
    | all         | `choices`         | texts: `b@machine m@gpu` of an operator, layouts as `S(0)@gpu` of a tensor     |
    | all         | `cost_s`          | seconds per step of each choice by itself, shape (choices,)                    |
    | all         | `memory_bytes`    | what one device holds for each choice, at the moment when that is most         |
    | operators   | `compute_s`, `communication_s` | parts of `cost_s`: local work, collectives inside the operator    |
    | operators   | `op_type`, `module`, `flops`   | `flops`: of the forward pass on one device that does everything   |
    | tensors     | `role`, `dtype`, `shape`       | whole, not per device                                             |

    An edge has `kind` (`read`, `made`, `served`, `updated`; `carried` where a loop hands on), `tensor`, and `table_s`:
    seconds per step of the moves between each choice of its source (rows) and of its target (columns), forward and
    backward, `inf` where they do not go together. Nothing overlaps; a gradient that shares a bucket has its share.
    The graph has `model`, `mesh`, `cluster` and `mode`. A plan costs the sum over nodes and edges; see `make_plan` for
    what it adds, and for the errors.
    """
    asked = {
        "mode": mode, "dims": dims or {}, "optimizer": optimizer, "shard_optimizer": shard_optimizer,
        "microbatches": microbatches, "remat": remat, "kv_cache_tokens": kv_cache_tokens, "cost_model": cost_model,
        "strict": strict,
    }  # fmt: skip
    instance = read(*request_of({"model": model, "mesh": mesh, "cluster": cluster, **asked}))
    say = on_warning or _warn
    for diagnostic in (*instance.model.warnings, *instance.cluster.warnings):
        say(diagnostic)
    planner = Planner(instance.model, instance.cluster, instance.options, on_warning=say, every_choice=True)
    built, memory = planner.built_at()
    return as_networkx(as_serial(built), memory)


def _warn(diagnostic: Diagnostic) -> None:
    warn(str(diagnostic))


def as_networkx(built: CostGraph, memory: MemoryRows) -> nx.MultiDiGraph:
    """`built`, whose moves are charged at full length, in the form that `cost_graph` documents."""
    cluster = built.cluster
    graph = nx.MultiDiGraph(
        model=built.model.name, mesh=str(cluster.mesh), cluster=cluster.name, mode=built.options.mode
    )
    held = _held_bytes(built, memory)
    number = {operator.name: index for index, operator in enumerate(built.model.operators)}
    spaces = {id(data["space"]): data["space"] for _, data in built.graph.nodes(data=True)}
    texts = {key: _choices(space, cluster.mesh) for key, space in spaces.items()}
    for node, data in built.graph.nodes(data=True):
        kind, name = node
        shared = {"kind": kind, "name": name, "choices": texts[id(data["space"])], "memory_bytes": held[node]}
        graph.add_node(_key(node), **shared, **_own(built, number, node, data["space"]))
    for _, _, data in built.graph.edges(data=True):
        source, target = data["source"], data["target"]
        about = {"kind": _edge_kind(source, target), "tensor": _tensor(source, target)}
        graph.add_edge(_key(source), _key(target), **about, table_s=data["table"] / PS_PER_S)
    return graph


def _key(node: Node) -> str:
    return ":".join(node)


def _choices(space: OperatorSpace | TensorSpace, mesh: Mesh) -> tuple[str, ...]:
    if isinstance(space, TensorSpace):
        return tuple(to_text(space.layout(choice), mesh) for choice in range(len(space)))
    return tuple(_split(space.strategies.labels(strategy), mesh) for strategy in range(len(space)))


def _split(labels: Iterable[str], mesh: Mesh) -> str:
    return " ".join(f"{label}@{axis}" for label, axis in zip(labels, mesh.names, strict=True) if label != "-") or "-"


def _own(built: CostGraph, number: Mapping[str, int], node: Node, space: OperatorSpace | TensorSpace) -> dict[str, Any]:
    """What an operator, or a tensor, is, and the seconds of its choices."""
    name = node[1]
    if isinstance(space, TensorSpace):
        tensor = built.model.tensor(name)
        steps = name in built.trainable and built.optimizer_node(name)[0] == node
        seconds = built.pricer.optimizer_seconds(space, tensor.dtype) if steps else np.zeros(len(space))
        return {"cost_s": seconds, "role": tensor.role, "dtype": tensor.dtype, "shape": tensor.shape}
    operator = built.model.operators[number[name]]
    inner_s = space.inner_s.sum(axis=(0, 1))  # of both passes and all mesh axes
    return {
        "cost_s": space.compute_s + inner_s,
        "compute_s": space.compute_s,
        "communication_s": inner_s,
        "op_type": operator.op_type,
        "module": operator.module,
        "flops": float(space.strategies.rule.flops),
    }


def _edge_kind(source: Node, target: Node) -> str:
    if target[0] == "operator":
        return "carried" if source[0] == "operator" else "read"
    return "made" if source[0] == "operator" else target[0]


def _tensor(source: Node, target: Node) -> str:
    return next((name for kind, name in (source, target) if kind != "operator"), "")


def _held_bytes(built: CostGraph, memory: MemoryRows) -> dict[Node, NDArray[np.int64]]:
    """For every node and choice, the bytes of one device at the moment when they are most."""
    of_node: dict[Node, list[Holding]] = {node: [] for node in built.graph.nodes}
    for holding in memory.holdings:
        of_node[holding.node].append(holding)
    zeros = {node: np.zeros(len(built.graph.nodes[node]["space"]), dtype=np.int64) for node in of_node}
    return {
        node: np.max(
            [sum((h.amount for h in held if h.start <= first.start < h.end), zeros[node]) for first in held], axis=0
        )
        if held
        else zeros[node]
        for node, held in of_node.items()
    }
