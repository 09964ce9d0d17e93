"""Numbers for people: three digits and a unit."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

GIGA: Final = 1e9
TERA: Final = 1e12
US_PER_S: Final = 1e6
NS_PER_S: Final = 1e9
PS_PER_S: Final = 1e12
PS_PER_US: Final = 1e6
PS_PER_NS: Final = 1e3
S_PER_NS: Final = 1e-9
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_TIME_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns"))
_COUNT_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))


def whole_number(text: str) -> int | None:
    """The number that `text` spells with 1 to 18 decimal digits; None for any other text. Texts from outside may have
    thousands of digits, or digits above the line, for which `int` fails."""
    return int(text) if 1 <= len(text) <= 18 and text.isdecimal() else None


def digits(value: float, significant: int = 3) -> str:
    """`value` (not negative) with so many significant digits and at most as many decimals: `38.2`, `1.05`, `1,240`."""
    if 0 < value < 0.5 * 10.0**-significant:
        return f"<{10.0**-significant:g}"
    decimals = significant - 1 - math.floor(math.log10(value)) if 0 < value < 10**significant - 0.5 else 0
    text = f"{value:,.{min(max(decimals, 0), significant)}f}"
    return (
        text.rstrip("0").rstrip(".") if "." in text and float(text.replace(",", "")) == round(value) == value else text
    )


def size(number_of_bytes: float, significant: int = 3) -> str:
    """`41.3 GiB`."""
    unit = _byte_unit(number_of_bytes)
    return f"{digits(number_of_bytes / unit[0], significant)} {unit[1]}"


def counted(number: int, what: str) -> str:
    """`1 row`, `1,200 rows`, `2 more axes`: `what` is a noun, in the singular, and may have words before it."""
    return f"{number:,} {what if number == 1 else _plural(what)}"


def with_article(noun: str) -> str:
    """`a sequence`, `an optional`."""
    return f"{'an' if noun[:1] in 'aeiou' else 'a'} {noun}"


def _plural(noun: str) -> str:
    if noun.endswith("axis"):
        return noun.removesuffix("is") + "es"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return noun.removesuffix("y") + "ies"
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


def sizes_apart(one: float, other: float) -> tuple[str, str]:
    """The texts of two sizes, with as many digits as it takes to tell them apart, if any do: `12.97 GiB`, `13 GiB`;
    in bytes where they are nearer to each other than that."""
    for significant in range(3, 7):
        pair = size(one, significant), size(other, significant)
        if one == other or len({re.sub(r"\.0+ ", " ", text) for text in pair}) == 2:
            return pair
    return counted(round(one), "byte"), counted(round(other), "byte")


def sizes_in_one_unit(values: list[int], reference: int) -> tuple[list[str], str]:
    """Each of `values` in the unit that suits `reference`, and that unit: `(["12.3", "0.4"], "GiB")`."""
    scale, unit = _byte_unit(reference)
    return [digits(value / scale) if value >= scale / 200 or not value else "<0.01" for value in values], unit


def duration(nanoseconds: float, significant: int = 3) -> str:
    """`38.2 ms`."""
    scale, unit = _time_unit(nanoseconds)
    return f"{digits(nanoseconds / scale, significant)} {unit}"


def durations_in_one_unit(values: list[int], reference: int) -> tuple[list[str], str]:
    """Each of `values` (nanoseconds) in the unit that suits `reference`, and that unit."""
    scale, unit = _time_unit(reference)
    return [digits(value / scale) for value in values], unit


@dataclass(frozen=True, slots=True)
class Measure:
    """How a plan's costs are read: as times, or as numbers of `unit`, each of which is kept as one microsecond."""

    unit: str = ""

    def text(self, nanoseconds: float) -> str:
        """`38.2 ms`, or `131,072 elements` to the last digit."""
        return f"{_plain(nanoseconds / 1e3)} {self.unit}" if self.unit else duration(nanoseconds)

    def apart(self, one: float, other: float) -> tuple[str, str]:
        """The texts of two amounts, with as many digits, at most 6, as it takes to tell them apart."""
        if self.unit:
            return self.text(one), self.text(other)
        pairs = [(duration(one, significant), duration(other, significant)) for significant in range(3, 7)]
        return next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])

    def of_picoseconds(self, cost: float) -> str:
        """The same of a cost as the solver counts it."""
        return self.text(cost / 1e3)

    def texts(self, values: list[int], reference: int) -> tuple[list[str], str]:
        """Each of `values` in the unit that suits `reference`, and that unit."""
        if self.unit:
            return [_plain(value / 1e3) for value in values], self.unit
        return durations_in_one_unit(values, reference)


TIME = Measure()


def _plain(number: float) -> str:
    return f"{number:,.3f}".rstrip("0").rstrip(".")


def count(number: float, significant: int = 3) -> str:
    """`8.03 B`, `124 M`, `1,395`."""
    for scale, unit in _COUNT_UNITS[:4]:
        if number >= scale * (1 - 0.5 * 10.0**-significant):
            return f"{digits(number / scale, significant)} {unit}"
    return f"{number:,.0f}"


def flop(number: float) -> str:
    """`162 GFLOP`: never `162 B`, which are bytes."""
    scale, unit = next(
        ((scale, "G" if unit == "B" else unit) for scale, unit in _COUNT_UNITS if number >= scale), (1.0, "")
    )
    return f"{digits(number / scale)} {unit}FLOP"


def decimal_size(number_of_bytes: float) -> str:
    """`80 GB`: memories are sold in powers of ten."""
    scale, unit = next(
        ((s, u) for s, u in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")) if number_of_bytes >= s), (1.0, "B")
    )
    return f"{digits(number_of_bytes / scale)} {unit}"


def rate(bytes_per_second: float) -> str:
    """`450 GB/s`: links are sold in powers of ten."""
    for scale, unit in ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s")):
        if bytes_per_second >= scale * 0.9995:
            return f"{digits(bytes_per_second / scale)} {unit}"
    return f"{digits(bytes_per_second)} B/s"


def percent(share: float) -> str:
    """`12.1 %`; what is there but rounds to nothing is `<0.1 %`."""
    if 0 < share < 0.0005:
        return "<0.1 %"
    return f"{100 * share:.1f} %"


def _byte_unit(value: float) -> tuple[float, str]:
    step = 0
    while value >= 1023.5 and step < len(_BYTE_UNITS) - 1:
        value /= 1024
        step += 1
    return 1024.0**step, _BYTE_UNITS[step]


def _time_unit(nanoseconds: float) -> tuple[float, str]:
    for scale, unit in _TIME_UNITS:
        if nanoseconds >= scale * 0.9995:
            return scale, unit
    return _TIME_UNITS[-1]
