"""TensorRT-LLM's auto_parallel: bandwidths and times of its built-in A100-SXM-80GB profile, computed from its
source; its table of devices; and the ways between layouts, which it seeks greedily."""

import itertools

import numpy as np
import pytest
from layout_schemes import to_scheme

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.cost.moves import MoveSpace
from shardplan.cost.named import parse_cost_model
from shardplan.errors import ShardplanError
from shardplan.extras.peers.trtllm import TrtllmCollectives, TrtllmCompute, Wire
from shardplan.extras.peers.trtllm_devices import DEVICES
from shardplan.graph.pricing import Pricing
from shardplan.layout.layout import Layout
from shardplan.layout.placement import R, S

NET, NVLINK = Wire(25.0, 10.0, in_network=True), Wire(300.0, 10.0)
FOUR_HOSTS = TrtllmCollectives((4, 4), (NET, NVLINK))
ONE_HOST = TrtllmCollectives((2, 4), (NVLINK, NVLINK))


@pytest.mark.parametrize(
    ("kind", "first", "second", "both"),
    [
        ("all_reduce", 25, 200, 100),
        ("all_gather", 100 / 3, 400, 400 / 3),
        ("reduce_scatter", 100 / 3, 400, 400 / 3),
        ("all_to_all", 100 / 3, 400, 100 / 3),
    ],
)
def test_effective_bandwidths_of_four_hosts(kind, first, second, both):
    found = [FOUR_HOSTS.bus_gbps(kind, axes) for axes in ([0], [1], [0, 1])]
    assert found == pytest.approx([first, second, both])


def test_an_all_reduce_of_64_mib():
    times = [1e6 * FOUR_HOSTS.seconds("all_reduce", axes, 64 * 2**20) for axes in ((0,), (1,), (1, 0))]
    assert times == pytest.approx([2694.4, 345.5, 681.1], abs=0.05)


def test_one_host_is_one_level():
    assert [ONE_HOST.bus_gbps("all_reduce", axes) for axes in ([1], [0, 1])] == pytest.approx([200, 171.43], abs=0.01)


def test_a_matrix_product_takes_what_its_slower_part_takes():
    flops, moved = np.array([2.0 * 8192 * 1024 * 4096]), np.array([2.0 * (8192 * 1024 + 1024 * 4096 + 8192 * 4096)])
    a100 = TrtllmCompute({"fp16": 312.0}, 2039.0)
    assert 1e6 * a100.seconds("gemm", "float16", flops, moved)[0] == pytest.approx(220.3, abs=0.05)
    assert 1e6 * a100.seconds("gemm", "float16", 0 * flops, moved)[0] == pytest.approx(45.3, abs=0.05)
    halved = TrtllmCompute({"fp16": 312.0}, 2039.0, efficiency=0.5)
    assert 1e6 * halved.seconds("gemm", "float16", flops, moved)[0] == pytest.approx(440.5, abs=0.1)


def test_nothing_is_charged_for_what_does_not_move():
    assert FOUR_HOSTS.seconds("slice", (0,), 1e9) == 0.0
    assert TrtllmCollectives((1, 4), (NET, NVLINK)).seconds("all_reduce", (0,), 1e9) == 0.0
    assert FOUR_HOSTS.seconds("all_gather", (1,), 4e8) == pytest.approx(0.00101)


@pytest.mark.parametrize(
    ("key", "intra", "inter", "memory", "fp16", "fp32"),
    [
        ("A100-SXM-80GB", 300, 25, 2039, 312, 156),
        ("A100-PCIe-40GB", 32, 25, 1555, 312, 156),
        ("H100-SXM", 450, 50, 3350, 989, 495),
        ("H20", 450, 50, 4000, 147, 74),
        ("H200-SXM", 450, 50, 4800, 1979 / 2, 67),
        ("L40S", 32, 25, 864, 362, 183),
        ("L2", 32, 25, 300, 97, 48),
    ],
)
def test_its_devices(key, intra, inter, memory, fp16, fp32):
    device = DEVICES[key]
    links = (device.intra_gbps, device.inter_gbps, device.memory_gbps)
    assert links == (intra, inter, memory)
    assert (device.fp16, device.fp32) == (fp16, fp32)


