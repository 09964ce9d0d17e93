"""Quantities as people write them: `80 GiB`, `450 GB/s`, `40e9`, `4.5 us`. Text in, number out.

PyYAML's own resolver is not used for numbers: it reads `40e9` as text, `12:30` as 750 and `1_0` as 10.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

_NUMBER = re.compile(r"^([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*)$")
_PREFIX = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}

BYTES: dict[str, float] = {"B": 1.0} | {f"{prefix}B": factor for prefix, factor in {**_PREFIX, **_BINARY}.items()}
RATES: dict[str, float] = (
    {f"{unit}{per}": factor for unit, factor in BYTES.items() for per in ("/s", "ps")}
    | {f"{prefix}{bit}": factor / 8 for prefix, factor in _PREFIX.items() for bit in ("b/s", "bit/s", "bps")}
)  # fmt: skip
TIMES: dict[str, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}
FLOPS: dict[str, float] = {
    f"{prefix}{word}": factor
    for prefix, factor in _PREFIX.items()
    for word in ("FLOP/s", "FLOPS", "FLOPs", "OP/s", "OPS")
}


@dataclass(frozen=True, slots=True)
class Dimension:
    """What a number measures. `units`: spelling -> factor to SI; `bare`: the unit of a number written without one,
    which is also the unit of the parsed value; `example` is shown to the person who used another."""

    name: str
    units: Mapping[str, float]
    bare: str
    example: str


SIZE = Dimension("a size", BYTES, "B", "80 GB")
MEGABYTES = Dimension("a size", BYTES, "MB", "8 MB")
GBPS = Dimension("a bandwidth", RATES, "GB/s", "450 GB/s")
GBIT = Dimension("a bandwidth", RATES, "Gb/s", "400 Gb/s")
MICROSECONDS = Dimension("a time", TIMES, "us", "4.5 us")
TFLOPS = Dimension("a rate of operations", FLOPS, "TFLOP/s", "989 TFLOP/s")
PLAIN = Dimension("a number", {}, "", "0.9")


def parse_quantity(text: str, dimension: Dimension) -> float:
    """The value of `text` in `dimension.bare` units. Raises `ValueError` with the sentence to show."""
    match = _NUMBER.match(text.strip())
    if match is None:
        raise ValueError(f"expected {dimension.name} such as {dimension.example}, found '{text}'")
    number, unit = float(match[1]), match[2].strip()
    if unit:
        if unit not in dimension.units:
            wanted = f"the unit of {dimension.name} such as {dimension.example}" if dimension.units else "no unit"
            raise ValueError(f"expected {wanted}, found '{unit}' in '{text}'")
        scale = dimension.units[unit] / dimension.units[dimension.bare]
        number = number * scale if scale >= 1 else number / (dimension.units[dimension.bare] / dimension.units[unit])
    if not math.isfinite(number):
        raise ValueError(f"expected {dimension.name} such as {dimension.example}, found '{text}'")
    return number
