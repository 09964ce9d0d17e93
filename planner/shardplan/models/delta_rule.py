"""A gated delta rule: a linear recurrence per head that forgets, and corrects what it holds of a key.

With k_t and q_t of length one, v_t the value, beta_t in (0, 1) how much is written and g_t < 0 the decay of a token,

    S_t = e^g_t S_{t-1} + k_t (beta_t (v_t - e^g_t S_{t-1}^T k_t))^T        y_t = S_t^T q_t / sqrt(d)

(Gated DeltaNet, Yang et al. 2024; Kimi Delta Attention has a decay for every dim of a key). Heads of values share the
keys and queries of a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from shardplan.model.types import AttributeValue
from shardplan.models.convolution import causal_convolution
from shardplan.models.graph import GraphWriter, Linear
from shardplan.models.heads import repeated
from shardplan.models.names import DeltaNames
from shardplan.models.spec import TransformerSpec


def delta_rule(
    graph: GraphWriter, spec: TransformerSpec, x: str, module: str, names: DeltaNames, linear: Linear
) -> str:
    """[batch, seq, hidden] -> the same, through a gated delta rule."""
    return _Rule(graph, spec, module, names, linear).mixed(x)


class _Rule:
    """`heads` of values of `size`; `groups` heads of keys and queries of `key_size`."""

    def __init__(
        self, graph: GraphWriter, spec: TransformerSpec, module: str, names: DeltaNames, linear: Linear
    ) -> None:
        self.graph, self.spec, self.module, self.names, self.linear = graph, spec, module, names, linear
        self.heads, self.size = spec.delta_heads, spec.delta_value_size
        self.groups, self.key_size = spec.delta_key_heads or spec.delta_heads, spec.delta_key_size
        self.rows = (spec.batch, spec.seq)
        keys, values = self.groups * self.key_size, self.heads * self.size
        decays = self.heads * self.key_size if spec.delta_rank else self.heads
        self.sizes = {"q": keys, "k": keys, "v": values, "z": values, "b": self.heads, "a": decays}

    def mixed(self, x: str) -> str:
        """The layer, from what is normalised to what is added to the residual."""
        made = dict[str, str]()
        for modules, letters in self.names.made:
            made |= zip(letters, self._made(x, modules, letters), strict=True)
        parts, sizes = zip(*((made[letter], self.sizes[letter]) for letter in "qkv"), strict=True)
        name = f"{self.module}.{self.names.convolution}"
        q, k, v = causal_convolution(self.graph, parts, sizes, self.rows, name, self.spec.conv_size, bias=False)
        y = self._recurrence(self._keys(q), self._keys(k), v, self._decay(made["a"]), self._share(made["b"]))
        y = self._gated_norm(y, made["z"])
        return self.linear(y, f"{self.module}.{self.names.out}", self.sizes["v"], self.spec.hidden)

    def _made(self, x: str, modules: Sequence[str], letters: str) -> Sequence[str]:
        """What the products of `modules`, one after the other, make of the input."""
        *before, last = (f"{self.module}.{name}" for name in modules)
        inner = self.spec.hidden
        for name in before:
            x, inner = self.linear(x, name, inner, self.spec.delta_rank), self.spec.delta_rank
        sizes = [self.sizes[letter] for letter in letters]
        whole = (*self.rows, sum(sizes))
        x = self.linear(x, last, inner, sum(sizes))
        if len(letters) == 1:
            return (x,)
        if not self.names.by_group:
            return self.graph.split(x, whole, sizes, last)
        own = [size // self.groups for size in sizes]
        shape = (*self.rows, self.groups, sum(own))
        pieces = self.graph.split(self._reshape(x, shape), shape, own, last)
        return [self._reshape(piece, (*self.rows, size)) for piece, size in zip(pieces, sizes, strict=True)]

    def _keys(self, x: str) -> str:
        """Queries or keys of length one, [batch, seq, heads * key size]."""
        size, epsilon = self.key_size, 1e-6 / self.key_size
        by_group = (*self.rows, self.groups, size)
        one = partial(np.full, size, size**-0.5, dtype=np.float32)
        weight = self.graph.long_constant(f"unit.{size}", (size,), one, self.spec.dtype)
        x = self._reshape(x, by_group)
        x = self.graph.apply("RMSNormalization", [x, weight], by_group, self.module, axis=-1, epsilon=epsilon)
        if self.heads == self.groups:
            return self._reshape(x, (*self.rows, self.heads * size))
        return repeated(self.graph, x, self.rows, (self.groups, self.heads // self.groups, size), self.module)

    def _share(self, x: str) -> str:
        return self._apply("Sigmoid", [x], (*self.rows, self.heads))

    def _decay(self, x: str) -> str:
        """The logarithm of what stays of the state: [batch, seq, heads], or [batch, seq, heads * key size]."""
        of = f"{self.module}.{self.names.decay}" if self.names.decay else self.module
        size = self.sizes["a"]
        shape = (*self.rows, size)
        x = self._apply("Add", [x, self.graph.weight(f"{of}.dt_bias", (size,))], shape)
        x = self._apply("Softplus", [x], shape)
        rate = self._apply("Exp", [self.graph.weight(f"{of}.A_log", (self.heads,))], (self.heads,))
        rate = self._apply("Neg", [rate], (self.heads,))
        if size == self.heads:
            return self._apply("Mul", [x, rate], shape)
        by_head = (*self.rows, self.heads, self.key_size)
        x = self._apply("Mul", [self._reshape(x, by_head), self._reshape(rate, (self.heads, 1))], by_head)
        return self._reshape(x, shape)

    def _recurrence(self, query: str, key: str, value: str, decay: str, share: str) -> str:
        """What the state says of every token, [batch, seq, heads * size]."""
        state = (self.spec.batch, self.heads, self.key_size, self.size)
        results = [((*self.rows, self.sizes["v"]), self.graph.dtype), (state, self.graph.dtype)]
        attributes: dict[str, AttributeValue] = {
            "q_num_heads": self.heads,
            "kv_num_heads": self.heads,
            "update_rule": "gated_delta",
        }
        operands = [query, key, value, "", decay, share]
        return self.graph.apply_many("LinearAttention", operands, results, self.module, attributes=attributes)[0]

    def _gated_norm(self, y: str, gate: str) -> str:
        """Normalised head by head, then gated."""
        graph, module = self.graph, f"{self.module}.{self.names.norm}"
        by_head = (*self.rows, self.heads, self.size)
        weight = graph.weight(f"{module}.weight", (self.size,))
        y, gate = self._reshape(y, by_head), self._reshape(gate, by_head)
        epsilon = self.spec.look.epsilon
        y = graph.apply("RMSNormalization", [y, weight], by_head, module, axis=-1, epsilon=epsilon)
        act = graph.apply("Sigmoid", [gate], by_head, module)
        if self.names.gate == "silu":
            act = graph.apply("Mul", [gate, act], by_head, module)
        return self._reshape(graph.apply("Mul", [y, act], by_head, module), (*self.rows, self.sizes["v"]))

    def _apply(self, op_type: str, operands: Sequence[str], shape: tuple[int, ...]) -> str:
        return self.graph.apply(op_type, operands, shape, self.module)

    def _reshape(self, x: str, shape: tuple[int, ...]) -> str:
        return self.graph.reshape(x, shape, self.module)
