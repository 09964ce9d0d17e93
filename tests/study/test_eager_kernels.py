"""Programs that run as they are written: `shardplan.study.eager_kernels`, and `price --eager`."""

import json

import pytest

import shardplan
from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import profile_from_text
from shardplan.errors import ShardplanError
from shardplan.study.eager_kernels import unfused_of

LLAMA = "transformer:layers=4,hidden=256,heads=4,vocab=512,seq=128"
GPT = "transformer:style=gpt,layers=4,hidden=256,heads=4,vocab=512,seq=128"


def cluster_with(eager_us):
    text = f"schema: 1\nextends: builtin:h200-dgx\nname: mine\ntraining: {{eager_us: {eager_us}}}\n"
    return make_cluster(profile_from_text(text, "mine"))


def test_kernels_of_a_llama_are_counted():
    """Of a layer 2 norms, 2 rotations, 7 products, attention, a gate and 2 sums; a last norm, the output matrix, the
    embedding. Forward of the layers again where all is recomputed."""
    plan = shardplan.price(LLAMA, cluster="h200-dgx", micro_batch=2).plan
    layer, more = (2 * 8 + 2 * 5 + 7 + 2 + 2 + 2, 2 * 16 + 2 * 9 + 14 + 4 + 3 + 2), (8 + 1 + 1, 16 + 2 + 3)
    forward, backward = (4 * own + outside for own, outside in zip(layer, more, strict=True))
    kernels, moved = unfused_of(plan, 0.0)
    assert kernels == forward + backward
    wide = 2 * 2 * 128 * 256
    rotated = 4 * 2 * (8 + 13) * wide
    gates = 4 * (2 + 4) * 2 * 2 * 128 * 768
    assert moved == (4 * 2 + 1) * (16 + 43) * wide + rotated + gates
    again, moved_again = unfused_of(plan, 1.0)
    assert again == 2 * forward + backward
    assert moved_again - moved == (4 * 2 + 1) * 16 * wide + 4 * 2 * 8 * wide + 4 * 2 * 2 * 2 * 128 * 768


@pytest.mark.parametrize("model", [LLAMA, GPT])
def test_a_host_that_is_slower_makes_the_step_longer_and_nothing_else(model):
    """The time in which the host starts an operator of a trainer has no part in it."""
    asked = {"micro_batch": 2, "global_batch": 4, "eager": True}
    slow, fast = (shardplan.price(model, cluster=cluster_with(us), **asked) for us in (40, 20))
    kernels = unfused_of(slow.plan, 0.0)[0]
    waited = slow.plan.summary.step_ns - fast.plan.summary.step_ns
    assert waited == pytest.approx(2 * kernels * 20_000, rel=0.02)  # the host is slower than the device by far
    assert slow.spent.compute_ns == fast.spent.compute_ns
    assert slow.peak == fast.peak


def test_an_eager_program_moves_more_bytes():
    asked = {"cluster": "h200-dgx", "micro_batch": 2, "global_batch": 4}
    fused, eager = (shardplan.price(LLAMA, eager=way, **asked) for way in (False, True))
    device = make_cluster(profile_from_text("schema: 1\nextends: builtin:h200-dgx\nname: mine\n", "mine")).device
    moved = 2 * unfused_of(fused.plan, 0.0)[1] / (device.hbm_bytes_per_s * device.memory_efficiency)
    assert eager.spent.compute_ns - fused.spent.compute_ns == pytest.approx(moved * 1e9, rel=0.01)


def test_a_profile_that_does_not_say_it_is_refused(capsys):
    from shardplan.cli import main

    assert main(["price", LLAMA, "-c", "h100-dgx", "--eager", "--no-best"]) == 2
    told = capsys.readouterr().err
    assert "error[no-eager]: profile 'h100-dgx' does not say how long the host takes to start a kernel" in told
    assert "hint: leave out --eager, or add training.eager_us to a profile" in told
    assert main(["price", LLAMA, "-c", "h200-dgx", "--eager", "--no-best", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["result"]
    with pytest.raises(ShardplanError, match="no-eager"):
        shardplan.price(LLAMA, cluster="a100-dgx", eager=True)
