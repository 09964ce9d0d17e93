"""Pipeline schedules: the time of a step, and the microbatches in flight in a stage.

With C_i the compute and communication of stage i in a step of M microbatches, a step takes

    T = (sum_i C_i + (M - 1) max_i C_i) / M + transfers            GPipe and 1F1B (Alpa, equation 2)
    T = max_i C_i + (sum_i C_i - max_i C_i) / (M V) + transfers    interleaved, V model chunks per stage

(the same for V = 1). A stage runs each of its chunks on S microbatches in a row, so the interleaved schedule takes a
multiple of S microbatches, as in Megatron-LM; the formula holds for no other number. What happens once per step (the
optimizer, gradient reduction) counts as part of C_i. Stage i of S holds the activations of M microbatches in GPipe, of
min(M, S - i) in 1F1B, and interleaved those of 2 (S - i - 1) + (V - 1) S + 1 microbatches in model chunks, of which
each has at most M: for the first stage those of S (1 + (S - 1) / (S V)) whole microbatches (Narayanan et al. 2021).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from shardplan.errors import ShardplanError, error

_INTERLEAVED = re.compile(r"^interleaved:([1-9]\d{0,8})$")


@dataclass(frozen=True, slots=True)
class Schedule:
    """`name`: `1f1b`, `gpipe` or `interleaved`; `chunks`: V."""

    name: str
    chunks: int = 1

    def __str__(self) -> str:
        return f"{self.name}:{self.chunks}" if self.name == "interleaved" else self.name

    def in_flight(self, behind: int, stages: int, microbatches: int, chunk: int = 0) -> int:
        """Microbatches whose activations a model chunk of a stage holds, with `behind` stages after it. Those of all
        chunks together are what the stage holds; the first chunks, which run first, have one more where they differ.
        """
        if self.name == "gpipe":
            return microbatches
        if self.chunks == 1:
            return min(microbatches, behind + 1)
        each, more = divmod(2 * behind + (self.chunks - 1) * stages + 1, self.chunks)
        return min(microbatches, each + (chunk < more))

    def in_flight_of(self, place: int, count: int, microbatches: int) -> int:
        """The same of model chunk `place` of `count` in all: chunk p runs on stage p mod S."""
        stages = count // self.chunks
        chunk, stage = divmod(place, stages)
        return self.in_flight(stages - 1 - stage, stages, microbatches, chunk)

    def takes(self, microbatches: int, stages: int) -> bool:
        """Whether so many stages run so many microbatches by this schedule."""
        return self.chunks == 1 or microbatches % stages == 0

    def refuse_uneven(self, microbatches: int, stages: int) -> None:
        """Raises `ShardplanError` (`uneven-microbatches`) if stages do not take so many microbatches."""
        if not self.takes(microbatches, stages):
            summary = f"'{self}' on {stages} stages takes a multiple of {stages} microbatches, and not {microbatches}"
            hint = f"--microbatches {-(-microbatches // stages) * stages}, or --schedule 1f1b"
            raise ShardplanError(error("uneven-microbatches", summary, hint=hint))

    def step(self, costs: Sequence[float], microbatches: int) -> float:
        """T without the transfers, in the unit of the costs, for a number of microbatches that it takes."""
        slowest = max(costs)
        return slowest + (math.fsum(costs) - slowest) / (microbatches * self.chunks)


def parse_schedule(text: str) -> Schedule:
    """The schedule of `--schedule`. Raises `ShardplanError` (`bad-schedule`)."""
    if text in ("1f1b", "gpipe"):
        return Schedule(text)
    match = _INTERLEAVED.match(text)
    if match is None:
        hint = "1f1b, gpipe, or interleaved:V with V model chunks per stage"
        raise ShardplanError(error("bad-schedule", f"there is no schedule '{text}'", hint=hint))
    return Schedule("interleaved", int(match[1]))
