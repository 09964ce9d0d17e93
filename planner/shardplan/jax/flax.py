"""Checkpoint names of flax parameters."""

from __future__ import annotations

import re

from shardplan.jax.pytrees import Target

_LEAVES = {"kernel": "weight", "embedding": "weight", "scale": "weight", "bias": "bias", "mean": "running_mean",
           "var": "running_var"}  # fmt: skip
_NUMBER = re.compile(r"_(\d+)(?=\.|$)")
_COLLECTIONS = ("params.", "batch_stats.")


def flax_names(path: str) -> Target:
    """The checkpoint name of a leaf of a flax module, for `names=`, where flax modules have the names of the
    checkpoint.

    `params.layers_0.mlp.up.kernel` is (`layers.0.mlp.up.weight`, (1, 0)): kernels are (in, out), weights of torch (out,
    in). `embedding` and `scale` are `weight`; `layers_0` is `layers.0`; the `.value` of an nnx state is dropped.
    """
    for collection in _COLLECTIONS:
        path = path.removeprefix(collection)
    module, _, leaf = path.removesuffix(".value").rpartition(".")
    if leaf not in _LEAVES:
        return path
    name = _NUMBER.sub(r".\1", module) + f".{_LEAVES[leaf]}"
    return (name, (1, 0)) if leaf == "kernel" else name
