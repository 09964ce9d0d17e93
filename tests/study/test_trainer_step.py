"""What trainers take other than the schedule of a plan: `shardplan.study.trainer_step`."""

from dataclasses import replace

import pytest

import shardplan
from shardplan.cluster.mesh import cluster_digest, make_cluster
from shardplan.cluster.profile import load_profile, profile_from_text
from shardplan.errors import ShardplanError
from shardplan.graph.precision import Narrow, narrow_tensors
from shardplan.layout.layout import Layout
from shardplan.layout.placement import P, R, S
from shardplan.plan.types import Move
from shardplan.planning import parallelism
from shardplan.rules import model_rules
from shardplan.study.instance import load_model
from shardplan.study.model_chunks import chunk_starts, layers_in_chunks, layers_of
from shardplan.study.trainer_step import _is_partial, _summed_over, as_run, as_trained, exchanging_beside

MODEL = "transformer:style=gpt,layers=2,hidden=256,heads=4,vocab=1024,seq=128"


def cluster_with(base="generic", **training):
    lines = "".join(f"\n  {key}: {value}" for key, value in training.items())
    text = f"name: own\nextends: builtin:{base}\n" + (f"training:{lines}\n" if training else "")
    return make_cluster(profile_from_text(text, "own"))


def priced(cluster, **ways):
    return shardplan.price(MODEL, cluster=cluster, global_batch=16, **{"dp": 2, **ways})


def test_a_profile_that_says_nothing_is_as_it_was():
    plain = cluster_with()
    assert as_trained(plain) is plain
    plan = priced(plain).plan
    assert as_run(plan, plain) is plan
    assert "training" not in plain.resolved


@pytest.mark.parametrize("ways", [{}, {"tp": 2}, {"pp": 2, "dp": 1}])
def test_an_eager_trainer_is_never_faster_than_its_host(ways):
    fast, slow = (priced(cluster_with(host_us=micros), **ways) for micros in (0.001, 1000))
    assert fast.spent.host_ns == 0 < slow.spent.host_ns
    assert slow.spent.compute_ns == fast.spent.compute_ns
    twice = priced(cluster_with(host_us=2000), **ways)
    assert twice.plan.summary.step_ns / slow.plan.summary.step_ns == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize("ways", [{}, {"tp": 2}, {"pp": 2, "dp": 1}])
def test_parts_make_up_the_step(ways):
    cluster = cluster_with(host_us=500, host_collective_us=100, loss_bytes=52, tp_backward=0.5)
    found = priced(cluster, **ways)
    spent = found.spent
    parts = spent.compute_ns + spent.exposed_ns + spent.bubble_ns + spent.host_ns
    assert parts == pytest.approx(found.plan.summary.step_ns, abs=5)


def test_tensor_parallel_traffic_of_backward_is_hidden_as_far_as_it_is_said():
    none, half, whole = (priced(cluster_with(tp_backward=share), tp=2, dp=1).spent.exposed_ns for share in (0, 0.5, 1))
    assert none > half > whole > 0
    assert none - half == pytest.approx(half - whole, rel=0.01)
    assert priced(cluster_with(tp_backward=1), tp=1).plan.summary.step_ns == priced(cluster_with()).plan.summary.step_ns


def test_recomputed_forwards_wait_for_what_they_send():
    """Only backward's own traffic is hidden: about as much with recomputation as without."""
    hidden = {
        remat: priced(cluster_with(), tp=2, dp=1, recompute=remat).spent.exposed_ns
        - priced(cluster_with(tp_backward=1), tp=2, dp=1, recompute=remat).spent.exposed_ns
        for remat in ("none", "full")
    }
    assert 0.7 * hidden["none"] < hidden["full"] <= hidden["none"]


def test_the_loss_reads_the_logits_that_a_device_has():
    device = cluster_with().device
    without, with_loss = (priced(cluster_with(loss_bytes=moved)).spent.compute_ns for moved in (0, 52))
    elements = 16 / 2 * 128 * 1024
    seconds = 52 * elements / (device.hbm_bytes_per_s * device.memory_efficiency)
    assert (with_loss - without) / 1e9 == pytest.approx(seconds, rel=1e-3)


