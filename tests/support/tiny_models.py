"""Tiny GPT, Llama and mixture of experts as ONNX graphs, for tests that run plans in torch and in JAX.

The graphs are what torch's exporter writes with `optimize=False`: initializers have the names of the checkpoint, a
`Linear` weight is stored [out, in] and transposed by a node, and every node knows the module it comes from.
`weights` is the checkpoint (names and dims of `state_dict`), `inputs` one batch; both are drawn from a fixed seed. What
the graph computes is told in the docstring of each builder, so that a twin in any framework can be written beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from shardplan.model.read import read_model
from shardplan.model.types import Model

Array = NDArray[Any]
OPSET = 23
NEVER = -1e9
"""What a causal mask adds where a token may not look."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of a tiny transformer. `kv_heads`: heads of keys and values, as many as `heads` when 0."""

    batch: int = 4
    seq: int = 16
    hidden: int = 32
    heads: int = 4
    ffn: int = 128
    vocab: int = 96
    layers: int = 2
    kv_heads: int = 0
    experts: int = 4

    @property
    def key_heads(self) -> int:
        return self.kv_heads or self.heads

    @property
    def width(self) -> int:
        """Of one head."""
        return self.hidden // self.heads


@dataclass(frozen=True)
class Tiny:
    """A graph with its checkpoint (checkpoint name -> array, dims as `state_dict` stores them) and one batch."""

    name: str
    sizes: Sizes
    proto: onnx.ModelProto
    weights: Mapping[str, Array]
    inputs: Mapping[str, Array]

    def save(self, folder: Path) -> Path:
        """Write the graph to `folder`."""
        path = Path(folder) / f"{self.name}.onnx"
        onnx.save(self.proto, path)
        return path

    def model(self, folder: Path) -> Model:
        """The graph as the planner reads it, from a file in `folder`."""
        return read_model(self.save(folder))


def tiny_gpt(sizes: Sizes = Sizes(), *, fused: bool = False, tied: bool = False) -> Tiny:
    """GPT: learned positions, LayerNorm, `fused` or separate q, k, v with biases, GELU (tanh), causal attention.

    Weights: `transformer.wte`, `.wpe`, `.h.N.ln_1`, `.h.N.attn.{q_proj,k_proj,v_proj}` or `.attn.c_attn` (q, k, v one
    after the other), `.attn.c_proj`, `.ln_2`, `.mlp.c_fc`, `.mlp.c_proj`, `.ln_f`, `lm_head` (absent when `tied`).
    """
    graph = _Graph(sizes)
    ids = graph.input_ids()
    x = graph.apply(
        "Gather", [graph.weight("transformer.wte.weight", sizes.vocab, sizes.hidden), ids], "transformer.wte"
    )
    places = graph.constant(np.arange(sizes.seq)[None])
    wpe = graph.weight("transformer.wpe.weight", sizes.seq, sizes.hidden)
    x = graph.apply("Add", [x, graph.apply("Gather", [wpe, places], "transformer.wpe")], "transformer")
    mask = graph.causal_mask()
    for layer in range(sizes.layers):
        module = f"transformer.h.{layer}"
        normed = graph.layer_norm(x, f"{module}.ln_1")
        q, k, v = (
            graph.packed(normed, f"{module}.attn") if fused else graph.separate(normed, f"{module}.attn", bias=True)
        )
        core = graph.attention(q, k, v, mask, f"{module}.attn")
        x = graph.apply("Add", [x, graph.linear(core, f"{module}.attn.c_proj", sizes.hidden)], module)
        wide = graph.linear(graph.layer_norm(x, f"{module}.ln_2"), f"{module}.mlp.c_fc", sizes.ffn)
        wide = graph.apply("Gelu", [wide], f"{module}.mlp", approximate="tanh")
        x = graph.apply("Add", [x, graph.linear(wide, f"{module}.mlp.c_proj", sizes.hidden)], module)
    x = graph.layer_norm(x, "transformer.ln_f")
    logits = graph.head(x, "transformer.wte.weight" if tied else "")
    return graph.finish(f"tiny_gpt{'_fused' * fused}{'_tied' * tied}", logits)


