"""Conformance: the record of a forward pass compared with its plan."""

from __future__ import annotations

from collections.abc import Iterator

from shardplan.errors import Diagnostic, ShardplanError, error, warn
from shardplan.layout.text import to_text
from shardplan.torch.propagation.engine import Engine


def check_conformance(engine: Engine) -> None:
    """Refuses a forward pass that differs from the plan's: operations without a rule, moves that no plan has, and moves
    of the plan that the program has no place for, and trained weights that the plan does not name.

    Raises `ShardplanError`: `unknown-operation`, `unplanned-parameter`, `unplanned-move`, `unrealised-move`.
    """
    faults = list(_faults(engine))
    if faults:
        raise ShardplanError(*faults)


def warn_of_differences(engine: Engine) -> None:
    """One warning with everything that `check_conformance` would refuse in the first forward pass, whose result is
    right but not computed as planned."""
    said = "; ".join(fault.summary for fault in _faults(engine))
    if said and engine.groups.rank == 0:
        warn(f"the model does not run as planned, it sends and computes more: {said}")


def warn_of_gathered(engine: Engine, warned: set[str]) -> None:
    """One warning for each operation of a later forward pass that every process has computed whole, unless it is in
    `warned`, to which it is added."""
    for name in sorted(set(engine.record.without_rule) - warned):
        warned.add(name)
        if engine.groups.rank == 0:
            said = (
                f"{name} has no rule for what it was given: its operands were gathered, and every process computed all"
            )
            warn(f"{said} of it, beside the plan; write it with other operations")


def _faults(engine: Engine) -> Iterator[Diagnostic]:
    record, mesh = engine.record, engine.groups.mesh
    lenient = "apply the plan with strict=False: the result is right, but more is sent than the plan says"
    other = f"{lenient}. If the model is not the one that was planned, solve again for it"
    if record.without_rule:
        listed = ", ".join(f"{name} ({count} times)" for name, count in sorted(record.without_rule.items()))
        summary = f"operations without a rule were run whole on every process: {listed}"
        yield error("unknown-operation", summary, hint=f"write them with other operations, or {lenient}")
    if record.unnamed:
        summary = "the results depend on trained parameters that the plan does not name"
        hint = "solve again for this model as it is trained, or ignore them by name or pattern"
        yield error("unplanned-parameter", summary, detail="\n".join(sorted(record.unnamed)), hint=hint)
    if record.unplanned:
        summary = f"{sum(record.unplanned.values())} moves were needed that the plan does not have"
        detail = "\n".join(f"{text}, {count} times" for text, count in sorted(record.unplanned.items()))
        yield error("unplanned-move", summary, detail=detail, hint=other)
    missing = [
        move
        for move in engine.plan.moves
        if move.phase == "forward"
        and move.tensor in engine.graph.keys  # constants are whole in every program
        and any(not step.collective.is_free for step in move.steps)
        and engine.graph.alike.get((move.tensor, move.reader), (move.tensor, move.reader)) not in record.realised
    ]
    if missing:
        lines = [
            f"{move.tensor}{f' for {move.reader}' if move.reader else ''}: "
            f"{to_text(move.source, mesh)} -> {to_text(move.target, mesh)}"
            for move in missing
        ]
        shown = [*lines[:8], *([f"and {len(lines) - 8} more"] if len(lines) > 8 else [])]
        summary = f"{len(missing)} moves of the plan have no place in the model"
        yield error("unrealised-move", summary, detail="\n".join(shown), hint=other)
