"""Modules of equinox: written for one sample, mapped over the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from jax_programs.program import Program, entropy, ids, normal


class _Block(eqx.Module):
    attention: eqx.nn.MultiheadAttention
    norms: list[eqx.nn.LayerNorm]
    mlp: eqx.nn.MLP

    def __init__(self, width: int, heads: int, key: Any) -> None:
        one, other = jax.random.split(key)
        self.attention = eqx.nn.MultiheadAttention(heads, width, key=one)
        self.norms = [eqx.nn.LayerNorm(width), eqx.nn.LayerNorm(width)]
        self.mlp = eqx.nn.MLP(width, width, 4 * width, 1, jax.nn.gelu, key=other)

    def __call__(self, x: Any) -> Any:
        h = jax.vmap(self.norms[0])(x)
        x = x + self.attention(h, h, h, mask=jnp.tril(jnp.ones((x.shape[0], x.shape[0]), bool)))
        return x + jax.vmap(self.mlp)(jax.vmap(self.norms[1])(x))


class _Gpt(eqx.Module):
    embed: eqx.nn.Embedding
    blocks: Any
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear
    stacked: bool = eqx.field(static=True)

    def __init__(self, stacked: bool, key: Any) -> None:
        keys = jax.random.split(key, 5)
        self.embed = eqx.nn.Embedding(96, 64, key=keys[0])
        self.blocks = (
            eqx.filter_vmap(lambda key: _Block(64, 8, key))(keys[1:4])
            if stacked
            else [_Block(64, 8, key) for key in keys[1:3]]
        )
        self.norm = eqx.nn.LayerNorm(64)
        self.head = eqx.nn.Linear(64, 96, use_bias=False, key=keys[4])
        self.stacked = stacked

    def __call__(self, tokens: Any) -> Any:
        x = jax.vmap(self.embed)(tokens)
        if self.stacked:
            arrays, rest = eqx.partition(self.blocks, eqx.is_array)
            x, _ = jax.lax.scan(lambda x, p: (eqx.filter_checkpoint(eqx.combine(p, rest))(x), None), x, arrays)
        else:
            for block in self.blocks:
                x = eqx.filter_checkpoint(block)(x)
        return jax.vmap(self.head)(jax.vmap(self.norm)(x))


def _gpt(stacked: bool) -> Program:
    params, rest = eqx.partition(_Gpt(stacked, jax.random.key(0)), eqx.is_inexact_array)

    def loss(params: Any, tokens: Any, targets: Any) -> Any:
        return entropy(jax.vmap(eqx.combine(params, rest))(tokens), targets)

    name, lead = ("blocks", "null, ") if stacked else ("blocks.*", "")
    pins = (
        f"{name}.attention.{{query,key,value}}_proj.weight=[{lead}gpu, null]",
        f"{name}.attention.output_proj.weight=[{lead}null, gpu]",
        f"{name}.mlp.layers.0.weight=[{lead}gpu, null]",
        f"{name}.mlp.layers.1.weight=[{lead}null, gpu]",
    )
    return Program(loss, params, (ids(16, 16, below=96), ids(16, 16, below=96)), pins)


def scanned_gpt() -> Program:
    """Blocks made by filter_vmap, scanned, computed again in backward."""
    return _gpt(stacked=True)


def listed_gpt() -> Program:
    """Blocks one by one under filter_checkpoint."""
    return _gpt(stacked=False)


def cnn() -> Program:
    """Convolutions and a pool of single images, channels first."""
    keys = jax.random.split(jax.random.key(0), 3)
    net = eqx.nn.Sequential(
        [
            eqx.nn.Conv2d(3, 16, 3, padding=1, key=keys[0]), eqx.nn.Lambda(jax.nn.relu), eqx.nn.MaxPool2d(2, 2),
            eqx.nn.Conv2d(16, 32, 3, padding=1, key=keys[1]), eqx.nn.Lambda(jax.nn.relu), eqx.nn.AvgPool2d(2, 2),
            eqx.nn.Lambda(jnp.ravel), eqx.nn.Linear(512, 8, key=keys[2]),
        ]
    )  # fmt: skip
    params, rest = eqx.partition(net, eqx.is_inexact_array)

    def loss(params: Any, images: Any, labels: Any) -> Any:
        return entropy(jax.vmap(eqx.combine(params, rest))(images), labels)

    return Program(
        loss, params, (normal(16, 3, 16, 16), ids(16, below=8)), ("layers.3.weight=[gpu, null, null, null]",)
    )


def lstm() -> Program:
    """A cell scanned over time, mapped over the batch."""
    cell = eqx.nn.LSTMCell(16, 32, key=jax.random.key(0))
    head = eqx.nn.Linear(32, 24, key=jax.random.key(1))
    params, rest = eqx.partition({"cell": cell, "head": head}, eqx.is_inexact_array)

    def loss(params: Any, xs: Any, targets: Any) -> Any:
        net = eqx.combine(params, rest)

        def one(xs: Any) -> Any:
            def step(state: Any, x: Any) -> Any:
                state = net["cell"](x, state)
                return state, state[0]

            _, found = jax.lax.scan(step, (jnp.zeros(32), jnp.zeros(32)), xs)
            return jax.vmap(net["head"])(found)

        return entropy(jax.vmap(one)(xs), targets)

    return Program(loss, params, (normal(16, 8, 16), ids(16, 8, below=24)), ("head.weight=[gpu, null]",))


PROGRAMS: dict[str, Callable[[], Program]] = {
    f"equinox {each.__name__}": each for each in (scanned_gpt, listed_gpt, cnn, lstm)
}
