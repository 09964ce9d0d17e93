"""TensorRT-LLM's auto_parallel: bandwidths and times of its built-in A100-SXM-80GB profile, computed from its
source."""

import numpy as np
import pytest

from shardplan.cost.trtllm import TrtllmCollectives, TrtllmCompute, Wire

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
    assert FOUR_HOSTS.seconds_array("all_gather", (1,), np.array([0.0, 4e8]))[1] == pytest.approx(0.00101)
