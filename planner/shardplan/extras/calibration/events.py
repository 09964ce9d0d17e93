"""What kernels of a profile ran, and for how long: the part of calibration that all formats of profiles share.

A reader of a format yields the kernels of one device and the operators that started them, as `Event`. Operators say
their sizes, where the profiler was told to record them; kernels of NCCL what they move. A kernel with neither is of
kind `other`; copies between host and device are left out.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from shardplan.errors import ShardplanError, error
from shardplan.extras.calibration.traced_attention import sizes_of

Operand = tuple[tuple[int, ...], str, int]
"""Shape, ONNX name of the type, and bytes of an element."""
_PRODUCTS = frozenset({"aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::_scaled_mm", "aten::linear"})
_PASSES = {
    "aten::add": 1, "aten::add_": 1, "aten::mul": 1, "aten::mul_": 1, "aten::div": 1, "aten::sub": 1, "aten::gelu": 1,
    "aten::silu": 1, "aten::relu": 1, "aten::sigmoid": 1, "aten::tanh": 1, "aten::copy_": 0, "aten::_softmax": 1,
    "aten::native_layer_norm": 1, "aten::gelu_backward": 1, "aten::silu_backward": 1, "aten::neg": 1, "aten::pow": 1,
    "aten::rsqrt": 1, "aten::exp": 1, "aten::_fused_rms_norm": 1, "aten::native_dropout": 1,
}  # fmt: skip
"""Operators that are bound by memory -> results of the size of their largest operand that they write; a copy reads one
of its two operands and writes the other."""


_GENERATED = re.compile(r"triton_[a-z]+_fused")
_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|<unnamed>::")
_WRAPPERS = frozenset({"", "device_kernel", "Kernel", "Kernel2", "enable_sm90", "enable_sm90_or_later"})
"""Names that CUTLASS gives to all of its kernels; what one computes is the first of its types."""
_LONGEST_NAME = 60
_BESIDE = 0.1
_MOST_SIZE, MOST_DIMS, MOST_RANKS = 1 << 48, 16, 1 << 20
"""Larger numbers of a profile are as if absent: products of them fit no float, and lists of so many ranks no memory."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What a kernel of a collective moves: `payload_bytes` as in `layout.Collective.share`; `ranks` of its group."""

    kind: str
    dtype: str
    payload_bytes: float
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """A kernel, or an operator that starts kernels. `external`: the number by which a kernel names its operator;
    `operands`: tensors of an operator; `arguments`: the texts of all of them, if they are known; `sent`: of a
    collective; `is_collective`: also of one whose payload is not known; `copied_bytes`: by a copy inside a device."""

    name: str
    start_s: float
    seconds: float
    external: int | None = None
    operands: tuple[Operand, ...] = ()
    arguments: object = None
    sent: Sent | None = None
    is_collective: bool = False
    copied_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Ran:
    """One thing that ran, `seconds` long. `kind`: `product`, `memory`, `attention`, `attention_backward`, a collective,
    or `other` for kernels whose size is not known. Of a product `sizes` are rows, columns and summed, of attention
    queries, keys that each sees, and the size of a head; `flops`: of all of it; `moved_bytes`: what it reads
    and writes, or the payload of a collective as in `layout.Collective.share`; `ranks`: of the collective's group;
    `name`: of the kernel, or of kernels that look alike; `beside`: a collective ran during more than a tenth of it."""

    kind: str
    seconds: float
    dtype: str
    moved_bytes: float
    sizes: tuple[int, int, int] = (0, 0, 0)
    flops: float = 0.0
    ranks: tuple[int, ...] = ()
    name: str = ""
    beside: bool = False


def ran_of(kernels: Sequence[Event], operators: Mapping[int, Event]) -> list[Ran]:
    """What ran on one device. Kernels of one operator are one entry."""
    started: dict[int, list[Event]] = {}
    found, sending = list[Ran](), _Sending(event for event in kernels if event.is_collective)
    for event in kernels:
        if (told := _told_by_itself(event)) is not None:
            found.append(told)
        elif event.external is not None and event.external in operators:
            started.setdefault(event.external, []).append(event)
        else:
            found.append(_other(event))
    for number, own in sorted(started.items()):
        computed = _operator(operators[number], own)
        if computed is None:
            found += map(_other, own)
        else:
            beside = math.fsum(map(sending.beside, own)) > _BESIDE * computed.seconds
            found.append(replace(computed, beside=beside))
    return found


