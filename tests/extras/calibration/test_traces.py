"""Profiles from traces of `torch.profiler`: `shardplan.extras.calibration.kineto`, `events` and `traced`."""

import gzip
import json

import numpy as np
import pytest
from traced_runs import BASE, CLUSTER, FLASH, attended, collective, kernel, made, one_by_one, operator

import shardplan
from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile, profile_from_text
from shardplan.cost.collectives import CollectiveModel
from shardplan.cost.compute import ComputeModel
from shardplan.errors import ShardplanError
from shardplan.extras.calibration import kineto
from shardplan.extras.calibration.kineto import ran_in
from shardplan.extras.calibration.traced import calibrate, coverage
from shardplan.extras.calibration.traced_attention import OPERATORS
from shardplan.extras.calibration.traces import read_traces
from shardplan.study.sensitivity import SPREAD, drawn, spread_of
from shardplan.study.trainer_step import as_trained


def factors_of(document):
    text, factors = calibrate(ran_in(document, "trace.json"), BASE, "mine")
    return profile_from_text(text, "mine"), {(each.kind, each.level): each for each in factors}


@pytest.mark.parametrize(("products", "memory", "sent"), [(1.0, 1.0, 1.0), (1.25, 1.1, 1.5), (1.1, 1.6, 1.05)])
def test_the_factors_of_a_machine_are_found(products, memory, sent):
    profile, found = factors_of(made(products=products, memory=memory, sent=sent))
    assert found["product", ""].factor == pytest.approx(products, rel=1e-3)
    assert found["product", ""].count == 32
    assert found["memory", ""].factor == pytest.approx(memory, rel=1e-3)
    assert found["all_reduce", "up"].factor == pytest.approx(sent, rel=1e-3)
    cluster = make_cluster(profile)
    whole = ComputeModel(cluster).seconds("gemm", "bfloat16", 2.0 * 8192**3, 0.0, 8192.0, 8192.0, 8192.0)
    before = ComputeModel(make_cluster(BASE)).seconds("gemm", "bfloat16", 2.0 * 8192**3, 0.0, 8192.0, 8192.0, 8192.0)
    assert float(whole) == pytest.approx(products * float(before), rel=0.01)
    assert cluster.device.memory_efficiency == pytest.approx(BASE.device.memory_efficiency / memory, rel=1e-3)


@pytest.mark.parametrize("base", ["h100-dgx", "a100-dgx", "mi300x-8", "v100-p3-16xl", "generic"])
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("attending", [None, (1.0, 1.0)])
def test_what_a_trainer_loses_counts_once(base, sharded, attending):
    """A trace of a trainer that runs as `price` predicts it changes no price of `price`: the factors that take off what
    trainers lose are part of what was measured."""
    profile = load_profile(base)
    trained = as_trained(make_cluster(profile), sharded=sharded)
    text, factors = calibrate(ran_in(made(cluster=trained, attending=attending), "t"), profile, "mine")
    fitted = as_trained(make_cluster(profile_from_text(text, "mine")), sharded=sharded)
    kinds = {"attention", "attention_backward"} if attending else set()
    assert {each.kind for each in factors} == {"product", "memory", "all_reduce", *kinds}
    for cost, sizes in (("gemm", (8192, 8192, 8192)), ("attention", (4096, 2048, 128)), ("elementwise", ())):
        work = (cost, "float16", 1e15 * bool(sizes), 1e9 * (not sizes), *map(np.float64, sizes))
        before, after = (float(ComputeModel(cluster).seconds(*work)) for cluster in (trained, fitted))
        assert after == pytest.approx(before, rel=3e-3), cost