def test_a_loss_of_a_cut_vocabulary_moves_bytes_of_its_own():
    said = {"loss_bytes": 520, "cut_loss_bytes": 52}
    for ways, changes in (({"tp": 1}, False), ({"tp": 2}, True)):
        both, whole, cut = (priced(cluster_with(**told), **ways).spent.compute_ns for told in (
            said, {"loss_bytes": 520}, {"loss_bytes": 52}
        ))  # fmt: skip
        assert both == (cut if changes else whole) != (whole if changes else cut)


def test_host_and_device_add_up_sooner_where_ranks_wait_for_each_other():
    """The exponent 1 is one after the other."""
    host = {"host_us": 200, "host_collective_us": 200}
    for ways, meet in (({"tp": 1}, False), ({"tp": 2}, True), ({"dp": 4, "zero": 3}, False)):
        free = priced(cluster_with(host_us=0.0001), **ways).plan.summary.step_ns
        usual, sooner, after = (
            priced(cluster_with(**host, **more), **ways).plan.summary.step_ns - free
            for more in ({}, {"tp_exponent": 1.5}, {"tp_exponent": 1})
        )
        assert (usual < sooner < after) if meet else (usual == sooner == after)


@pytest.mark.parametrize("micro_batch", [1, 4])
def test_the_host_starts_the_loss_of_every_microbatch(micro_batch):
    """A host that is far slower than the device: the loss adds what its kernels take."""
    slow = {"host_us": 10_000}
    without, with_loss = (
        priced(cluster_with(**slow, loss_kernels=count), micro_batch=micro_batch).plan.summary.step_ns
        for count in (0, 36)
    )
    rounds = 16 / 2 / micro_batch
    assert (with_loss - without) / 1e9 == pytest.approx(rounds * 36 * 10e-3, rel=1e-3)


def test_the_host_starts_the_loss_of_megatron_alone_and_on_its_last_stage():
    told = {"host_us": 1000, "loss_kernels": 200}
    sharded, plain = (priced(cluster_with(**said), dp=4, zero=3) for said in (told, {"host_us": 1000}))
    assert sharded.plan.summary.step_ns == plain.plan.summary.step_ns
    stages = priced(cluster_with(**told), pp=2, dp=1).plan.pipeline.stages
    first, last = (stage.plan.summary.step_ns for stage in stages)
    assert last > first + 16 * 200 * 1000 * 1000 * 0.9


def test_no_plan_depends_on_what_trainers_add():
    plain, told = cluster_with(), cluster_with(host_us=80, fsdp_kappa=3)
    assert cluster_digest(plain) == cluster_digest(told)
    assert plain.resolved == {**told.resolved, "name": plain.name}
    plans = [shardplan.make_plan(MODEL, cluster=each, mesh="2x2", effort="quick") for each in (plain, told)]
    assert plans[0].summary == plans[1].summary


def test_efficiencies_are_those_of_trainers():
    told = as_trained(cluster_with(sustained=0.5, memory=0.25, attention=0.3, fsdp_kappa=2), sharded=True)
    plain = cluster_with()
    assert told.device.gemm == replace(plain.device.gemm, sustained=0.5, attention=0.3)
    assert told.device.memory_efficiency == pytest.approx(plain.device.memory_efficiency / 4)
    assert told.overlap.kappa == 2


def test_the_profiles_that_runs_were_fitted_on_say_so():
    for name in ("a100-dgx", "a100-p4d", "h100-dgx"):
        assert make_cluster(load_profile(name)).training.fsdp_kappa


def test_gradients_are_reduced_beside_backward_or_after_it():
    beside, after = (priced(cluster_with(reduces_beside=said), dp=4) for said in ("true", "false"))
    assert beside.spent.exposed_ns < after.spent.exposed_ns
    assert after.spent.compute_ns == beside.spent.compute_ns
    sharded = [priced(cluster_with(reduces_beside=said), dp=4, zero=3) for said in ("true", "false")]
    assert sharded[0].plan.summary.step_ns == sharded[1].plan.summary.step_ns


