"""Memory of runs: what is held once is counted once, as a sum by hand says."""

from dataclasses import fields

import pytest

import shardplan
from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.errors import ShardplanError
from shardplan.graph.memory import CATEGORIES
from shardplan.graph.options import PlanOptions
from shardplan.graph.precision import check_peak
from shardplan.models import TransformerSpec, build
from shardplan.plan.types import Memory
from shardplan.planning import Planner
from shardplan.study.run_memory import DecidedGraph

ROWS, SEQ, HIDDEN, VOCAB, LAYERS = 4, 128, 64, 4096, 2


def priced(**asked):
    spec = TransformerSpec(LAYERS, HIDDEN, 4, vocab=VOCAB, seq=SEQ, style="gpt", batch=asked.pop("batch", ROWS))
    return shardplan.price(build(spec), **{"micro_batch": ROWS, "cluster": "h100-dgx", **asked}).peak


def test_a_step_holds_saved_values_logits_and_the_loss_and_nothing_twice():
    """Of a layer, in 16 bits: 16 times the hidden state (inputs of norms and products, queries, keys, values, twice
    four times as much in the MLP), and at most four such beside the layers; logits, their gradient, and 2 bytes more of
    each, as fp32 takes the place of one of them. The output matrix is a view of the table."""
    hidden, logits = 2 * ROWS * SEQ * HIDDEN, 2 * ROWS * SEQ * VOCAB
    plain, fused = priced(), priced(fused_loss=True)
    assert plain.total - fused.total == logits
    held = fused.activations + fused.temporaries
    least = 16 * LAYERS * hidden + 2 * logits
    assert least <= held <= least + 4 * hidden


def test_fsdp_under_a_pipeline_keeps_weights_from_microbatch_to_microbatch():
    """As a distributed optimizer, with gradients that wait in fp32; without a pipeline all is in shards."""
    asked = {"dp": 4, "batch": 8 * ROWS, "fused_loss": True}
    sharded, whole = (priced(pp=2, zero=zero, **asked) for zero in (3, 1))
    assert sharded.parameters == whole.parameters
    assert sharded.gradients == whole.gradients == 2 * whole.parameters
    assert sharded.optimizer == whole.optimizer
    flat = priced(zero=3, **asked)
    assert flat.parameters < priced(zero=1, **asked).parameters / 3


@pytest.mark.parametrize(("pp", "zero", "share"), [(1, 0, 1), (1, 1, 4), (2, 0, 1), (2, 1, 4)])
def test_gradients_are_accumulated_in_fp32_as_of_megatron(pp, zero, share):
    """18 bytes for each 16-bit weight, or 6 and 12 over the ranks; two less with --grad-reduce-in-bf16."""
    ways = {"dp": 4, "batch": 8 * ROWS, "pp": pp, "zero": zero}
    by_default, narrow = priced(**ways), priced(**ways, grad_dtype="bf16")
    weights = by_default.parameters // 2
    assert by_default.gradients == 4 * weights
    assert narrow.gradients == 2 * weights
    assert by_default.optimizer == narrow.optimizer == pytest.approx(12 * weights / share, rel=1e-3)
    assert by_default.total - narrow.total == 2 * weights


def test_gradients_in_fp32_take_room_that_a_search_leaves():
    """Of the runs that fit, the fastest is found where the gradients are wider than the search counts."""
    peak = priced(dp=4, batch=8 * ROWS).total
    found = priced(dp=4, batch=8 * ROWS, memory_limit=peak)
    assert found.total <= peak


def test_fp32_gradients_of_an_optimizer_are_not_counted_twice():
    peak = priced(dp=4, batch=8 * ROWS, optimizer="adam-fp32")
    assert peak.gradients == 2 * peak.parameters


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_narrow_gradients_are_refused_where_the_optimizer_keeps_them_in_fp32(zero):
    with pytest.raises(ShardplanError, match="optimizer 'adam-fp32' keeps gradients in fp32"):
        priced(dp=4, batch=8 * ROWS, optimizer="adam-fp32", zero=zero, grad_dtype="bf16")


@pytest.mark.parametrize("dp", [4, 8, 24, 40, 88, 104])
def test_fsdp_shards_the_state_over_ranks_that_do_not_divide_a_dim(dp):
    """Its shards are padded: the state is that of a distributed optimizer with as many ranks."""
    asked = {"dp": dp, "batch": dp * ROWS}
    sharded, flat = (priced(zero=zero, **asked) for zero in (3, 1))
    assert sharded.optimizer == pytest.approx(flat.optimizer, rel=1e-3)


def test_another_type_of_gradients_is_refused():
    with pytest.raises(ShardplanError, match="gradients are not accumulated in 'fp8'"):
        priced(grad_dtype="fp8")


