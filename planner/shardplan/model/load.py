"""Reads an ONNX file as a protobuf message, without large payloads and local functions, and without external data."""

from __future__ import annotations

import mmap
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from shardplan.errors import Diagnostic, ShardplanError, did_you_mean, error
from shardplan.model.limits import Budget, guard
from shardplan.model.protobuf_wire import WireError, without_payloads
from shardplan.model.sequences import without_sequences
from shardplan.units import counted

_LFS_POINTER = b"version https://git-lfs"
_IR_VERSION_KEY = 0x08  # field 1, varint: what every exporter writes first


def load_proto(path: Path) -> onnx.ModelProto:
    """The model in `path`, tensor payloads above 1 MiB left out, local functions inlined, tensors cut into sequences
    split.

    Raises `ShardplanError` when the file cannot be read or is not an ONNX model.
    """
    return _prepared(_parse(_read(path)))


def load_bytes(data: bytes) -> onnx.ModelProto:
    """As `load_proto`, for the content of such a file."""
    with memoryview(data) as view:
        return _prepared(_parse(_strip(view)))


def _prepared(proto: onnx.ModelProto) -> onnx.ModelProto:
    if not proto.HasField("graph") or not (proto.opset_import or proto.graph.node):
        raise ShardplanError(_not_onnx("it holds no graph"))
    guard(proto, Budget.of_environment())
    if proto.functions:
        proto = _inlined(proto)
    return without_sequences(proto)


def _read(path: Path) -> bytes:
    """The file's bytes without payloads."""
    try:
        size_bytes = path.stat().st_size
        with path.open("rb") as file:
            if size_bytes == 0:
                raise ShardplanError(_not_onnx("the file is empty"))
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
                return _strip(view)
    except FileNotFoundError:
        raise ShardplanError(error("no-such-file", "there is no such file", hint=_siblings(path))) from None
    except IsADirectoryError:
        hint = "name the .onnx file inside it"
        raise ShardplanError(error("not-a-file", "this is a directory", hint=hint)) from None
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise ShardplanError(error("unreadable-file", f"cannot read the file: {reason}")) from None


def _strip(view: memoryview) -> bytes:
    head = bytes(view[:64])
    if head.startswith(_LFS_POINTER):
        found = "it is a Git LFS pointer, not the file itself"
        raise ShardplanError(_not_onnx(found, hint="fetch it with `git lfs pull`"))
    try:
        return without_payloads(view)
    except WireError as problem:
        if head[0] == _IR_VERSION_KEY and problem.needed > problem.end == len(view):
            raise ShardplanError(_truncated(len(view), problem.needed)) from None
        raise ShardplanError(_not_onnx("its bytes are no ONNX protobuf message", _plan_hint(head))) from None


def _plan_hint(head: bytes) -> str:
    return "this looks like a plan: shardplan show reads it" if b'"format_version"' in head else ""


def _parse(data: bytes) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except (DecodeError, UnicodeDecodeError, ValueError):
        raise ShardplanError(_not_onnx("its bytes are no ONNX protobuf message")) from None
    return proto


def _inlined(proto: onnx.ModelProto) -> onnx.ModelProto:
    from onnx import inliner  # noqa: PLC0415 - few models need it

    try:
        return inliner.inline_local_functions(proto)
    except Exception as problem:  # noqa: BLE001 - onnx raises RuntimeError and its own types, all meaning a bad function
        text = "a local function cannot be inlined"
        raise ShardplanError(error("bad-function", text, detail=str(problem).strip())) from None


def _not_onnx(found: str, hint: str = "") -> Diagnostic:
    return error("not-onnx", f"this is not an ONNX model: {found}", hint=hint)


def _truncated(size_bytes: int, needed_bytes: int) -> Diagnostic:
    summary = (
        f"the file is truncated: it has {counted(size_bytes, 'byte')} and its contents go on to byte {needed_bytes:,}"
    )
    return error("truncated-file", summary, hint="copy or download the file again")


def _siblings(path: Path) -> str:
    """The nearest file name, or the ONNX files that do lie in the directory."""
    if not path.parent.is_dir():
        return f"there is no directory '{path.parent}' either"
    names = sorted(entry.name for entry in path.parent.iterdir() if entry.suffix == ".onnx")
    return did_you_mean(path.name, names) or (f"ONNX files there: {', '.join(names[:5])}" if names else "")