def bad_trace(summary: str, file: str, hint: str) -> ShardplanError:
    """The error of a profile that cannot be used."""
    return ShardplanError(error("bad-trace", summary, file=file, hint=hint))


def is_size(number: object) -> bool:
    """Whether it is a size of a dim that some tensor has."""
    return isinstance(number, int) and 0 <= number <= _MOST_SIZE


class _Sending:
    """When kernels of collectives ran."""

    def __init__(self, collectives: Iterable[Event]) -> None:
        self._starts, self._ends = list[float](), list[float]()
        for start, end in sorted((each.start_s, each.start_s + each.seconds) for each in collectives):
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(end, self._ends[-1])
            else:
                self._starts.append(start)
                self._ends.append(end)

    def beside(self, event: Event) -> float:
        """Seconds of a kernel in which a collective ran."""
        start, end = event.start_s, event.start_s + event.seconds
        first, last = bisect_right(self._ends, start), bisect_left(self._starts, end)
        both = zip(self._starts[first:last], self._ends[first:last], strict=True)
        return math.fsum(min(end, theirs) - max(start, began) for began, theirs in both)


def _told_by_itself(event: Event) -> Ran | None:
    """Of a kernel that says what it moves: a collective, or a copy that reads and writes the memory of a device."""
    if event.sent is not None:
        moved = event.sent
        name = _alike(event.name)
        return Ran(moved.kind, event.seconds, moved.dtype, moved.payload_bytes, ranks=moved.ranks, name=name)
    if event.copied_bytes:
        return Ran("memory", event.seconds, "uint8", 2 * event.copied_bytes, name=_alike(event.name))
    return None


def _other(event: Event) -> Ran:
    return Ran("other", event.seconds, "", 0.0, name=_alike(event.name))


def _alike(name: str) -> str:
    """The name of a kernel without namespaces, types and arguments, so that kernels of one kind have one name:
    `flash_fwd_kernel` of `void flash::flash_fwd_kernel<...>(...)`, `triton_poi_fused` of `triton_poi_fused_add_7`."""
    if generated := _GENERATED.match(name):
        return generated[0]
    parts = (_plain(part) for part in re.split(r"[<(]", _ANONYMOUS.sub("", name)))
    return next((part for part in parts if part not in _WRAPPERS), "")[:_LONGEST_NAME] or "kernels without a name"


def _plain(name: str) -> str:
    return name.strip().removeprefix("void ").rpartition("::")[2].strip()


def _operator(event: Event, kernels: Sequence[Event]) -> Ran | None:
    """The kernels that an operator started as one; None for an operator whose sizes say nothing."""
    tensors, seconds = event.operands, math.fsum(kernel.seconds for kernel in kernels)
    longest = _alike(max(kernels, key=lambda kernel: kernel.seconds).name)
    shapes = [shape for shape, _, _ in tensors]
    if (found := sizes_of(event.name, shapes, event.arguments)) is not None:
        return Ran(found.kind, seconds, tensors[0][1], 0.0, found.sizes, found.flops, name=longest)
    if event.name in _PRODUCTS:
        return _product(event.name, tensors, seconds, longest)
    sizes = [math.prod(shape) * width for shape, _, width in tensors]
    if event.name in _PASSES and any(sizes):
        moved = float(sum(sizes) + _PASSES[event.name] * max(sizes))
        return Ran("memory", seconds, tensors[0][1], moved, name=longest)
    return None


def _product(name: str, tensors: Sequence[Operand], seconds: float, kernel: str) -> Ran | None:
    factors = [each for each in tensors if len(each[0]) >= 2]
    if name in ("aten::addmm", "aten::baddbmm") and len(factors) > 2:
        factors = factors[1:]  # what is added
    if len(factors) < 2:
        return None
    (left, dtype, width), (right, _, other) = factors[:2]
    columns = right[0] if name == "aten::linear" else right[-1]
    count = left[0] if len(left) == 3 and name.endswith("bmm") else 1
    rows, summed = math.prod(left[:-1]) // count, left[-1]
    if min(rows, columns, summed) < 1:
        return None
    moved = math.prod(left) * width + math.prod(right) * other + count * rows * columns * width
    flops = 2.0 * count * rows * columns * summed
    return Ran("product", seconds, dtype, float(moved), (rows, columns, summed), flops, name=kernel)
