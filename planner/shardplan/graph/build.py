"""Construction of the cost graph from a model, a cluster, the operators' rules and their costs.

The graph is bipartite, a networkx multigraph. An operator node's choices are strategies; a tensor's *kept* node chooses
the layout in which it is stored; if several operators read it, a *served* node chooses the layout that they share. If
optimizer state may be sharded apart from its weight, an *updated* node chooses the layout of that state. Every node and
edge carries `priced` (`shardplan.schedule.terms`): picoseconds per choice or per pair of choices, by the part of the
step to which they belong and the resource that they keep busy; and `position`, the number of the operator that causes
it. Equal operators and tensors share their spaces, and equal edges their priced objects, so depth costs next to
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import networkx as nx
import numpy as np
from networkx.utils import UnionFind
from numpy.typing import NDArray

from shardplan.cluster.types import Cluster
from shardplan.constraints.resolve import ResolvedConstraints
from shardplan.cost.occupancy import links_of
from shardplan.graph import edges
from shardplan.graph.flow import Flow, carried_pairs, trace
from shardplan.graph.fusion import Fusion, fuse
from shardplan.graph.neighbourhood import Offer
from shardplan.graph.operators import OperatorPricer, OperatorSpace
from shardplan.graph.options import PlanOptions
from shardplan.graph.precision import PRECISIONS, Cast, narrowed
from shardplan.graph.pricing import Pricing
from shardplan.graph.remat import Recompute, recompute, recomputed
from shardplan.graph.tensor_kinds import TensorKinds, tensor_kinds
from shardplan.graph.tensors import MovePrices, TensorKind, TensorSpace
from shardplan.interruption import NEVER, Deadline
from shardplan.model.types import Model
from shardplan.rules.types import Rule
from shardplan.schedule.links import LinkLevels
from shardplan.schedule.terms import Priced, Table, Term, priced
from shardplan.units import PS_PER_S

Node = tuple[str, str]
"""("operator", name), ("kept", tensor), ("served", tensor) or ("updated", weight)."""
Join = tuple[Node, Node, int]
"""An edge: its source, its target, and its number among the edges between the two, in the order of operands."""


@dataclass(frozen=True)
class CostGraph:
    """The networkx graph and what is needed to decode an assignment. `operators[i]`, `kept`, `served`: spaces."""

    graph: nx.MultiGraph
    model: Model
    cluster: Cluster
    options: PlanOptions
    rules: Sequence[Rule]
    flow: Flow
    fusion: Fusion
    recompute: Recompute
    prices: MovePrices
    pricer: OperatorPricer
    operators: Sequence[OperatorSpace]
    kept: Mapping[str, TensorSpace]
    served: Mapping[str, TensorSpace]
    updated: Mapping[str, TensorSpace]
    trainable: frozenset[str]
    lowered: dict[tuple[object, ...], object] = field(default_factory=dict)
    """Moves as collectives, by everything they depend on: lowered once for all assignments."""
    decided: dict[tuple[int, int], object] = field(default_factory=dict)
    """The decision of a plan on an operator, by its number and strategy."""
    emitted: dict[tuple[object, ...], object] = field(default_factory=dict)
    """The moves along one edge for a pair of choices."""
    emitted_around: dict[tuple[object, ...], object] = field(default_factory=dict)
    """The moves of what an operator reads and makes, for its number and the choices of `nodes_around`."""
    is_near: bool = False
    """Whether only some layouts are offered: moves that pass through others may be priced too high."""

    @cached_property
    def node_data(self) -> tuple[tuple[Node, dict[str, Any]], ...]:
        """Nodes in graph order with their attributes; cached, since networkx builds this list anew each time."""
        return tuple(self.graph.nodes(data=True))

    @cached_property
    def edge_data(self) -> tuple[dict[str, Any], ...]:
        """Attributes of the edges in graph order; `source` and `target` are its nodes."""
        return tuple(data for _, _, data in self.graph.edges(data=True))

    @cached_property
    def number(self) -> Mapping[str, int]:
        """Operators by name."""
        return {operator.name: index for index, operator in enumerate(self.model.operators)}

    @cached_property
    def links(self) -> LinkLevels:
        """The shares of the cluster's links that collectives take."""
        return links_of(self.cluster)

    @cached_property
    def node_numbers(self) -> Mapping[Node, int]:
        """The index of every node in graph order."""
        return {node: place for place, (node, _) in enumerate(self.node_data)}

    @cached_property
    def ends(self) -> tuple[tuple[int, int], ...]:
        """Numbers of the two nodes of every edge, in graph order."""
        numbers = self.node_numbers
        return tuple((numbers[data["source"]], numbers[data["target"]]) for data in self.edge_data)

    @cached_property
    def joins(self) -> tuple[Join, ...]:
        """The edges in graph order."""
        numbers: dict[tuple[Node, Node], int] = {}
        found: list[Join] = []
        for data in self.edge_data:
            ends = data["source"], data["target"]
            numbers[ends] = numbers.get(ends, -1) + 1
            found.append((*ends, numbers[ends]))
        return tuple(found)

    @cached_property
    def all_work(self) -> tuple[tuple[Table, ...], tuple[Table, ...]]:
        """Picoseconds of all compute and communication of a step without overlap: of nodes and of edges, in graph
        order, by choice or pair of choices."""
        micro, known = self.options.microbatches, dict[int, Table]()

        def work(priced: Priced) -> Table:
            if id(priced) not in known:
                counts = [micro if term.segment in ("forward", "backward") else 1 for term in priced.terms]
                known[id(priced)] = priced.at(counts)
            return known[id(priced)]

        nodes = tuple(work(data["priced"]) for _, data in self.node_data)
        return nodes, tuple(work(data["priced"]) for data in self.edge_data)

    @property
    def places(self) -> Mapping[str, Mapping[str, TensorSpace]]:
        """The spaces of tensors by kind of node."""
        return {"kept": self.kept, "served": self.served, "updated": self.updated}

    def tie_picoseconds(self, choice: Mapping[Node, int]) -> float:
        """The picoseconds that the objective adds for all tensors' layouts to break ties."""
        kept = sum(float(space.ties[choice["kept", name]]) for name, space in self.kept.items())
        return kept + sum(float(space.ties[choice["updated", name]]) for name, space in self.updated.items())

    def optimizer_node(self, weight: str) -> tuple[Node, TensorSpace]:
        """The node that chooses the layout of a weight's optimizer state, and its choices."""
        if weight in self.updated:
            return ("updated", weight), self.updated[weight]
        return ("kept", weight), self.kept[weight]

    @cached_property
    def nodes_around(self) -> tuple[tuple[Node, ...], ...]:
        """By operator, the nodes on whose choices the moves of what it reads and makes depend."""
        places = (("kept", self.kept), ("served", self.served))
        found = []
        for operator in self.model.operators:
            names = dict.fromkeys((*operator.inputs, *operator.outputs))
            own = [(kind, name) for name in names for kind, spaces in places if name in spaces]
            found.append((("operator", operator.name), *own))
        return tuple(found)

    def source_of_reads(self, tensor: str) -> Node:
        """The node from which readers take a tensor: its served node if it has one, else its kept node."""
        return ("served" if tensor in self.served else "kept", tensor)


