"""The operators that patterns of manual stages match, and the operator at which each stage begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shardplan.errors import Diagnostic, ShardplanError, did_you_mean, error
from shardplan.model.types import Model
from shardplan.patterns import matches
from shardplan.pipeline.cut_points import free_of_weights
from shardplan.pipeline.manual.stages import REST, ManualStage


@dataclass
class _StageOperators:
    """The operators of each stage, by index; `last`: the last operator named so far. `faults`: what is wrong with the
    patterns."""

    model: Model
    blocks: Mapping[int, str]
    names: Sequence[tuple[str, ...]]
    free: frozenset[int]
    stage_of: dict[int, int] = field(default_factory=dict)
    last: int = -1
    faults: list[Diagnostic] = field(default_factory=list)

    def take(self, number: int, stage: ManualStage) -> int:
        """Adds the operators that a stage names; returns where it begins."""
        before, named = self.last, set()
        for place, run in enumerate(stage.runs):
            if run != REST:
                named |= self._run(number, stage, place)
        if named and min(named) < before:
            self._interleaved(number, stage, min(named), before)
        if REST in stage.runs:
            rest = set(range(len(self.names))) - self.stage_of.keys() - self.free
            self.stage_of.update(dict.fromkeys(rest, number))
            named |= {index for index in rest if index > before}
        if not named and not self.faults:
            summary = (
                f"stage {number} runs nothing: no module, block or operator is left that matches {list(stage.runs)}"
            )
            self.faults.append(error("bad-stages", summary, **stage.mark.where))
        self.last = max(named, default=self.last)
        return min(named, default=0)

    def _run(self, number: int, stage: ManualStage, place: int) -> set[int]:
        run, mark = stage.runs[place], stage.marks[place] if stage.marks else stage.mark
        found = {index for index, names in enumerate(self.names) if any(_means(run, name) for name in names)}
        if not found:
            summary = f"stage {number}: no module, block or operator matches '{run}'"
            near = did_you_mean(run, {name for names in self.names for name in names})
            self.faults.append(error("no-match", summary, hint=near, **mark.where))
        own = found - self.free
        if claimed := sorted(index for index in own if self.stage_of.get(index, number) != number):
            summary = (
                f"stage {number}: '{run}' names {self._text(claimed[0])}, which stage {self.stage_of[claimed[0]]} runs"
            )
            hint = f"every operator is in one stage; '{REST}' means what no stage before has"
            self.faults.append(error("bad-stages", summary, hint=hint, **mark.where))
        own -= set(claimed)
        self.stage_of.update(dict.fromkeys(own, number))
        return own

    def _interleaved(self, number: int, stage: ManualStage, mine: int, theirs: int) -> None:
        summary = (
            f"stage {number} names {self._text(mine)}, which comes before {self._text(theirs)} of stage "
            f"{self.stage_of[theirs]}"
        )
        hint = "stages run one after the other"
        self.faults.append(error("bad-stages", summary, hint=hint, **stage.mark.where))

    def _text(self, index: int) -> str:
        return f"'{self.blocks.get(index, self.model.operators[index].name)}'"


def stage_starts(model: Model, stages: Sequence[ManualStage]) -> list[int]:
    """The first operator of every stage but the first. Operators before all that the first stage names belong to it,
    and others that no stage names to the stage before.

    Raises `ShardplanError` with all faults: `no-match` for a pattern without a match; `bad-stages` if two stages name
    the same operator, a stage names what comes before another's, or a stage would be empty.
    """
    blocks = {
        index: name
        for block in model.blocks
        for name, copy in zip(block.names, block.copies, strict=True)
        for index in copy
    }
    names = [
        tuple(filter(None, (operator.module, operator.name, blocks.get(index, ""))))
        for index, operator in enumerate(model.operators)
    ]
    named = _StageOperators(model, blocks, names, free_of_weights(model))
    begins = [named.take(number, stage) for number, stage in enumerate(stages)]
    if named.faults:
        raise ShardplanError(*named.faults)
    return begins[1:]


def _means(run: str, name: str) -> bool:
    return matches(name, run) or matches(name, f"{run}.*")
