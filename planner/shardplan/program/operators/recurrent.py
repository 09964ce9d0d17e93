"""Recurrent layers with sharded hidden units: a `Scan` over the steps, each of which gathers the state.

An LSTM and an RNN run one step on [x, h] with weights [W, R] and no recurrence, so their own activations, clipping and
peepholes are used; a GRU, which gates the state before it is multiplied, is written out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from shardplan.model.types import AttributeValue
from shardplan.program.localise import refuse
from shardplan.program.nodes import Body, Graph
from shardplan.program.operators.common import operator_node
from shardplan.program.types import Local, Site

_GATES: Mapping[str, int] = {"LSTM": 4, "RNN": 1, "GRU": 3}
_STATES: Mapping[str, int] = {"LSTM": 2, "RNN": 1, "GRU": 1}
_USUAL_OF_GRU = ("Sigmoid", "Tanh")


def recurrent(graph: Graph, site: Site, local: Local, reads: Sequence[str], makes: Sequence[str]) -> None:
    """`LSTM`, `RNN`, `GRU`, one direction after the other."""
    layer = _Layer(graph, site, local, [*reads, *[""] * (8 - len(reads))])
    count = site.local_operand(1)[0]
    runs = [layer.direction(number) for number in range(count)]
    wanted = [*makes, "", "", ""][: 1 + _STATES[site.kind]]
    for place, name in enumerate(wanted):
        if name:
            joined = _joined(graph, [run[place] for run in runs], 1 if place == 0 else 0)
            perm = (2, 0, 1, 3) if place == 0 else (1, 0, 2)
            if layer.batch_first:
                graph.transpose(joined, perm, to=name)
            else:
                graph.op("Identity", joined, to=name)


def _joined(graph: Graph, values: Sequence[str], dim: int) -> str:
    return graph.op("Concat", *values, axis=dim) if len(values) > 1 else values[0]


class _Layer:
    """One layer on one device: its sizes, its data as steps."""

    def __init__(self, graph: Graph, site: Site, local: Local, reads: Sequence[str]) -> None:
        self.graph, self.site, self.local, self.reads = graph, site, local, reads
        self.batch_first = bool(local.attributes.get("layout", 0))
        data = site.local_operand(0)
        self.steps, self.batch, self.width = (data[1], data[0], data[2]) if self.batch_first else data
        self.data = graph.transpose(reads[0], (1, 0, 2)) if self.batch_first else reads[0]
        self.hidden = site.local_operand(2)[1] // _GATES[site.kind]
        self.whole_hidden = self.hidden * site.mesh.ways(site.axes("h"))
        self.dtype = graph.dtype(reads[0])

    def direction(self, number: int) -> list[str]:
        """Results of all steps [steps, 1, batch, hidden], then the last states [1, batch, hidden]."""
        graph = self.graph
        backwards = self.local.attributes.get("direction") == "reverse" or number == 1
        weights, recurrence, bias = (self._part(place, number) for place in (1, 2, 3))
        states = [self._state(place, number) for place in (5, 6)[: _STATES[self.site.kind]]]
        if self.site.kind == "GRU":
            body = self._gated(weights, recurrence, bias)
        else:
            joined = graph.op("Concat", weights, recurrence, axis=2)
            body = self._body(joined, bias, self._part(7, number) if self.site.kind == "LSTM" else "")
        ends = [graph.name(f"{self.site.operator.name}/state") for _ in states]
        made = graph.name(f"{self.site.operator.name}/steps")
        data = self._turned(self.data) if backwards else self.data
        graph.scan(states, data, ends, made, body)
        return [self._turned(made) if backwards else made, *ends]

    def _turned(self, steps: str) -> str:
        """Steps in the other order; not all that run a `Scan` know it backwards."""
        return self.graph.take(steps, range(self.steps)[::-1], 0)

    def _part(self, place: int, number: int) -> str:
        """Weights of one direction, which stays as a dim of 1."""
        if not self.reads[place]:
            return ""
        if self.site.local_operand(place)[0] == 1:
            return self.reads[place]
        return self.graph.take(self.reads[place], [number], 0)

    def _state(self, place: int, number: int) -> str:
        shape = (1, self.batch, self.hidden)
        if not self.reads[place]:
            return self.graph.constant(np.zeros(shape), self.dtype)
        state = self.reads[place]
        if self.batch_first:
            state = self.graph.transpose(state, (1, 0, 2))
        return self.graph.take(state, [number], 0)

    def _body(self, weights: str, bias: str, peepholes: str) -> Body:
        """One step: (states, entry) -> (states, result of the step)."""
        body, kind = self.graph.inner(), self.site.kind
        state_shape = (1, self.batch, self.hidden)
        states = [body.describe(body.name(f"state{i}"), self.dtype, state_shape) for i in range(_STATES[kind])]
        entry = body.describe(body.name("entry"), self.dtype, (self.batch, self.width))
        gathered = self._gathered(body, states[0], 2)
        both = body.op("Concat", entry, body.reshape(gathered, [self.batch, self.whole_hidden]), axis=1)
        inputs = body.reshape(both, [1, self.batch, self.width + self.whole_hidden])
        unused = body.constant(np.zeros((1, _GATES[kind] * self.hidden, self.hidden)), self.dtype)
        nothing = body.constant(np.zeros(state_shape), self.dtype)
        given = [inputs, weights, unused, bias, "", nothing, *states[1:]]
        given += [peepholes] if peepholes else []
        made = [body.describe(body.name(f"after{i}"), self.dtype, state_shape) for i in range(len(states))]
        operator_node(body, self.site, self._attributes(), given, [body.name("made"), *made])
        return self._step(body, [*states, entry], made)

    def _gathered(self, body: Graph, state: str, dim: int) -> str:
        """What all devices have of a state."""
        return body.collective("AllGather", state, self.site.axes("h"), dim=dim)

    def _step(self, body: Graph, inputs: Sequence[str], states: Sequence[str]) -> Body:
        """The body as a graph; the first of its new states is the result of the step as well."""
        result = body.describe(body.op("Identity", states[0]), self.dtype, (1, self.batch, self.hidden))
        return Body(body, tuple(inputs), (*states, result))

    def _gated(self, weights: str, recurrence: str, bias: str) -> Body:
        """One step of a `GRU`. Where the reset gate comes before the product with the state, the gated state is
        gathered as well.
        """
        self._check_usual()
        graph, hidden = self.graph, self.hidden
        gates = [
            [graph.transpose(graph.reshape(part, [hidden, -1]), (1, 0)) for part in self._cut(value, 1, 3)]
            for value in (weights, recurrence)
        ]
        bias = bias or graph.constant(np.zeros((1, 6 * hidden)), self.dtype)
        biases = [graph.reshape(part, [hidden]) for part in self._cut(bias, 1, 6)]
        body = graph.inner()
        state = body.describe(body.name("state"), self.dtype, (1, self.batch, hidden))
        entry = body.describe(body.name("entry"), self.dtype, (self.batch, self.width))
        held = body.reshape(state, [self.batch, hidden])
        gathered = self._gathered(body, held, 1)
        given = [body.op("Add", body.op("MatMul", entry, gates[0][g]), biases[g]) for g in range(3)]

        def from_state(value: str, gate: int) -> str:
            return body.op("Add", body.op("MatMul", value, gates[1][gate]), biases[3 + gate])

        update, reset = (body.op("Sigmoid", body.op("Add", given[g], from_state(gathered, g))) for g in range(2))
        if self.local.attributes.get("linear_before_reset", 0):
            inside = body.op("Mul", reset, from_state(gathered, 2))
        else:
            gated = self._gathered(body, body.op("Mul", reset, held), 1)
            inside = from_state(gated, 2)
        fresh = body.op("Tanh", body.op("Add", given[2], inside))
        less = body.op("Sub", body.constant(1, self.dtype), update)
        after = body.op("Add", body.op("Mul", less, fresh), body.op("Mul", update, held))
        made = body.describe(body.reshape(after, [1, self.batch, hidden]), self.dtype, (1, self.batch, hidden))
        return self._step(body, [state, entry], [made])

    def _cut(self, value: str, dim: int, count: int) -> list[str]:
        """Equal parts of `[1, parts * hidden, ...]` along `dim`."""
        return [
            self.graph.take(value, range(part * self.hidden, (part + 1) * self.hidden), dim) for part in range(count)
        ]

    def _check_usual(self) -> None:
        usual = self.local.attributes.get("activations", _USUAL_OF_GRU)
        if tuple(usual)[:2] != _USUAL_OF_GRU or "clip" in self.local.attributes:  # type: ignore[arg-type]
            raise refuse(self.site, "its activations are not those of every GRU")

    def _attributes(self) -> dict[str, AttributeValue]:
        return {name: value for name, value in self.local.attributes.items() if name != "layout"} | {
            "direction": "forward"
        }
