"""Memory of a device that runs several model chunks of a stage (an interleaved schedule), one at a time.

It holds the weights, gradients and optimizer state of all of them and the activations of all microbatches that wait for
their backward in any of them. What lives only while a chunk runs, such as temporaries and recomputed activations, it
holds for one chunk at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardplan.plan.types import Memory, Plan


@dataclass(frozen=True, slots=True)
class ChunkMemory:
    """Bytes of one model chunk: at the peak while it runs, and of its activations while it does not."""

    peak: Memory
    waiting_bytes: int

    @property
    def running_bytes(self) -> int:
        """Bytes that the chunk holds only while it runs: peak activations and temporaries, less waiting activations."""
        return self.peak.activations + self.peak.temporaries - self.waiting_bytes


def held_in_turn(chunks: Sequence[ChunkMemory]) -> Memory:
    """The memory of a device at its peak, which is that of the chunk that holds most more while it runs."""
    running = max(chunks, key=lambda chunk: chunk.running_bytes)
    others = sum(chunk.waiting_bytes for chunk in chunks) - running.waiting_bytes
    return Memory(
        parameters=sum(chunk.peak.parameters for chunk in chunks),
        gradients=sum(chunk.peak.gradients for chunk in chunks),
        optimizer=sum(chunk.peak.optimizer for chunk in chunks),
        activations=running.peak.activations + others,
        temporaries=running.peak.temporaries,
    )


def chunk_memory(plan: Plan, in_flight: int) -> ChunkMemory:
    """That of the plan of one model chunk, of whose activations `in_flight` microbatches wait. Iterations of loops save
    values of their own, and without training nothing is known to be freed: all activations count as waiting then."""
    peak = plan.summary.memory
    if plan.model.get("mode") != "training" or plan.model.get("loops"):
        return ChunkMemory(peak, peak.activations)
    saved = sum(each.bytes_per_device for each in plan.tensors if each.saved or each.role == "input")
    return ChunkMemory(peak, min(peak.activations, in_flight * saved))