def build_cost_graph(
    model: Model,
    rules: Sequence[Rule],
    cluster: Cluster,
    options: PlanOptions,
    *,
    pricing: Pricing | None = None,
    constraints: ResolvedConstraints | None = None,
    remat: Recompute | None = None,
    near: Offer | None = None,
    deadline: Deadline = NEVER,
) -> CostGraph:
    """The cost graph of `model`, whose operator i has rule `rules[i]`, on `cluster`.

    `pricing`: the cost model, by default ours; passing the same object again shares its prices. `constraints`: shards
    that must be among the choices because a constraint names them. `remat`: what is recomputed, by default what
    `options.remat` says. `near`: the only layouts to offer. Raises `GivenUpError` at the deadline.
    """
    constraints = constraints or ResolvedConstraints()
    flow = trace(model, rules, training=options.training)
    fusion = fuse(model, rules, flow)
    remat = remat or recompute(model, rules, flow, fusion, options)
    pricing = pricing or Pricing.of(cluster)
    kinds = tensor_kinds(model, rules, flow, cluster.mesh, options, constraints)
    prices = pricing.moves.in_buckets(min(pricing.moves.bucket_bytes, kinds.coalesced_bytes))
    spaces = _Spaces(prices, kinds, near)
    kept = {name: spaces.of(kind) for name, kind in kinds.kept.items()}
    served = {name: spaces.of(kind) for name, kind in kinds.served.items()}
    updated = {name: spaces.of(kind) for name, kind in kinds.updated.items()}
    pricer = OperatorPricer(cluster, pricing, options)
    narrow = narrowed(model, rules, options.precision)
    operators = [
        pricer.space(
            rule,
            [_read_space(kept, served, name) for name in operator.inputs],
            [kept.get(name) for name in operator.outputs],
            traffic=(fusion.read_operands[index], fusion.written_results[index], fusion.launches[index]),
            dtype=PRECISIONS[options.precision].dtype if index in narrow else _compute_dtype(model, index),
            cast=Cast(PRECISIONS[options.precision].cast_bytes, narrow[index]) if index in narrow else None,
            forwards=remat.forwards(index),
            iterations=model.iterations(operator.loops),
        )
        for index, (operator, rule) in enumerate(deadline.over(zip(model.operators, rules, strict=True)))
    ]
    built = CostGraph(
        nx.MultiGraph(), model, cluster, options, rules, flow, fusion, remat, prices, pricer, operators, kept, served,
        updated, kinds.trainable, is_near=near is not None,
    )  # fmt: skip
    return _with_prices(built, deadline)