@pytest.mark.parametrize("precision", ["fp8", "mxfp8"])
def test_narrow_products_are_faster_where_they_reach_more_than_casts_take(precision):
    model = "transformer:style=gpt,layers=2,hidden=4096,heads=32,vocab=1024,seq=1024"
    few, many = (
        shardplan.price(
            model, cluster=cluster_with("b200-dgx", narrow=share), dp=2, global_batch=16, precision=precision
        )
        for share in (0.3, 1.0)
    )
    plain = shardplan.price(model, cluster=cluster_with("b200-dgx", narrow=1.0), dp=2, global_batch=16)
    assert many.spent.compute_ns < plain.spent.compute_ns < few.spent.compute_ns
    assert many.peak.total < plain.peak.total


def test_products_may_keep_more_than_short_sweeps_reached():
    cluster = make_cluster(load_profile("mi325x-8"))
    told = as_trained(cluster).device.gemm
    assert cluster.training.sustained > 1
    assert (told.sustained, told.e) == (1.0, pytest.approx(cluster.training.sustained * cluster.device.gemm.e))
    of_its_own = as_trained(cluster_with(sustained=0.8, fsdp_sustained=0.5), sharded=True).device.gemm
    assert of_its_own.sustained == 0.5


def test_products_of_experts_have_a_rate_of_their_own_with_fsdp():
    own, shared = cluster_with(grouped=0.3, fsdp_grouped=0.8), cluster_with(grouped=0.3)
    found = [as_trained(each, sharded=sharded).device.gemm.grouped for each in (own, shared) for sharded in (0, 1)]
    assert found == [0.3, 0.8, 0.3, 0.3]


def test_tensor_parallelism_of_fsdp_waits_for_all_that_it_sends():
    waits, hides = (priced(cluster_with(tp_forward=share, tp_backward=share), tp=2, zero=3) for share in (0, 1))
    assert waits.plan.summary.step_ns == hides.plan.summary.step_ns
    assert priced(cluster_with(tp_backward=1), tp=2).spent.exposed_ns < priced(cluster_with(), tp=2).spent.exposed_ns


def test_fsdp_gathers_weights_of_fp8_products_in_8_bits():
    model = "transformer:style=gpt,layers=4,hidden=1024,heads=8,vocab=1024,seq=128"
    exposed = {
        precision: shardplan.price(
            model, cluster="b200-dgx", dp=16, zero=3, global_batch=16, precision=precision
        ).spent.exposed_ns
        for precision in ("fp8", "mxfp8")
    }
    assert exposed["fp8"] < 0.9 * exposed["mxfp8"]


def test_tensor_parallelism_of_fsdp_gathers_fp8_operands_in_8_bits():
    """Gathers before products and of the gradients of their results; sums stay in 16 bits, and so does Megatron's."""
    model = "transformer:style=llama,layers=2,hidden=1024,heads=8,ffn=4096,vocab=1024,seq=512"

    def exposed(zero, precision):
        asked = {"dp": 2, "tp": 4, "zero": zero, "sequence_parallel": True, "global_batch": 16}
        return shardplan.price(model, cluster="b200-dgx", precision=precision, **asked).spent.exposed_ns

    fsdp, megatron = (exposed(zero, "fp8") / exposed(zero, "mxfp8") for zero in (3, 1))
    assert megatron == pytest.approx(1, rel=0.02)
    assert 0.6 < fsdp < 0.85


def test_what_others_read_too_is_gathered_in_16_bits():
    description = "transformer:style=bert,layers=2,hidden=1024,heads=8,ffn=4096,vocab=1024,seq=512"
    model = load_model(description, {"batch": 2})
    found = narrow_tensors(model, model_rules(model), "fp8")
    readers = {name: {each.op_type for each in model.operators if name in each.inputs} for name in found.read}
    assert {"bert.encoder.layer.0.intermediate.Gelu", "bert.encoder.layer.1.output.dense.weight"} <= found.read
    assert all(kinds == {"MatMul"} for kinds in readers.values())
    assert all(name.endswith(".MatMul") for name in found.made)
    assert narrow_tensors(model, model_rules(model), "") == Narrow()


