"""Device parameters `attention` and `attention_keys` fitted to measured fused attention."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardplan.cluster.build import Profile
from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import profile_from_text
from shardplan.cluster.types import Cluster
from shardplan.cost.compute import ComputeModel
from shardplan.cost.types import Floats
from shardplan.errors import ShardplanError, error
from shardplan.extras.calibration.fit import mean_error
from shardplan.extras.calibration.products import WORST_FIT
from shardplan.extras.calibration.table import read_table
from shardplan.extras.calibration.text import profile_text
from shardplan.rules.attention import FLASH_BACKWARD

COLUMNS = ("batch", "heads", "seq", "head_size", "causal", "seconds")
_DTYPE = "bfloat16"
_FEWEST = 12
_MOST_KEYS, _STEP = 2000, 25
"""Values of `attention_keys` that are tried: finer ones change no price by a percent."""


@dataclass(frozen=True, slots=True)
class Attention:
    """One measured fused attention in 16 bits, forward and backward together, with as many keys as queries."""

    batch: int
    heads: int
    seq: int
    head_size: int
    causal: bool
    seconds: float

    @property
    def keys(self) -> float:
        """That a query sees on average."""
        return self.seq / 2 if self.causal else float(self.seq)

    @property
    def flops(self) -> float:
        """Two products in forward, and what backward does of these."""
        forward = 4.0 * self.batch * self.heads * self.seq * self.keys * self.head_size
        return (1 + FLASH_BACKWARD) * forward


def read_attention(text: str, file: str) -> list[Attention]:
    """The rows of a CSV table with the columns batch, heads, seq, head_size, causal (0 or 1), seconds (of forward and
    backward), in any order, others ignored. Raises `ShardplanError` as `read_table`."""
    hint = "batch, heads, seq and head_size are whole numbers from 1, causal is 0 or 1, seconds are positive"
    return read_table(text, file, COLUMNS, _read, hint)


def _read(words: Mapping[str, str]) -> Attention | None:
    batch, heads, seq, size = (int(words[name]) for name in COLUMNS[:4])
    seconds = float(words["seconds"])
    if min(batch, heads, seq, size) < 1 or words["causal"] not in ("0", "1") or not 0 < seconds < math.inf:
        return None
    return Attention(batch, heads, seq, size, words["causal"] == "1", seconds)


def calibrate(measured: Sequence[Attention], base: Profile, name: str) -> tuple[str, float]:
    """The text of a profile that extends `base` by what was measured, and the mean relative error of its prices.

    For every value of `attention_keys` that is tried, the share of a head size is the median of what its rows say; the
    value with the smallest mean error is taken. Raises `ShardplanError`: `too-few-measurements`, `bad-fit`.
    """
    if len(measured) < _FEWEST:
        are = "row of attention is" if len(measured) == 1 else "rows of attention are"
        summary = f"{len(measured)} {are} too few for a fit"
        raise ShardplanError(error("too-few-measurements", summary, hint=f"measure at least {_FEWEST}"))
    cluster = make_cluster(base)
    peak = ComputeModel(cluster).matrix_flops_per_s(_DTYPE) / (cluster.device.gemm.e * cluster.device.gemm.sustained)
    reached = np.array([each.flops / each.seconds / peak for each in measured])
    seen = np.array([each.keys for each in measured])
    by_size: dict[int, list[int]] = defaultdict(list)
    for number, each in enumerate(measured):
        by_size[each.head_size].append(number)

    def fitted(keys: int) -> tuple[float, dict[int, float], int]:
        whole = reached * (seen + keys) / seen
        shares = {size: float(min(1.0, np.median(whole[rows]))) for size, rows in sorted(by_size.items())}
        limits = np.array([shares[each.head_size] for each in measured])
        return float(np.mean(np.abs(whole / limits - 1))), shares, keys

    _, shares, keys = min((fitted(keys) for keys in range(0, _MOST_KEYS + 1, _STEP)), key=lambda each: each[0])
    sizes = sorted({*shares, *cluster.device.attention})  # those that `base` has stay in a profile that extends it
    between = np.interp(sizes, list(shares), list(shares.values())).tolist()
    table = {size: round(share, 3) for size, share in zip(sizes, between, strict=True)}
    given = {"attention": table, "attention_keys": keys}
    text = profile_text(name, base.name, {"device": given}, [])
    left = mean_error(_predicted(make_cluster(profile_from_text(text, name)), measured), _seconds(measured))
    if left > WORST_FIT:
        summary = f"the best fit is off by {100 * left:.0f} % on average"
        raise ShardplanError(error("bad-fit", summary, hint="was all of it measured alone, warmed up, in 16 bits?"))
    return text, left


def _seconds(measured: Sequence[Attention]) -> Floats:
    return np.array([each.seconds for each in measured])


def _predicted(cluster: Cluster, measured: Sequence[Attention]) -> Floats:
    """Seconds of the kernels. Sweeps are short: what long steps lose is no part of the fit, nor are starts."""
    device = cluster.device
    plain = replace(device, gemm=replace(device.gemm, sustained=1.0, attention=None))
    model = ComputeModel(replace(cluster, device=plain))
    flops, queries, keys, sizes = (
        np.array([float(getattr(each, name)) for each in measured]) for name in ("flops", "seq", "keys", "head_size")
    )
    moved = np.zeros(len(measured))
    return np.asarray(model.seconds("attention", _DTYPE, flops, moved, queries, keys, sizes, launches=0))
