"""The graph of a transformer from its sizes, operator by operator as exporters write it."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from shardplan.model.types import Model
from shardplan.models.convolution import short_convolution
from shardplan.models.delta_rule import delta_rule
from shardplan.models.experts import activated, dropless_mlp, routed_mlp
from shardplan.models.graph import OPSET, GraphWriter
from shardplan.models.latent import latent_heads
from shardplan.models.lightning import lightning_attention
from shardplan.models.names import NAMES, Names
from shardplan.models.spec import TransformerSpec
from shardplan.models.spec_faults import check
from shardplan.models.state_space import STATE_SPACE_OPSET, state_space


def transformer(name: str = "transformer", **sizes: object) -> Model:
    """The model with the given sizes, which are the fields of `TransformerSpec`.

    `transformer(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)` is Llama-3-8B. Inputs are
    `input_ids` [batch, seq] (and `position_ids` where positions are rotated; with `mtp` `input_ids_1` and so on, which
    are shifted by so many), outputs are the logits [batch, seq, vocab], then those of further tokens.
    Raises `ShardplanError` with every size that cannot be.
    """
    return build(TransformerSpec(**sizes), name)  # type: ignore[arg-type]


def build(spec: TransformerSpec, name: str = "transformer") -> Model:
    """The model of a specification; see `transformer`."""
    check(spec)
    return _Builder(spec).model(name)


class _Builder:
    """Writes one transformer. Hidden states have the shape [batch, seq, hidden]."""

    def __init__(self, spec: TransformerSpec) -> None:
        self.spec = spec
        self.look = spec.look
        self.names: Names = NAMES[spec.style]
        self.graph = GraphWriter(spec.dtype, STATE_SPACE_OPSET if spec.has_recurrences else OPSET)
        self.rows = (spec.batch, spec.seq)
        self.wide = (*self.rows, spec.hidden)
        self.position_ids = ""

    def model(self, name: str) -> Model:
        spec, graph = self.spec, self.graph
        ids = graph.input("input_ids", self.rows, "int64")
        if self.look.rotary:
            self.position_ids = graph.input("position_ids", self.rows, "int64")
        table = graph.weight(f"{self.names.embed}.weight", (spec.vocab, spec.embedded))
        x = self._embed(table, ids)
        for layer in range(spec.layers):
            x = self._layer(x, layer)
        if self.look.norm_first:
            x = self._norm(x, self.names.final_norm)
        states = [x, *self._further(x, table)]
        if spec.logits:
            states = [self._logits(state, table) for state in states]
        return graph.model(name, states, {"batch": spec.batch, "seq": spec.seq})

    def _further(self, x: str, table: str) -> list[str]:
        """Hidden states that predict one token further each: from the one before, and the embedding of the token that
        it predicts. Names are those of DeepSeek-V3's checkpoints."""
        states, graph = list[str](), self.graph
        for depth in range(self.spec.mtp):
            layers = self.spec.further_layers(depth)
            module = self._module(layers[0])
            embedded = self._embed(table, graph.input(f"input_ids_{depth + 1}", self.rows, "int64"))
            parts = [self._norm(embedded, f"{module}.enorm"), self._norm(x, f"{module}.hnorm")]
            both = graph.apply("Concat", parts, (*self.rows, 2 * self.spec.hidden), f"{module}.eh_proj", axis=-1)
            x = self._linear(both, f"{module}.eh_proj", 2 * self.spec.hidden, self.spec.hidden)
            for layer in layers:
                x = self._layer(x, layer)
            x = self._norm(x, f"{self._module(layers[-1])}.{self.names.further_norm}")
            states.append(x)
        return states

    def _module(self, layer: int) -> str:
        """The module of a layer, or of one that predicts further tokens."""
        if self.names.further and layer >= self.spec.layers:
            return f"{self.names.further}.{layer - self.spec.layers}"
        return f"{self.names.layer}.{layer}"

    def _embed(self, table: str, ids: str) -> str:
        module = self.names.embed
        spec = self.spec
        x = self.graph.apply("Gather", [table, ids], (*self.rows, spec.embedded), module, axis=0)
        if spec.embedded != spec.hidden:
            x = self._product(x, self.names.embed_in, spec.embedded, spec.hidden)
        if self.names.positions:
            module = self.names.positions
            rows = max(spec.positions, spec.seq)
            weight = self.graph.weight(f"{module}.weight", (rows, spec.hidden))
            places = self.graph.long_constant("positions", (spec.seq,), partial(np.arange, spec.seq))
            along = self.graph.apply("Gather", [weight, places], self.wide[1:], module, axis=0)
            x = self.graph.apply("Add", [x, along], self.wide, module)
        if not self.look.norm_first and self.names.final_norm:
            x = self._norm(x, self.names.final_norm)
        if self.names.embed_norm:
            x = self._norm(x, self.names.embed_norm)
        return self._dropout(x, self.wide, self.names.embed)

    def _logits(self, x: str, table: str) -> str:
        spec, head = self.spec, self.names.head
        if spec.embedded != spec.hidden:
            x = self._product(x, self.names.embed_out, spec.hidden, spec.embedded)
        shape = (spec.embedded, spec.vocab)
        if self.look.tied:
            weight = self.graph.apply("Transpose", [table], shape, head, perm=(1, 0))
        else:
            weight = self.graph.weight(f"{head}.weight", shape, transposed=True)
        made = (*self.rows, spec.vocab)
        x = self.graph.apply("MatMul", [x, weight], made, head)
        if self.look.head_bias or spec.head_bias:
            x = self.graph.apply("Add", [x, self.graph.weight(f"{head}.bias", (spec.vocab,))], made, head)
        return self._capped(x, made, head) if spec.logit_cap else x

    def _capped(self, x: str, shape: tuple[int, ...], module: str) -> str:
        """Logits as cap tanh(x / cap); how large the cap is does not matter to a plan."""
        cap = self.graph.constant("logits.cap", np.array(30, dtype=np.float32), self.spec.dtype)
        x = self.graph.apply("Tanh", [self.graph.apply("Div", [x, cap], shape, module)], shape, module)
        return self.graph.apply("Mul", [x, cap], shape, module)

    def _layer(self, x: str, layer: int) -> str:
        module = self._module(layer)
        made = {
            "attention": self._attention,
            "state_space": self._state_space,
            "delta_rule": self._delta_rule,
            "short_convolution": self._short_convolution,
            "lightning_attention": self._lightning,
            "attention_and_state_space": self._both,
            "mlp": self._mlp,
        }
        if self.spec.parallel_norms:
            return self._parallel(x, layer, module)
        parts = self.spec.parts_of(layer)
        attends = "attention" in parts
        names = self.names.norms if attends else self.names.mixer_norms or self.names.norms
        last = self.look.norm_last and attends
        for name in parts:
            part, number = made[name], int(name == "mlp")
            norm = f"{module}.{names[number]}"
            before = self.look.norm_first and not last
            seen = self._norm(x, norm) if before else x
            x = seen if self.look.norm_kept else x
            inner = part(seen, layer)
            if last:
                inner = self._norm(inner, norm)
            if self.spec.post_norm:
                inner = self._norm(inner, f"{module}.{self.names.post_norms[number]}")
            x = self.graph.apply("Add", [x, self._dropout(inner, self.wide, module)], self.wide, module)
            if not self.look.norm_first:
                x = self._norm(x, norm)
        return x

    def _parallel(self, x: str, layer: int, module: str) -> str:
        """Attention and MLP of the same input, whose sum is added to it."""
        first, second = (f"{module}.{name}" for name in self.names.norms)
        seen = self._norm(x, first)
        taken = self._norm(x, second) if self.spec.parallel_norms == 2 else seen
        parts = [self._attention(seen, layer), self._mlp(taken, layer)]
        inner = self.graph.apply("Add", parts, self.wide, module)
        return self.graph.apply("Add", [x, self._dropout(inner, self.wide, module)], self.wide, module)

    def _norm(self, x: str, module: str) -> str:
        size = (self.spec.hidden,)
        operands = [x, self._norm_weight(module, self.spec.hidden)]
        if self.look.norm == "LayerNormalization" and self.look.norm_bias:
            operands.append(self.graph.weight(f"{module}.bias", size))
        return self.graph.apply(self.look.norm, operands, self.wide, module, axis=-1, epsilon=self.look.epsilon)

    def _norm_weight(self, module: str, size: int) -> str:
        """The weight of a norm, which is one everywhere where norms have none."""
        if self.look.norm_weight:
            return self.graph.weight(f"{module}.weight", (size,))
        ones = partial(np.ones, size, dtype=np.float32)
        return self.graph.long_constant(f"ones.{size}", (size,), ones, self.spec.dtype)

    def _linear(self, x: str, module: str, inner: int, outer: int, *, bias: bool = False) -> str:
        x = self._product(x, module, inner, outer)
        if bias or self.look.bias:
            bias_of = self.graph.weight(f"{module}.bias", (outer,))
            x = self.graph.apply("Add", [x, bias_of], (*self.rows, outer), module)
        return x

    def _product(self, x: str, module: str, inner: int, outer: int) -> str:
        weight = self.graph.weight(f"{module}.weight", (inner, outer), transposed=self.names.transposed)
        return self.graph.apply("MatMul", [x, weight], (*self.rows, outer), module)

    def _dropout(self, x: str, shape: tuple[int, ...], module: str) -> str:
        if not self.spec.dropout:
            return x
        ratio = self.graph.constant("dropout.ratio", np.array(0.1, dtype=np.float32), "float")
        training = self.graph.constant("dropout.training", np.array(True), "bool")
        results = [(shape, self.spec.dtype), (shape, "bool")]
        return self.graph.apply_many("Dropout", [x, ratio, training], results, module)[0]

    def _mlp(self, x: str, layer: int) -> str:
        spec, module = self.spec, self._module(layer)
        if not spec.is_routed(layer):
            return self._dense(x, module, spec.dense_ffn if spec.experts and spec.dense_ffn else spec.inner)
        router, experts = f"{module}.{self.names.router}", f"{module}.{self.names.experts}"
        if spec.routing == "dropless":
            latent = tuple(f"{module}.{name}" for name in self.names.latent) if spec.expert_latent else ()
            y = dropless_mlp(self.graph, spec, x, router, experts, latent)
        else:
            y = routed_mlp(self.graph, spec, x, router, experts)
        return self._with_shared(x, y, module) if spec.shared_ffn else y

    def _with_shared(self, x: str, y: str, module: str) -> str:
        """What the experts make and what the MLP beside them does."""
        shared = self._dense(x, module, self.spec.shared_ffn, beside=f"{self.names.shared}.")
        if self.spec.shared_gate:
            name = f"{module}.{self.names.shared}_gate.weight"
            weight = self.graph.weight(name, (self.spec.hidden, 1), transposed=True)
            share = self.graph.apply("MatMul", [x, weight], (*self.rows, 1), module)
            share = self.graph.apply("Sigmoid", [share], (*self.rows, 1), module)
            shared = self.graph.apply("Mul", [shared, share], self.wide, module)
        return self.graph.apply("Add", [y, shared], self.wide, module)

    def _dense(self, x: str, module: str, inner: int, beside: str = "") -> str:
        """An MLP of that inner size; `beside`: what its modules are below."""
        spec = self.spec
        shape = (*self.rows, inner)
        names = [beside + name.rpartition(".")[2] if beside else name for name in self.names.mlp]
        *ups, down = (f"{module}.{name}" for name in names)
        sizes = [inner] * (2 if self.look.gated else 1)
        if len(ups) < len(sizes):
            packed = self._linear(x, ups[0], spec.hidden, sum(sizes), bias=spec.mlp_bias)
            made = list(self.graph.split(packed, (*self.rows, sum(sizes)), sizes, ups[0]))
        else:
            made = [self._linear(x, up, spec.hidden, inner, bias=spec.mlp_bias) for up in ups]
        act = f"{module}.{beside.rstrip('.') if beside else names[0].split('.')[0]}"
        if self.look.gated:
            gate = self._gate(made[0], shape, act)
            y = self.graph.apply("Mul", [gate, made[1]], shape, act)
        else:
            y = activated(self.graph, spec, made[0], shape, act)
        return self._linear(y, down, inner, spec.hidden, bias=spec.mlp_bias)

    def _gate(self, x: str, shape: tuple[int, ...], module: str) -> str:
        if self.spec.act == "gelu":
            return self.graph.apply("Gelu", [x], shape, module, approximate="tanh")
        share = self.graph.apply("Sigmoid", [x], shape, module)
        return self.graph.apply("Mul", [x, share], shape, module)

    def _state_space(self, x: str, layer: int) -> str:
        module = f"{self._module(layer)}.{self.names.state_space}"
        return state_space(self.graph, self.spec, x, module, self._linear)

    def _both(self, x: str, layer: int) -> str:
        parts = [self._attention(x, layer), self._state_space(x, layer)]
        return self.graph.apply("Add", parts, self.wide, self._module(layer))

    def _delta_rule(self, x: str, layer: int) -> str:
        names = self.names.delta
        return delta_rule(self.graph, self.spec, x, f"{self._module(layer)}.{names.module}", names, self._linear)

    def _short_convolution(self, x: str, layer: int) -> str:
        module = f"{self._module(layer)}.{self.names.convolution}"
        return short_convolution(self.graph, self.spec, x, module, self._linear)

    def _lightning(self, x: str, layer: int) -> str:
        module = f"{self._module(layer)}.{self.names.attention}"
        return lightning_attention(self.graph, self.spec, x, module, self._linear)

    def _attention(self, x: str, layer: int) -> str:
        spec, module = self.spec, self._module(layer)
        core = f"{module}.{self.names.attention}"
        if spec.kv_rank:
            return self._latent(x, layer, module, core)
        counts = (spec.heads, spec.key_heads, spec.key_heads)
        sizes = [count * spec.width for count in counts]
        both = spec.attention_gate and not self.names.gate
        gate, flat = "", self._projections(x, module, [(1 + both) * sizes[0], *sizes[1:]])
        if both:
            q, gate = self._gated(flat[0], module)
            flat = (q, *flat[1:])
        elif spec.attention_gate:
            gate = self._linear(x, f"{module}.{self.names.gate}", spec.hidden, sizes[0])
        if spec.qk_norm_whole:
            flat = self._norm_whole(flat, counts, core)
        q, k, v = (self._by_head(value, count, core) for value, count in zip(flat, counts, strict=True))
        if spec.qk_norm:
            q, k = (
                self._norm_heads(q, spec.heads, f"{core}.{self.names.head_norms[0]}"),
                self._norm_heads(k, spec.key_heads, f"{core}.{self.names.head_norms[1]}"),
            )
        if self.look.rotary:
            q, k = self._rotate(q, spec.heads, core), self._rotate(k, spec.key_heads, core)
        y = self._fused(q, k, v, core, layer) if spec.attention == "fused" else self._decomposed(q, k, v, core)
        return self._out(y, module, core, spec.width, gate)

    def _latent(self, x: str, layer: int, module: str, core: str) -> str:
        """Multi-head latent attention."""
        spec = self.spec
        q, k, v = latent_heads(self.graph, spec, x, core, self._linear, self._norm_of)
        q, k = (self._rotate(value, spec.heads, core, spec.rope_size) for value in (q, k))
        value = spec.value_size or spec.width - spec.rope_size
        return self._out(self._fused(q, k, v, core, layer, value), module, core, value)

    def _gated(self, both: str, module: str) -> tuple[str, str]:
        """Queries and the gates of what attention makes, which one product makes head by head; each [batch, seq, heads
        * width]."""
        heads, width = self.spec.heads, self.spec.width
        shape, flat = (*self.rows, heads, 2 * width), (*self.rows, heads * width)
        both = self.graph.reshape(both, shape, module)
        parts = self.graph.split(both, shape, (width, width), module, axis=3)
        q, gate = (self.graph.reshape(part, flat, module) for part in parts)
        return q, gate

    def _out(self, y: str, module: str, core: str, width: int, gate: str = "") -> str:
        """[batch, heads, seq, width] -> [batch, seq, hidden], through the output matrix; `gate`: by which it is
        multiplied before."""
        heads = self.spec.heads
        y = self.graph.apply("Transpose", [y], (*self.rows, heads, width), core, perm=(0, 2, 1, 3))
        shape = (*self.rows, heads * width)
        y = self.graph.reshape(y, shape, core)
        if gate:
            gate = self.graph.apply("Sigmoid", [gate], shape, core)
            y = self.graph.apply("Mul", [y, gate], shape, core)
        out = f"{module}.{self.names.out}"
        return self._linear(y, out, heads * width, self.spec.hidden, bias=self.spec.out_bias)

    def _projections(self, x: str, module: str, sizes: list[int]) -> tuple[str, ...]:
        """Queries, keys and values, each [batch, seq, heads * width]."""
        modules = [f"{module}.{name}" for name in self.names.qkv]
        if not self.look.packed:
            hidden, bias = self.spec.hidden, self.spec.qkv_bias
            return tuple(self._linear(x, m, hidden, size, bias=bias) for m, size in zip(modules, sizes, strict=True))
        packed = self._linear(x, modules[0], self.spec.hidden, sum(sizes), bias=self.spec.qkv_bias)
        if self.look.interleaved and self.spec.key_heads > 1:
            return self._by_group(packed, modules[0])
        return self.graph.split(packed, (*self.rows, sum(sizes)), sizes, modules[0])

    def _by_group(self, packed: str, module: str) -> tuple[str, ...]:
        """[batch, seq, groups * (queries, key, value) * width] -> each of the three [batch, seq, heads * width]."""
        spec, groups = self.spec, self.spec.key_heads
        counts = (spec.heads // groups, 1, 1)
        shape = (*self.rows, groups, sum(counts), spec.width)
        packed = self.graph.reshape(packed, shape, module)
        flat = []
        for part, count in zip(self.graph.split(packed, shape, counts, module, axis=3), counts, strict=True):
            size = (*self.rows, groups * count * spec.width)
            flat.append(self.graph.reshape(part, size, module))
        return tuple(flat)

    def _by_head(self, x: str, heads: int, module: str) -> str:
        """[batch, seq, heads * width] -> [batch, heads, seq, width]."""
        batch, seq = self.rows
        shape = (batch, seq, heads, self.spec.width)
        x = self.graph.reshape(x, shape, module)
        by_head = (batch, heads, seq, self.spec.width)
        return self.graph.apply("Transpose", [x], by_head, module, perm=(0, 2, 1, 3))

    def _norm_heads(self, x: str, heads: int, module: str) -> str:
        shape = (self.spec.batch, heads, self.spec.seq, self.spec.width)
        if not self.look.norm_by_head:
            return self._norm_of(x, module, shape)
        width = self.spec.width
        ones = self.graph.constant(f"ones.{width}", np.ones(width, dtype=np.float32), self.spec.dtype)
        x = self.graph.apply(self.look.norm, [x, ones], shape, module, axis=-1, epsilon=self.look.epsilon)
        own = self.graph.weight(f"{module}.weight", (heads, width))
        own = self.graph.apply("Unsqueeze", [own, self.graph.integers(1)], (heads, 1, width), module)
        return self.graph.apply("Mul", [x, own], shape, module)

    def _norm_whole(self, flat: tuple[str, ...], counts: tuple[int, ...], core: str) -> tuple[str, ...]:
        """Queries and keys normalised over all heads."""
        q, k, v = flat
        q, k = (
            self._norm_of(value, f"{core}.{name}", (*self.rows, count * self.spec.width))
            for value, name, count in zip((q, k), self.names.head_norms, counts, strict=False)
        )
        return q, k, v

    def _norm_of(self, x: str, module: str, shape: tuple[int, ...]) -> str:
        """A value of `shape` normalised along its last dim, without a bias."""
        weight = self._norm_weight(module, shape[-1])
        return self.graph.apply(self.look.norm, [x, weight], shape, module, axis=-1, epsilon=self.look.epsilon)

    def _rotate(self, x: str, heads: int, module: str, turned: int = 0) -> str:
        """Positions into a value by head: into the first `turned` of its size, 0 for all of it."""
        size = (self.spec.seq, (turned or self.spec.width) // 2)
        caches = [self.graph.unknown_constant(f"rotary.{kind}", size, self.spec.dtype) for kind in ("cos", "sin")]
        shape = (self.spec.batch, heads, self.spec.seq, self.spec.width)
        part: dict[str, Any] = {"rotary_embedding_dim": turned} if turned else {}
        return self.graph.apply("RotaryEmbedding", [x, *caches, self.position_ids], shape, module, **part)

    def _fused(self, q: str, k: str, v: str, module: str, layer: int, width: int = 0) -> str:
        """Attention as one operator; `width`: of values, 0 for that of keys."""
        shape = (self.spec.batch, self.spec.heads, self.spec.seq, width or self.spec.width)
        window = self.spec.window_of(layer)
        part: dict[str, Any] = {"left_window_size": window - 1, "right_window_size": 0} if window else {}
        return self.graph.apply("Attention", [q, k, v], shape, module, is_causal=int(self.look.causal), **part)

    def _decomposed(self, q: str, k: str, v: str, module: str) -> str:
        """Scores, mask, softmax and mixture as single operators; key heads are repeated for the query heads."""
        spec, graph = self.spec, self.graph
        batch, seq, heads, width = spec.batch, spec.seq, spec.heads, spec.width
        k, v = (self._repeat(value, module) for value in (k, v))
        k = graph.apply("Transpose", [k], (batch, heads, width, seq), module, perm=(0, 1, 3, 2))
        shape = (batch, heads, seq, seq)
        scores = graph.apply("MatMul", [q, k], shape, module)
        scale = graph.constant("attention.scale", np.array(width**-0.5, dtype=np.float32), spec.dtype)
        scores = graph.apply("Mul", [scores, scale], shape, module)
        if self.look.causal:
            mask = graph.unknown_constant("attention.mask", (seq, seq), spec.dtype)
            scores = graph.apply("Add", [scores, mask], shape, module)
        share = graph.apply("Softmax", [scores], shape, module, axis=-1)
        share = self._dropout(share, shape, module)
        return graph.apply("MatMul", [share, v], (batch, heads, seq, width), module)

    def _repeat(self, x: str, module: str) -> str:
        spec = self.spec
        if spec.heads == spec.key_heads:
            return x
        times = spec.heads // spec.key_heads
        single, repeated = ((spec.batch, spec.key_heads, many, spec.seq, spec.width) for many in (1, times))
        x = self.graph.apply("Unsqueeze", [x, self.graph.integers(2)], single, module)
        x = self.graph.apply("Expand", [x, self.graph.integers(*repeated)], repeated, module)
        shape = (spec.batch, spec.heads, spec.seq, spec.width)
        return self.graph.reshape(x, shape, module)
