"""Output of `solve`: advice on what would make the step shorter."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from shardplan.advice.advise import Advice
from shardplan.render.console import emit
from shardplan.render.solve import facts
from shardplan.units import duration, percent


def describe_advice(console: Console, found: Sequence[Advice]) -> None:
    """One line for each."""
    emit(console, facts(*(("advice" * (not number), advice_line(one)) for number, one in enumerate(found))))


def advice_line(advice: Advice) -> str:
    """`batch 16 instead of 15: step 432 ms, 26.5 % shorter   --dim batch=16`."""
    changed = advice.what if advice.size is None else f"{advice.what} {advice.rounded:,} instead of {advice.size:,}"
    option = f"   {advice.option}" if advice.option else ""
    return f"{changed}: step {duration(advice.step_ns)}, {percent(advice.saves)} shorter{option}"


def advice_record(found: Sequence[Advice]) -> list[dict[str, object]]:
    """The same as plain data: microseconds, and the share of the step that is saved."""
    return [
        {
            "what": one.what,
            "size": one.size,
            "instead": one.rounded,
            "step_us": one.step_ns / 1000,
            "saves": round(one.saves, 4),
            "option": one.option,
        }
        for one in found
    ]