@pytest.mark.parametrize("base", ["h100-dgx", "a100-dgx", "v100-p3-16xl", "generic"])
@pytest.mark.parametrize("products", [0.8, 1.0, 1.3])
def test_attention_has_the_rate_of_forward_and_backward_together(base, products):
    """Whatever products do; a profile has one rate for both, whose work is as 1 to 2.5."""
    profile = load_profile(base)
    before = make_cluster(profile)
    ran = ran_in(made(cluster=before, products=products, attending=(1.1, 1.5)), "t")
    text, factors = calibrate(ran, profile, "mine")
    found = {each.kind: each.factor for each in factors}
    assert found["attention"] == pytest.approx(1.1, rel=1e-3)
    assert found["attention_backward"] == pytest.approx(1.5, rel=1e-3)
    fitted = make_cluster(profile_from_text(text, "mine"))
    work = ("attention", "bfloat16", 1e15, 0.0, 4096, 2048, np.float64(128))
    times = [float(ComputeModel(each).seconds(*work)) for each in (before, fitted)]
    assert times[1] / times[0] == pytest.approx((1.1 + 2.5 * 1.5) / 3.5, rel=3e-3)
    assert set(fitted.spread) == {"compute", "memory", fitted.levels[0].name}
    rate = fitted.device.gemm.attention
    assert rate is not None
    # What the base says of trainers is replaced by what was measured, and nothing is added.
    expected = {"h100-dgx": (rate, rate), "a100-dgx": (rate, None)}.get(base, (None, None))
    assert (fitted.training.attention, fitted.training.fsdp_attention) == expected


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_sizes_of_attention(name):
    """Batch 2, 3 heads of 64, 4096 queries and keys, in the order of the operator; all keys or half of them."""
    shape = (2, 3, 4096, 64) if OPERATORS[name].heads_first else (2, 4096, 3, 64)
    yes, no = ("1", "0") if "efficient" in name else ("True", "False")
    times = 2.5 if OPERATORS[name].is_backward else 1.0
    kind = "attention_backward" if OPERATORS[name].is_backward else "attention"
    for causal, seen in ((yes, 2048), (no, 4096)):
        (found,) = ran_in(attended(name, 1, 1e-3, shape, causal), "t")
        assert (found.kind, found.sizes, found.dtype) == (kind, (4096, seen, 64), "bfloat16")
        assert found.flops == times * 4 * 2 * 3 * 4096 * seen * 64
    for odd in (attended(name, 1, 1e-3, shape[1:], yes), attended(name, 1, 1e-3, shape, ""),
                attended(name, 1, 1e-3, shape, yes, arguments=6)):  # fmt: skip
        assert [each.kind for each in ran_in(odd, "t")] == ["other"]


def test_the_price_of_a_trainer_is_that_of_its_trace():
    """FSDP on H100 keeps 0.9 of the rate of products: a profile fitted to it that left this in had it twice."""
    trained = as_trained(CLUSTER, sharded=True)
    text, _ = calibrate(ran_in(made(cluster=trained), "t"), BASE, "mine")
    assert "training:\n  fsdp_sustained: 1\n" in text
    assert "kappa" not in text
    model = "transformer:style=gpt,layers=2,hidden=1024,heads=8,vocab=1024,seq=1024"
    before, after = (
        shardplan.price(model, cluster=cluster, dp=2, zero=3, global_batch=8).spent
        for cluster in (CLUSTER, make_cluster(profile_from_text(text, "mine")))
    )
    assert after.compute_ns == pytest.approx(before.compute_ns, rel=3e-3)


@pytest.mark.parametrize("alone", [0, 2, 3])
def test_kernels_beside_a_collective_count_where_too_few_ran_alone(alone):
    """Half of a product's kernels are slowed down by the collective beside them, which `price` adds by itself."""
    long = 2 * 8192**3 / 5e14
    products = [operator("aten::mm", number, [[8192, 8192], [8192, 8192]]) for number in range(10)]
    kernels = one_by_one([kernel(long * (1 if number < alone else 2), number) for number in range(10)])
    sent = collective("allreduce", (10 - alone) * 2 * long + 1e-3, 1 << 28, range(8)) | {"ts": kernels[alone]["ts"] - 1}
    ran = ran_in([*products, *kernels, sent], "t")
    assert [each.beside for each in ran if each.kind == "product"] == [number >= alone for number in range(10)]
    text, (found,) = calibrate(ran, BASE, "mine")
    single = float(ComputeModel(CLUSTER).seconds("gemm", "bfloat16", 2.0 * 8192**3, 0.0, 8192.0, 8192.0, 8192.0))
    assert (found.count, found.beside) == ((3, False) if alone == 3 else (10, True))
    assert found.factor == pytest.approx((1 if alone == 3 else 2) * long / single, rel=1e-2)
    profile = make_cluster(profile_from_text(text, "mine"))
    assert profile.overlap.kappa == (CLUSTER.overlap.kappa if alone == 3 else 1.0)
    assert profile.training.fsdp_kappa == (CLUSTER.training.fsdp_kappa if alone == 3 else 1.0)