def regathering(built: CostGraph, deadline: Deadline = NEVER) -> CostGraph:
    """The same choices with the prices as if no gathered weight stayed for backward. Raises `GivenUpError`."""
    recompute = recomputed(
        built.model, built.rules, built.flow, built.recompute.until, built.recompute.saved, holds=False
    )
    return _with_prices(replace(built, graph=nx.MultiGraph(), recompute=recompute), deadline)


def in_buckets(built: CostGraph, bucket_bytes: float) -> CostGraph:
    """The same choices with the prices as if gradients and new weights were sent in buckets of another size."""
    prices, made = built.prices.in_buckets(bucket_bytes), dict[int, TensorSpace]()

    def repriced(named: Mapping[str, TensorSpace]) -> dict[str, TensorSpace]:
        return {name: made.setdefault(id(space), space.priced_by(prices)) for name, space in named.items()}

    kept, served, updated = map(repriced, (built.kept, built.served, built.updated))
    return _with_prices(replace(built, graph=nx.MultiGraph(), prices=prices, kept=kept, served=served, updated=updated))


def _with_prices(built: CostGraph, deadline: Deadline = NEVER) -> CostGraph:
    """A cost graph whose nodes and edges are still to be added, with them. Raises `GivenUpError` at the deadline."""
    _add_nodes(built)
    _add_edges(built, deadline)
    return built


class _Spaces:
    """The choices of every kind of tensor, made once."""

    def __init__(self, prices: MovePrices, given: TensorKinds, near: Offer | None) -> None:
        self._prices, self._near = prices, near
        self._made: dict[TensorKind, TensorSpace] = {}
        self._together = UnionFind()
        """Kinds of one tensor that is kept, served and updated: moves between them use the same layouts."""
        self._names: dict[TensorKind, set[str]] = {}
        roles = (given.kept, given.served, given.updated)
        if near is None:
            return
        for name in sorted(set().union(*roles)):
            self._together.union(*(kinds[name] for kinds in roles if name in kinds))
        for kinds in roles:
            for name, kind in kinds.items():
                self._names.setdefault(self._together[kind], set()).add(name)

    def of(self, kind: TensorKind) -> TensorSpace:
        if kind not in self._made:
            mesh, nearby = self._prices.mesh, None
            if self._near is not None:
                nearby = self._near.to(self._names[self._together[kind]], kind, mesh.shape)
            self._made[kind] = TensorSpace(kind, mesh, self._prices, nearby)
        return self._made[kind]


def _read_space(kept: Mapping[str, TensorSpace], served: Mapping[str, TensorSpace], name: str) -> TensorSpace | None:
    return served.get(name) or kept.get(name)


def _compute_dtype(model: Model, index: int) -> str:
    """The dtype in which an operator computes: that of its first float operand, else of its first result."""
    operator = model.operators[index]
    names = [name for name in (*operator.inputs, *operator.outputs) if name]
    return next((model.tensor(n).dtype for n in names if model.tensor(n).is_float), model.tensor(names[0]).dtype)


def _constant(picoseconds: NDArray[np.float64]) -> Priced:
    """Costs with coefficient one in every objective: the optimizer's step, and tie breaking."""
    return priced({Term("update", "compute"): picoseconds}, shape=picoseconds.shape)


ANYWHERE = -1
"""Position of operators that read only weights: schedules may postpone them, so they are on no side of a cut."""


