"""What fused attention reaches: a table by head size where a device has one, and how many keys a query sees."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardplan
from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.cost.compute import ComputeModel
from shardplan.extras.calibration.attention import read_attention
from shardplan.models.spec import TransformerSpec
from shardplan.models.transformer import build

MEASURED = Path(__file__).resolve().parents[2] / "benchmarks" / "measured" / "attention.csv"
H200 = make_cluster(load_profile("h200-dgx"))


def seconds(cluster, flops, queries, keys, size):
    made = ComputeModel(cluster).seconds(
        "attention", "bfloat16", *(np.array([float(each)]) for each in (flops, 0, queries, keys, size)), launches=0
    )
    return float(made[0])


def test_the_profile_has_what_was_measured():
    """On 118 sizes of cuDNN's kernel, of which each head size gave one number and all together a second."""
    rows = list(csv.DictReader(MEASURED.open(newline="")))
    head, *lines = MEASURED.read_text().splitlines()
    cudnn = [line for line in lines if line.startswith("cudnn")]
    assert {row["kernel"] for row in rows} == {"cudnn", "flash"}
    measured = read_attention("\n".join([head, *cudnn]), MEASURED.name)
    device = H200.device
    short = replace(H200, device=replace(device, gemm=replace(device.gemm, sustained=1.0)))
    off = [seconds(short, own.flops, own.seq, own.keys, own.head_size) / own.seconds - 1 for own in measured]
    assert np.mean(np.abs(off)) < 0.05
    assert np.max(np.abs(off)) < 0.25


@given(st.integers(16, 512), st.integers(1, 1 << 17))
def test_fewer_keys_reach_less_and_half_of_it_at_attention_keys(size, keys):
    device = H200.device
    most = seconds(H200, 1e12, 4096, 1e12, size)
    assert seconds(H200, 1e12, 4096, device.attention_keys, size) == pytest.approx(2 * most, rel=1e-6)
    assert seconds(H200, 1e12, 4096, keys, size) == pytest.approx((1 + device.attention_keys / keys) * most, rel=1e-6)


def test_between_two_sizes_it_is_interpolated_and_beyond_them_it_stays():
    shares = H200.device.attention
    most = {size: 1 / seconds(H200, 1e12, 4096, 1e15, size) for size in (32, 64, 80, 96, 256, 512)}
    assert most[64] / most[96] == pytest.approx(shares[64] / shares[96])
    assert most[80] == pytest.approx((most[64] + most[96]) / 2)
    assert most[32] == pytest.approx(most[64])
    assert most[512] == pytest.approx(most[256])


def test_a_device_that_nobody_measured_has_a_share_of_its_products():
    a100 = make_cluster(load_profile("a100-dgx"))
    sizes = tuple(np.array([float(each)]) for each in (4096, 2048, 128))
    product = ComputeModel(a100).seconds("gemm", "bfloat16", np.array([1e12]), np.zeros(1), *sizes, launches=0)
    assert seconds(a100, 1e12, 4096, 2048, 128) == pytest.approx(float(product[0]) / 0.6)


@pytest.mark.parametrize(("style", "window", "seen"), [("bert", 0, 4096), ("llama", 0, 2048), ("llama", 512, 480)])
def test_queries_see_the_keys_that_masks_leave(style, window, seen):
    """480 of a window of 512, as the first queries see fewer; bytes and starts of kernels are small beside products."""
    spec = TransformerSpec(1, 512, 4, vocab=64, seq=4096, style=style, batch=8, window=window)
    plan = shardplan.make_plan(
        build(spec), "1x1", cluster=make_cluster(load_profile("h200-dgx"), "1x1"), effort="quick"
    )
    (ours,) = [each for each in plan.operators if each.op_type == "Attention"]
    flops = 3.5 * 4 * 8 * 512 * 4096 * seen
    assert ours.compute_ns / 1e9 == pytest.approx(seconds(H200, flops, 4096, seen, 128), rel=0.03)
