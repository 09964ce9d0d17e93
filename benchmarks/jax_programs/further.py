"""Programs of further kinds: half precision, linear algebra, running values, groups of rows, rays, caches, sorts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jax_programs.program import Program, entropy, ids, kernel, normal


@functools.partial(jax.tree_util.register_dataclass, data_fields=("table", "layers", "head"), meta_fields=("heads",))
@dataclass(frozen=True)
class Weights:
    """Half-precision weights in a dataclass."""

    table: Any
    layers: Any
    head: Any
    heads: int


def half_weights() -> Program:
    """bfloat16 weights in a dataclass of tuples and mappings, sums in float32."""

    def loss(params: Weights, batch: Any) -> Any:
        x = params.table[batch["ids"]]
        for up, down in params.layers:
            h = jax.nn.relu(jnp.dot(x, up["w"], preferred_element_type=jnp.float32) + up["b"])
            x = x + jnp.dot(h.astype(jnp.bfloat16), down["w"], preferred_element_type=jnp.float32).astype(jnp.bfloat16)
        logits = jnp.einsum("bsh,hv->bsv", x, params.head, preferred_element_type=jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"]).mean()

    layers = [({"w": kernel(32, 128), "b": jnp.zeros(128)}, {"w": kernel(128, 32)}) for _ in range(2)]
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), Weights(normal(96, 32), layers, kernel(32, 96), 4))
    batch = {"ids": ids(16, 16, below=96), "targets": ids(16, 16, below=96)}
    return Program(
        loss,
        params,
        (batch,),
        ("layers.*.0.w=[null, gpu]", "layers.*.1.w=[gpu, null]"),
        {"tolerance": 0.05, "widened": True},
    )


def process() -> Program:
    """A Gaussian process on features: a Cholesky factor, triangular solves, a log-determinant."""

    def loss(params: Any, x: Any, y: Any) -> Any:
        h = jnp.tanh(x @ params["one"]) @ params["two"]
        far = jnp.sum(jnp.square(h[:, None] - h[None]), -1)
        covariance = jnp.exp(-0.5 * far) + jnp.exp(params["noise"]) * jnp.eye(x.shape[0])
        factor = jnp.linalg.cholesky(covariance)
        white = jax.scipy.linalg.solve_triangular(factor, y, lower=True)
        return 0.5 * jnp.sum(jnp.square(white)) / x.shape[0] + jnp.mean(jnp.log(jnp.diagonal(factor)))

    params = {"one": kernel(8, 64), "two": kernel(64, 4), "noise": jnp.float32(-1.0)}
    return Program(loss, params, (normal(16, 8), normal(16)), ("one=[null, gpu]",))


def running() -> Program:
    """Running values of all kinds: products, maxima, logarithms of sums, a reversed scan, `lax.map` over blocks."""

    def loss(params: Any, x: Any, y: Any) -> Any:
        h = x @ params["in"]
        keep = jnp.cumprod(jax.nn.sigmoid(h), 1)
        best = jax.lax.cummax(h, 1)
        total = jax.lax.cumlogsumexp(h, axis=1, reverse=True)
        _, back = jax.lax.scan(lambda c, z: (0.9 * c + z, c), jnp.zeros_like(h[:, 0]), h.swapaxes(0, 1), reverse=True)
        h = keep + best + total + back.swapaxes(0, 1)
        blocks = jax.lax.map(lambda z: jax.nn.gelu(z @ params["middle"]), h.reshape(4, -1, *h.shape[1:]))
        return jnp.mean(jnp.square(blocks.reshape(h.shape) @ params["out"] - y))

    params = {"in": kernel(8, 32), "middle": kernel(32, 32), "out": kernel(32, 8)}
    return Program(loss, params, (normal(16, 8, 8), normal(16, 8, 8)), ("in=[null, gpu]",))


def ragged() -> Program:
    """Experts without capacities: tokens sorted by expert, one product of groups of unequal sizes, put back."""

    def loss(params: Any, x: Any, y: Any) -> Any:
        tokens = x.reshape(-1, x.shape[-1])
        gate, chosen = jax.lax.top_k(jax.nn.softmax(tokens @ params["router"]), 2)
        flat = chosen.reshape(-1)
        order = jnp.argsort(flat)
        sizes = jnp.bincount(flat, length=4)
        h = jax.lax.ragged_dot(tokens[order // 2], params["up"], sizes)
        h = jax.lax.ragged_dot(jax.nn.silu(h), params["down"], sizes)
        back = h[jnp.argsort(order)].reshape(*chosen.shape, -1)
        return jnp.mean(jnp.square((back * gate[..., None]).sum(1).reshape(x.shape) - y))

    params = {"router": kernel(16, 4), "up": kernel(4, 16, 64), "down": kernel(4, 64, 16)}
    return Program(loss, params, (normal(8, 8, 16), normal(8, 8, 16)), ("{up,down}=[gpu, null, null]",))


def speech() -> Program:
    """A CTC loss of optax over a net of strided convolutions; paddings."""

    def loss(params: Any, x: Any, labels: Any) -> Any:
        h = jax.nn.relu(
            jax.lax.conv_general_dilated(x, params["conv"], (2,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))
        )
        logits = h @ params["head"]
        return optax.ctc_loss(logits, jnp.zeros(logits.shape[:2]), labels, (labels == 0).astype(jnp.float32)).mean()

    params = {"conv": normal(3, 8, 32, scale=0.2), "head": kernel(32, 12)}
    return Program(loss, params, (normal(16, 24, 8), ids(16, 4, below=11) + 1), ("conv=[null, null, gpu]",))


def rays() -> Program:
    """A field along rays: samples drawn, positions coded, weights of density; images sampled between pixels."""

    def loss(params: Any, origins: Any, ways: Any, image: Any, goal: Any, key: Any) -> Any:
        depths = jnp.sort(jnp.linspace(0.1, 1, 8) + 0.05 * jax.random.uniform(key, (origins.shape[0], 8)), -1)
        points = origins[:, None] + ways[:, None] * depths[..., None]
        bands = points[..., None] * 2.0 ** jnp.arange(3)
        coded = jnp.concatenate([jnp.sin(bands), jnp.cos(bands)], -1).reshape(*points.shape[:-1], -1)
        wide = jax.image.resize(image, (16, 16), "bilinear")
        seen = jax.vmap(lambda p: jax.scipy.ndimage.map_coordinates(wide, [p[:, 0] * 4 + 8, p[:, 1] * 4 + 8], order=1))(
            points
        )
        h = jax.nn.relu(jnp.concatenate([coded, seen[..., None]], -1) @ params["one"])
        sigma, colour = jnp.split(h @ params["two"], [1], -1)
        opaque = 1 - jnp.exp(-jax.nn.softplus(sigma[..., 0]) * jnp.diff(depths, append=1.2))
        through = jnp.exp(jnp.cumsum(jnp.log1p(-opaque + 1e-6), -1)) / (1 - opaque + 1e-6)
        made = jnp.sum((opaque * through)[..., None] * jax.nn.sigmoid(colour), 1)
        return jnp.mean(jnp.square(made - goal))

    params = {"one": kernel(19, 64), "two": kernel(64, 4)}
    return Program(
        loss,
        params,
        (normal(32, 3, scale=0.3), normal(32, 3, scale=0.3), normal(8, 8), normal(32, 3), jax.random.key(3)),
        ("one=[null, gpu]", "two=[gpu, null]"),
    )


def decoding() -> Program:
    """Words one by one in a scan, keys and values written into caches, the layers a loop within the loop."""

    def loss(params: Any, batch: Any) -> Any:
        times = batch["ids"].shape[1]

        def layer(carry: Any, given: Any) -> Any:
            x, step = carry
            p, keys, values = given
            q, k, v = (jnp.einsum("bh,hnd->bnd", x, p[name]) for name in "qkv")
            keys = jax.lax.dynamic_update_slice_in_dim(keys, k[:, None], step, 1)
            values = jax.lax.dynamic_update_slice_in_dim(values, v[:, None], step, 1)
            scores = jnp.einsum("bnd,btnd->bnt", q, keys) / 2
            scores = jnp.where(jnp.arange(times) <= step, scores, -1e9)
            x = x + jnp.einsum("bnt,btnd,ndh->bh", jax.nn.softmax(scores), values, p["o"])
            return (x + jax.nn.relu(x @ p["up"]) @ p["down"], step), (keys, values)

        def word(caches: Any, given: Any) -> Any:
            token, step = given
            (x, _), caches = jax.lax.scan(layer, (params["embed"][token], step), (params["layers"], *caches))
            return caches, x @ params["embed"].T

        empty = jnp.zeros((2, batch["ids"].shape[0], times, 4, 4))
        _, logits = jax.lax.scan(word, (empty, empty), (batch["ids"].T, jnp.arange(times)))
        return entropy(logits.swapaxes(0, 1), batch["targets"])

    layers = {name: kernel(2, 16, 16).reshape(2, 16, 4, 4) for name in "qkv"}
    layers |= {"o": kernel(2, 16, 16).reshape(2, 4, 4, 16), "up": kernel(2, 16, 64), "down": kernel(2, 64, 16)}
    batch = {"ids": ids(16, 6, below=32), "targets": ids(16, 6, below=32)}
    return Program(
        loss,
        {"embed": normal(32, 16, scale=0.3), "layers": layers},
        (batch,),
        ("layers.up=[null, null, gpu]", "layers.down=[null, gpu, null]"),
    )


def sorted_forms() -> Program:
    """Sorting by two keys, medians, searches, rolls, windows by index, differences, clipped norms, soft ranks."""

    def loss(params: Any, x: Any, y: Any) -> Any:
        h = jnp.tanh(x @ params["one"])
        middle = jnp.median(h, -1, keepdims=True)
        order = jnp.lexsort((h[:, 0], jnp.round(h[:, 1])))
        edges = jnp.linspace(-1, 1, 9)
        bucket = params["table"][jnp.searchsorted(edges, h[:, :4])]
        windows = h[:, jnp.arange(0, 32, 4)[:, None] + jnp.arange(4)]
        ranks = jnp.sum(jax.nn.sigmoid((h[:, :, None] - h[:, None]) * 4), -1)
        z = jnp.roll(h, 3, -1) - middle + ranks * 0.01 + jnp.repeat(windows.mean(-1), 4, -1)
        z = jnp.concatenate([z, bucket.reshape(x.shape[0], -1), jnp.diff(h, axis=-1)], -1)
        z = z / jnp.maximum(1.0, jnp.linalg.norm(z, axis=-1, keepdims=True))
        q = jnp.quantile(h, 0.3, axis=-1)
        return jnp.mean(jnp.square((z @ params["two"])[order] - y)) + 0.1 * jnp.mean(q)

    params = {"one": kernel(8, 32), "table": normal(10, 8), "two": kernel(95, 4)}
    return Program(loss, params, (normal(16, 8), normal(16, 4)), ("one=[null, gpu]",))


def mixtures() -> Program:
    """Likelihoods: gammas and betas by special functions, logsumexp of a mixture, a multivariate normal, Dirichlets."""

    def loss(params: Any, x: Any, y: Any) -> Any:
        h = jax.nn.softplus(x @ params["one"])
        a, b, mix = jnp.split(h @ params["two"], 3, -1)
        a, b = jax.nn.softplus(a) + 0.5, jax.nn.softplus(b) + 0.5
        u = jax.nn.sigmoid(y)
        beta = jax.scipy.stats.beta.logpdf(u, a, b)
        gamma = jax.scipy.stats.gamma.logpdf(jnp.exp(y), a, scale=1 / b)
        normal_ = jax.scipy.stats.norm.logcdf(y - a) + jax.scipy.special.ndtri(jnp.clip(u, 0.01, 0.99)) * b
        return -jnp.mean(
            jax.scipy.special.logsumexp(jax.nn.log_softmax(mix) + beta + gamma + 0.1 * normal_, -1)
        ) + 0.01 * jnp.mean(jax.scipy.special.digamma(a))

    params = {"one": kernel(8, 64), "two": kernel(64, 12)}
    return Program(loss, params, (normal(32, 8), normal(32, 1)), ("one=[null, gpu]", "two=[gpu, null]"))


PROGRAMS: dict[str, Callable[[], Program]] = {
    f"further {each.__name__}": each
    for each in (half_weights, process, running, ragged, speech, rays, decoding, sorted_forms, mixtures)
}