def test_a_loss_over_a_cut_vocabulary_holds_exponentials_too():
    """Tensor-parallel ranks of FSDP: 14 bytes of each logit more than a fused loss, of which without ranks 10."""
    logits = ROWS * SEQ * VOCAB
    for ways, more in ((1, 10), (2, 14)):
        asked = {"tp": ways, "zero": 3, "dp": 2, "batch": 2 * ROWS}
        assert priced(**asked).total - priced(**asked, fused_loss=True).total == more * logits // ways


@pytest.mark.parametrize(("precision", "saved"), [("fp8", 1), ("mxfp8", 1 + 1 / 32), ("nvfp4", 0.5 + 1 / 16)])
def test_what_only_narrow_products_read_again_waits_in_their_type(precision, saved):
    """Of a layer: what both norms make, and the hidden state of the MLP. What attention makes it reads again itself."""
    spec = TransformerSpec(LAYERS, 512, 4, vocab=1024, seq=SEQ, style="gpt", batch=ROWS)
    wide, narrow = (
        shardplan.price(build(spec), micro_batch=ROWS, cluster="b200-dgx", precision=each).peak.activations
        for each in ("", precision)
    )
    assert wide - narrow == pytest.approx(LAYERS * ROWS * SEQ * (512 + 512 + 2048) * (2 - saved), rel=1e-3)


@pytest.mark.parametrize(("precision", "dispatched", "active"), [("", 2, 2), ("fp8", 1, 1)])
def test_of_a_choice_of_experts_the_tokens_wait_and_not_the_results(precision, dispatched, active):
    """Of each choice of a token in a layer: the token and what the last product reads, in the type of products, and
    what the others make, in 16 bits. The shares are part of what the last product reads, so results are only added."""
    sizes = "routing=dropless,hidden=1024,heads=8,ffn=512,experts=8,vocab=1024,seq=512,batch=2"

    def activations(layers, choices):
        model = f"transformer:{sizes},layers={layers},top_k={choices}"
        return shardplan.price(model, micro_batch=2, cluster="h100-dgx", precision=precision).peak.activations

    of_two_layers = [activations(6, choices) - activations(4, choices) for choices in (4, 2)]
    by_hand = 2 * 2 * (2 * 512) * (1024 * dispatched + 512 * (2 + 2 + active))
    assert of_two_layers[0] - of_two_layers[1] == pytest.approx(by_hand, rel=0.01)


@pytest.mark.parametrize(
    ("cluster", "precision", "missing"), [("a100-dgx", "fp8", "fp8"), ("h100-dgx", "nvfp4", "fp4")], ids=str
)
def test_a_type_that_devices_do_not_have_is_refused(cluster, precision, missing):
    with pytest.raises(ShardplanError, match=f"{precision} takes products in {missing}, for which profile '{cluster}'"):
        shardplan.price("transformer:llama3-8b,layers=1", cluster=cluster, precision=precision)


@pytest.mark.parametrize("cluster", ["a100-dgx", "h100-dgx", "h200-dgx", "gh200-4", "mi300x-8", "l40s-g6e-48xl"])
def test_block_scales_come_with_fp4(cluster):
    with pytest.raises(ShardplanError, match=f"mxfp8 takes products in fp8.*for which profile '{cluster}' has no peak"):
        shardplan.price("transformer:llama3-8b,layers=1", cluster=cluster, precision="mxfp8")


@pytest.mark.parametrize("cluster", ["b200-dgx", "b300-dgx", "gb200-nvl72", "gb300-nvl72", "mi355x-8"])
def test_devices_with_fp4_multiply_with_block_scales(cluster):
    check_peak("mxfp8", make_cluster(load_profile(cluster)))


def test_a_sharded_optimizer_cuts_flat_buffers_whatever_sizes_divide():
    weights = priced().parameters
    for ranks in (3, 8):
        peak = priced(dp=ranks, zero=1, batch=ranks * ROWS)
        assert peak.parameters == weights
        assert abs(peak.optimizer - 6 * weights / ranks) <= 0.01 * weights


@pytest.mark.parametrize("asked", [{}, {"remat": "full", "shard_optimizer": True, "microbatches": 2}], ids=str)
def test_a_run_holds_no_more_than_a_plan_is_charged(asked):
    model = build(TransformerSpec(LAYERS, HIDDEN, 4, vocab=VOCAB, seq=SEQ, batch=8))
    planner = Planner(model, make_cluster(load_profile("generic"), "2x2"), PlanOptions(effort="quick", **asked))
    chosen = planner.chosen()
    held = DecidedGraph(chosen.priced.built, chosen.memory, chosen.priced.choice).peak()
    assert held.total < chosen.plan.summary.memory.total
    assert held.parameters == chosen.plan.summary.memory.parameters


def test_rows_of_what_is_held_are_in_the_order_of_the_memory_that_they_become():
    assert tuple(field.name for field in fields(Memory)) == CATEGORIES
