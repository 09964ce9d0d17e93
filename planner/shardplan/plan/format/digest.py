"""The digest of a plan's content, which detects edits of the file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from shardplan.plan.format.fields import DIGEST, PLAN

DIGESTED: Final = next(field.since for field in PLAN.fields if field.key == "digest")
"""Minor format version since which plans have a digest."""
SCHEDULED: Final = 4
"""Minor format version since which the step of a plan is its schedule."""
_SHOWN = 19


def content_digest(document: Mapping[str, Any]) -> str:
    """`sha256:` and 64 hex digits of a plan's document without its own `digest`, independent of spacing and
    key order."""
    rest = {key: value for key, value in document.items() if key != "digest"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False, default=dict)
    return DIGEST + hashlib.sha256(text.encode()).hexdigest()


def edited(document: Mapping[str, Any]) -> Iterator[str]:
    """A sentence that a plan's document was changed after it was written; empty if it was not, or if its format has no
    digest."""
    digest, now, version = document.get("digest"), content_digest(document), str(document["format_version"])
    if digest is None and minor_of(document) >= DIGESTED:
        yield f"it was edited: a plan of format {version} has a digest, and this one has none"
    elif digest not in (None, now):
        yield f"it was edited after it was written: its digest is {_short(digest)}, its content's {_short(now)}"


def minor_of(document: Mapping[str, Any]) -> int:
    """The minor format version of a plan's document."""
    return int(str(document["format_version"]).partition(".")[2])


def _short(digest: object) -> str:
    text = str(digest)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
