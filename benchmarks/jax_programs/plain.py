"""Functions of dictionaries of arrays."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jax_programs.program import Program, entropy, ids, kernel, normal


def _rms(scale: Any, x: Any) -> Any:
    return scale * x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6)


def _rotated(x: Any) -> Any:
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] / 100 ** (jnp.arange(half) / half)
    sin, cos = jnp.sin(angles)[:, None], jnp.cos(angles)[:, None]
    one, other = x[..., :half], x[..., half:]
    return jnp.concatenate([one * cos - other * sin, other * cos + one * sin], -1).astype(x.dtype)


def _gqa_layer(p: Any, x: Any, norm: Any = _rms) -> Any:
    h = norm(p["norm_1"], x)
    q, k, v = (jnp.einsum("bsh,hnd->bsnd", h, p[name]) for name in ("q", "k", "v"))
    q, k = _rotated(q), _rotated(k)
    k, v = (jnp.repeat(each, q.shape[2] // each.shape[2], 2) for each in (k, v))
    scores = jnp.einsum("bqnd,bknd->bnqk", q, k) / q.shape[-1] ** 0.5
    seen = jnp.arange(x.shape[1])[:, None] >= jnp.arange(x.shape[1])
    shares = jax.nn.softmax(jnp.where(seen, scores, -1e9), -1)
    x = x + jnp.einsum("bnqk,bknd,ndh->bqh", shares, v, p["o"])
    h = norm(p["norm_2"], x)
    return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]


def _gqa_weights(layers: int = 3, hidden: int = 64, heads: int = 8, groups: int = 4, width: int = 8) -> Any:
    return {
        "norm_1": jnp.ones((layers, hidden)), "norm_2": jnp.ones((layers, hidden)),
        "q": kernel(layers, hidden, heads * width).reshape(layers, hidden, heads, width),
        "k": kernel(layers, hidden, groups * width).reshape(layers, hidden, groups, width),
        "v": kernel(layers, hidden, groups * width).reshape(layers, hidden, groups, width),
        "o": kernel(layers, heads * width, hidden).reshape(layers, heads, width, hidden),
        "gate": kernel(layers, hidden, 2 * hidden), "up": kernel(layers, hidden, 2 * hidden),
        "down": kernel(layers, 2 * hidden, hidden),
    }  # fmt: skip


def _gqa_params() -> Any:
    return {"embed": normal(96, 64), "layers": _gqa_weights(), "norm": jnp.ones(64), "head": kernel(64, 96)}


def _tokens(batch: int = 16, seq: int = 16) -> tuple[Any, ...]:
    return ({"ids": ids(batch, seq, below=96), "targets": ids(batch, seq, below=96)},)


GQA_PINS = (
    "layers.[qkv]=[null, null, gpu, null]",
    "layers.o=[null, gpu, null, null]",
    "layers.{gate,up}=[null, null, gpu]",
    "layers.down=[null, gpu, null]",
)


def scanned_gqa() -> Program:
    """A transformer with grouped queries, its layers scanned and computed again in backward."""

    def loss(params: Any, batch: Any) -> Any:
        x = params["embed"][batch["ids"]]
        x, _ = jax.lax.scan(lambda x, p: (jax.checkpoint(_gqa_layer)(p, x), None), x, params["layers"])
        return entropy(_rms(params["norm"], x) @ params["head"], batch["targets"])

    return Program(loss, _gqa_params(), _tokens(), GQA_PINS)


def unrolled_gqa() -> Program:
    """The same, its layers a list, with a policy of what `jax.checkpoint` keeps."""

    def loss(params: Any, batch: Any) -> Any:
        x = params["embed"][batch["ids"]]
        keep = functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)
        for p in params["layers"]:
            x = keep(_gqa_layer)(p, x)
        return entropy(_rms(params["norm"], x) @ params["head"], batch["targets"])

    params = _gqa_params()
    params["layers"] = [jax.tree.map(lambda leaf, n=n: leaf[n], params["layers"]) for n in range(3)]
    pins = ("layers.*.[qkv]=[null, gpu, null]", "layers.*.o=[gpu, null, null]")
    pins += ("layers.*.{gate,up}=[null, gpu]", "layers.*.down=[gpu, null]")
    return Program(loss, params, _tokens(), pins)


def mixed_precision() -> Program:
    """float32 weights that are read as bfloat16, a loss in float32, scaled."""

    def loss(params: Any, batch: Any) -> Any:
        half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
        x = half["embed"][batch["ids"]]
        x, _ = jax.lax.scan(lambda x, p: (_gqa_layer(p, x), None), x, half["layers"])
        logits = jnp.dot(_rms(half["norm"], x), half["head"], preferred_element_type=jnp.float32)
        return entropy(logits, batch["targets"]) * 128.0

    return Program(loss, _gqa_params(), _tokens(), GQA_PINS, {"tolerance": 0.05, "widened": True})


def custom_vjp() -> Program:
    """A norm with a derivative of its own, and weights quantised with a straight-through gradient."""

    @jax.custom_vjp
    def norm(scale: Any, x: Any) -> Any:
        return _rms(scale, x)

    def forward(scale: Any, x: Any) -> Any:
        rate = jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6)
        return scale * x * rate, (scale, x, rate)

    def backward(kept: Any, g: Any) -> Any:
        scale, x, rate = kept
        unit = x * rate
        g_scale = jnp.sum(g * unit, tuple(range(x.ndim - 1)))
        return g_scale, rate * (g * scale - unit * jnp.mean(g * scale * unit, -1, keepdims=True))

    norm.defvjp(forward, backward)

    @jax.custom_jvp
    def rounded(x: Any) -> Any:
        return jnp.round(x * 64) / 64

    rounded.defjvp(lambda given, tangents: (rounded(given[0]), tangents[0]))

    def loss(params: Any, batch: Any) -> Any:
        x = params["embed"][batch["ids"]]
        weights = {name: leaf if "norm" in name else rounded(leaf) for name, leaf in params["layers"].items()}
        x, _ = jax.lax.scan(lambda x, p: (_gqa_layer(p, x, norm), None), x, weights)
        return entropy(norm(params["norm"], x) @ params["head"], batch["targets"])

    return Program(loss, _gqa_params(), _tokens(), GQA_PINS)


def recurrent() -> Program:
    """A gated recurrent network over time, by scan, the state from one step to the next."""

    def loss(params: Any, xs: Any, targets: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            gates = x @ params["input"] + state @ params["hidden"] + params["bias"]
            reset, update, new = jnp.split(gates, 3, -1)
            new = jnp.tanh(jax.nn.sigmoid(reset) * new)
            state = state + jax.nn.sigmoid(update) * (new - state)
            return state, state

        _, states = jax.lax.scan(step, jnp.zeros((xs.shape[0], 32)), xs.swapaxes(0, 1))
        return entropy(states.swapaxes(0, 1) @ params["head"], targets)

    params = {"input": kernel(16, 96), "hidden": kernel(32, 96), "bias": jnp.zeros(96), "head": kernel(32, 24)}
    return Program(loss, params, (normal(16, 8, 16), ids(16, 8, below=24)), ("head=[null, gpu]",))


def ensemble() -> Program:
    """Eight networks at once by vmap, each with weights of its own."""

    def member(params: Any, x: Any) -> Any:
        for layer in params[:-1]:
            x = jax.nn.gelu(x @ layer["w"] + layer["b"])
        return x @ params[-1]["w"] + params[-1]["b"]

    def loss(params: Any, x: Any, y: Any) -> Any:
        out = jax.vmap(member, (0, None))(params, x)
        return jnp.mean(jnp.square(out - y)) + 1e-3 * jnp.mean(jnp.var(out, 0))

    sizes = (16, 64, 64, 8)
    params = [{"w": kernel(8, one, other), "b": jnp.zeros((8, other))} for one, other in itertools.pairwise(sizes)]
    return Program(loss, params, (normal(32, 16), normal(32, 8)), ("*.w=[gpu, null, null]",))


def capacity_moe() -> Program:
    """Experts with a capacity: places by cumsum, dispatch and combine by einsum, a loss of the balance."""

    def loss(params: Any, x: Any, y: Any) -> Any:
        tokens = x.reshape(-1, x.shape[-1])
        shares = jax.nn.softmax(tokens @ params["router"])
        gate, chosen = jax.lax.top_k(shares, 2)
        hot = jax.nn.one_hot(chosen, 8)
        place = jnp.cumsum(hot.reshape(-1, 8), 0).reshape(hot.shape) * hot - 1
        slots = jax.nn.one_hot(place.max(-1).astype(jnp.int32), 16)
        dispatch = jnp.einsum("tke,tkc->tec", hot, slots)
        combine = jnp.einsum("tk,tke,tkc->tec", gate, hot, slots)
        h = jax.nn.relu(jnp.einsum("ech,ehf->ecf", jnp.einsum("tec,th->ech", dispatch, tokens), params["up"]))
        out = jnp.einsum("tec,ech->th", combine, jnp.einsum("ecf,efh->ech", h, params["down"]))
        balance = jnp.mean(shares.mean(0) * hot.sum(1).mean(0)) * 8
        return jnp.mean(jnp.square(out.reshape(x.shape) - y)) + 0.01 * balance

    params = {"router": kernel(16, 8), "up": kernel(8, 16, 64), "down": kernel(8, 64, 16)}
    return Program(loss, params, (normal(4, 8, 16), normal(4, 8, 16)), ("{up,down}=[gpu, null, null]",))


def chunked_loss() -> Program:
    """A large vocabulary, its loss by chunks of tokens in a scan; attention by jax.nn."""

    def layer(p: Any, x: Any) -> Any:
        q, k, v = (jnp.einsum("bsh,hnd->bsnd", x, p[name]) for name in "qkv")
        x = x + jnp.einsum("bsnd,ndh->bsh", jax.nn.dot_product_attention(q, k, v, is_causal=True), p["o"])
        return x + jax.nn.relu(x @ p["up"]) @ p["down"]

    def loss(params: Any, batch: Any) -> Any:
        x = layer(params["layer"], jnp.take(params["embed"], batch["ids"], 0))
        chunks = x.reshape(x.shape[0], 4, -1, x.shape[-1]).swapaxes(0, 1)
        targets = batch["targets"].reshape(x.shape[0], 4, -1).swapaxes(0, 1)

        def add(total: Any, given: Any) -> Any:
            return total + jax.checkpoint(entropy)(given[0] @ params["embed"].T, given[1]), None

        return jax.lax.scan(add, jnp.float32(0), (chunks, targets))[0] / 4

    layer_weights = {name: kernel(32, 32).reshape(32, 8, 4) for name in "qkv"}
    layer_weights |= {"o": kernel(32, 32).reshape(8, 4, 32), "up": kernel(32, 128), "down": kernel(128, 32)}
    params = {"embed": normal(96, 32, scale=0.2), "layer": layer_weights}
    return Program(loss, params, _tokens(), ("layer.[qkv]=[null, gpu, null]", "layer.up=[null, gpu]"))


def u_net() -> Program:
    """Convolutions down, transposed convolutions up, joins in between, group norms."""

    def conv(x: Any, w: Any, stride: int = 1) -> Any:
        return jax.lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def group_norm(x: Any, scale: Any) -> Any:
        y = x.reshape(*x.shape[:-1], 4, -1)
        y = (y - y.mean((1, 2, 4), keepdims=True)) * jax.lax.rsqrt(y.var((1, 2, 4), keepdims=True) + 1e-5)
        return y.reshape(x.shape) * scale

    def loss(params: Any, noisy: Any, clean: Any) -> Any:
        x = jax.nn.silu(group_norm(conv(noisy, params["in"]), params["norm_1"]))
        y = jax.nn.silu(group_norm(conv(x, params["down"], 2), params["norm_2"]))
        y = jax.lax.conv_transpose(y, params["up"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jnp.mean(jnp.square(conv(jnp.concatenate([x, y], -1), params["out"]) - clean))

    params = {
        "in": normal(3, 3, 3, 16, scale=0.2), "norm_1": jnp.ones(16), "down": normal(3, 3, 16, 32, scale=0.1),
        "norm_2": jnp.ones(32), "up": normal(3, 3, 32, 16, scale=0.1), "out": normal(3, 3, 32, 3, scale=0.1),
    }  # fmt: skip
    return Program(loss, params, (normal(8, 16, 16, 3), normal(8, 16, 16, 3)), ("in=[null, null, null, gpu]",))


def state_space() -> Program:
    """A diagonal state-space layer by associative scan."""

    def loss(params: Any, x: Any, y: Any) -> Any:
        h = x @ params["in"]
        decay = jax.nn.sigmoid(h @ params["decay"])

        def join(one: Any, other: Any) -> Any:
            return one[0] * other[0], other[0] * one[1] + other[1]

        _, states = jax.lax.associative_scan(join, (decay, (1 - decay) * h), axis=1)
        return jnp.mean(jnp.square(states @ params["out"] - y))

    params = {"in": kernel(16, 64), "decay": kernel(64, 64), "out": kernel(64, 16)}
    return Program(loss, params, (normal(16, 16, 16), normal(16, 16, 16)), ("in=[null, gpu]", "out=[gpu, null]"))


def contrastive() -> Program:
    """Two towers, all pairs of a batch, and a temperature."""

    def tower(p: Any, x: Any) -> Any:
        h = jax.nn.relu(x @ p["up"]) @ p["down"]
        return h / jnp.linalg.norm(h, axis=-1, keepdims=True)

    def loss(params: Any, images: Any, texts: Any) -> Any:
        one, other = tower(params["image"], images), tower(params["text"], texts)
        logits = one @ other.T * jnp.exp(params["temperature"])
        same = jnp.arange(logits.shape[0])
        return (entropy(logits, same) + entropy(logits.T, same)) / 2

    towers = {name: {"up": kernel(32, 128), "down": kernel(128, 16)} for name in ("image", "text")}
    params = {**towers, "temperature": jnp.float32(1.0)}
    return Program(loss, params, (normal(32, 32), normal(32, 32)), ("*.up=[null, gpu]", "*.down=[gpu, null]"))


PROGRAMS: dict[str, Callable[[], Program]] = {
    f"plain {each.__name__}": each
    for each in (
        scanned_gqa, unrolled_gqa, mixed_precision, custom_vjp, recurrent, ensemble, capacity_moe, chunked_loss, u_net,
        state_space, contrastive,
    )
}  # fmt: skip
