"""Modules of flax nnx."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jax_programs.program import Program, entropy, ids, normal


class _Block(nnx.Module):
    def __init__(self, width: int, heads: int, *, rngs: Any) -> None:
        self.norm_1, self.norm_2 = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(heads, width, decode=False, deterministic=True, rngs=rngs)
        self.up, self.down = nnx.Linear(width, 4 * width, rngs=rngs), nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x: Any, mask: Any = None) -> Any:
        x = x + self.attention(self.norm_1(x), mask=mask)
        return x + self.down(nnx.gelu(self.up(self.norm_2(x))))


class _ViT(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.patches = nnx.Conv(3, 64, (4, 4), strides=(4, 4), padding="VALID", rngs=rngs)
        self.token = nnx.Param(jnp.zeros((1, 1, 64)))
        self.positions = nnx.Param(jax.random.normal(rngs.params(), (1, 17, 64)) * 0.02)
        self.blocks = nnx.List([_Block(64, 8, rngs=rngs) for _ in range(2)])
        self.norm, self.head = nnx.LayerNorm(64, rngs=rngs), nnx.Linear(64, 16, rngs=rngs)

    def __call__(self, images: Any) -> Any:
        x = self.patches(images)
        x = x.reshape(x.shape[0], -1, x.shape[-1])
        x = jnp.concatenate([jnp.tile(self.token[...], (x.shape[0], 1, 1)), x], 1) + self.positions[...]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


_TENSOR = {
    "attention.{query,key,value}.kernel": "null, gpu, null",
    "attention.out.kernel": "gpu, null, null",
    "up.kernel": "null, gpu",
    "down.kernel": "gpu, null",
}


def vit() -> Program:
    """A vision transformer: a convolution of patches, a class token, full attention."""
    graph, params = nnx.split(_ViT(nnx.Rngs(0)), nnx.Param)

    def loss(params: Any, images: Any, labels: Any) -> Any:
        return entropy(nnx.merge(graph, params)(images), labels)

    pins = tuple(f"blocks.*.{name}=[{spec}]" for name, spec in _TENSOR.items())
    return Program(loss, params, (normal(16, 16, 16, 3), ids(16, below=16)), pins)


class _Gpt(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        @nnx.split_rngs(splits=3)
        @nnx.vmap(in_axes=0, out_axes=0)
        def blocks(rngs: Any) -> Any:
            return _Block(64, 8, rngs=rngs)

        self.embed = nnx.Embed(96, 64, rngs=rngs)
        self.layers = blocks(rngs)
        self.norm = nnx.RMSNorm(64, rngs=rngs)

    def __call__(self, tokens: Any) -> Any:
        x, mask = self.embed(tokens), nnx.make_causal_mask(tokens)

        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        @nnx.remat
        def through(x: Any, block: Any) -> Any:
            return block(x, mask)

        return self.embed.attend(self.norm(through(x, self.layers)))


def scanned_gpt() -> Program:
    """nnx.scan over nnx.remat of stacked blocks, a tied head."""
    graph, params = nnx.split(_Gpt(nnx.Rngs(0)), nnx.Param)

    def loss(params: Any, tokens: Any, targets: Any) -> Any:
        return entropy(nnx.merge(graph, params)(tokens), targets)

    pins = tuple(f"layers.{name}=[null, {spec}]" for name, spec in _TENSOR.items())
    return Program(loss, params, (ids(16, 16, below=96), ids(16, 16, below=96)), pins)


def autoencoder() -> Program:
    """Convolutions down and transposed convolutions up."""

    class Net(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.down = nnx.Conv(3, 16, (3, 3), strides=2, rngs=rngs)
            self.code = nnx.Linear(16, 32, rngs=rngs)
            self.up = nnx.ConvTranspose(32, 3, (4, 4), strides=2, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.up(nnx.relu(self.code(nnx.relu(self.down(x)))))

    graph, params = nnx.split(Net(nnx.Rngs(0)), nnx.Param)

    def loss(params: Any, images: Any) -> Any:
        return jnp.mean(jnp.square(nnx.merge(graph, params)(images) - images))

    return Program(loss, params, (normal(8, 16, 16, 3),), ("code.kernel=[null, gpu]",))


def gru() -> Program:
    """nnx.RNN over a GRU cell."""

    class Net(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.rnn = nnx.RNN(nnx.GRUCell(16, 32, rngs=rngs))
            self.head = nnx.Linear(32, 24, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.head(self.rnn(x, initial_carry=jnp.zeros((x.shape[0], 32))))

    graph, params, rest = nnx.split(Net(nnx.Rngs(0)), nnx.Param, ...)

    def loss(params: Any, x: Any, targets: Any) -> Any:
        return entropy(nnx.merge(graph, params, rest)(x), targets)

    return Program(loss, params, (normal(16, 8, 16), ids(16, 8, below=24)), ("head.kernel=[null, gpu]",))


def lora() -> Program:
    """A frozen network with low-rank additions: only these are weights to train."""

    class Net(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.up = nnx.LoRALinear(32, 128, lora_rank=8, rngs=rngs)
            self.down = nnx.LoRALinear(128, 32, lora_rank=8, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.down(nnx.gelu(self.up(x)))

    graph, added, frozen = nnx.split(Net(nnx.Rngs(0)), nnx.LoRAParam, ...)

    def loss(params: Any, x: Any, y: Any) -> Any:
        frozen = jax.lax.stop_gradient(params["frozen"])
        return jnp.mean(jnp.square(nnx.merge(graph, params["lora"], frozen)(x) - y))

    settings = {"trainable": lambda name: name.startswith("lora")}
    pins = ("frozen.up.kernel=[null, gpu]", "frozen.down.kernel=[gpu, null]")
    return Program(loss, {"lora": added, "frozen": frozen}, (normal(32, 32), normal(32, 32)), pins, settings)


PROGRAMS: dict[str, Callable[[], Program]] = {
    f"nnx {each.__name__}": each for each in (vit, scanned_gpt, autoencoder, gru, lora)
}
