"""Parser of the protobuf wire format that drops the large tensors of an ONNX file before protobuf parses it.

The planner needs the dims and the type of a weight, never its data. Walking the bytes and skipping payloads keeps the
memory small and reads files beyond protobuf's own 2 GB limit. Field numbers: onnx.proto; wire format:
https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PAYLOAD_LIMIT_BYTES = 1 << 20
"""A payload above this is left out: 64 K elements of the widest element type (complex128)."""


class WireError(Exception):
    """The bytes are no protobuf message; `needed` is where the offending field would end, `end` where the data ends."""

    def __init__(self, needed: int, end: int) -> None:
        super().__init__(f"a field ends at byte {needed}, its message at byte {end}")
        self.needed = needed
        self.end = end


@dataclass(frozen=True, slots=True)
class _Message:
    """Which length-delimited fields are messages to walk into (by kind), and which are tensor data."""

    nested: Mapping[int, str]
    payload: frozenset[int] = frozenset()


_KINDS: dict[str, _Message] = {
    "model": _Message({7: "graph", 25: "function"}),
    "graph": _Message({1: "node", 5: "tensor", 15: "sparse"}),
    "function": _Message({7: "node"}),
    "node": _Message({5: "attribute"}),
    "attribute": _Message({5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"}),
    "sparse": _Message({1: "tensor", 2: "tensor"}),
    "tensor": _Message({}, frozenset({4, 5, 6, 7, 9, 10, 11})),
}


def without_payloads(data: memoryview, limit_bytes: int = PAYLOAD_LIMIT_BYTES) -> bytes:
    """The serialized ModelProto `data` without tensor payload fields longer than `limit_bytes`.

    Raises `WireError` where a field reaches beyond its message (a truncated file, or no protobuf at all).
    """
    return b"".join(_copy(data, 0, len(data), "model", limit_bytes))


def _copy(data: memoryview, start: int, end: int, kind: str, limit_bytes: int) -> list[memoryview | bytes]:
    message = _KINDS[kind]
    chunks: list[memoryview | bytes] = []
    at = copied = start
    while at < end:
        field_start = at
        key, at = _varint(data, at, end)
        wire_type = key & 7
        if wire_type != 2:
            at = _skip_scalar(data, at, end, wire_type)
            continue
        length, at = _varint(data, at, end)
        body, at = at, at + length
        if at > end:
            raise WireError(at, end)
        if length <= limit_bytes:
            continue
        field = key >> 3
        if field in message.payload:
            chunks.append(data[copied:field_start])
        elif field in message.nested:
            inner = _copy(data, body, at, message.nested[field], limit_bytes)
            chunks += [data[copied:field_start], _encoded(key), _encoded(sum(map(len, inner))), *inner]
        else:
            continue
        copied = at
    chunks.append(data[copied:end])
    return chunks


def _skip_scalar(data: memoryview, at: int, end: int, wire_type: int) -> int:
    if wire_type == 0:
        return _varint(data, at, end)[1]
    if wire_type not in (1, 5):
        raise WireError(at, end)
    at += 8 if wire_type == 1 else 4
    if at > end:
        raise WireError(at, end)
    return at


def _varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise WireError(at + 1, end)


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
