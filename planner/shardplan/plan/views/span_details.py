"""What a trace says of one span of a timeline beside its name and times."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpanDetails:
    """The phase and which repetition of it, bytes on the link, exposed seconds (None where a schedule does not tell
    them), and the operators after which it is issued and before which it is awaited."""

    phase: str
    repeat: int = 0
    bytes: int = 0
    exposed_s: float | None = None
    issue_after: str = ""
    wait_before: str = ""
