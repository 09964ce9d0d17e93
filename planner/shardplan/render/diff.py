"""Output of `diff`: two plans side by side, for people, for a pull request, for a CI log, and for scripts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text

from shardplan.escapes import command_message, command_property, markdown, markdown_code, markdown_comment
from shardplan.plan.diff import Change, Effect, PlanDiff
from shardplan.render.console import emit, table
from shardplan.text_lines import in_pieces
from shardplan.units import counted, digits, percent, size, sizes_apart

MOST_ROWS = 20
"""Rows that `--all` completes."""
COMMENT_LIMIT = 60_000
"""Characters: GitHub refuses comments above 65,536."""
_FACTOR = 10
"""From this growth on a factor is said and no percentage: `(×12)` is read at once, `(+1100.0 %)` is not."""
_STYLES = {"+": "green", "-": "red", "~": "yellow"}
_APART, _CAUSE = "   ", "cause: "
_NO_CAUSE = "none in what was asked: the planner decides otherwise (another version or effort?)"


Recipes = Mapping[str, Mapping[str, tuple[float, float]]]
"""As `shardplan.render.recipes.recipe_changes` gives them."""


def show_diff(console: Console, diff: PlanDiff, recipes: Recipes, *, everything: bool = False) -> None:
    """Changes, largest effect first, then the totals and the cause."""
    if diff.is_empty:
        emit(console, "the plans say the same")
        return
    show_changes(console, diff, everything=everything)
    emit(console, *map(in_parts, totals(diff, recipes)))


def in_parts(line: str) -> Text:
    """A line of `totals` for a terminal, which is broken between its parts; a cause is a sentence."""
    return Text(line if line.startswith(_CAUSE) else _APART.join(map(in_pieces, line.split(_APART))))


def show_changes(console: Console, diff: PlanDiff, *, everything: bool = False) -> None:
    """A row for each kind of change, and how much is not shown."""
    shown, hidden = _shown(diff.changes, everything=everything)
    rows = table("", "=what", "=before → after", ">memory", ">time")
    for change in shown:
        rows.add_row(change.sign, _name(change), _arrow(change), _memory(change), _time(diff, change))
    if shown:
        for number, change in enumerate(shown):
            rows.rows[number].style = _STYLES[change.sign]
        emit(console, rows)
    emit(console, Text(_rest(diff, hidden)))


def diff_markdown(diff: PlanDiff, name: str, recipes: Recipes) -> str:
    """For a pull request: a marker by which CI finds its own comment, the totals, and the table folded away."""
    lines = [markdown_comment(f"shardplan diff: {name}"), f"**{markdown_code(name)}** {_headline(diff)}", ""]
    if diff.is_empty:
        return "\n".join(lines)
    lines += [f"- {markdown(line)}" for line in totals(diff, recipes)]
    if diff.changes:
        shown, _ = _shown(diff.changes, everything=True)
        many = sum(change.count for change in diff.changes)
        lines += [
            "",
            f"<details><summary>{counted(many, 'decision')} changed, {diff.unchanged:,} unchanged</summary>",
            "",
        ]
        lines += ["| | what | before | after | memory | time |", "|---|---|---|---|--:|--:|"]
        used = sum(map(len, lines))
        for number, change in enumerate(shown):
            before, after = markdown_code(change.before), markdown_code(change.after)
            row = f"| {change.sign} | {markdown_code(change.name)}{_times(change)} | {before} | {after} |"
            row += f" {_memory(change)} | {_time(diff, change)} |"
            used += len(row) + 1
            if used > COMMENT_LIMIT:
                lines.append(f"\n{counted(len(shown) - number, 'more row')}: see `shardplan diff --all`")
                break
            lines.append(row)
        lines += ["", "</details>"]
    return "\n".join([*lines, ""])


def diff_github(diff: PlanDiff, name: str) -> str:
    """One annotation for a GitHub Actions log."""
    name = command_property(name)
    if diff.is_empty:
        return f"::notice file={name},title=plan unchanged::{_headline(diff)}\n"
    level = "warning" if diff.effect("step").delta > 0 else "notice"
    text = "%0A".join(map(command_message, totals(diff, {})))
    return f"::{level} file={name},title=plan changed::{text}\n"


def diff_document(diff: PlanDiff, recipes: Recipes | None = None) -> dict[str, object]:
    """The diff as plain data: microseconds and bytes."""
    return {
        "same": diff.is_empty,
        "changes": [
            {
                "change": {"+": "added", "-": "removed", "~": "changed"}[change.sign],
                **{key: value for key, value in dataclasses.asdict(change).items() if key != "time_ns_delta"},
                "time_us_delta": change.time_ns_delta / 1000,
            }
            for change in diff.changes
        ],
        "unchanged": diff.unchanged,
        "effects": {
            _key(effect): _effect_record(effect, 1 if effect.name == "memory" else 1000) for effect in diff.effects
        },
        "memory": {effect.name: _effect_record(effect, 1) for effect in diff.held},
        "parameters": {
            axis: {name: {"before": was, "after": now} for name, (was, now) in named.items()}
            for axis, named in (recipes or {}).items()
        },
        "causes": list(diff.causes),
    }


def totals(diff: PlanDiff, recipes: Recipes) -> list[str]:
    """`step 39.1 → 38.2 ms (−2.3 %)`, memory, what mesh axes do otherwise, and the causes, one line each."""
    axes = [
        f"parameters on {axis}: " + ", ".join(f"{name} {percent(was)} → {percent(now)}" for name, (was, now) in found)
        for axis, found in ((axis, _largest_first(named)) for axis, named in recipes.items())
    ]
    return [*effects(diff), *axes, *(f"{_CAUSE}{cause}" for cause in diff.causes or (_NO_CAUSE,))]


def _largest_first(named: Mapping[str, tuple[float, float]]) -> list[tuple[str, tuple[float, float]]]:
    return sorted(named.items(), key=lambda item: (-abs(item[1][1] - item[1][0]), item[0]))


def effects(diff: PlanDiff) -> list[str]:
    """What changes in time and memory."""
    parts = [_effect(diff, effect) for effect in (diff.effect("step"), *diff.spent)]
    changed = sorted((effect for effect in diff.held if effect.delta), key=lambda effect: -abs(effect.delta))
    held = ", ".join(f"{effect.name} {_signed(size, effect.delta)}" for effect in changed)
    return [_APART.join(parts), _effect(diff, diff.effect("memory")) + (f": {held}" if held else "")]


def _headline(diff: PlanDiff) -> str:
    return "unchanged" if diff.is_empty else _effect(diff, diff.effect("step"))


def _effect(diff: PlanDiff, effect: Effect) -> str:
    (old, new), name = diff.measures, effect.name
    if name == "memory":
        before, after = sizes_apart(effect.before, effect.after)
    elif old == new:
        before, after = new.apart(effect.before, effect.after)
    else:
        return f"{name} {old.text(effect.before)} → {new.text(effect.after)}"
    if not effect.delta:
        return f"{name} {after} (same)"
    return f"{name} {before} → {after}{_relative(effect)}"


def _relative(effect: Effect) -> str:
    """` (−2.3 %)`, ` (×12)` from the factor on where a percentage is hard to read, nothing where there was nothing."""
    if not effect.before:
        return ""
    if effect.after >= _FACTOR * effect.before:
        return f" (×{digits(effect.after / effect.before, 2)})"
    return f" ({_signed(percent, effect.share)})"


def _shown(changes: Sequence[Change], *, everything: bool) -> tuple[list[Change], int]:
    """Stored tensors before operators, larger effects first; and how many groups are left out."""
    order = {"parameter": 0, "input": 1, "output": 1, "constant": 2, "activation": 2, "operator": 3}
    ranked = sorted(
        changes, key=lambda change: (order.get(change.kind, 2), -abs(change.time_ns_delta), -abs(change.bytes_delta))
    )
    shown = ranked if everything else ranked[:MOST_ROWS]
    return shown, len(ranked) - len(shown)


def _rest(diff: PlanDiff, hidden: int) -> str:
    more = [f"{counted(hidden, 'more kind')} of change"] if hidden else []
    same = [counted(diff.unchanged, "unchanged decision")] if diff.unchanged or not hidden else []
    hint = "; --all shows the changes" if hidden else ""
    return f"({' and '.join([*more, *same])} hidden{hint})"


def _name(change: Change) -> str:
    kind = f"{change.kind} " if change.kind in ("operator", "input", "output") else ""
    return f"{kind}{change.name}{_times(change)}"


def _times(change: Change) -> str:
    return f" (×{change.count})" if change.count > 1 else ""


def _arrow(change: Change) -> str:
    return " → ".join(text for text in (change.before, change.after) if text)


def _memory(change: Change) -> str:
    return _signed(size, change.bytes_delta) if change.bytes_delta else ""


def _time(diff: PlanDiff, change: Change) -> str:
    old, new = diff.measures
    return _signed(new.text, change.time_ns_delta) if change.time_ns_delta and old == new else ""


def _signed(show: object, value: float) -> str:
    assert callable(show)
    return f"{'−' if value < 0 else '+'}{show(abs(value))}"


def _key(effect: Effect) -> str:
    return "memory_bytes" if effect.name == "memory" else f"{effect.name}_us"


def _effect_record(effect: Effect, scale: int) -> dict[str, float]:
    return {"before": effect.before / scale, "after": effect.after / scale, "share": effect.share}
