"""Collectives of a compiled function beside those of its plan: bytes by phase, collective and mesh axes.

Four credits are given. Three are for what XLA on CPU emits because it has none of the passes that rewrite collectives,
as compilers for accelerators have (XLA for GPU: `ReduceScatterCreator`, `AllReduceFolder`). Two of them need an
all-reduce whose result every device then cuts to its own part, on every way to its readers:
- where the plan has a reduce-scatter of the same tensor size over the same axes, the all-reduce is counted as that;
- where the plan has an all-reduce of that size and XLA gathers again what it cut, in an all-gather that the plan does
  not have, the three are counted as the one all-reduce: reduce-scatter and all-gather send what an all-reduce sends.
The third needs an all-reduce whose only reader is another one over other axes, as which XLA adds up what is split by
two axes in two dims (the gradient of a norm's weight, or of a matrix, where batch and sequence are split):
- where the plan has one all-reduce of that size over the axes of both, or the reduce-scatter as which it would count,
  the two are counted as that.
The fourth is for what XLA does everywhere, because no collective of its gathers along two dims at once:
- where the plan has one all-gather over several axes, two of which one alone reads the other's whole result are counted
  as that. Gathering over one axis after the other sends as many bytes as over both at once.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from shardplan.extras.xla.emitted import Emitted, Place, emitted_collectives
from shardplan.extras.xla.hlo import parse_module
from shardplan.layout.collective import CollectiveKind
from shardplan.layout.mesh import Mesh
from shardplan.plan.types import Phase, Plan
from shardplan.runtime.predicted import Predicted, inner_operators, predicted_collectives
from shardplan.runtime.stages import one_mesh

Key = tuple[Phase, CollectiveKind, tuple[str, ...]]
Sized = tuple[Phase, CollectiveKind, tuple[str, ...], int]
_PHASES: tuple[Phase, ...] = ("forward", "backward")


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of collective over the same axes in one phase: bytes that one device sends in one run."""

    phase: Phase
    kind: CollectiveKind
    axes: tuple[str, ...]
    emitted_bytes: int
    predicted_bytes: int


@dataclass(frozen=True)
class Check:
    """What was found. `emitted`: after the credits, given `scattered`, `merged`, `folded` and `gathered` times;
    `predicted`: of the phases that the function has. `inner`: operators whose own collectives the plan's moves leave
    out. `endless`: loops whose trip count XLA does not tell; what is inside counts once. `widened`: 32-bit floats
    counted as 16-bit."""

    emitted: tuple[Emitted, ...]
    predicted: tuple[Predicted, ...]
    scattered: int = 0
    merged: int = 0
    folded: int = 0
    gathered: int = 0
    inner: tuple[str, ...] = ()
    endless: int = 0
    widened: bool = False

    @property
    def rows(self) -> tuple[Row, ...]:
        """Emitted and predicted bytes side by side, forward first."""
        emitted: Counter[Key] = Counter()
        predicted: Counter[Key] = Counter()
        for row in self.emitted:
            emitted[row.phase, row.kind, row.axes] += row.count * row.wire_bytes
        for move in self.predicted:
            predicted[move.phase, move.kind, move.axes] += move.count * move.wire_bytes
        keys = sorted({*emitted, *predicted}, key=lambda key: (_PHASES.index(key[0]), key[1:]))
        return tuple(Row(*key, emitted[key], predicted[key]) for key in keys)

    def emitted_bytes(self, phase: Phase) -> int:
        """Bytes that one device sends in the phase, as compiled."""
        return sum(row.emitted_bytes for row in self.rows if row.phase == phase)

    def predicted_bytes(self, phase: Phase) -> int:
        """Bytes that one device sends in the phase, as planned."""
        return sum(row.predicted_bytes for row in self.rows if row.phase == phase)

    def ratio(self, phase: Phase) -> float:
        """Emitted bytes per predicted byte; 1.0 where both are 0."""
        emitted, predicted = self.emitted_bytes(phase), self.predicted_bytes(phase)
        return emitted / predicted if predicted else float("inf") if emitted else 1.0

    @property
    def agrees(self) -> bool:
        """Whether the forward pass sends exactly what the plan says, by collective and axes."""
        return all(row.emitted_bytes == row.predicted_bytes for row in self.rows if row.phase == "forward")

    def __str__(self) -> str:
        lines = [f"{'phase':9} {'collective':15} {'axes':18} {'emitted':>12} {'planned':>12}  bytes of one device"]
        lines += [
            _line(row.phase, row.kind, ",".join(row.axes) or "other", row.emitted_bytes, row.predicted_bytes)
            for row in self.rows
        ]
        for phase in dict.fromkeys(row.phase for row in self.rows):
            ratio = f"  x {self.ratio(phase):.2f}"
            lines.append(_line(phase, "total", "", self.emitted_bytes(phase), self.predicted_bytes(phase)) + ratio)
        if self.scattered:
            lines.append(f"{self.scattered} all-reduce + slice counted as reduce-scatter")
        if self.merged:
            lines.append(f"{self.merged} all-reduce + slice + all-gather counted as all-reduce")
        if self.folded:
            lines.append(f"{self.folded} all-reduces that others sum further counted as one with these")
        if self.gathered:
            lines.append(f"{self.gathered} all-gathers that others gather further counted as one with these")
        if self.widened:
            lines.append("32-bit floats counted as 16-bit ones, which XLA on CPU computes and sends so")
        if self.inner:
            lines.append(f"not in the plan's moves: what {', '.join(self.inner[:8])} send inside")
        if self.endless:
            lines.append(f"{self.endless} loops of unknown length counted as one iteration")
        return "\n".join(lines)