@pytest.mark.parametrize(("layers", "chunks"), [(61, 16), (94, 32), (30, 8), (7, 4), (36, 4), (62, 12), (5, 5)])
def test_layers_are_dealt_out_so_that_none_is_left(layers, chunks):
    found = layers_of(layers, chunks)
    assert (sum(found), len(found)) == (layers, chunks)
    assert min(found) > 0
    assert max(found) <= -(-(layers + 2) // chunks)


def test_stages_of_chunks_of_several_sizes_hold_their_own_layers():
    """Ten layers on two stages: five on each, whether chunks are equal (2, 10) or not (2, 2, 1, 1, 1, 1, 1, 1)."""
    model = "transformer:layers=10,hidden=256,heads=4,vocab=1024,seq=128"
    one, *more = (shardplan.price(model, cluster="h100-dgx", pp=2, vp=vp, global_batch=16) for vp in (1, 4, 5))
    for found in more:
        assert found.peak.parameters == one.peak.parameters
        assert found.spent.compute_ns == pytest.approx(one.spent.compute_ns, rel=1e-3)


def test_chunks_with_layers_of_several_kinds_stand_for_themselves():
    """Of eight layers the last five are mixtures: stages of two have none, one, two and two of them."""
    mixed = "transformer:layers=8,hidden=256,heads=4,vocab=1024,seq=128,experts=8,top_k=2,moe_pattern=DDDEEEEE"
    model = load_model(mixed, {"batch": 8})
    assert layers_in_chunks(model, chunk_starts(model, 4)) == [(2, 0), (1, 1), (0, 2), (0, 2)]
    priced = shardplan.price(mixed, cluster="h100-dgx", pp=4, global_batch=8)
    sizes = [model.tensor(parameter.tensor).size_bytes for parameter in model.parameters]
    assert sum(memory.parameters for memory in priced.memory) == sum(sizes)


@pytest.mark.parametrize(("stages", "chunks", "waits"), [(2, 1, 8 + 1), (4, 1, 16 + 4), (2, 2, 24 + 1.5)])
def test_each_stage_meets_each_neighbour_once_a_microbatch(stages, chunks, waits):
    """Of a pipeline of 8 microbatches: one wait at every border of the stage that has most of them, and what is left
    of those of the others to fill. What inner stages wait for more than the last one first uses up what that computes
    more."""
    model = "transformer:style=gpt,layers=4,hidden=256,heads=4,vocab=1024,seq=128"
    none, half, whole = (
        shardplan.price(model, cluster=cluster_with(sends=share), pp=stages, vp=chunks, global_batch=8).plan
        for share in (0, 0.5, 1)
    )
    steps = [plan.summary.step_ns for plan in (none, half, whole)]
    assert 0 < steps[1] - steps[0] <= (steps[2] - steps[1]) * 1.01
    handed = [each for each in whole.pipeline.transfers if each.hidden]
    transfer = max(sum(step.time_ns for step in way) for each in handed for way in (each.forward, each.backward))
    assert steps[2] - steps[1] == pytest.approx(waits * transfer / 2, rel=0.02)


@pytest.mark.parametrize(
    ("ways", "joins"),
    [({"tp": 2, "dp": 8}, True), ({"dp": 16}, False), ({"tp": 8, "dp": 2}, False), ({"tp": 2, "dp": 4}, False)],
)
def test_groups_of_several_devices_of_several_machines_reduce_slowly_where_it_is_said(ways, joins):
    """Machines have 8 devices: all of them, one of each, and groups inside of one take what they take."""
    once, twice, thrice = (
        shardplan.price(
            MODEL.replace("heads=4", "heads=8"),
            cluster=cluster_with(reduces_beside="false", partial_groups=times),
            global_batch=16,
            **ways,
        ).spent.exposed_ns
        for times in (1, 2, 3)
    )
    assert (once < twice < thrice) if joins else (once == twice == thrice)
    assert twice - once == pytest.approx(thrice - twice, abs=50)


def test_ranks_that_a_gradient_joins_are_those_of_the_axes_it_is_summed_over():
    """However it gets from one layout to the other: machines of two by four devices."""
    source, target = Layout.of(P(), P(), S(0)), Layout.of(R, R, S(1))
    move = Move("w", source, target, "", "backward", (), kind="deferred")
    assert _summed_over(move) == {0, 1}
    assert _summed_over(replace(move, target=Layout.of(P(), R, S(1)))) == {1}
    cluster = make_cluster(load_profile("a100-dgx"), "machine=8,gpu0=2,gpu1=4")
    assert [_is_partial(axes, cluster) for axes in ({0, 1}, {0}, {1}, {0, 1, 2})] == [True, False, False, False]
    assert _is_partial({0, 1}, make_cluster(load_profile("a100-dgx"), "machine=8,gpu=4"))  # half of each machine


@pytest.mark.parametrize("tp", [2, 4])
def test_scores_of_a_sequence_as_long_as_the_hidden_size_are_cut_by_heads(tp):
    model = "transformer:style=gpt,layers=2,hidden=256,heads=4,vocab=1024,seq=256,attention=decomposed,dropout=true"
    found = shardplan.price(model, cluster="a100-dgx", tp=tp, micro_batch=8, global_batch=8)
    scores = [tensor for tensor in found.plan.tensors if tensor.shape == (8, 4, 256, 256)]
    assert scores
    assert all(S(1) in tensor.layout.placements for tensor in scores)


def test_whole_experts_are_spread_over_tensor_parallel_ranks_as_well():
    model = "transformer:style=llama,layers=2,hidden=512,heads=8,ffn=256,experts=16,top_k=2,routing=dropless,seq=256"
    asked = {"cluster": cluster_with(), "tp": 2, "dp": 4, "global_batch": 8, "sequence_parallel": True}
    whole = shardplan.price(model, ep=8, etp=1, **asked)
    for tensor in whole.plan.tensors:
        if tensor.role == "parameter" and ".experts." in tensor.name:
            assert tensor.bytes_per_device * 8 == 2 * 16 * 512 * 256
            assert all(each.is_shard and each.dim == 0 for each in tensor.layout.placements)
    assert shardplan.price(model, ep=2, etp=1, **asked).peak.parameters > whole.peak.parameters
    refused = {
        "8 expert-parallel ranks do not divide 4 data-parallel ranks": {"ep": 8},
        "the expert-parallel degree 3 is no multiple of the tensor-parallel degree 2": {"ep": 3, "etp": 1},
        "4 expert-parallel ranks do not divide 2 data-parallel ranks": {"ep": 8, "etp": 1, "dp": 2},
        "the tensor-parallel degree of experts is 3, that of the rest 2": {"ep": 4, "etp": 3},
    }
    for told, ways in refused.items():
        with pytest.raises(ShardplanError, match=told):
            shardplan.price(model, **{**asked, **ways})


def test_stages_without_a_word_on_sends_are_those_of_a_plan():
    plain, told = (priced(cluster_with(**said), pp=2, dp=1) for said in ({}, {"host_us": 0.001}))
    assert told.plan.summary.step_ns == pytest.approx(plain.plan.summary.step_ns, rel=1e-3)


def test_the_loss_holds_logits_in_fp32_at_the_turn():
    without, with_loss = (priced(cluster_with(loss_memory=held)) for held in (0, 8))
    rows = 1  # of a microbatch
    assert with_loss.peak.total - without.peak.total <= 8 * rows * 128 * 1024
    assert with_loss.peak.total > without.peak.total
    first, last = (priced(cluster_with(loss_memory=held), pp=2, dp=1).memory for held in (0, 8))
    assert first[0] == last[0]
    assert first[1].total < last[1].total


def test_a_configuration_has_to_leave_room_for_its_loss():
    held = priced(cluster_with(loss_memory=4096)).peak.total
    assert priced(cluster_with(loss_memory=4096), memory_limit=held).fits
    assert not priced(cluster_with(loss_memory=4096), memory_limit=held - (1 << 20)).fits
    assert priced(cluster_with(), memory_limit=held - (1 << 20)).fits


def test_fsdp_has_a_memory_rate_and_a_loss_of_its_own():
    said = {"memory": 0.5, "loss_bytes": 500, "loss_memory": 8}
    as_megatron, alike, apart = (
        priced(cluster_with(**said, **more), zero=zero).spent.compute_ns
        for more, zero in (({}, 1), ({}, 3), ({"fsdp_memory": 1, "fsdp_loss_bytes": 12}, 3))
    )
    assert alike == pytest.approx(as_megatron, rel=0.05)
    assert apart < 0.7 * alike
    own = cluster_with(**said, fsdp_memory=1, fsdp_loss_bytes=12)
    assert priced(own, zero=1).spent.compute_ns == as_megatron


def test_what_a_mixture_sends_without_tensor_parallel_ranks_is_its_exchange():
    """Also what is gathered in machines: shares of tensor-parallel traffic hide nothing of it, that of exchanges its
    part."""
    model = "transformer:style=llama,layers=2,hidden=1024,heads=4,ffn=256,vocab=1024,seq=128,experts=16,top_k=8"
    asked = {"dp": 16, "ep": 16, "zero": 1, "micro_batch": 2, "global_batch": 128}
    plain, pieces, exchanged = (
        shardplan.price(f"{model},routing=dropless", cluster=cluster_with(**said), **asked)
        for said in ({}, {"tp_forward": 1, "tp_backward": 1}, {"exchange": 1})
    )
    sent = {step.collective.kind for move in plain.plan.moves if move.kind == "blocking" for step in move.steps}
    assert {"all_gather", "all_to_all"} <= sent
    assert plain.spent.exposed_ns == pieces.spent.exposed_ns > 2 * exchanged.spent.exposed_ns


def test_exchanges_beside_another_microbatch_are_hidden_but_for_what_they_slow_down():
    cluster = cluster_with(exchange=0.4)
    model = "transformer:style=llama,layers=2,hidden=256,heads=4,vocab=1024,seq=128,experts=8,top_k=2"
    asked = {"cluster": cluster, "dp": 4, "ep": 4, "global_batch": 16}
    alone, beside = (shardplan.price(model, overlap_exchange=each, **asked) for each in (False, True))
    assert exchanging_beside(cluster).training.exchanges_beside
    assert beside.spent.exposed_ns < alone.spent.exposed_ns
    assert beside.spent.compute_ns == alone.spent.compute_ns
    with pytest.raises(ShardplanError, match="--ep is 1"):
        priced(cluster, overlap_exchange=True)


def test_what_a_configuration_fixes_is_found_once_for_a_graph(monkeypatch):
    """And anew for another graph: every one gets masks of its own sizes."""
    asked, found = [], parallelism._Fixed.allowed

    def counted(self):
        asked.append(id(self.built))
        return found(self)

    monkeypatch.setattr(parallelism._Fixed, "allowed", counted)
    priced(cluster_with(), dp=4, tp=2)
    assert asked
    assert len(asked) == len(set(asked))
    assert priced(cluster_with(), pp=2, dp=2).plan.pipeline


@pytest.mark.parametrize("ways", [2, 4])
def test_context_parallel_ranks_have_equal_shares_of_a_causal_sequence(ways):
    """Trainers give each of them a piece from the front and one from the back; a plan of ours cuts runs, of which the
    last has most to do."""
    model = "transformer:style=llama,layers=2,hidden=256,heads=1,vocab=64,seq=16384"
    rows = {"global_batch": ways, "micro_batch": 1, "cluster": cluster_with()}
    whole = shardplan.price(model, dp=ways, **rows).plan
    cut = shardplan.price(model, cp=ways, **rows).plan
    attention = [
        sum(each.compute_ns for each in plan.operators if each.op_type == "Attention") for plan in (whole, cut)
    ]
    assert all("s" in each.split for each in cut.operators if each.op_type == "Attention")
    assert attention[1] == pytest.approx(attention[0], rel=0.05)
