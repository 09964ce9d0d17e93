"""Input options of verbs without a request: a model and the sizes of its dims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from shardplan.errors import ShardplanError, error
from shardplan.model.size_names import PAD, TRIP

if TYPE_CHECKING:
    from shardplan.model.types import Model


def load_model(given: str, dims: Mapping[str, int]) -> Model:
    """The model of an ONNX file, of a description such as `transformer:llama3-70b`, or of a factory."""
    from shardplan.study.instance import load_model as load

    return load(given, dims)


def parse_sizes(dims: Sequence[str], trips: Sequence[str] = (), pads: Sequence[str] = ()) -> dict[str, int]:
    """Sizes of `--dim`, `--trip` and `--pad` texts, loops as `trip:NAME`, what dims are held as as `pad:NAME`. Raises
    `ShardplanError` with all that are none."""
    from shardplan.errors import ShardplanError
    from shardplan.request import checked, option_of

    values, faults = checked({"dims": dims, "trips": trips, "pads": pads}, option_of)
    if faults:
        raise ShardplanError(*(fault for found in faults.values() for fault in found))
    prefixes = {"dims": "", "trips": TRIP, "pads": PAD}
    return {prefixes[field] + name: number for field, named in values.items() for name, number in named.items()}


def text_of(path: str) -> str:
    """The text of a log or a capture. Raises `ShardplanError` (`unreadable-file`)."""
    from shardplan.text_files import read_text

    try:
        return read_text(path, "replace")
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise ShardplanError(error("unreadable-file", f"cannot read the file: {reason}", file=path)) from None
