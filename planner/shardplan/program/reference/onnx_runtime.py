"""Operators that only ONNX Runtime knows (domain `com.microsoft`), run by it in single precision if it is installed."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

Array = NDArray[Any]
DOMAINS = frozenset({"com.microsoft"})
OPSET = 21
"""Of the default domain, which every model imports; ONNX Runtime lags behind the newest."""


class NoRuntimeError(Exception):
    """ONNX Runtime is not installed, or does not run the operator either."""


def run_single(model: ModelProto, operands: Sequence[Array | None]) -> list[Array]:
    """The results of a model of one operator with inputs `i0`, `i1` ...; floats are narrowed to single precision."""
    feed = {
        f"i{position}": operand.astype(np.float32) if operand.dtype == np.float64 else operand
        for position, operand in enumerate(operands)
        if operand is not None
    }
    session = _session(model.SerializeToString())
    try:
        results = session.run(None, feed)
    except Exception as problem:  # noqa: BLE001 - its exceptions have no base of their own
        raise NoRuntimeError(_reason(problem)) from None
    return [np.asarray(result) for result in results]


@functools.lru_cache(maxsize=256)
def _session(serialized: bytes) -> Any:
    try:
        import onnxruntime  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415
    except ImportError:
        raise NoRuntimeError("it takes onnxruntime, which is not installed") from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        return onnxruntime.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])
    except Exception as problem:  # noqa: BLE001 - its exceptions have no base of their own
        raise NoRuntimeError(_reason(problem)) from None


def _reason(problem: Exception) -> str:
    return f"onnxruntime says: {str(problem).splitlines()[0][:200]}"
