"""The input and output types of an export."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardplan.errors import Diagnostic
    from shardplan.model.types import Model


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of a target for a plan.

    `text`: the whole of a text target, `""` for one that wrote files. `refused`: what the format cannot express;
    warnings are printed beside the text, and if there is an error among them nothing is written. `files`: what was
    written, relative to the output, in order.
    """

    text: str = ""
    refused: tuple[Diagnostic, ...] = ()
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """The model that a plan is for. `path`: its ONNX file, None for a described one (`transformer:llama3-70b`)."""

    model: Model
    path: Path | None
