"""Seconds of local work: a roofline model with saturation of the matrix units.

    seconds = launches * launch + max( FLOP / (peak[dtype] e f),  bytes / (hbm e_mem) )
    f       = k/(k+k0) n/(n+n0) m/(m+m0) sustained        matrix products only, local sizes
    f       = k/(k+k0) sustained grouped                  grouped matrix products, whose experts fill a device together
    e f     = a(k) n/(n+n_a) sustained                    fused attention on a device whose profile has `attention`

See docs/cost-model.md; the constants of the shipped profiles are fits to measured GEMM sweeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from shardplan.cluster.types import Cluster
from shardplan.cost.types import Floats
from shardplan.errors import Diagnostic, warning

_FALLBACK: Final[dict[str, tuple[str, ...]]] = {
    "fp64": ("fp64", "fp32", "tf32", "bf16", "fp16"),
    "fp32": ("fp32", "tf32", "bf16", "fp16"),
    "bf16": ("bf16", "fp16", "tf32", "fp32"),
    "fp16": ("fp16", "bf16", "tf32", "fp32"),
    "fp8": ("fp8", "bf16", "fp16", "tf32", "fp32"),
    "int8": ("int8", "bf16", "fp16", "tf32", "fp32"),
    "fp4": ("fp4", "fp8", "bf16", "fp16", "tf32", "fp32"),
    "int4": ("int4", "int8", "bf16", "fp16", "tf32", "fp32"),
}
"""Which peak stands in for a missing one: the next wider one that the matrix units have."""

_PROFILE_DTYPE: Final[dict[str, str]] = {
    "double": "fp64", "complex128": "fp64", "float": "fp32", "complex64": "fp32", "float16": "fp16",
    "bfloat16": "bf16", "float4e2m1": "fp4", "int8": "int8", "uint8": "int8", "int4": "int4", "uint4": "int4",
    "int2": "int4", "uint2": "int4",
}  # fmt: skip

_NARROW_EFFICIENCY: Final[dict[str, float]] = {"fp8": 0.50, "int8": 0.50, "fp4": 0.42, "int4": 0.42}
"""Matrix products in narrow types reach at most this share of their peak (medians of measured large ones)."""

ATTENTION: Final = 0.6
"""The efficiency of fused attention relative to plain products of its sizes, where the profile has no `attention`."""
GROUPED: Final = "grouped"
"""Products of many experts at once."""
_MATRIX_COSTS: Final = frozenset({"gemm", "conv", "attention", GROUPED})


class ComputeModel:
    """Prices the local work of operators on the device of a cluster. `warnings`: about peaks that the profile lacks."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.device = cluster.device
        self._rates: dict[str, float] = {}
        self._warnings: dict[str, Diagnostic] = {}

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """One warning for every dtype that was priced at the peak of another dtype."""
        return tuple(self._warnings[dtype] for dtype in sorted(self._warnings))

    def seconds(
        self,
        cost: str,
        dtype: str,
        flops: Floats,
        moved_bytes: Floats,
        m: Floats | None = None,
        n: Floats | None = None,
        k: Floats | None = None,
        *,
        launches: float = 1,
    ) -> Floats:
        """Seconds on one device, element by element.

        `cost`: kind of work as in `Rule.cost` (`view` and `free` take no time); `dtype`: ONNX name, lower case;
        `flops`, `moved_bytes`: of this device; `m`, `n`, `k`: local sizes of the matrix product, if there is one (rows,
        columns, summed), of attention the queries, the keys that one sees on average, and the size of a head;
        `launches`: kernels started, 0 for work fused into a neighbour.
        """
        moved = np.asarray(moved_bytes, dtype=np.float64)
        if cost in ("view", "free"):
            return np.zeros(np.broadcast_shapes(moved.shape, np.shape(flops)))
        busy = moved / (self.device.hbm_bytes_per_s * self.device.memory_efficiency)
        if cost in _MATRIX_COSTS:
            rate = self.matrix_flops_per_s(dtype) * self._share(cost, m, n, k)
            busy = np.maximum(busy, np.asarray(flops, dtype=np.float64) / rate)
        return np.asarray(busy + launches * self.device.launch_s)

    def _share(self, cost: str, m: Floats | None, n: Floats | None, k: Floats | None) -> Floats | float:
        """The efficiency of work of these sizes relative to large matrix products."""
        gemm, known = self.device.gemm, self.device.attention
        if cost == GROUPED:
            return gemm.grouped * self._saturation(None, None, k)
        if cost != "attention":
            return self._saturation(m, n, k)
        if not known or k is None or n is None:
            return (ATTENTION if gemm.attention is None else gemm.attention) * self._saturation(m, n, k)
        of_peak = np.interp(k, list(known), list(known.values())) / gemm.e
        of_keys = np.asarray(n) / (np.asarray(n) + self.device.attention_keys)
        return (1.0 if gemm.attention is None else gemm.attention) * of_peak * of_keys

    def matrix_flops_per_s(self, dtype: str) -> float:
        """The FLOP/s that large matrix products of the ONNX type `dtype` reach; records a warning if its peak is
        missing."""
        if dtype not in self._rates:
            wanted = profile_dtype(dtype)
            used = self._available(wanted)
            efficiency = min(self.device.gemm.e, self._narrow(used))
            self._rates[dtype] = self.device.peak_flops[used] * efficiency * self.device.gemm.sustained
            if used != wanted and not (wanted == "fp32" and used == "tf32"):
                self._warnings[dtype] = warning(
                    "missing-peak",
                    f"profile '{self.cluster.name}' has no {wanted} peak; {used} is used",
                    hint=f"add {wanted} to device.peak_tflops",
                )
        return self._rates[dtype]

    def _narrow(self, dtype: str) -> float:
        """The largest share of its peak that products in a narrow type reach."""
        said = self.device.gemm.narrow
        assumed = _NARROW_EFFICIENCY.get(dtype, 1.0)
        return assumed if said is None or assumed == 1.0 else said * assumed / _NARROW_EFFICIENCY["fp8"]

    def _available(self, wanted: str) -> str:
        peaks = self.device.peak_flops
        order = _FALLBACK[wanted]
        if wanted == "fp32" and self.device.allow_tf32:
            order = ("tf32", *order)
        return next((dtype for dtype in order if dtype in peaks), min(peaks, key=lambda dtype: (peaks[dtype], dtype)))

    def _saturation(self, m: Floats | None, n: Floats | None, k: Floats | None) -> Floats | float:
        gemm = self.device.gemm
        share: Floats | float = 1.0
        for size, half in ((m, gemm.m0), (n, gemm.n0), (k, gemm.k0)):
            if size is not None:
                share = share * (np.asarray(size) / (np.asarray(size) + half))
        return share


def nearest_peak(peaks: Mapping[str, float], dtype: str) -> float:
    """The peak, among `peaks` by the profile's dtype names, of the ONNX type `dtype` or of its substitute."""
    order = _FALLBACK[profile_dtype(dtype)]
    return next((peaks[name] for name in order if name in peaks), min(peaks.values()))


def profile_dtype(dtype: str) -> str:
    """The profile's name of an ONNX type."""
    return "fp8" if dtype.startswith("float8") else _PROFILE_DTYPE.get(dtype, "fp32")
