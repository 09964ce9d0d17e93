"""Programs with Fourier transforms and complex numbers, with convolutions by groups, and with weights that no loss
reads."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jax_programs.program import Program, entropy, ids, kernel, normal

MODES = 8
"""Frequencies that a Fourier neural operator keeps."""


def operator() -> Program:
    """A Fourier neural operator: complex products of the first frequencies, and a padded inverse."""

    def spectral(x: Any, layer: Any) -> Any:
        found = jnp.fft.rfft(x, axis=1)
        kept = jnp.einsum("bmc,mcd->bmd", found[:, :MODES], jax.lax.complex(layer["real"], layer["imaginary"]))
        return jnp.fft.irfft(jnp.zeros(found.shape, found.dtype).at[:, :MODES].set(kept), x.shape[1], axis=1)

    def loss(params: Any, x: Any, y: Any) -> Any:
        h = x @ params["lift"]
        for layer in params["layers"]:
            h = jax.nn.gelu(spectral(h, layer) + h @ layer["skip"])
        return jnp.mean(jnp.square(h @ params["out"] - y))

    layers = [
        {name: normal(MODES, 32, 32, scale=0.1) for name in ("real", "imaginary")} | {"skip": kernel(32, 32)}
        for _ in range(2)
    ]
    params = {"lift": kernel(2, 32), "layers": layers, "out": kernel(32, 1)}
    return Program(loss, params, (normal(16, 32, 2), normal(16, 32, 1)), ("layers.*.skip=[null, gpu]",))


def mixing() -> Program:
    """FNet: tokens are mixed by the real part of a transform of two dims."""

    def loss(params: Any, batch: Any) -> Any:
        x = params["table"][batch["ids"]]
        for layer in params["layers"]:
            x = x + 0.05 * jnp.fft.fft2(x).real
            x = x + jax.nn.gelu(x @ layer["up"]) @ layer["down"]
        return entropy(x @ params["head"], batch["targets"])

    layers = [{"up": kernel(32, 128), "down": kernel(128, 32)} for _ in range(2)]
    params = {"table": normal(64, 32), "layers": layers, "head": kernel(32, 64)}
    batch = {"ids": ids(16, 16, below=64), "targets": ids(16, 16, below=64)}
    return Program(loss, params, (batch,), ("layers.*.up=[null, gpu]", "layers.*.down=[gpu, null]"))


def states() -> Program:
    """A diagonal state space of complex states, by an associative scan."""

    def loss(params: Any, x: Any, y: Any) -> Any:
        decay = jnp.exp(-jnp.exp(params["decay"]) + 1j * params["phase"])
        given = x @ params["in"] + 0j

        def joined(one: Any, other: Any) -> Any:
            return one[0] * other[0], other[0] * one[1] + other[1]

        _, h = jax.lax.associative_scan(joined, (jnp.broadcast_to(decay, given.shape), given), axis=1)
        return jnp.mean(jnp.square(jax.nn.silu(h.real) @ params["out"] - y))

    params = {"in": kernel(16, 64), "decay": normal(64, scale=0.5), "phase": normal(64), "out": kernel(64, 16)}
    split = ("in=[null, gpu]", "out=[gpu, null]", "decay=[gpu]", "phase=[gpu]")
    return Program(loss, params, (normal(16, 16, 16), normal(16, 16, 16)), split)


def groups() -> Program:
    """ResNeXt's convolutions by groups, and a head that the loss never reads."""

    def loss(params: Any, x: Any, y: Any) -> Any:
        for layer in params["layers"]:
            h = jax.lax.conv_general_dilated(
                x, layer["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=4
            )
            x = x + jax.nn.relu(h * layer["scale"])
        return jnp.mean(jnp.square(x.mean((1, 2)) @ params["out"] - y))

    layers = [{"w": normal(3, 3, 8, 32, scale=0.1), "scale": jnp.ones(32)} for _ in range(2)]
    params = {"layers": layers, "out": kernel(32, 8), "unread": {"w": kernel(32, 64), "bias": jnp.zeros(64)}}
    return Program(loss, params, (normal(16, 8, 8, 32), normal(16, 8)), ("out=[null, gpu]",))


PROGRAMS = {
    "spectral operator": operator,
    "spectral mixing": mixing,
    "spectral states": states,
    "spectral groups": groups,
}