def test_all_its_devices_are_dense():
    """The H200's own rows give figures with sparsity, twice those of the H100's; here no device is twice another."""
    assert len(DEVICES) == 18
    assert DEVICES["H200-SXM"].fp16 == pytest.approx(DEVICES["H100-SXM"].fp16, rel=1e-3)
    assert [key for key, device in DEVICES.items() if device.reduces] == ["H100-SXM"]


def trtllm(settings: str, mesh: str) -> Pricing:
    cluster = make_cluster(load_profile("h100-dgx"), mesh)
    return Pricing.named(parse_cost_model(f"trtllm{settings}"), cluster, 2)


def test_an_unknown_device_is_refused():
    with pytest.raises(ShardplanError) as caught:
        trtllm(":cluster_key=A100-SXM-80", "4x4")
    assert "TensorRT-LLM's table has no device 'A100-SXM-80'" in str(caught.value)
    assert "did you mean 'A100-SXM-80GB'?" in str(caught.value)


def test_the_numbers_are_the_devices_or_the_profiles():
    theirs, ours = trtllm(":cluster_key=A100-SXM-80GB", "4x4"), trtllm("", "4x4")
    times = [1e6 * theirs.collectives.seconds("all_reduce", axes, 64 * 2**20) for axes in ((0,), (1,), (0, 1))]
    assert times == pytest.approx([2694.4, 345.5, 681.1], abs=0.05)
    flops, moved = np.array([2.0 * 8192 * 1024 * 4096]), np.array([0.0])
    assert 1e6 * theirs.compute.seconds("gemm", "float16", flops, moved)[0] == pytest.approx(220.3, abs=0.05)
    assert ours.compute.seconds("gemm", "float16", flops, moved)[0] < 220.3e-6 / 2


STEPS = {"gather": 20, "shard": 5, "another": 6}
"""What TensorRT-LLM's search takes steps between the shardings of one dim to be worth."""


def distance(source: tuple[int, ...], target: tuple[int, ...]) -> int:
    """Between two shardings of one dim, each the axes that shard it: axes to gather, then axes to shard."""
    common = len(
        [1 for a, b in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(source, target, strict=False))]
    )
    gathers, shards = len(source) - common, len(target) - common
    steps = gathers + shards
    return STEPS["gather"] * gathers + STEPS["shard"] * shards + STEPS["another"] * max(0, steps - 1)


def dims_of(layout: Layout) -> list[tuple[int, ...]]:
    return [layout.axes_of(S(dim)) for dim in (0, 1)]


def test_ways_between_layouts_are_never_dearer_than_its_greedy_ones():
    """All 81 pairs of the nine specs of a matrix on 4 x 4: greedy steps go wherever the distance falls most."""
    mesh = make_cluster(load_profile("h100-dgx"), "4x4").mesh
    prices = TrtllmCollectives((4, 4), (NET, NVLINK))
    space, size = MoveSpace(mesh, 2), 4 * 4096 * 4096
    legal = space.legal((4096, 4096), (S(0), S(1)))

    def seconds(collective, size_bytes):
        return prices.seconds(collective.kind, collective.axes, float(collective.share) * size_bytes)

    cheapest = space.prices(legal, size, seconds)
    number = {state: index for index, state in enumerate(space.states)}
    specs = [Layout.of(*placements) for placements in itertools.product((R, S(0), S(1)), repeat=2)]
    steps: dict[int, list[tuple[int, float]]] = {}
    for source, target, kind in zip(space.source, space.target, space.collective, strict=True):
        plain = all(p.kind != "P" for p in space.states[target].placements)
        if plain and space.states[target].order == (0, 1):
            steps.setdefault(int(source), []).append((int(target), seconds(space.collectives[kind], size)))

    def greedy(source: int, target: int) -> float:
        total, wanted = 0.0, dims_of(space.states[target])
        for _ in range(20):
            if source == target:
                return total
            far = {step: sum(map(distance, dims_of(space.states[step[0]]), wanted)) for step in steps[source]}
            source, price = min(far, key=lambda step: (far[step], step[1]))
            total += price
        return float("inf")

    pairs = [(number[a], number[b]) for a in specs for b in specs]
    assert len(pairs) == 81
    better = [to_scheme(space.states[a], mesh, 2) for a, b in pairs if cheapest[a, b] < 0.999 * greedy(a, b)]
    assert all(cheapest[a, b] <= greedy(a, b) * (1 + 1e-9) for a, b in pairs)
    assert better, "a greedy way is sometimes not the cheapest"