def check_text(text: str, plan: Plan, *, phases: Sequence[Phase] | None = None, widened: bool = False) -> Check:
    """The collectives in HLO text (`compiled.as_text()`, or a dump of XLA) beside those of `plan`.

    `phases`: what of the plan to compare with; by default the forward pass, and the backward pass too if there is one.
    `widened`: 32-bit floats count as 16-bit ones, which XLA on CPU computes and sends so.

    `ValueError` if it is not the text of an HLO module. Raises `ShardplanError` (`pipeline-plan`).
    """
    one_mesh(plan)
    module = parse_module(text)
    emitted = emitted_collectives(module, plan.mesh, widened=widened)
    if phases is None:
        differentiated = any("transpose(" in instruction.op_name for _, instruction in module.instructions())
        phases = _PHASES if differentiated else ("forward",)
    predicted = tuple(row for row in predicted_collectives(plan) if row.phase in phases)
    joined = _fold(emitted, predicted, plan.mesh)
    fewer = Counter(row.kind for row in emitted) - Counter(row.kind for row in joined)
    counted, scattered, merged = _credit(joined, predicted)
    endless = sum(i.opcode == "while" and i.trips is None for _, i in module.instructions())
    folded, gathered = fewer["all_reduce"], fewer["all_gather"]
    return Check(counted, predicted, scattered, merged, folded, gathered, inner_operators(plan), endless, widened)


def _owed(emitted: Iterable[Emitted], predicted: Iterable[Predicted]) -> Counter[Sized]:
    """How often more than emitted the plan has each collective."""
    owed: Counter[Sized] = Counter()
    for move in predicted:
        owed[move.phase, move.kind, move.axes, move.payload_bytes] += move.count
    for row in emitted:
        owed[_key(row)] -= row.count
    return owed


def _fold(emitted: Sequence[Emitted], predicted: Iterable[Predicted], mesh: Mesh) -> tuple[Emitted, ...]:
    """`emitted`, all-reduces and all-gathers that run one after the other over different axes as the one that the plan
    has; what counts as a reduce-scatter there is still an all-reduce here (see `_credit`)."""
    owed, left = _owed(emitted, predicted), {row.place: row for row in emitted}
    for row in emitted:
        chain = _chain(row, left)
        for end in range(len(chain), 1, -1):
            joined = _joined(chain[:end], mesh)
            if joined is None:
                continue
            wanted = [replace(joined, kind="reduce_scatter")] * joined.sliced + [joined]
            key = next((_key(one) for one in wanted if owed[_key(one)] >= row.count), None)
            if key is not None:
                owed[key] -= row.count
                for link in chain[: end - 1]:
                    del left[link.place]
                left[joined.place] = joined
                break
    return tuple(left.values())


def _chain(row: Emitted, left: Mapping[Place | None, Emitted]) -> list[Emitted]:
    """A collective and those of its kind that take its result further."""
    chain = [row] if row.place in left else []
    while chain and chain[-1].then is not None and (after := left.get(chain[-1].then)) is not None:
        chain.append(after)
    return chain


def _joined(chain: Sequence[Emitted], mesh: Mesh) -> Emitted | None:
    """Collectives one after the other as the one over all of their axes; None where an axis would be there twice, or
    where an all-gather takes more than the whole result of the one before."""
    axes = [axis for link in chain for axis in link.axes]
    if len(axes) != len(set(axes)) or not all(link.axes for link in chain):
        return None
    for link, after in itertools.pairwise(chain):
        if link.payload_bytes * (after.ways if link.kind == "all_gather" else 1) != after.payload_bytes:
            return None
    ways = math.prod(link.ways for link in chain)
    return replace(chain[-1], axes=tuple(sorted(axes, key=mesh.names.index)), ways=ways)


def _credit(emitted: Sequence[Emitted], predicted: Sequence[Predicted]) -> tuple[tuple[Emitted, ...], int, int]:
    """What was emitted after the credits for cut all-reduces, and how often each was given."""
    owed = _owed(emitted, predicted)
    found: list[Emitted | None] = list(emitted)
    scattered = merged = 0
    for place, row in enumerate(emitted):
        if not row.sliced:
            continue
        scatter, gather = replace(row, kind="reduce_scatter"), replace(row, kind="all_gather")
        twins = [at for at, other in enumerate(found) if other is not None and _key(other) == _key(gather)]
        if owed[_key(scatter)] >= row.count:
            owed[_key(scatter)] -= row.count
            owed[_key(row)] += row.count
            found[place] = scatter
            scattered += 1
        elif owed[_key(row)] >= 0 and owed[_key(gather)] <= -row.count and twins:
            owed[_key(gather)] += row.count
            found[twins[0]] = None
            merged += 1
    return tuple(row for row in found if row is not None), scattered, merged


def _key(row: Emitted) -> Sized:
    return row.phase, row.kind, row.axes, row.payload_bytes


def _line(phase: str, kind: str, axes: str, emitted: int, predicted: int) -> str:
    return f"{phase:9} {kind:15} {axes:18} {emitted:12,} {predicted:12,}"
