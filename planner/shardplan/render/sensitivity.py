"""Sensitivity analysis of a plan (`solve --robust`): regret under perturbed profiles, and slack of every constant."""

from __future__ import annotations

import math

from rich.console import Console

from shardplan.render.console import emit
from shardplan.study.sensitivity import FARTHEST, WORTH_HAVING, Robustness, Slack
from shardplan.units import percent


def describe_sensitivity(console: Console, found: Robustness) -> None:
    """How much slower than the best the plan may be, and which constants matter."""

    def line(label: str, text: str) -> None:
        emit(console, f"{label:<9} {text}")

    if found.regrets:
        worst = found.regrets[-1]
        near = sum(regret <= WORTH_HAVING for regret in found.regrets)
        low, high = found.spread
        width = percent(low) if low == high else f"{percent(low)} to {percent(high)}"
        drawn = f"{near} of {len(found.regrets)} perturbed profiles (±{width})"
        line("robust", f"plan still optimal in {drawn}")
        much = "does not fit" if worst == math.inf else f"is {percent(worst)} slower than the best plan there"
        line("", f"in the worst of them the plan {much}")
    touchy = [slack for slack in found.slacks if slack.low > 0 or slack.high < math.inf]
    for slack in touchy:
        line("", f"another plan gains more than {percent(WORTH_HAVING)} if {slack.constant} is {_bounds(slack)}")
    if len(touchy) < len(found.slacks):
        others = ", ".join(slack.constant for slack in found.slacks if slack not in touchy)
        line("", f"from {1 / FARTHEST:g} to {FARTHEST:g} times as much nothing changes with {others}")


def sensitivity_record(found: Robustness) -> dict[str, object]:
    """As `--json` has it; null stands for as far as was looked, and for a plan that does not fit."""
    return {
        "regrets": [_finite(regret) for regret in found.regrets],
        "slacks": [
            {"constant": slack.constant, "low": slack.low or None, "high": _finite(slack.high)}
            for slack in found.slacks
        ],
    }


def _bounds(slack: Slack) -> str:
    ends = []
    if slack.low > 0:
        ends.append(f"below {slack.low:.2f}")
    if slack.high < math.inf:
        ends.append(f"above {slack.high:.2f}")
    return f"{' or '.join(ends)} times what the profile says"


def _finite(value: float) -> float | None:
    return None if value == math.inf else round(value, 6)