def tiny_llama(sizes: Sizes = Sizes(heads=8, kv_heads=4), *, tied: bool = False) -> Tiny:
    """Llama: RMSNorm (epsilon 1e-5), rotary positions (rotate-half, base 10,000), grouped-query attention, SwiGLU.

    Weights: `model.embed_tokens`, `model.layers.N.input_layernorm`, `.self_attn.{q,k,v,o}_proj`,
    `.post_attention_layernorm`, `.mlp.{gate,up,down}_proj`, `model.norm`, `lm_head` (absent when `tied`).
    """
    graph = _Graph(sizes)
    ids = graph.input_ids()
    table = graph.weight("model.embed_tokens.weight", sizes.vocab, sizes.hidden)
    x = graph.apply("Gather", [table, ids], "model.embed_tokens")
    mask, tables = graph.causal_mask(), graph.rotary_tables()
    for layer in range(sizes.layers):
        module = f"model.layers.{layer}"
        x = graph.llama_attention(x, module, mask, tables)
        normed = graph.rms_norm(x, f"{module}.post_attention_layernorm")
        gate = graph.linear(normed, f"{module}.mlp.gate_proj", sizes.ffn, bias=False)
        gate = graph.silu(gate, f"{module}.mlp.act_fn")
        up = graph.linear(normed, f"{module}.mlp.up_proj", sizes.ffn, bias=False)
        both = graph.apply("Mul", [gate, up], f"{module}.mlp")
        x = graph.apply("Add", [x, graph.linear(both, f"{module}.mlp.down_proj", sizes.hidden, bias=False)], module)
    logits = graph.head(graph.rms_norm(x, "model.norm"), "model.embed_tokens.weight" if tied else "")
    return graph.finish(f"tiny_llama{'_tied' * tied}", logits)


def tiny_moe(sizes: Sizes = Sizes(heads=8, kv_heads=4, ffn=64)) -> Tiny:
    """Llama's attention, and instead of its MLP the best of `experts` for each token (dispatch by one-hot masks):
    `y = sum_e p_e * pick_e * ((silu(x_e @ gate_e) * (x_e @ up_e)) @ down_e)` with `p = softmax(x @ router.T)`,
    `pick = onehot(argmax(p))` and `x_e = pick_e * x`.

    Weights beside Llama's: `model.layers.N.mlp.gate.weight` [experts, hidden] (the router), and stacked
    `.mlp.experts.{gate_proj,up_proj}` [experts, hidden, ffn], `.mlp.experts.down_proj` [experts, ffn, hidden].
    """
    graph = _Graph(sizes)
    ids = graph.input_ids()
    table = graph.weight("model.embed_tokens.weight", sizes.vocab, sizes.hidden)
    x = graph.apply("Gather", [table, ids], "model.embed_tokens")
    mask, tables = graph.causal_mask(), graph.rotary_tables()
    for layer in range(sizes.layers):
        module = f"model.layers.{layer}"
        x = graph.llama_attention(x, module, mask, tables)
        x = graph.apply(
            "Add", [x, graph.experts(graph.rms_norm(x, f"{module}.post_attention_layernorm"), module)], module
        )
    logits = graph.head(graph.rms_norm(x, "model.norm"), "")
    return graph.finish("tiny_moe", logits)


