"""Device parameters `gemm`, `mem_efficiency` and `launch_us` fitted to measured matrix products."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardplan.cluster.build import Profile
from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import profile_from_text
from shardplan.cluster.types import Cluster, Device, GemmEfficiency
from shardplan.cost.compute import ComputeModel
from shardplan.cost.types import Floats
from shardplan.errors import ShardplanError, error
from shardplan.extras.calibration.fit import mean_error, simplex
from shardplan.extras.calibration.table import read_table
from shardplan.extras.calibration.text import Plain, profile_text
from shardplan.model.types import DTYPE_BITS
from shardplan.units import US_PER_S

COLUMNS = ("m", "n", "k", "dtype", "seconds")
_NAMES = {
    "bf16": "bfloat16", "fp16": "float16", "fp32": "float", "tf32": "float", "float32": "float", "half": "float16",
    "fp8": "float8e4m3fn",
}  # fmt: skip
_FEWEST = 12
WORST_FIT = 0.35
"""A mean relative error beyond which a fit says nothing about the device."""


@dataclass(frozen=True, slots=True)
class Product:
    """One measured matrix product of sizes m, n, k; `dtype`: ONNX name."""

    m: float
    n: float
    k: float
    dtype: str
    seconds: float

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k

    @property
    def moved_bytes(self) -> float:
        return (self.m * self.k + self.k * self.n + self.m * self.n) * DTYPE_BITS[self.dtype] / 8


def read_products(text: str, file: str) -> list[Product]:
    """The rows of a CSV table with the columns m, n, k, dtype, seconds, in any order, others ignored.

    Raises `ShardplanError` as `read_table`.
    """
    hint = "sizes and seconds are positive numbers, dtype is bf16, fp16, fp32, tf32 or fp8"
    return read_table(text, file, COLUMNS, _read, hint)


def _read(words: Mapping[str, str]) -> Product | None:
    dtype = _NAMES.get(words["dtype"], words["dtype"])
    m, n, k, seconds = (float(words[name]) for name in ("m", "n", "k", "seconds"))
    known = dtype in DTYPE_BITS and all(0 < number < math.inf for number in (m, n, k, seconds))
    return Product(m, n, k, dtype, seconds) if known else None


def calibrate(products: Sequence[Product], base: Profile, name: str) -> tuple[str, float]:
    """The text of a profile that extends `base` by what was measured, and the mean relative error of its prices.

    Raises `ShardplanError` when there are too few products, or when none of the constants fits them.
    """
    if len(products) < _FEWEST:
        are = "matrix product is" if len(products) == 1 else "matrix products are"
        summary = f"{len(products)} {are} too few for a fit of six constants"
        raise ShardplanError(error("too-few-measurements", summary, hint=f"measure at least {_FEWEST}"))
    cluster = make_cluster(base)
    seconds = np.array([product.seconds for product in products])

    def off(point: Floats) -> float:
        return float(np.mean(np.abs(np.log(_predicted(cluster, _device(cluster.device, point), products) / seconds))))

    device = cluster.device
    gemm = device.gemm
    sizes = [math.log(max(size, 1.0)) for size in (gemm.m0, gemm.n0, gemm.k0)]
    start = np.array([_logit(gemm.e), *sizes, _logit(device.memory_efficiency), math.log(max(device.launch_s, 1e-7))])
    best = simplex(off, simplex(off, start), step=0.7)
    found = _device(device, best)
    text = profile_text(name, base.name, {"device": _keys(found)}, [])
    fitted = make_cluster(profile_from_text(text, name))
    left = mean_error(_predicted(fitted, _unsustained(fitted.device), products), seconds)
    if left > WORST_FIT:
        summary = f"the best fit is off by {100 * left:.0f} % on average"
        raise ShardplanError(error("bad-fit", summary, hint="were the products measured alone, and warmed up?"))
    return text, left


def _predicted(cluster: Cluster, device: Device, products: Sequence[Product]) -> Floats:
    model = ComputeModel(replace(cluster, device=device))
    seconds = np.zeros(len(products))
    for dtype in sorted({product.dtype for product in products}):
        rows = [number for number, product in enumerate(products) if product.dtype == dtype]
        columns = np.array(
            [[getattr(products[row], name) for name in ("flops", "moved_bytes", "m", "n", "k")] for row in rows]
        ).T
        seconds[rows] = model.seconds("gemm", dtype, *columns)
    return seconds


def _device(base: Device, point: Floats) -> Device:
    """Six free numbers -> constants in their ranges. Sweeps are short: what long steps lose is no part of the fit."""
    e, m0, n0, k0, memory, launch = point.tolist()
    gemm = GemmEfficiency(_share(e), *(min(math.exp(value), 1e5) for value in (m0, n0, k0)))
    return replace(base, gemm=gemm, memory_efficiency=_share(memory), launch_s=min(math.exp(launch), 1.0))


def _unsustained(device: Device) -> Device:
    return replace(device, gemm=replace(device.gemm, sustained=1.0))


def _share(value: float) -> float:
    return 1.0 / (1.0 + math.exp(-max(-30.0, min(30.0, value))))


def _logit(share: float) -> float:
    inside = min(max(share, 0.02), 0.98)
    return math.log(inside / (1.0 - inside))


def _keys(device: Device) -> Plain:
    gemm = device.gemm
    sizes = {name: round(getattr(gemm, name), 1) for name in ("m0", "n0", "k0")}
    return {
        "gemm": {"e": round(gemm.e, 4), **sizes},
        "mem_efficiency": round(device.memory_efficiency, 4),
        "launch_us": round(device.launch_s * US_PER_S, 3),
    }
