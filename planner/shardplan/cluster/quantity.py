"""Quantities as people write them, such as `80 GiB`, `450 GB/s`, `40e9`, `4.5 us`: from text to number.

PyYAML's own resolver is not used for numbers: it reads `40e9` as text, `12:30` as 750 and `1_0` as 10.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal

_NUMBER = re.compile(r"^([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*)$")
_PREFIX = {"k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40}

BYTES: dict[str, Decimal] = (
    {"B": Decimal(1)}
    | {f"{prefix}B": Decimal(10) ** power for prefix, power in _PREFIX.items()}
    | {f"{prefix}B": Decimal(2) ** power for prefix, power in _BINARY.items()}
)
RATES: dict[str, Decimal] = (
    {f"{unit}{per}": factor for unit, factor in BYTES.items() for per in ("/s", "ps")}
    | {f"{p}{bit}": Decimal(10) ** power / 8 for p, power in _PREFIX.items() for bit in ("b/s", "bit/s", "bps")}
)  # fmt: skip
TIMES: dict[str, Decimal] = {
    unit: Decimal(10) ** power
    for unit, power in {"s": 0, "ms": -3, "us": -6, "\u00b5s": -6, "\u03bcs": -6, "ns": -9}.items()
}
FLOPS: dict[str, Decimal] = {
    f"{prefix}{word}": Decimal(10) ** power
    for prefix, power in _PREFIX.items()
    for word in ("FLOP/s", "FLOPS", "FLOPs", "OP/s", "OPS")
}


@dataclass(frozen=True, slots=True)
class Dimension:
    """The dimension of a quantity. `units`: spelling -> factor to SI; `bare`: the unit of a number without one, which
    is also the unit of the parsed value; `example` is shown in errors; `si`: the value in bytes, seconds, operations
    and their rates."""

    name: str
    units: Mapping[str, Decimal]
    bare: str
    example: str
    si: Callable[[float], float] = lambda value: value


SIZE = Dimension("a size", BYTES, "B", "80 GB")
MEGABYTES = Dimension("a size", BYTES, "MB", "8 MB", lambda value: value * 1e6)
GBPS = Dimension("a bandwidth", RATES, "GB/s", "450 GB/s", lambda value: value * 1e9)
GBIT = Dimension("a bandwidth", RATES, "Gb/s", "400 Gb/s", lambda value: value * 1e9 / 8)
MICROSECONDS = Dimension("a time", TIMES, "us", "4.5 us", lambda value: value / 1e6)
TFLOPS = Dimension("a rate of operations", FLOPS, "TFLOP/s", "989 TFLOP/s", lambda value: value * 1e12)
PLAIN = Dimension("a number", {}, "", "0.9")


def parse_quantity(text: str, dimension: Dimension) -> float:
    """The value of `text` in `dimension.bare` units. Raises `ValueError` with the sentence to show."""
    match = _NUMBER.match(text.strip())
    if match is None:
        raise ValueError(f"expected {dimension.name} such as {dimension.example}, found '{text}'")
    number, unit = Decimal(match[1]), match[2].strip()
    if unit:
        if unit not in dimension.units:
            wanted = f"the unit of {dimension.name} such as {dimension.example}" if dimension.units else "no unit"
            raise ValueError(f"expected {wanted}, found '{unit}' in '{text}'")
        number = number * dimension.units[unit] / dimension.units[dimension.bare]
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"expected {dimension.name} such as {dimension.example}, found '{text}'")
    return value + 0.0  # -0 is 0