@dataclass
class _Graph:
    """A graph in the making. Values have the names `<op>_<number>`; hidden states are [batch, seq, hidden]."""

    sizes: Sizes
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[TensorProto] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)
    constants: dict[tuple[str, tuple[int, ...], bytes], str] = field(default_factory=dict)

    def input_ids(self) -> str:
        return "input_ids"

    def weight(self, name: str, *shape: int, around: float = 0.0, spread: float = 0.0) -> str:
        """A tensor of the checkpoint, drawn from its own name; `spread` is by default 1/sqrt(last dim)."""
        if name not in self.weights:
            generator = np.random.default_rng(list(name.encode()))
            drawn = generator.standard_normal(shape) * (spread or 1 / math.sqrt(shape[-1])) + around
            self.weights[name] = drawn.astype(np.float32)
            self.initializers.append(numpy_helper.from_array(self.weights[name], name))
        return name

    def constant(self, value: Array | Sequence[int]) -> str:
        """A constant as exporters name them, one for each value."""
        array = np.asarray(value)
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self.constants:
            self.constants[key] = f"val_{len(self.constants)}"
            self.initializers.append(numpy_helper.from_array(array, self.constants[key]))
        return self.constants[key]

    def apply(self, kind: str, inputs: Sequence[str], module: str, **attributes: Any) -> str:
        return self.apply_many(kind, inputs, 1, module, **attributes)[0]

    def apply_many(
        self, kind: str, inputs: Sequence[str], results: int, module: str, **attributes: Any
    ) -> tuple[str, ...]:
        number = len(self.nodes)
        names = tuple(f"{kind.lower()}_{number}" + (f"_{i}" if results > 1 else "") for i in range(results))
        node = helper.make_node(kind, list(inputs), list(names), name=f"node_{names[0]}", **attributes)
        parts = module.split(".")
        scopes = ["", *(".".join(parts[: end + 1]) for end in range(len(parts))), names[0]]
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=repr(scopes))
        self.nodes.append(node)
        return names

    def linear(self, x: str, module: str, outer: int, inner: int = 0, *, bias: bool = True) -> str:
        """`x @ weight.T + bias`; `inner` is by default the last dim of the weight's usual input."""
        sizes = self.sizes
        inner = inner or (sizes.ffn if module.endswith(("mlp.c_proj", "down_proj")) else sizes.hidden)
        weight = self.weight(f"{module}.weight", outer, inner)
        turned = self.apply("Transpose", [weight], module, perm=[1, 0])
        x = self.apply("MatMul", [x, turned], module)
        return self.apply("Add", [x, self.weight(f"{module}.bias", outer, spread=0.1)], module) if bias else x

    def layer_norm(self, x: str, module: str) -> str:
        scale = self.weight(f"{module}.weight", self.sizes.hidden, around=1.0, spread=0.1)
        shift = self.weight(f"{module}.bias", self.sizes.hidden, spread=0.1)
        return self.apply("LayerNormalization", [x, scale, shift], module, axis=-1, epsilon=1e-5)

    def rms_norm(self, x: str, module: str) -> str:
        scale = self.weight(f"{module}.weight", self.sizes.hidden, around=1.0, spread=0.1)
        return self.apply("RMSNormalization", [x, scale], module, axis=-1, epsilon=1e-5)

    def silu(self, x: str, module: str) -> str:
        return self.apply("Mul", [x, self.apply("Sigmoid", [x], module)], module)

    def causal_mask(self) -> str:
        seq = self.sizes.seq
        return self.constant(np.triu(np.full((seq, seq), NEVER, dtype=np.float32), 1)[None, None])

    def rotary_tables(self) -> tuple[str, str]:
        """Cosines and sines [1, 1, seq, width]."""
        cos, sin = rotary_tables(self.sizes.seq, self.sizes.width)
        return self.constant(cos), self.constant(sin)

    def separate(self, x: str, module: str, *, bias: bool) -> list[str]:
        sizes = self.sizes
        outer = {"q": sizes.hidden, "k": sizes.key_heads * sizes.width, "v": sizes.key_heads * sizes.width}
        return [self.linear(x, f"{module}.{part}_proj", size, bias=bias) for part, size in outer.items()]

    def packed(self, x: str, module: str) -> tuple[str, ...]:
        hidden = self.sizes.hidden
        both = self.linear(x, f"{module}.c_attn", 3 * hidden)
        sizes = self.constant(np.array([hidden] * 3))
        return self.apply_many("Split", [both, sizes], 3, module, axis=2)

    def by_head(self, x: str, heads: int, module: str) -> str:
        """[batch, seq, heads * width] -> [batch, heads, seq, width]."""
        shape = self.constant(np.array([self.sizes.batch, self.sizes.seq, heads, self.sizes.width]))
        return self.apply("Transpose", [self.apply("Reshape", [x, shape], module)], module, perm=[0, 2, 1, 3])

    def attention(self, q: str, k: str, v: str, mask: str, module: str, tables: tuple[str, str] | None = None) -> str:
        """Causal attention over [batch, seq, heads * width]; keys and values are repeated for the query heads."""
        sizes = self.sizes
        q = self.by_head(q, sizes.heads, module)
        k, v = (self.by_head(value, sizes.key_heads, module) for value in (k, v))
        if tables is not None:
            q, k = (self.rotate(value, tables, module) for value in (q, k))
        k, v = (self.repeat(value, module) for value in (k, v))
        turned = self.apply("Transpose", [k], module, perm=[0, 1, 3, 2])
        scores = self.apply("MatMul", [q, turned], module)
        scale = self.constant(np.array(sizes.width**-0.5, dtype=np.float32))
        scores = self.apply("Add", [self.apply("Mul", [scores, scale], module), mask], module)
        mixed = self.apply("MatMul", [self.apply("Softmax", [scores], module, axis=-1), v], module)
        mixed = self.apply("Transpose", [mixed], module, perm=[0, 2, 1, 3])
        return self.apply("Reshape", [mixed, self.constant(np.array([sizes.batch, sizes.seq, sizes.hidden]))], module)

    def repeat(self, x: str, module: str) -> str:
        """Every key head as often as query heads read it, next to each other (`repeat_interleave` on dim 1)."""
        sizes = self.sizes
        times = sizes.heads // sizes.key_heads
        if times == 1:
            return x
        wide = [sizes.batch, sizes.key_heads, times, sizes.seq, sizes.width]
        x = self.apply("Unsqueeze", [x, self.constant(np.array([2]))], module)
        x = self.apply("Expand", [x, self.constant(np.array(wide))], module)
        shape = [sizes.batch, sizes.heads, sizes.seq, sizes.width]
        return self.apply("Reshape", [x, self.constant(np.array(shape))], module)

    def rotate(self, x: str, tables: tuple[str, str], module: str) -> str:
        half, last = self.sizes.width // 2, self.constant(np.array([3]))
        zero, middle, end = (self.constant(np.array([place])) for place in (0, half, 2 * half))
        first = self.apply("Slice", [x, zero, middle, last], module)
        second = self.apply("Neg", [self.apply("Slice", [x, middle, end, last], module)], module)
        turned = self.apply("Concat", [second, first], module, axis=-1)
        parts = [self.apply("Mul", [value, table], module) for value, table in zip((x, turned), tables, strict=True)]
        return self.apply("Add", parts, module)

    def llama_attention(self, x: str, module: str, mask: str, tables: tuple[str, str]) -> str:
        normed = self.rms_norm(x, f"{module}.input_layernorm")
        q, k, v = self.separate(normed, f"{module}.self_attn", bias=False)
        core = self.attention(q, k, v, mask, f"{module}.self_attn", tables)
        out = self.linear(core, f"{module}.self_attn.o_proj", self.sizes.hidden, bias=False)
        return self.apply("Add", [x, out], module)

    def experts(self, x: str, module: str) -> str:
        sizes, mlp = self.sizes, f"{module}.mlp"
        shares = self.apply("Softmax", [self.linear(x, f"{mlp}.gate", sizes.experts, bias=False)], mlp, axis=-1)
        best = self.apply("ArgMax", [shares], mlp, axis=-1, keepdims=0)
        count, levels = self.constant(np.array(sizes.experts)), self.constant(np.array([0, 1], dtype=np.float32))
        pick = self.apply("OneHot", [best, count, levels], mlp, axis=-1)
        mine = self.apply("Einsum", [pick, x], mlp, equation="bse,bsh->ebsh")

        def product(value: str, part: str, inner: int, outer: int) -> str:
            weight = self.weight(f"{mlp}.experts.{part}", sizes.experts, inner, outer, spread=1 / math.sqrt(inner))
            return self.apply("Einsum", [value, weight], f"{mlp}.experts", equation="ebsh,ehf->ebsf")

        gate = self.silu(product(mine, "gate_proj", sizes.hidden, sizes.ffn), f"{mlp}.experts.act_fn")
        both = self.apply("Mul", [gate, product(mine, "up_proj", sizes.hidden, sizes.ffn)], f"{mlp}.experts")
        done = product(both, "down_proj", sizes.ffn, sizes.hidden)
        return self.apply("Einsum", [done, self.apply("Mul", [shares, pick], mlp)], mlp, equation="ebsh,bse->bsh")

    def head(self, x: str, tied: str) -> str:
        sizes = self.sizes
        if not tied:
            return self.linear(x, "lm_head", sizes.vocab, bias=False)
        return self.apply("MatMul", [x, self.apply("Transpose", [tied], "lm_head", perm=[1, 0])], "lm_head")

    def finish(self, name: str, logits: str) -> Tiny:
        sizes, ids = self.sizes, "input_ids"
        rows = [sizes.batch, sizes.seq]
        graph = helper.make_graph(
            self.nodes,
            name,
            [helper.make_tensor_value_info(ids, TensorProto.INT64, rows)],
            [helper.make_tensor_value_info(logits, TensorProto.FLOAT, [*rows, sizes.vocab])],
            self.initializers,
        )
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
        onnx.checker.check_model(proto, full_check=True)
        drawn = np.random.default_rng(7).integers(0, sizes.vocab, rows)
        return Tiny(name, sizes, proto, dict(self.weights), {ids: drawn})