def test_prices_of_the_fitted_profile_are_what_was_measured():
    """What was not measured is off as far as what was."""
    profile, _ = factors_of(made(sent=1.5))
    for kind, times in (("all_reduce", 1.5), ("all_to_all", 1.5)):
        before, after = (
            CollectiveModel(make_cluster(each, "8")).seconds(kind, (0,), float(1 << 30)) for each in (BASE, profile)
        )
        assert after / before == pytest.approx(times, rel=0.05)


def test_spread_is_written_and_robustness_draws_within_it():
    profile, found = factors_of(made(noise=0.2))
    cluster = make_cluster(profile, "2x8")
    assert 0.08 < found["product", ""].spread < 0.25
    assert cluster.spread["compute"] == round(found["product", ""].spread, 4)
    assert spread_of(cluster, "compute") == cluster.spread["compute"]
    assert spread_of(cluster, "up latency") == cluster.spread["up"] == 0.01
    assert spread_of(cluster, "net bandwidth") == SPREAD
    assert "spread" not in cluster.resolved
    few = [drawn(cluster, np.random.default_rng(seed)) for seed in range(40)]
    links = [each.levels[0].link_bytes_per_s / cluster.levels[0].link_bytes_per_s for each in few]
    assert max(links) <= 1.01 + 1e-9
    assert min(links) >= 1 / 1.01 - 1e-9
    assert max(links) > 1.005


def test_groups_between_machines_are_of_the_outer_level():
    def sent(ranks):
        _, factors = calibrate(
            ran_in([collective("_allgather_base", 0.01, 1 << 22, ranks, 16)] * 12, "t"), BASE, "mine"
        )
        return [(each.kind, each.level) for each in factors]

    assert sent(range(16)) == [("all_gather", "net")]
    assert sent(range(8)) == [("all_gather", "up")]
    assert sent((0, 8, 16, 24)) == [("all_gather", "net")]


def test_the_payload_is_that_of_the_whole():
    gathered, scattered = ran_in(
        [
            collective("_allgather_base", 0.01, 1000, range(8), gathered=8),
            collective("_reduce_scatter_base", 0.01, 8000, range(8)),
        ],
        "t",
    )
    assert gathered.moved_bytes == scattered.moved_bytes == 16000


def test_what_has_no_sizes_is_of_no_kind():
    odd = [
        kernel(1e-3), kernel(1e-3, 7), operator("aten::nonzero", 7, [[4]]), operator("aten::mm", 8, [[4, 4], []]),
        kernel(1e-3, 8), {"ph": "X", "cat": "kernel", "dur": "long"}, {"ph": "M"}, 7, kernel(float("nan"), 9),
        kernel(1e-3, **{"Collective name": "broadcast", "dtype": "Float", "Group size": 2}),
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "args": {"External id": 9, "Input Dims": "?"}},
    ]  # fmt: skip
    assert [(each.kind, each.seconds, each.name) for each in ran_in(odd, "t")] == [("other", 1e-3, "some_kernel")] * 4
    with pytest.raises(ShardplanError, match="no kind of operator or collective has 3 kernels"):
        calibrate(ran_in(odd, "t"), BASE, "mine")


def test_the_time_of_kernels_without_a_factor_is_told_by_name():
    """Everything that ran is either covered or in a group: attention, compiled kernels, collectives of a kind that ran
    too seldom, and kernels too short to measure."""
    made_up = made()
    base = sum(event["dur"] for event in made_up["traceEvents"] if event["cat"] == "kernel") / 1e6
    more = [
        kernel(base / 4, called=FLASH), kernel(base / 4, called=FLASH),
        kernel(base / 4, called="triton_poi_fused_add_mul_3"), kernel(base / 8, called="triton_poi_fused_silu_7"),
        collective("_allgather_base", base / 8, 1000, range(8), 8),
    ]  # fmt: skip
    short = [operator("aten::add", number, [[8], [8]]) for number in range(2000, 2010)]
    short += [kernel(1e-6, number) for number in range(2000, 2010)]
    ran = ran_in({"traceEvents": made_up["traceEvents"] + more + short}, "t")
    _, factors = calibrate(ran, BASE, "mine")
    told = coverage(ran, factors, BASE)
    assert told.seconds == pytest.approx(2 * base + 1e-5)
    assert told.covered == pytest.approx(0.5, rel=1e-3)
    assert told.covered + sum(share for _, share in told.unused) == pytest.approx(1.0)
    assert [name for name, _ in told.unused] == [
        "flash_fwd_kernel", "triton_poi_fused", "some_kernel", "kernels under 20 us",
    ]  # fmt: skip
    assert [share for _, share in told.unused[:3]] == pytest.approx([1 / 4, 3 / 16, 1 / 16], rel=1e-3)


