"""A state-space layer, after Mamba-2: a linear recurrence per head, whose decay depends on the token.

With x_t the value of a head, B_t and C_t what writes and reads its state, and dt_t > 0 the step of a token,

    S_t = exp(-exp(A) dt_t) S_{t-1} + B_t (dt_t x_t)^T        y_t = C_t^T S_t + D x_t

which is gated linear attention with C for queries, B for keys and dt x for values (Dao and Gu 2024). Heads of one group
share B and C.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np

from shardplan.model.types import AttributeValue
from shardplan.models.convolution import causal_convolution
from shardplan.models.graph import GraphWriter, Linear
from shardplan.models.heads import repeated
from shardplan.models.spec import TransformerSpec

STATE_SPACE_OPSET: Final = 27
"""The first one that has `LinearAttention` and `CausalConvWithState`."""


def state_space(graph: GraphWriter, spec: TransformerSpec, x: str, module: str, linear: Linear) -> str:
    """[batch, seq, hidden] -> the same, through a Mamba-2 mixer."""
    return _Mixer(graph, spec, module).mixed(x, linear)


class _Mixer:
    """`heads` of `size`, with states of `size` by `state`; `groups` groups of heads."""

    def __init__(self, graph: GraphWriter, spec: TransformerSpec, module: str) -> None:
        self.graph, self.spec, self.module = graph, spec, module
        self.heads, self.size = spec.heads_of_state, spec.state_head_size
        self.groups, self.state = spec.state_groups, spec.state_size
        self.inner, self.shared = self.heads * self.size, self.groups * self.state
        self.rows = (spec.batch, spec.seq)

    def mixed(self, x: str, linear: Linear) -> str:
        """The layer, from what is normalised to what is added to the residual."""
        spec, module = self.spec, self.module
        sizes = (self.inner, self.inner, self.shared, self.shared, self.heads)
        made = linear(x, f"{module}.in_proj", spec.hidden, sum(sizes))
        gate, *convolved, step = self.graph.split(made, (*self.rows, sum(sizes)), sizes, f"{module}.in_proj")
        taps, name = spec.conv_size, f"{module}.conv1d"
        value, key, query = causal_convolution(
            self.graph, convolved, sizes[1:4], self.rows, name, taps, bias=spec.conv_bias
        )
        y = self._recurrence(query, key, value, self._step(step))
        return linear(self._gated_norm(y, gate), f"{module}.out_proj", self.inner, spec.hidden)

    def _step(self, x: str) -> str:
        """The step of every token and head, [batch, seq, heads]."""
        shape = (*self.rows, self.heads)
        x = self._apply("Add", [x, self.graph.weight(f"{self.module}.dt_bias", (self.heads,))], shape)
        return self._apply("Softplus", [x], shape)

    def _recurrence(self, query: str, key: str, value: str, step: str) -> str:
        """What the state says of every token, and its own value; [batch, seq, heads * size]."""
        graph, batch, seq = self.graph, *self.rows
        rate = graph.weight(f"{self.module}.A_log", (self.heads,))
        rate = self._apply("Neg", [self._apply("Exp", [rate], (self.heads,))], (self.heads,))
        decay = self._apply("Mul", [step, rate], (batch, seq, self.heads))
        by_head = (batch, seq, self.heads, self.size)
        value = self._reshape(value, by_head)
        each = self._apply("Unsqueeze", [step, graph.integers(3)], (batch, seq, self.heads, 1))
        written = self._reshape(self._apply("Mul", [value, each], by_head), (batch, seq, self.inner))
        results = [
            ((batch, seq, self.inner), graph.dtype),
            ((batch, self.heads, self.state, self.size), graph.dtype),
        ]
        attributes: dict[str, AttributeValue] = {
            "q_num_heads": self.heads,
            "kv_num_heads": self.heads,
            "scale": 1.0,
            "update_rule": "gated",
        }
        operands = [self._repeated(query), self._repeated(key), written, "", decay]
        y = graph.apply_many("LinearAttention", operands, results, self.module, attributes=attributes)[0]
        past = self._reshape(graph.weight(f"{self.module}.D", (self.heads,)), (self.heads, 1))
        past = self._reshape(self._apply("Mul", [value, past], by_head), (batch, seq, self.inner))
        return self._apply("Add", [y, past], (batch, seq, self.inner))

    def _repeated(self, x: str) -> str:
        """[batch, seq, groups * state] -> [batch, seq, heads * state]: the heads of a group have the same."""
        if self.heads == self.groups:
            return x
        sizes = (self.groups, self.heads // self.groups, self.state)
        return repeated(self.graph, x, self.rows, sizes, self.module)

    def _gated_norm(self, y: str, gate: str) -> str:
        """Gated by what stands beside the recurrence, and normalised group by group unless there is no norm."""
        graph, shape, module = self.graph, (*self.rows, self.inner), f"{self.module}.norm"
        act = graph.apply("Mul", [gate, graph.apply("Sigmoid", [gate], shape, module)], shape, module)
        y = graph.apply("Mul", [y, act], shape, module)
        if not self.spec.state_norm:
            return y
        size = self.inner // self.groups
        ones = graph.long_constant(f"ones.{size}", (size,), partial(np.ones, size, dtype=np.float32), self.spec.dtype)
        y = self._reshape(y, (*self.rows, self.groups, size))
        epsilon = self.spec.look.epsilon
        y = graph.apply(
            "RMSNormalization", [y, ones], (*self.rows, self.groups, size), module, axis=-1, epsilon=epsilon
        )
        y = self._reshape(y, shape)
        return graph.apply("Mul", [y, graph.weight(f"{module}.weight", (self.inner,))], shape, module)

    def _apply(self, op_type: str, operands: Sequence[str], shape: tuple[int, ...]) -> str:
        return self.graph.apply(op_type, operands, shape, self.module)

    def _reshape(self, x: str, shape: tuple[int, ...]) -> str:
        return self.graph.reshape(x, shape, self.module)
