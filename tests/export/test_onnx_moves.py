"""Moves as ONNX nodes: every collective, run by ONNX's reference evaluator on all ranks, leads to its target layout.

Many collectives are written into one graph, whose inputs are the values they begin with.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from mesh_values import shard
from onnx import TensorProto, checker, helper, numpy_helper

from shardplan.export.onnx.protos import info_proto, node_proto
from shardplan.export.onnx.reference import run_ranks
from shardplan.layout.layout import Layout
from shardplan.layout.legal import legal_for, local_shape
from shardplan.layout.lower import Step, by_bytes, lower
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import P, R, S
from shardplan.layout.table import transition_table
from shardplan.model.types import Tensor
from shardplan.program.collectives import unshard
from shardplan.program.moves import emit_steps
from shardplan.program.nodes import COORDINATES, DOMAIN, Graph


def mesh_of(sizes):
    return Mesh.of(**{f"axis{number}": size for number, size in enumerate(sizes)})


def whole(shape):
    return np.random.default_rng(0).integers(-50, 50, shape).astype(np.float64)


def run_moves(mesh, array, moves):
    """The values after each of `moves`, (source, steps), on every rank; and the graph."""
    graph = Graph(mesh, 21)
    tensor = Tensor("x", array.shape, "double", "activation")
    sources = list(dict.fromkeys(source for source, _ in moves))
    names = {source: graph.name("x") for source in sources}
    outputs = [graph.name("y") for _ in moves]
    for name, (source, steps) in zip(outputs, moves, strict=True):
        emit_steps(graph, names[source], tensor, source, steps, name)
    for source, name in names.items():
        graph.describe(name, "double", local_shape(source, mesh, array.shape))
    infos = [info_proto(name, graph.described[name]) for name in names.values()]
    made_infos = [info_proto(name, graph.described[name]) for name in outputs]
    nodes = [node_proto(node) for node in graph.nodes]
    constants = [numpy_helper.from_array(array, name) for name, array in graph.constants.items()]
    models = []
    for place in mesh.coordinates():
        here = numpy_helper.from_array(np.array(place, np.int64), COORDINATES)
        made = helper.make_graph(nodes, "moves", infos, made_infos, [here, *constants])
        imports = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
        models.append(helper.make_model(made, opset_imports=imports, ir_version=10))
    checker.check_model(models[0])
    held = {names[source]: shard(array, source, mesh) for source in sources}
    feeds = [{name: locals_[rank] for name, locals_ in held.items()} for rank in range(mesh.size)]
    results = run_ranks(models, feeds)
    return [[result[name] for result in results] for name in outputs], graph


def assert_moves(mesh, array, moves):
    values, graph = run_moves(mesh, array, moves)
    for value, (source, steps) in zip(values, moves, strict=True):
        target = steps[-1].target
        if any(p.kind == "P" for p in target.placements):
            assert np.array_equal(unshard(value, target, mesh), array), (source, steps)
        else:
            for local, expected in zip(value, shard(array, target, mesh), strict=True):
                assert np.array_equal(local, expected), (source, steps)
    return graph


def transitions_of(mesh, shape, alphabet):
    """Every legal single collective between layouts over `alphabet`."""
    table, legal = transition_table(mesh, alphabet), legal_for(mesh, shape)
    rows = zip(table.source.tolist(), table.target.tolist(), table.kind_index.tolist(), strict=True)
    states, kinds = table.states, table.collectives
    every = [(states[u], (Step(kinds[kind], states[v]),)) for u, v, kind in rows]
    return [(source, steps) for source, steps in every if legal(source) and legal(steps[0].target)]


def sampled(moves, most, seed=3):
    return moves if len(moves) <= most else random.Random(seed).sample(moves, most)


@pytest.mark.parametrize("sizes", [(2, 2), (2, 3), (2, 2, 2)], ids=str)
def test_every_kind_of_collective(sizes):
    mesh = mesh_of(sizes)
    shape = (mesh.size,) * 2
    graph = assert_moves(mesh, whole(shape), sampled(transitions_of(mesh, shape, (S(0), S(1), P())), 400))
    kinds = {node.op_type for node in graph.nodes if node.domain == DOMAIN}
    assert kinds == {"AllReduce", "AllGather", "ReduceScatter", "AllToAll", "Permute"}


@pytest.mark.parametrize(
    ("sizes", "shape", "split"),
    [
        ((2, 2), (4, 24), S(1, (8, 8, 8))),
        ((2, 2), (4, 16), S(1, (8, 4, 4))),
        ((2, 2), (4, 16), S(1, (4, 4, 4, 4))),
        ((2, 3), (6, 36), S(1, (6,) * 6)),
    ],
    ids=str,
)
def test_segmented_shards(sizes, shape, split):
    """Between plain and segmented shards of one dim the pieces of an all-to-all are of unequal size."""
    mesh = mesh_of(sizes)
    assert_moves(mesh, whole(shape), sampled(transitions_of(mesh, shape, (S(0), S(1), split, P())), 800))


def test_sequences_of_collectives():
    mesh = mesh_of((2, 2, 2))
    states = transition_table(mesh, (S(0), S(1), S(2), P())).states
    draw = random.Random(5)
    pairs = [(draw.choice(states), draw.choice(states)) for _ in range(60)]
    price = by_bytes(mesh)
    moves = [(u, lower(mesh, u, v, price)) for u, v in pairs if u != v]
    assert max(len(steps) for _, steps in moves) > 1
    assert_moves(mesh, whole((8, 8, 8)), moves)


@pytest.mark.parametrize("reduction", ["max", "min", "prod"])
def test_other_reductions(reduction):
    mesh = mesh_of((2, 2))
    array = np.random.default_rng(1).integers(1, 5, (4, 4)).astype(np.float64)
    both = Layout.of(P(reduction), P(reduction))
    moves = [
        (both, lower(mesh, both, target, by_bytes(mesh))) for target in (Layout.replicated(2), Layout.of(S(1), S(0)))
    ]
    assert_moves(mesh, array, moves)


def test_a_collective_of_one_dim_is_one_node():
    """Ordinary moves need no rearrangement around the collective."""
    mesh = mesh_of((2, 2))
    for source, target in [
        (Layout.of(S(0), S(0)), Layout.of(R, R)),
        (Layout.of(P(), R), Layout.of(S(1), R)),
        (Layout.of(R, S(0)), Layout.of(R, S(1))),
        (Layout.of(P(), P()), Layout.of(R, R)),
    ]:
        steps = lower(mesh, source, target, by_bytes(mesh))
        _, graph = run_moves(mesh, whole((4, 4)), [(source, steps)])
        assert len(graph.nodes) == len(steps) == 1


def test_ranks_at_different_collectives_are_noticed():
    mesh = mesh_of((2,))
    graph = Graph(mesh, 21)
    graph.all_reduce("x", (0,))
    nodes = [node_proto(node) for node in graph.nodes]
    x = helper.make_tensor_value_info("x", TensorProto.DOUBLE, [2])
    y = helper.make_tensor_value_info(graph.nodes[0].outputs[0], TensorProto.DOUBLE, [2])
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    one = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=imports, ir_version=10)
    other = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=imports, ir_version=10)
    other.graph.node[0].name = "another"
    with pytest.raises(RuntimeError, match="ranks are at different collectives"):
        run_ranks([one, other], [{"x": np.ones(2)}] * 2)
