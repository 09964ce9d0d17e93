"""A report in a notebook: the page inside of a frame, which keeps its style and its program to itself."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

from shardplan.plan.file import write_other
from shardplan.plan.types import Plan
from shardplan.reports.page import page
from shardplan.reports.plan import plan_report

_HEIGHT_PX = 860


@dataclass(frozen=True)
class Report:
    """`html`: the whole page. A notebook shows it; `save` writes it."""

    html: str

    def save(self, path: str | Path) -> None:
        """Write the page to `path`, whole or not at all. Raises `ShardplanError` (`unwritable-output`,
        `output-not-a-report`)."""
        write_other(self.html, path, "report")

    def _repr_html_(self) -> str:
        frame = f'width="100%" height="{_HEIGHT_PX}" style="border:0" sandbox="allow-scripts" title="shardplan report"'
        return f'<iframe srcdoc="{escape(self.html)}" {frame}></iframe>'

    def __repr__(self) -> str:
        return f"<Report, {len(self.html):,} characters: save it, or show it in a notebook>"


def report(plan: Plan, file: str = "") -> Report:
    """The report of a plan, as `shardplan show --html` writes it. `file`: the plan's, for the commands it names."""
    return Report(page(plan_report(plan, file)))
