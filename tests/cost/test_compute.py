import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.cost.compute import GROUPED, ComputeModel
from shardplan.extras.peers.alpa import NoCompute

GENERIC = make_cluster(load_profile("generic"))
H100 = make_cluster(load_profile("h100-dgx"))


def array(*values):
    return np.array(values, dtype=np.float64)


def test_roofline_by_hand():
    compute = ComputeModel(GENERIC)  # 100 TFLOP/s, 1000 GB/s, no launch time
    seconds = compute.seconds("gemm", "bfloat16", array(1e12, 1e12, 0), array(1e9, 2e10, 3e9))
    assert seconds.tolist() == pytest.approx([0.01, 0.02, 0.003])
    assert compute.seconds("pointwise", "float", array(1e15), array(1e9)).tolist() == pytest.approx([0.001])
    assert compute.seconds("memory", "int64", array(0), array(1e9)).tolist() == pytest.approx([0.001])
    assert compute.seconds("attention", "float16", array(6e11), array(0)).tolist() == pytest.approx([0.01])
    for cost in ("view", "free"):
        assert compute.seconds(cost, "float", array(1e15), array(1e9, 2e9)).tolist() == [0, 0]


def test_launches_are_paid_unless_fused():
    compute = ComputeModel(H100)
    busy = compute.seconds("pointwise", "float", array(0), array(1e6), launches=0)
    assert compute.seconds("pointwise", "float", array(0), array(1e6)) - busy == pytest.approx(2.9e-6)
    assert compute.seconds("gemm", "float", array(0), array(1e6), launches=2) - busy == pytest.approx(5.8e-6)
    assert busy == pytest.approx(1e6 / (3350e9 * 0.83))


def test_small_shards_use_the_matrix_units_badly():
    """A contraction of 1024 cut 8 ways runs at 0.28 / 0.71 of the rate, columns 1024 to 256 at 0.60 / 0.81, roughly."""
    compute = ComputeModel(H100)
    m, flops = array(8192, 8192), array(1e12, 1e12)
    whole, cut = compute.seconds(
        "gemm", "bfloat16", flops, array(0), m, array(4096, 4096), array(1024, 128), launches=0
    )
    assert cut / whole == pytest.approx((128 + 204) / 128 / ((1024 + 204) / 1024))
    assert 2 < cut / whole < 2.6


def test_many_experts_fill_a_device_together():
    """512 rows and 768 columns alone leave half of a B200 idle, those of all experts do not; sums are of each one."""
    compute = ComputeModel(make_cluster(load_profile("b200-dgx")))
    sizes, flops = (array(512, 65536), array(768, 65536)), array(1e12, 1e12)
    alone, large = compute.seconds("gemm", "bfloat16", flops, array(0), *sizes, array(2048), launches=0)
    assert alone / large == pytest.approx((512 + 248) / 512 * (768 + 262) / 768, rel=0.02)
    small, wide = compute.seconds(GROUPED, "bfloat16", flops, array(0), *sizes, array(2048, 2048), launches=0)
    assert small == wide
    short, long = compute.seconds(GROUPED, "bfloat16", flops, array(0), *sizes, array(128, 4096), launches=0)
    assert short > long


@given(
    st.tuples(*[st.integers(1, 10_000)] * 3),
    st.tuples(*[st.integers(1, 10_000)] * 3),
    st.sampled_from(("gemm", "conv")),
)
def test_more_work_never_takes_less_time(small, more, cost):
    compute = ComputeModel(H100)
    (m, n, k), (m2, n2, k2) = small, (a + b for a, b in zip(small, more, strict=True))
    sizes = (array(m, m2), array(n, n2), array(k, k2))
    flops, moved = 2 * sizes[0] * sizes[1] * sizes[2], 2 * (sizes[0] * sizes[2] + sizes[2] * sizes[1])
    less, greater = compute.seconds(cost, "bfloat16", flops, moved, *sizes)
    assert less < greater


@pytest.mark.parametrize(
    ("profile", "dtype", "used"),
    [
        ("h100-dgx", "bfloat16", "bf16"),
        ("h100-dgx", "float", "tf32"),
        ("h100-dgx", "double", "fp64"),
        ("h100-dgx", "float8e5m2", "fp8"),
        ("b200-dgx", "float4e2m1", "fp4"),
        ("h100-dgx", "float4e2m1", "fp8"),
        ("v100-p3-16xl", "bfloat16", "fp16"),
        ("v100-p3-16xl", "float", "fp32"),
        ("tpu-v5e", "float", "bf16"),
        ("tpu-v5e", "float16", "bf16"),
        ("a10g-g5-48xl", "uint4", "int4"),
        ("h100-dgx", "uint4", "int8"),
        ("h100-dgx", "int64", "tf32"),
    ],
)
def test_which_peak_a_type_uses(profile, dtype, used):
    cluster = make_cluster(load_profile(profile))
    narrow = {"fp8": 0.5, "int8": 0.5, "fp4": 0.42, "int4": 0.42}.get(used, 1)
    expected = cluster.device.peak_flops[used] * min(cluster.device.gemm.e, narrow)
    assert ComputeModel(cluster).matrix_flops_per_s(dtype) == expected * cluster.device.gemm.sustained


def test_a_missing_peak_is_told_once():
    compute = ComputeModel(make_cluster(load_profile("v100-p3-16xl")))
    for _ in range(2):
        compute.matrix_flops_per_s("bfloat16")
        compute.matrix_flops_per_s("float16")
        compute.matrix_flops_per_s("float")
    assert [str(warning) for warning in compute.warnings] == [
        (
            "warning[missing-peak]: profile 'v100-p3-16xl' has no bf16 peak; fp16 is used\n"
            "hint: add bf16 to device.peak_tflops"
        )
    ]
    assert ComputeModel(H100).warnings == ()


def test_no_compute_is_free():
    assert NoCompute().seconds("gemm", "float", array(1e12), array(1e9, 1e9)).tolist() == [0, 0]