_COLUMNS = ("q_proj", "k_proj", "v_proj", "c_attn", "c_fc", "gate_proj", "up_proj", "lm_head")
_ROWS = ("c_proj", "o_proj", "down_proj")
_NORMS = ("LayerNormalization", "RMSNormalization")
_EMBEDDED = ("wte", "embed_tokens")


def megatron(tiny: Tiny, data: str = "machine", tensor: str = "gpu", *, sequence: bool = False) -> str:
    """Megatron's plan of a tiny model as constraints (YAML): the batch over `data`; heads, columns, rows, experts and
    the vocabulary over `tensor`; between blocks activations are whole there, or split by `sequence`."""
    between = tensor if sequence else "null"
    tensors, operators = {}, {}
    for node in tiny.proto.graph.node:
        module = node.metadata_props[0].value.rsplit("'", 4)[-4]
        last, kind = module.rsplit(".", 1)[-1], node.op_type
        if kind == "Add" and last in ("transformer", *map(str, range(tiny.sizes.layers))):
            tensors[node.output[0]] = f"[{data}, {between}, null]"
        if kind == "MatMul" and last in (*_COLUMNS, *_ROWS):
            operators[node.name] = f"{{{data}: b, {tensor}: {'k' if last in _ROWS else 'n'}}}"
        elif kind == "MatMul" and last in ("attn", "self_attn"):
            operators[node.name] = f"{{{data}: b0, {tensor}: b1}}"
        elif kind == "Einsum":
            operators[node.name] = f"{{{data}: b, {tensor}: e}}"
        elif kind == "Gather" and last in _EMBEDDED:
            operators[node.name] = f"{{{data}: i0, {tensor}: v}}"
            tensors[node.output[0]] = f"[{data}, {between}, null]"
        elif kind in _NORMS:
            operators[node.name] = f"{{{data}: x0, {tensor}: {'x1' if sequence else 'none'}}}"
    whole = [name for name in tiny.weights if name.endswith("wpe.weight") or name.split(".")[-2] in _ROWS]
    parameters = {name: "replicate" for name in whole if name.endswith((".bias", "wpe.weight"))}
    axes = {data: "{inputs: 0, parameters: replicate}"}
    sections = {"tensors": tensors, "operators": operators, "parameters": parameters, "axes": axes}
    lines = [[f"{name}:", *(f"  {key}: {value}" for key, value in found.items())] for name, found in sections.items()]
    return "\n".join(line for section in lines if len(section) > 1 for line in section)


def rotary_tables(seq: int, width: int, base: float = 10_000.0) -> tuple[Array, Array]:
    """Cosines and sines of the angles of rotary positions, [1, 1, seq, width], each half the same."""
    angles = np.arange(seq)[:, None] * base ** (-np.arange(0, width, 2) / width)[None]
    both = np.concatenate([angles, angles], axis=-1)[None, None]
    return np.cos(both).astype(np.float32), np.sin(both).astype(np.float32)
