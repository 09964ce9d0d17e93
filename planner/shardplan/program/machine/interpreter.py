"""Runs the nodes of an operator on all devices of a mesh in lockstep: ONNX operators by the reference evaluator on
every device, collectives on all devices together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardplan.layout.mesh import Mesh
from shardplan.model.types import Operator
from shardplan.program.collectives import node_bytes, run_node
from shardplan.program.nodes import COORDINATES, DOMAIN, Array, Graph, Node, Operands
from shardplan.program.operators.registry import describe
from shardplan.program.reference.evaluate import evaluate, widen
from shardplan.program.types import Local, Site

OPSET = 21
"""Of the nodes around an operator, whose own version is that of its model."""
Evaluate = Callable[[Operator, Mapping[str, Any], Operands], list[Array]]
_Values = dict[str, Array]


def run_operator(
    site: Site, local: Local, operands: Sequence[Operands], moved: Counter[str], run: Evaluate = evaluate
) -> list[list[Array]]:
    """The results of an operator by rank, from the operands of every rank; absent ones are empty arrays.

    `moved`: bytes received by all devices are added up here by kind of collective. `run`: runs a local operator. Raises
    `ShardplanError` where the operator cannot be run on shards.
    """
    graph = Graph(site.mesh, OPSET)
    sides = ((site.operand_shapes, site.local_operand), (site.result_shapes, site.local_result))
    reads, makes = (
        [
            graph.describe(f"{letter}{place}", dtypes[place], local_of(place)) if shape is not None else ""
            for place, shape in enumerate(shapes)
        ]
        for letter, dtypes, (shapes, local_of) in zip("io", site.dtypes, sides, strict=True)
    )
    describe(graph, site, local, reads, makes)
    known = {name: widen(array) for name, array in graph.constants.items()}
    values: list[_Values] = []
    for held, place in zip(operands, site.mesh.coordinates(), strict=True):
        given = {name: array for name, array in zip(reads, held, strict=False) if name and array is not None}
        values.append({COORDINATES: np.array(place, np.int64), **known, **given})
    Interpreter(site.mesh, moved, run).run(graph.nodes, values)
    return [[made[name] if name else np.zeros(0) for name in makes] for made in values]


@dataclass(frozen=True, slots=True)
class Interpreter:
    """Runs nodes one after the other on all devices. `moved`: bytes received, by kind of collective; `evaluate`: runs
    a local operator."""

    mesh: Mesh
    moved: Counter[str]
    evaluate: Evaluate

    def run(self, nodes: Sequence[Node], values: Sequence[_Values]) -> None:
        """Run `nodes`; `values`: of every rank by name, to which results are added."""
        for node in nodes:
            if node.domain == DOMAIN:
                self._collective(node, values)
            elif node.body is not None:
                self._scan(node, values)
            else:
                self._local(node, values)

    def _collective(self, node: Node, values: Sequence[_Values]) -> None:
        arrays = [held[node.inputs[0]] for held in values]
        kind, moved = node_bytes(node.op_type, arrays, node.attributes)
        self.moved[kind] += moved
        for held, array in zip(values, run_node(node.op_type, arrays, node.attributes), strict=True):
            held[node.outputs[0]] = array

    def _local(self, node: Node, values: Sequence[_Values]) -> None:
        """An operator on every device; devices that have the very same operands share the result."""
        operator = Operator(
            node.name, node.op_type, node.inputs, node.outputs, node.attributes, node.domain, node.version
        )
        known: dict[tuple[int, ...], list[Array]] = {}
        for held, coordinates in zip(values, self.mesh.coordinates(), strict=True):
            operands = [held[name] if name else None for name in node.inputs]
            if node.kernel is not None:
                made = node.kernel(operands, coordinates)
            else:
                key = tuple(map(id, operands))
                made = known[key] if key in known else self.evaluate(operator, node.attributes, operands)
                known[key] = made
            held.update((name, array) for name, array in zip(node.outputs, made, strict=False) if name)

    def _scan(self, node: Node, values: Sequence[_Values]) -> None:
        """The body once for each entry; what it reads from around it is there already."""
        body = node.body
        assert body is not None
        inside = [{**held, **_renamed(held, node.inputs[:-1], body.inputs[:-1])} for held in values]
        made: list[list[Array]] = [[] for _ in values]
        for step in range(len(values[0][node.inputs[-1]])):
            for held, around in zip(inside, values, strict=True):
                held[body.inputs[-1]] = around[node.inputs[-1]][step]
            self.run(body.graph.nodes, inside)
            for held, entries in zip(inside, made, strict=True):
                entries.append(held[body.outputs[-1]])
                held.update(_renamed(held, body.outputs[:-1], body.inputs[:-1]))
        for around, held, entries in zip(values, inside, made, strict=True):
            around.update(_renamed(held, body.inputs[:-1], node.outputs[:-1]))
            around[node.outputs[-1]] = np.stack(entries)


def _renamed(values: Mapping[str, Array], names: Sequence[str], others: Sequence[str]) -> _Values:
    return {other: values[name] for name, other in zip(names, others, strict=True)}
