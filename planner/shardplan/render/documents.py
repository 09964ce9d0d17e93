"""The `--json` documents: one shape for every verb, on success and on failure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping

from shardplan.errors import Diagnostic
from shardplan.escapes import json_text

FORMAT_VERSION = "1.0"


def document(command: str, result: Mapping[str, object] | None, diagnostics: Iterable[Diagnostic]) -> str:
    """The document as text with a final newline; `result` is null where there is no answer."""
    content = {
        "format_version": FORMAT_VERSION,
        "command": command,
        "result": result,
        "diagnostics": [dataclasses.asdict(diagnostic) for diagnostic in diagnostics],
    }
    return json_text(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False, default=dict)) + "\n"
