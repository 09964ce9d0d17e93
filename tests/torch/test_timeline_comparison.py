"""Measured steps beside the schedule: everything that the plan sends is there, in the order of a step."""

import json

import pytest

pytest.importorskip("torch")

import torch
from forced_plans import forced_plan
from tiny_models import tiny_gpt
from torch import nn

import shardplan.torch
from shardplan.errors import ShardplanError


@pytest.mark.parametrize("mode", ["eager", "exported"])
def test_every_move_and_phase_is_measured(four, tmp_path, mode):
    tiny = tiny_gpt()
    plan = forced_plan(tiny.model(tmp_path), "2x2", recipe="ZeRO-3")
    found = four.run("torch_cases", "measured", tiny, plan, mode, str(tmp_path / "trace.json"))
    sent = {n for n, move in enumerate(plan.moves) if any(not step.collective.is_free for step in move.steps)}
    for seen in found:
        numbers = [number for one in seen.moves for number in one.numbers]
        assert len(numbers) == len(set(numbers))
        assert {plan.moves[number].kind for number in numbers} >= {"prefetched", "deferred"}
        assert set(numbers) == sent
        gathered = [one.label.partition(":")[0] for one in seen.moves if one.kind == "prefetched"]
        assert set(gathered) <= {tensor.checkpoint for tensor in plan.tensors if tensor.role == "parameter"}
        assert [phase.name for phase in seen.phases] == ["forward", "backward", "update"]
        assert sum(phase.planned_s for phase in seen.phases) == pytest.approx(seen.planned_s, rel=1e-3)
        assert all(phase.measured_s > 0 for phase in seen.phases)
        assert sum(phase.measured_s for phase in seen.phases) == pytest.approx(seen.measured_s, rel=0.5)
        for step in seen.steps:
            for span in step:
                assert 0 <= span.start <= span.end
                assert not span.numbers or span.waits or span.issued <= span.start
        head, first, *_ = str(seen).splitlines()
        assert head.split() == ["planned", "ms", "measured", "ms", "waited", "ms"]
        assert first.split()[0] == "step"
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1}


def test_what_cannot_be_measured():
    with pytest.raises(ShardplanError, match="no plan"):
        shardplan.torch.compare_timeline(nn.Linear(2, 2), torch.ones(2, 2))
    with pytest.raises(ShardplanError, match="0 steps are none to measure"):
        shardplan.torch.compare_timeline(nn.Linear(2, 2), torch.ones(2, 2), steps=0)
