"""Functions of JAX to be planned: what people write, each with its parameters and a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Program = tuple[Callable[..., Any], Any, tuple[Any, ...]]
_DRAW = np.random.default_rng(7)


def _w(*shape: int) -> Any:
    return jnp.asarray(
        _DRAW.standard_normal(shape).astype(np.float32) / max(1, shape[-2] if len(shape) > 1 else 4) ** 0.5
    )


def _ids(*shape: int, below: int) -> Any:
    return jnp.asarray(_DRAW.integers(below, size=shape).astype(np.int32))


def _rms(scale: Any, x: Any) -> Any:
    return scale * x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6)


def _layer_norm(p: Any, x: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(jnp.var(x, -1, keepdims=True) + 1e-5) * p["scale"] + p["bias"]


def _entropy(logits: Any, targets: Any) -> Any:
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1))


def mlp() -> Program:
    """Two products, an activation, a mean of squares."""

    def loss(params: Any, x: Any, y: Any) -> Any:
        h = jax.nn.gelu(x @ params["up"]["kernel"] + params["up"]["bias"])
        return jnp.mean((h @ params["down"]["kernel"] - y) ** 2)

    params = {"up": {"kernel": _w(16, 64), "bias": _w(64)}, "down": {"kernel": _w(64, 16)}}
    return loss, params, (_w(32, 16), _w(32, 16))


def scanned_gpt() -> Program:
    """Layers stacked and scanned, each computed again in backward; learned positions, a tied head."""

    def layer(x: Any, p: Any) -> Any:
        h = _layer_norm(p["ln_1"], x)
        q, k, v = jnp.split(h @ p["qkv"], 3, -1)
        q, k, v = (each.reshape(*each.shape[:2], 4, 8).transpose(0, 2, 1, 3) for each in (q, k, v))
        scores = q @ k.swapaxes(-1, -2) / 8**0.5
        seen = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
        shares = jax.nn.softmax(jnp.where(seen, scores, -1e9))
        x = x + (shares @ v).transpose(0, 2, 1, 3).reshape(x.shape) @ p["out"]
        return x + jax.nn.gelu(_layer_norm(p["ln_2"], x) @ p["up"]) @ p["down"]

    def loss(params: Any, batch: Any) -> Any:
        x = params["wte"][batch["ids"]] + params["wpe"]
        x, _ = jax.lax.scan(lambda x, p: (jax.checkpoint(layer)(x, p), None), x, params["layers"])
        return _entropy(x @ params["wte"].T, batch["targets"])

    norm = {"scale": jnp.ones((3, 32)), "bias": jnp.zeros((3, 32))}
    layers = {
        "ln_1": norm,
        "ln_2": norm,
        "qkv": _w(3, 32, 96),
        "out": _w(3, 32, 32),
        "up": _w(3, 32, 128),
        "down": _w(3, 128, 32),
    }
    params = {"wte": _w(48, 32), "wpe": _w(16, 32), "layers": layers}
    return loss, params, ({"ids": _ids(16, 16, below=48), "targets": _ids(16, 16, below=48)},)


def grouped_llama() -> Program:
    """Rotary positions, grouped queries, a gated MLP, layers in a list."""

    def rotated(x: Any) -> Any:
        half = x.shape[-1] // 2
        angles = jnp.arange(x.shape[1])[:, None] / 100 ** (jnp.arange(half) / half)
        sin, cos = jnp.sin(angles)[:, None], jnp.cos(angles)[:, None]
        one, other = x[..., :half], x[..., half:]
        return jnp.concatenate([one * cos - other * sin, other * cos + one * sin], -1)

    def layer(p: Any, x: Any) -> Any:
        h = _rms(p["norm_1"], x)
        q, k, v = (jnp.einsum("bsh,hnd->bsnd", h, p[name]) for name in ("q", "k", "v"))
        q, k = rotated(q), rotated(k)
        k, v = (jnp.repeat(each, q.shape[2] // each.shape[2], 2) for each in (k, v))
        scores = jnp.einsum("bqnd,bknd->bnqk", q, k) / q.shape[-1] ** 0.5
        seen = jnp.arange(x.shape[1])[:, None] >= jnp.arange(x.shape[1])
        shares = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), -1)
        x = x + jnp.einsum("bnqk,bknd,ndh->bqh", shares, v, p["o"])
        h = _rms(p["norm_2"], x)
        return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]

    def loss(params: Any, ids: Any, targets: Any) -> Any:
        x = jnp.take(params["embed"], ids, axis=0)
        for p in params["layers"]:
            x = layer(p, x)
        return _entropy(_rms(params["norm"], x) @ params["head"], targets)

    layers = [
        {
            "norm_1": jnp.ones(32), "norm_2": jnp.ones(32), "q": _w(32, 8, 4), "k": _w(32, 4, 4), "v": _w(32, 4, 4),
            "o": _w(8, 4, 32), "gate": _w(32, 64), "up": _w(32, 64), "down": _w(64, 32),
        }
        for _ in range(2)
    ]  # fmt: skip
    params = {"embed": _w(48, 32), "layers": layers, "norm": jnp.ones(32), "head": _w(32, 48)}
    return loss, params, (_ids(8, 16, below=48), _ids(8, 16, below=48))


def cnn() -> Program:
    """Convolutions with channels last, a pool, a mean over space."""

    def loss(params: Any, images: Any, labels: Any) -> Any:
        x = images
        for kernel in params["kernels"]:
            x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = jax.lax.reduce_window(jax.nn.relu(x), -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return _entropy(x.mean((1, 2)) @ params["head"], labels)

    params = {"kernels": [_w(3, 3, 3, 16), _w(3, 3, 16, 32)], "head": _w(32, 8)}
    return loss, params, (_w(8, 16, 16, 3), _ids(8, below=8))


def mixture() -> Program:
    """Experts by one-hot dispatch of the two best of four."""

    def loss(params: Any, x: Any, y: Any) -> Any:
        shares, chosen = jax.lax.top_k(jax.nn.softmax(x @ params["router"]), 2)
        weights = jnp.einsum("bsk,bske->bse", shares, jax.nn.one_hot(chosen, 4))
        h = jax.nn.relu(jnp.einsum("bsh,ehf->bsef", x, params["up"]))
        return jnp.mean((jnp.einsum("bsef,efh,bse->bsh", h, params["down"], weights) - y) ** 2)

    params = {"router": _w(16, 4), "up": _w(4, 16, 32), "down": _w(4, 32, 16)}
    return loss, params, (_w(8, 8, 16), _w(8, 8, 16))


def encoder_decoder() -> Program:
    """Cross attention between two sequences."""

    def attend(p: Any, x: Any, y: Any) -> Any:
        q, k, v = x @ p["q"], y @ p["k"], y @ p["v"]
        return x + jax.nn.softmax(q @ k.swapaxes(1, 2) / 4) @ v @ p["o"]

    def loss(params: Any, source: Any, ids: Any, targets: Any) -> Any:
        memory = attend(params["encoder"], source, source)
        x = params["table"][ids]
        x = attend(params["cross"], attend(params["self"], x, x), memory)
        return _entropy(x @ params["table"].T, targets)

    block = [{name: _w(16, 16) for name in "qkvo"} for _ in range(3)]
    params = {"encoder": block[0], "self": block[1], "cross": block[2], "table": _w(32, 16)}
    return loss, params, (_w(8, 12, 16), _ids(8, 8, below=32), _ids(8, 8, below=32))


def others() -> Program:
    """Primitives that the rest does not have: padding, reversal, running sums, clipping, several results."""

    def forward(params: Any, x: Any, keep: Any) -> Any:
        y = jnp.pad(x, ((0, 0), (1, 2))) @ params["w"]
        y = jnp.where(keep & ~(y > 2), jnp.clip(y, -1, 1), y[:, ::-1])
        y = jnp.cumsum(y, 1) + jnp.log1p(jnp.abs(y)) + jnp.expm1(-jnp.abs(y)) + y**3 + jax.lax.erf(y)
        best = jnp.argmax(y, 1)
        return {
            "y": y,
            "best": best,
            "any": jnp.any(keep, 1),
            "some": jax.lax.dynamic_slice(y, (0, 2), (8, 4)),
            "last": y[:, -1],
        }

    return forward, {"w": _w(19, 16)}, (_w(8, 16), jnp.asarray(_DRAW.random((8, 16)) < 0.5))


PROGRAMS = {each.__name__: each for each in (mlp, scanned_gpt, grouped_llama, cnn, mixture, encoder_decoder, others)}
