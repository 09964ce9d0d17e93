"""Memory of devices that run several model chunks of a stage, by hand and against published formulas."""

from __future__ import annotations

import pytest

import shardplan
from shardplan.pipeline.chunk_memory import ChunkMemory, held_in_turn
from shardplan.pipeline.schedule import Schedule
from shardplan.plan.types import Memory

MIB = 2**20
MODEL = "transformer:layers=8,hidden=1024,heads=16,kv_heads=16,ffn=4096,vocab=512,seq=1024"
RUN = {"tp": 2, "pp": 2, "sequence_parallel": True, "global_batch": 16, "micro_batch": 1, "recompute": "full"}


def test_what_lives_while_a_chunk_runs_is_held_for_one_chunk_at_a_time() -> None:
    first = ChunkMemory(Memory(10, 10, 20, activations=9, temporaries=5), waiting_bytes=6)
    second = ChunkMemory(Memory(1, 1, 2, activations=4, temporaries=8), waiting_bytes=2)
    assert held_in_turn([first, second]) == Memory(11, 11, 22, activations=4 + 6, temporaries=8)
    assert held_in_turn([first]) == first.peak


@pytest.mark.parametrize(("stages", "chunks"), [(4, 1), (4, 2), (4, 20), (8, 3), (2, 7)])
def test_the_chunks_of_a_stage_hold_what_narayanan_et_al_say(stages: int, chunks: int) -> None:
    """The first stage has S (1 + (S - 1) / (S V)) microbatches in flight."""
    schedule = Schedule("interleaved", chunks) if chunks > 1 else Schedule("1f1b")
    held = [schedule.in_flight(stages - 1, stages, 10**6, chunk) for chunk in range(chunks)]
    assert sum(held) / chunks == pytest.approx(stages * (1 + (stages - 1) / (stages * chunks)), abs=1) or chunks == 1
    if chunks > 1:
        assert sum(held) == 2 * (stages - 1) + (chunks - 1) * stages + 1
        assert max(held) - min(held) <= 1
    else:
        assert held == [stages]


def test_chunks_add_the_activations_that_wait_and_nothing_else() -> None:
    """Layers that are recomputed keep their input: 1 x 1024 x 1024 x 2 bytes over 2 devices. Of the first stage's 4
    layers, one chunk has 2 microbatches in flight, 4 chunks of one layer have 2 * 1 + 3 * 2 + 1 layers in flight."""
    one, four = (shardplan.price(MODEL, **RUN, vp=chunks).memory[0] for chunks in (1, 4))
    layer = 1024 * 1024 * 2 // 2
    assert four.activations - one.activations == pytest.approx((9 - 8) * layer, abs=0.2 * layer)
    assert four.temporaries == pytest.approx(one.temporaries, rel=0.01)
    assert (four.parameters, four.gradients) == (one.parameters, one.gradients)
