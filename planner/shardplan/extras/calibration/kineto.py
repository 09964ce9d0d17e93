"""Parser of `torch.profiler` traces (Chrome trace events of Kineto): kernels on the device and their durations.

Kernels name the operator that started them (`External id`), and operators, where the profiler was told to record
shapes, their sizes. Kernels of NCCL say themselves what they move: the collective, its elements, and the ranks of its
group. A kernel with neither is of kind `other`; copies between host and device are left out.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import re
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardplan.errors import ShardplanError, error
from shardplan.extras.calibration.traced_attention import sizes_of
from shardplan.text_files import read_at_most, read_bytes
from shardplan.units import US_PER_S, whole_number

_GZIP = b"\x1f\x8b"
_MOST_BYTES = 1 << 30
"""Of a trace, packed or not: some steps of a rank with shapes and stacks are a few hundred MB, and what json makes of
them is some ten times as large. A path that leads to a device, or a few KB that unpack to much more, end here."""
_DTYPES: Mapping[str, tuple[str, int]] = {
    "c10::BFloat16": ("bfloat16", 2), "c10::Half": ("float16", 2), "float": ("float", 4), "double": ("double", 8),
    "BFloat16": ("bfloat16", 2), "Half": ("float16", 2), "Float": ("float", 4), "Double": ("double", 8),
    "bfloat16": ("bfloat16", 2), "float16": ("float16", 2), "float32": ("float", 4),
    "c10::Float8_e4m3fn": ("float8e4m3fn", 1), "long int": ("int64", 8), "int": ("int32", 4), "bool": ("bool", 1),
    "unsigned char": ("uint8", 1), "Byte": ("uint8", 1), "Char": ("int8", 1), "Int": ("int32", 4), "Long": ("int64", 8),
}  # fmt: skip
"""Type of an operand as operators have it, and of a collective as its kernels have it -> ONNX name, bytes."""
_COLLECTIVES = {
    "allreduce": "all_reduce", "allreduce_coalesced": "all_reduce", "_allgather_base": "all_gather",
    "allgather": "all_gather", "allgather_into_tensor_coalesced": "all_gather", "all_gather": "all_gather",
    "_reduce_scatter_base": "reduce_scatter", "reduce_scatter": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter", "all_to_all": "all_to_all", "all_to_allv": "all_to_all",
    "alltoall_base": "all_to_all", "send": "permute", "recv": "permute",
}  # fmt: skip
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
_MOST_SIZE, _MOST_DIMS, _MOST_RANKS, _MOST_US = 1 << 48, 16, 1 << 20, 1e18
"""Larger numbers of a trace are as if absent: products of them fit no float, and lists of so many ranks no memory."""


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


def read_traces(files: Iterable[str]) -> list[Ran]:
    """What ran, of all traces. Raises `ShardplanError` (`bad-trace`) for what is no trace or has no kernels."""
    return [each for file in files for each in ran_in(_document(file), file)]


def _document(file: str) -> Any:
    try:
        content = read_bytes(file, _MOST_BYTES)
        if content[:2] == _GZIP:
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
                content = read_at_most(packed, _MOST_BYTES)
        return json.loads(content)
    except (OSError, ValueError, EOFError, zlib.error, RecursionError) as problem:
        reason = problem.strerror or problem if isinstance(problem, OSError) else problem
        hint = "give what torch.profiler's export_chrome_trace wrote, as .json or .json.gz"
        raise ShardplanError(error("bad-trace", f"no trace can be read: {reason}", file=file, hint=hint)) from None


def ran_in(document: Any, file: str) -> list[Ran]:
    """What ran, of one trace that is read. Raises as `read_traces`."""
    listed = document.get("traceEvents") if isinstance(document, dict) else document
    events = listed if isinstance(listed, list) else []
    whole = [_Event(each) for each in events if isinstance(each, dict) and each.get("ph") == "X"]
    kernels = [event for event in whole if event.category == "kernel" and event.seconds > 0]
    if not kernels:
        hint = "profile a few steps with ProfilerActivity.CUDA and record_shapes=True"
        raise ShardplanError(error("bad-trace", "no kernel of a device is in this trace", file=file, hint=hint))
    operators = {event.external: event for event in whole if event.category == "cpu_op" and event.external is not None}
    started: dict[int, list[_Event]] = {}
    found, sending = list[Ran](), _Sending(filter(_is_sent, kernels))
    for event in kernels:
        if (moved := _collective(event)) is not None:
            found.append(moved)
        elif event.external in operators:
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


class _Sending:
    """When kernels of collectives ran."""

    def __init__(self, collectives: Iterable[_Event]) -> None:
        self._starts, self._ends = list[float](), list[float]()
        for start, end in sorted((each.start_s, each.start_s + each.seconds) for each in collectives):
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(end, self._ends[-1])
            else:
                self._starts.append(start)
                self._ends.append(end)

    def beside(self, event: _Event) -> float:
        """Seconds of a kernel in which a collective ran."""
        start, end = event.start_s, event.start_s + event.seconds
        first, last = bisect_right(self._ends, start), bisect_left(self._starts, end)
        both = zip(self._starts[first:last], self._ends[first:last], strict=True)
        return math.fsum(min(end, theirs) - max(start, began) for began, theirs in both)


class _Event:
    """A complete event; what is missing or odd in it is as if absent."""

    def __init__(self, event: Mapping[str, Any]) -> None:
        args = event.get("args")
        self.args: Mapping[str, Any] = args if isinstance(args, dict) else {}
        self.name, self.category = str(event.get("name", "")), str(event.get("cat", "")).lower()
        self.seconds, self.start_s = _seconds(event.get("dur")), _seconds(event.get("ts"))
        number = self.args.get("External id")
        self.external = number if isinstance(number, int) else None

    def shapes(self) -> list[tuple[tuple[int, ...], str, int]]:
        """Shape, type and bytes of an element of every operand that is a tensor."""
        dims, types = self.args.get("Input Dims"), self.args.get("Input type")
        if not isinstance(dims, list) or not isinstance(types, list):
            return []
        return [
            (tuple(shape), *_DTYPES[kind])
            for shape, kind in zip(dims, types, strict=False)
            if kind in _DTYPES and isinstance(shape, list) and len(shape) <= _MOST_DIMS and all(map(_is_size, shape))
        ]


def _seconds(micros: object) -> float:
    known = isinstance(micros, (int, float)) and abs(micros) < _MOST_US
    return float(micros) / US_PER_S if known else 0.0  # type: ignore[arg-type]


def _is_size(number: object) -> bool:
    return isinstance(number, int) and 0 <= number <= _MOST_SIZE


def _is_sent(event: _Event) -> bool:
    """Whether a kernel is that of a collective, also of one that is not read; RCCL's kernels have NCCL's names."""
    return "Collective name" in event.args or "nccl" in event.name.lower()


def _collective(event: _Event) -> Ran | None:
    kind = _COLLECTIVES.get(str(event.args.get("Collective name", "")))
    dtype, width = _DTYPES.get(str(event.args.get("dtype", "")), ("", 0))
    sizes = [event.args.get(name) for name in ("In msg nelems", "Out msg nelems")]
    ranks = _ranks(event.args)
    if kind is None or not width or len(ranks) < 2 or not all(map(_is_size, sizes)):
        return None
    elements = sizes[1] if kind == "all_gather" else sizes[0]
    if not elements:
        return None
    return Ran(kind, event.seconds, dtype, float(int(elements) * width), ranks=ranks, name=_alike(event.name))


def _ranks(args: Mapping[str, Any]) -> tuple[int, ...]:
    """Of the group: as listed, or as many as there are where the list is cut short."""
    listed, size = str(args.get("Process Group Ranks", "")), args.get("Group size")
    found = tuple(
        number for word in listed.strip("[]").split(",") if (number := whole_number(word.strip())) is not None
    )
    if isinstance(size, int) and size <= _MOST_RANKS and len(found) != size:
        return tuple(range(size)) if not found or "..." not in listed or len(found) < 2 else _continued(found, size)
    return found


def _continued(begun: tuple[int, ...], size: int) -> tuple[int, ...]:
    """A list of ranks that was cut short, carried on by its stride."""
    stride = max(1, begun[1] - begun[0])
    return tuple(begun[0] + stride * place for place in range(size))


def _other(event: _Event) -> Ran:
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


def _operator(event: _Event, kernels: Sequence[_Event]) -> Ran | None:
    """The kernels that an operator started as one; None for an operator whose sizes say nothing."""
    tensors, seconds = event.shapes(), math.fsum(kernel.seconds for kernel in kernels)
    longest = _alike(max(kernels, key=lambda kernel: kernel.seconds).name)
    shapes = [shape for shape, _, _ in tensors]
    if (found := sizes_of(event.name, shapes, event.args.get("Concrete Inputs"))) is not None:
        return Ran(found.kind, seconds, tensors[0][1], 0.0, found.sizes, found.flops, name=longest)
    if event.name in _PRODUCTS:
        return _product(event.name, tensors, seconds, longest)
    sizes = [math.prod(shape) * width for shape, _, width in tensors]
    if event.name in _PASSES and any(sizes):
        moved = float(sum(sizes) + _PASSES[event.name] * max(sizes))
        return Ran("memory", seconds, tensors[0][1], moved, name=longest)
    return None


def _product(name: str, tensors: list[tuple[tuple[int, ...], str, int]], seconds: float, kernel: str) -> Ran | None:
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
