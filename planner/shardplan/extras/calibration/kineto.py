"""Parser of `torch.profiler` traces (Chrome trace events of Kineto): kernels, and the operators that started them.

Kernels name the operator that started them (`External id`), and operators, where the profiler was told to record
shapes, their sizes. Kernels of NCCL say themselves what they move: the collective, its elements, and the ranks of its
group.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Mapping
from typing import Any

from shardplan.extras.calibration.events import (
    MOST_DIMS,
    MOST_RANKS,
    Event,
    Operand,
    Ran,
    Sent,
    bad_trace,
    is_size,
    ran_of,
)
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
_MOST_US = 1e18
"""A larger number of a trace is as if absent."""


def read_trace(file: str) -> list[Ran]:
    """What ran, of one trace. Raises `ShardplanError` (`bad-trace`) for what is no trace or has no kernels."""
    try:
        content = read_bytes(file, _MOST_BYTES)
        if content[:2] == _GZIP:
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
                content = read_at_most(packed, _MOST_BYTES)
        document = json.loads(content)
    except (OSError, ValueError, EOFError, zlib.error, RecursionError) as problem:
        reason = problem.strerror or problem if isinstance(problem, OSError) else problem
        hint = "give what torch.profiler's export_chrome_trace wrote, as .json or .json.gz"
        raise bad_trace(f"no trace can be read: {reason}", file, hint) from None
    return ran_in(document, file)


def ran_in(document: Any, file: str) -> list[Ran]:
    """What ran, of one trace that is read. Raises as `read_trace`."""
    listed = document.get("traceEvents") if isinstance(document, dict) else document
    events = listed if isinstance(listed, list) else []
    whole = [each for each in events if isinstance(each, dict) and each.get("ph") == "X"]
    by_category: dict[str, list[Event]] = {"kernel": [], "cpu_op": [], "gpu_memcpy": []}
    for each in whole:
        if (category := str(each.get("cat", "")).lower()) in by_category:
            by_category[category].append(_event(each, category))
    kernels = [event for event in by_category["kernel"] if event.seconds > 0]
    if not kernels:
        hint = "profile a few steps with ProfilerActivity.CUDA and record_shapes=True"
        raise bad_trace("no kernel of a device is in this trace", file, hint)
    copies = [event for event in by_category["gpu_memcpy"] if event.seconds > 0 and event.copied_bytes]
    operators = {event.external: event for event in by_category["cpu_op"] if event.external is not None}
    return ran_of([*kernels, *copies], operators)


def _event(event: Mapping[str, Any], category: str) -> Event:
    """Of a complete event; what is missing or odd in it is as if absent."""
    found = event.get("args")
    args: Mapping[str, Any] = found if isinstance(found, dict) else {}
    name, number = str(event.get("name", "")), args.get("External id")
    copied = args.get("bytes") if category == "gpu_memcpy" and "DtoD" in name else 0
    return Event(
        name=name,
        start_s=_seconds(event.get("ts")),
        seconds=_seconds(event.get("dur")),
        external=number if isinstance(number, int) else None,
        operands=tuple(_operands(args)),
        arguments=args.get("Concrete Inputs"),
        sent=_sent(args) if category == "kernel" else None,
        is_collective="Collective name" in args or "nccl" in name.lower(),  # RCCL's kernels have NCCL's names
        copied_bytes=float(copied) if is_size(copied) else 0.0,  # type: ignore[arg-type]
    )


def _operands(args: Mapping[str, Any]) -> list[Operand]:
    dims, types = args.get("Input Dims"), args.get("Input type")
    if not isinstance(dims, list) or not isinstance(types, list):
        return []
    return [
        (tuple(shape), *_DTYPES[kind])
        for shape, kind in zip(dims, types, strict=False)
        if kind in _DTYPES and isinstance(shape, list) and len(shape) <= MOST_DIMS and all(map(is_size, shape))
    ]


def _seconds(micros: object) -> float:
    known = isinstance(micros, (int, float)) and abs(micros) < _MOST_US
    return float(micros) / US_PER_S if known else 0.0  # type: ignore[arg-type]


def _sent(args: Mapping[str, Any]) -> Sent | None:
    kind = _COLLECTIVES.get(str(args.get("Collective name", "")))
    dtype, width = _DTYPES.get(str(args.get("dtype", "")), ("", 0))
    sizes = [args.get(name) for name in ("In msg nelems", "Out msg nelems")]
    ranks = _ranks(args)
    if kind is None or not width or len(ranks) < 2 or not all(map(is_size, sizes)):
        return None
    elements = sizes[1] if kind == "all_gather" else sizes[0]
    return Sent(kind, dtype, float(int(elements) * width), ranks) if elements else None


def _ranks(args: Mapping[str, Any]) -> tuple[int, ...]:
    """Of the group: as listed, or as many as there are where the list is cut short."""
    listed, size = str(args.get("Process Group Ranks", "")), args.get("Group size")
    found = tuple(
        number for word in listed.strip("[]").split(",") if (number := whole_number(word.strip())) is not None
    )
    if isinstance(size, int) and size <= MOST_RANKS and len(found) != size:
        return tuple(range(size)) if not found or "..." not in listed or len(found) < 2 else _continued(found, size)
    return found


def _continued(begun: tuple[int, ...], size: int) -> tuple[int, ...]:
    """A list of ranks that was cut short, carried on by its stride."""
    stride = max(1, begun[1] - begun[0])
    return tuple(begun[0] + stride * place for place in range(size))
