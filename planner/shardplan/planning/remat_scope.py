"""Scope of rematerialisation: which operators may be recomputed and when, and how each value may reach backward.

Segments are the repeated blocks, the insides of decomposed attention, and stretches between blocks. Everything
recomputed of a segment runs right before the backward of the segment's last operator. A value that one segment passes
to another is saved if it is needed again: recomputing one segment never requires another.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shardplan.graph.flow import Flow
from shardplan.graph.fusion import Fusion
from shardplan.graph.memory import Fate
from shardplan.graph.options import PlanOptions
from shardplan.graph.recomputed_layers import RecomputedSegment, blocks
from shardplan.graph.remat import attention_cores, latest_reads, recompute
from shardplan.model.types import CONTROL, Model, Operator
from shardplan.planning.constants import STRETCH_FACTOR, STRETCH_MIN_CAP
from shardplan.rules.types import Rule

ONCE = -1
"""The label of an operator that runs once; other labels are the operator before whose backward it is recomputed."""


@dataclass(frozen=True)
class Scope:
    """`labels[i]`: when operator i may run, `ONCE` first. `fates[v]`: how value v may reach backward (saved,
    recomputed, or not); values without an entry are present in backward anyway, or not read there
    (`shardplan.graph.remat`). `required`: values that backward reads."""

    labels: tuple[tuple[int, ...], ...]
    fates: Mapping[str, tuple[Fate, ...]]
    required: frozenset[str]
    readers: Mapping[str, frozenset[int]]

    def serves(self, name: str, fate: Fate) -> frozenset[int]:
        """The labels of the readers that can read a value in backward, given its fate."""
        wanted = self.readers[name]
        if fate == "passing":
            return frozenset()
        if isinstance(fate, str):
            return wanted
        return frozenset(label for label in wanted if label == fate or (label < fate and name in self.required))

    def segments(self) -> dict[int, list[int]]:
        """The operators that may be recomputed right before the backward of each operator."""
        found: dict[int, list[int]] = {}
        for index, labels in enumerate(self.labels):
            for label in labels[1:]:
                found.setdefault(label, []).append(index)
        return found


def scope(model: Model, rules: Sequence[Rule], flow: Flow, fusion: Fusion, options: PlanOptions) -> Scope:
    """The scope for `model`. It includes everything that `--remat selective` and `full` do."""
    return _Scope(model, rules, flow, fusion, options).found()


class _Scope:
    def __init__(self, model: Model, rules: Sequence[Rule], flow: Flow, fusion: Fusion, options: PlanOptions) -> None:
        self.model, self.flow, self.fusion = model, flow, fusion
        self.latest = latest_reads(model, rules, flow, fusion)
        self.lasting = _lasting(model, rules, flow, fusion, options)
        self.savable = {name for name in flow.makers if self._tracked(name) and self._worth_saving(name)}
        self.labels: list[tuple[int, ...]] = [(ONCE,)] * len(model.operators)
        segments = (*blocks(model), *attention_cores(model, rules, flow))
        among: dict[int, set[int]] = {}
        for segment in (*segments, *stretches(model, flow)):
            for index in segment.operators:
                among.setdefault(index, set()).add(segment.last)
        for index in reversed(range(len(model.operators))):
            lasts = among.get(index, set()) if self._eligible(index) else set()
            self.labels[index] = (ONCE, *sorted(last for last in lasts if self._useful(index, last)))

    def found(self) -> Scope:
        """The scope, without labels for which some operand cannot be present."""
        while True:
            fates = {name: self._fates(name) for name in self.flow.makers if self._tracked(name)}
            readers = {name: self._labels_of_readers(name) for name in fates}
            found = Scope(tuple(self.labels), fates, frozenset(self.latest), readers)
            there = {name: {label for fate in fates[name] for label in found.serves(name, fate)} for name in fates}
            labels = [
                tuple(
                    label
                    for label in labels
                    if label == ONCE or all(label in there[name] for name in operator.inputs if name in there)
                )
                for operator, labels in zip(self.model.operators, self.labels, strict=True)
            ]
            if labels == self.labels:
                return found
            self.labels = labels

    def _tracked(self, name: str) -> bool:
        """Whether a value has a fate to choose: views of weights are present like the weights."""
        maker = self.model.operators[self.flow.makers[name][0]]
        return self._plain(maker) and (name in self.latest or name not in self.flow.weightlike)

    @staticmethod
    def _plain(operator: Operator) -> bool:
        return not operator.loops and operator.domain != CONTROL

    def _eligible(self, index: int) -> bool:
        operator = self.model.operators[index]
        return self._plain(operator) and any(name and self._tracked(name) for name in operator.outputs)

    def _useful(self, index: int, last: int) -> bool:
        """Whether backward, or an operator that may be recomputed, reads a result that is recomputed this late."""
        for name in filter(None, self.model.operators[index].outputs):
            latest = self.latest.get(name)
            if (latest is not None and latest <= last) or name in self.lasting:
                return True
            for label in self._labels_of_readers(name):
                if label == last or (label < last and latest is not None):
                    return True
        return False

    def _labels_of_readers(self, name: str) -> frozenset[int]:
        return frozenset(label for reader, _ in self.flow.readers.get(name, ()) for label in self.labels[reader][1:])

    def _fates(self, name: str) -> tuple[Fate, ...]:
        maker = self.flow.makers[name][0]
        latest = self.latest.get(name)
        fates: list[Fate] = ["passing"] if latest is None else []
        if name in self.savable:
            fates.append("saved")
            several = sum(bool(other) for other in self.model.operators[maker].outputs) > 1
            if (several or name in self.lasting) and len(self.labels[maker]) > 1:
                fates.append("saved, recomputed")
        fates += [last for last in self.labels[maker][1:] if latest is None or latest <= last]
        return tuple(fates)

    def _worth_saving(self, name: str) -> bool:
        """Whether backward or another segment reads the value, or the results made from it have more bytes
        than itself."""
        if name in self.fusion.inner:
            return False
        if name in self.latest or name in self.lasting:
            return True
        size = self.model.tensor(name).size_bytes
        readers = {reader for reader, _ in self.flow.readers.get(name, ())}
        led_to = {made for reader in readers for made in self.model.operators[reader].outputs if made}
        return sum(self.model.tensor(made).size_bytes for made in led_to) > size


def _lasting(model: Model, rules: Sequence[Rule], flow: Flow, fusion: Fusion, options: PlanOptions) -> frozenset[str]:
    """The values that the flags save although their makers are recomputed: the borders of blocks."""
    flags = [recompute(model, rules, flow, fusion, replace(options, remat=flag)) for flag in ("selective", "full")]
    return frozenset(name for remat in flags for name in remat.saved if flow.makers[name][0] in remat.until)


def stretches(model: Model, flow: Flow) -> list[RecomputedSegment]:
    """The operators in order, cut into segments of about the square root of their number: at the borders of blocks, and
    elsewhere where the fewest bytes cross."""
    most = max(STRETCH_MIN_CAP, round(STRETCH_FACTOR * math.sqrt(len(model.operators))))
    of_block = {
        index: (number, copy[0]) for number, block in enumerate(model.blocks) for copy in block.copies for index in copy
    }
    crossing = _crossing_bytes(model, flow)
    segments = []
    for _, run in itertools.groupby(range(len(model.operators)), key=of_block.get):
        operators = list(run)
        first, end = operators[0], operators[-1] + 1
        while end - first > most:
            cut = min(range(first + most // 4, first + most + 1), key=lambda at: (crossing[at], -at))
            segments.append(RecomputedSegment(frozenset(range(first, cut)), cut - 1))
            first = cut
        segments.append(RecomputedSegment(frozenset(range(first, end)), end - 1))
    return segments


def _crossing_bytes(model: Model, flow: Flow) -> list[int]:
    """For each operator, the bytes of the values made before it and read by it or later operators."""
    change = [0] * (len(model.operators) + 2)
    for name, (maker, _) in flow.makers.items():
        if name not in flow.weightlike:
            change[maker + 1] += model.tensor(name).size_bytes
            change[flow.last_reader(name) + 1] -= model.tensor(name).size_bytes
    total, crossing = 0, []
    for step in change[:-1]:
        total += step
        crossing.append(total)
    return crossing
