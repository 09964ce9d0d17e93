"""Plans that a verb shows, with warnings about their files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardplan.errors import warning
from shardplan.verbs.session import Session

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardplan.errors import Diagnostic
    from shardplan.plan.types import Plan


def edited_warnings(file: str, document: Mapping[str, object]) -> tuple[Diagnostic, ...]:
    """A warning where the document in a file was edited after it was written."""
    from shardplan.plan.format.digest import edited

    return tuple(warning("edited-plan", text, file=file) for text in edited(document))


def shown_plan(session: Session, file: str) -> Plan:
    """The plan in a file; a warning says that it was edited. Raises `ShardplanError` as `read_plan`."""
    from shardplan.plan.file import read_whole

    document, plan = read_whole(file)
    session.say_all(edited_warnings(file, document))
    return plan