@pytest.mark.parametrize(
    ("called", "name"),
    [
        (FLASH, "flash_fwd_kernel"),
        ("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<int> > >(Params)", "FlashAttnFwdSm90"),
        ("void (anonymous namespace)::elementwise_kernel_with_index<int, at::X>(int)", "elementwise_kernel_with_index"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::A>(int)", "vectorized_elementwise_kernel"),
        ("ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "ncclDevKernel_Broadcast_RING_LL"),
        ("triton_red_fused__to_copy_mean_0", "triton_red_fused"),
        ("k" * 5000, "k" * 60),
        ("", "kernels without a name"),
        ("<(<", "kernels without a name"),
    ],
)
def test_kernels_that_look_alike_have_one_name(called, name):
    assert [each.name for each in ran_in([kernel(1e-3, called=called)], "t")] == [name]


def test_files_may_be_packed_and_what_is_no_trace_is_refused(tmp_path):
    plain, packed, other = tmp_path / "a.json", tmp_path / "b.json.gz", tmp_path / "c.json"
    text = json.dumps(made())
    plain.write_text(text)
    packed.write_bytes(gzip.compress(text.encode()))
    assert read_traces([str(plain)]) == read_traces([str(packed)])
    for content, told in (("{", "no trace can be read"), ('{"traceEvents": []}', "no kernel of a device"), ("3", "no")):
        other.write_text(content)
        with pytest.raises(ShardplanError, match=told):
            read_traces([str(other)])
    with pytest.raises(ShardplanError, match="no trace can be read: No such file or directory"):
        read_traces([str(tmp_path / "absent.json")])


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (gzip.compress(b"")[:10] + b"\xff" * 50, "invalid block type"),
        (gzip.compress(b'{"traceEvents": []}' * 99)[:-9], "Compressed file ended"),
        (gzip.compress(b" " * 5000), "it is larger than 0 MiB"),
        (b" " * 5000, "it is larger than 0 MiB"),
        (b"[" * 4000, "maximum recursion depth"),
    ],
    ids=["torn", "cut off", "unpacks to more", "long", "deep"],
)
def test_hostile_files_are_no_traces(tmp_path, monkeypatch, content, told):
    monkeypatch.setattr(kineto, "_MOST_BYTES", 4096)
    path = tmp_path / "t.json"
    path.write_bytes(content)
    with pytest.raises(ShardplanError, match=rf"error\[bad-trace\]: no trace can be read: .*{told}"):
        read_traces([str(path)])


HUGE = 10**400


@pytest.mark.parametrize(
    "events",
    [
        [kernel(1e-3) | {"ts": HUGE}],
        [operator("aten::mm", 1, [[HUGE, HUGE], [HUGE, HUGE]]), kernel(1e-3, 1)],
        [operator("aten::mm", 1, [[-4, 4], [4, -4]]), kernel(1e-3, 1)],
        [operator("aten::add", 1, [[HUGE], [HUGE]]), kernel(1e-3, 1)],
        [operator("aten::add", 1, [[0], [0]]), kernel(1e-3, 1)],
        [operator("aten::add", 1, [[1 << 40] * 100, [2]]), kernel(1e-3, 1)],
        attended("aten::_flash_attention_forward", 1, 1e-3, [HUGE] * 4, "True"),
        [collective("allreduce", 1e-3, HUGE, range(2))],
        [collective("allreduce", 1e-3, -5, range(2))],
        [collective("allreduce", 1e-3, 0, range(2))],
        [kernel(1e-3, **{"Collective name": "allreduce", "Group size": HUGE, "dtype": "Float", "In msg nelems": 8})],
        [kernel(1e-3), kernel(1) | {"dur": HUGE}],
    ],
)
def test_numbers_that_no_machine_has_are_as_if_absent(events):
    ran = ran_in(events * 4, "t")
    told = coverage(ran, [], BASE)
    assert told.seconds == pytest.approx(4e-3)
    with pytest.raises(ShardplanError, match="no kind of operator or collective has 3 kernels"):
        calibrate(ran, BASE, "mine")
