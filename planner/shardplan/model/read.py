"""`read_model`: from an ONNX file to a `Model`. Each step has its own module, in the order of `_read`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import onnx

from shardplan.errors import Diagnostic, ShardplanError
from shardplan.model.build import build_model, needed_nodes
from shardplan.model.digest import structure_digest
from shardplan.model.dims import bind
from shardplan.model.draft import draft_graph
from shardplan.model.infer import infer
from shardplan.model.load import load_bytes, load_proto
from shardplan.model.shared_initializers import part_merged
from shardplan.model.types import Model
from shardplan.model.weights import find_weights

__all__ = ["read_model", "read_model_bytes", "structure_digest"]

_NO_DIMS: Mapping[str, int] = {}


def read_model(path: str | Path, dims: Mapping[str, int] = _NO_DIMS) -> Model:
    """Read the ONNX file `path` for planning, its symbolic dims bound by `dims` (`{"batch": 8}`).

    Tensor data above 1 MiB is skipped and external data files are never opened. Raises `ShardplanError` (exit code 2)
    for a file that is no valid ONNX graph, dims unbound, unknown or contradictory, values whose shape stays unknown.
    """
    path = Path(path)
    try:
        model = _read(load_proto(path), path.stem, dims)
    except ShardplanError as problem:
        raise type(problem)(*_located(problem.diagnostics, path)) from None
    return replace(model, warnings=_located(model.warnings, path))


def read_model_bytes(data: bytes, name: str, weights: Mapping[str, bool] | None = None) -> Model:
    """As `read_model`, of the bytes of an ONNX file without symbolic dims. `name`: the model's; `weights`: `known` of
    `find_weights`."""
    return _read(load_bytes(data), name, _NO_DIMS, weights)


def _located(diagnostics: Iterable[Diagnostic], path: Path) -> tuple[Diagnostic, ...]:
    return tuple(replace(entry, file=entry.file or str(path)) for entry in diagnostics)


def _read(proto: onnx.ModelProto, name: str, dims: Mapping[str, int], known: Mapping[str, bool] | None = None) -> Model:
    draft = draft_graph(proto)
    draft.nodes = needed_nodes(draft.nodes, draft.outputs)
    if known is None:
        part_merged(draft)
    binding = bind(draft, dims)
    weights = find_weights(draft, known)
    inferred = infer(draft, binding, weights)
    if inferred.problems:
        raise ShardplanError(*inferred.problems)
    return build_model(name, draft, binding, weights, inferred)