def _add_nodes(built: CostGraph) -> None:
    """Nodes in graph order: what an operator reads, itself, what it makes."""
    graph, added = built.graph, set[str]()
    spaces = {id(space): space for space in built.kept.values()}
    ties = {number: _constant(space.ties) for number, space in spaces.items()}

    def add_tensor(name: str) -> None:
        if not name or name in added or name not in built.kept:
            return
        added.add(name)
        space = built.kept[name]
        graph.add_node(("kept", name), priced=ties[id(space)], space=space)
        if name in built.trainable:
            node, state = built.optimizer_node(name)
            seconds = built.pricer.optimizer_seconds(state, built.model.tensor(name).dtype)
            picoseconds = np.rint(seconds * PS_PER_S) + state.ties
            graph.add_node(node, priced=_constant(picoseconds), space=state)
        if name in built.served:
            serving = built.served[name]
            graph.add_node(("served", name), priced=_constant(np.zeros(len(serving))), space=serving)

    for name in built.model.inputs:
        add_tensor(name)
    for index, (operator, space) in enumerate(zip(built.model.operators, built.operators, strict=True)):
        for name in operator.inputs:
            add_tensor(name)
        position = ANYWHERE if built.flow.is_of_weights(operator) else index
        graph.add_node(("operator", operator.name), priced=space.priced, space=space, position=position)
        for name in operator.outputs:
            add_tensor(name)


def _add_edges(built: CostGraph, deadline: Deadline) -> None:
    tables: dict[tuple[object, ...], Priced] = {}
    graph, remat, outputs = built.graph, built.recompute, frozenset(built.model.outputs)
    model = built.model
    for index, (operator, space) in enumerate(deadline.over(zip(model.operators, built.operators, strict=True))):
        node, strategies = ("operator", operator.name), space.strategies
        for position, name in enumerate(operator.inputs):
            source = _read_space(built.kept, built.served, name)
            if source is not None:
                times, iterations = remat.reads(index, position), model.iterations(operator.reads_in)
                key = ("read", id(source), id(strategies), position, times, iterations)
                if key not in tables:
                    last = source.kind.coalesces and iterations == 1
                    tables[key] = edges.to_read(
                        source, strategies, position, forwards=times, last=last, iterations=iterations
                    )
                _join(graph, built.source_of_reads(name), node, tables[key], built.flow.runs_at[index])
        for position, name in enumerate(operator.outputs):
            kept = built.kept.get(name)
            if kept is not None:
                times, iterations = remat.forwards(index), model.iterations(operator.makes_in)
                unread = name not in built.flow.readers and name not in outputs
                made_key = ("made", id(kept), id(strategies), position, times, unread, iterations)
                if made_key not in tables:
                    tables[made_key] = edges.made_to_kept(
                        strategies, position, kept, forwards=times, unread=unread, iterations=iterations
                    )
                _join(graph, node, ("kept", name), tables[made_key], index)
    for name, serving in deadline.over(built.served.items()):
        times, iterations = remat.serves(name), model.iterations(built.flow.lives_in.get(name, ()))
        serving_key = ("served", id(built.kept[name]), id(serving), times, iterations)
        if serving_key not in tables:
            last = built.kept[name].kind.coalesces and iterations == 1
            tables[serving_key] = edges.kept_to_served(
                built.kept[name], serving, forwards=times, last=last, iterations=iterations
            )
        _join(graph, ("kept", name), ("served", name), tables[serving_key], built.flow.first_use(name))
    _add_updates(built, tables)
    _tie_carried(built, tables)


def _add_updates(built: CostGraph, tables: dict[tuple[object, ...], Priced]) -> None:
    for name, state in built.updated.items():
        updated_key = ("updated", id(built.kept[name]), id(state))
        if updated_key not in tables:
            tables[updated_key] = edges.kept_to_updated(built.kept[name], state)
        _join(built.graph, ("kept", name), ("updated", name), tables[updated_key], built.flow.first_use(name))


def _tie_carried(built: CostGraph, tables: dict[tuple[object, ...], Priced]) -> None:
    """Constrains a value that a loop carries to one layout over all iterations."""
    for entering, leaving in carried_pairs(built.model):
        enter, leave = (built.operators[index].strategies for index in (entering, leaving))
        key = ("carried", id(enter), id(leave))
        if key not in tables:
            tables[key] = edges.around(enter, leave)
        first, last = (("operator", built.model.operators[index].name) for index in (entering, leaving))
        _join(built.graph, first, last, tables[key], leaving)


def _join(graph: nx.MultiGraph, source: Node, target: Node, moves: Priced, position: int) -> None:
    """Adds an undirected edge that records which node the rows of its tables belong to; `position`: the operator that
    first waits for its moves in forward, and last makes the gradient that moves back."""
    graph.add_edge(source, target, source=source, target=target, priced=moves, position=position)
