"""Modules of flax linen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from jax_programs.program import Program, entropy, ids, normal


class _Block(nn.Module):
    heads: int = 8

    @nn.compact
    def __call__(self, x: Any, _: Any = None) -> Any:
        mask = nn.make_causal_mask(x[..., 0])
        h = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(self.heads, deterministic=True, name="attention")(h, mask=mask)
        h = nn.LayerNorm()(x)
        h = nn.gelu(nn.Dense(4 * x.shape[-1], name="up")(h))
        return x + nn.Dense(x.shape[-1], name="down")(h), None


class _Gpt(nn.Module):
    scanned: bool

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        embed = nn.Embed(96, 64, name="embed")
        x = embed(tokens) + self.param("positions", nn.initializers.normal(0.02), (tokens.shape[1], 64))
        if self.scanned:
            block = nn.scan(
                nn.remat(_Block, prevent_cse=False), variable_axes={"params": 0}, split_rngs={"params": True}, length=3
            )
            x, _ = block(name="layers")(x, None)
        else:
            for number in range(2):
                x, _ = nn.remat(_Block)(name=f"layers_{number}")(x)
        return embed.attend(nn.LayerNorm(name="norm")(x))


def _gpt(scanned: bool) -> Program:
    model, tokens = _Gpt(scanned), ids(16, 16, below=96)
    params = model.init(jax.random.key(0), tokens)["params"]

    def loss(params: Any, tokens: Any, targets: Any) -> Any:
        return entropy(model.apply({"params": params}, tokens), targets)

    lead = "null, " if scanned else ""
    pins = tuple(
        f"layers*.{name}.kernel=[{lead}{spec}]"
        for name, spec in {
            "attention.{query,key,value}": "null, gpu, null",
            "attention.out": "gpu, null, null",
            "up": "null, gpu",
            "down": "gpu, null",
        }.items()
    )
    return Program(loss, params, (tokens, ids(16, 16, below=96)), pins)


def scanned_gpt() -> Program:
    """nn.scan over nn.remat of a block, a tied head."""
    return _gpt(scanned=True)


def listed_gpt() -> Program:
    """Blocks one by one."""
    return _gpt(scanned=False)


def moe() -> Program:
    """Experts as one module, vmapped with nn.vmap, of which the router takes two."""

    class Expert(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(32, name="down")(nn.relu(nn.Dense(64, name="up")(x)))

    class Mixture(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            shares, chosen = jax.lax.top_k(nn.softmax(nn.Dense(8, name="router")(x)), 2)
            weights = jnp.einsum("bsk,bske->ebs", shares, jax.nn.one_hot(chosen, 8))
            experts = nn.vmap(
                Expert, variable_axes={"params": 0}, split_rngs={"params": True}, in_axes=None, axis_size=8
            )
            return jnp.einsum("ebsh,ebs->bsh", experts(name="experts")(x), weights)

    model, x = Mixture(), normal(8, 8, 32)
    params = model.init(jax.random.key(0), x)["params"]

    def loss(params: Any, x: Any, y: Any) -> Any:
        return jnp.mean(jnp.square(model.apply({"params": params}, x) - y))

    return Program(loss, params, (x, normal(8, 8, 32)), ("experts.{up,down}.kernel=[gpu, null, null]",))


def rnn() -> Program:
    """nn.RNN over an LSTM cell."""
    model = nn.Sequential([nn.RNN(nn.OptimizedLSTMCell(32)), nn.Dense(24)])
    x = normal(16, 8, 16)
    params = model.init(jax.random.key(0), x)["params"]

    def loss(params: Any, x: Any, targets: Any) -> Any:
        return entropy(model.apply({"params": params}, x), targets)

    return Program(loss, params, (x, ids(16, 8, below=24)), ("layers_1.kernel=[null, gpu]",))


def res_net() -> Program:
    """Convolutions with batch norm in training; the running statistics are no weights."""

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.relu(nn.BatchNorm(use_running_average=False)(nn.Conv(16, (3, 3), name="stem")(x)))
            x = nn.max_pool(x, (2, 2), (2, 2))
            y = nn.relu(nn.BatchNorm(use_running_average=False)(nn.Conv(16, (3, 3), name="conv")(x)))
            x = nn.avg_pool(x + y, (2, 2), (2, 2))
            return nn.Dense(8, name="head")(x.mean((1, 2)))

    model, x = Net(), normal(16, 16, 16, 3)
    variables = model.init(jax.random.key(0), x)

    def loss(params: Any, x: Any, targets: Any) -> Any:
        logits, _ = model.apply({**variables, "params": params}, x, mutable=["batch_stats"])
        return entropy(logits, targets)

    pins = ("stem.kernel=[null, null, null, gpu]",)
    return Program(loss, variables["params"], (x, ids(16, below=8)), pins)


PROGRAMS: dict[str, Callable[[], Program]] = {
    f"linen {each.__name__}": each for each in (scanned_gpt, listed_gpt, moe, rnn, res_net)
}
