"""Logs of several versions of nccl-tests, fits that find the constants that made the data, profiles that load again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile, profile_from_text
from shardplan.cost.collectives import CollectiveModel
from shardplan.cost.compute import ComputeModel
from shardplan.errors import ShardplanError
from shardplan.extras.calibration.attention import calibrate as calibrate_attention
from shardplan.extras.calibration.attention import read_attention
from shardplan.extras.calibration.collectives import calibrate
from shardplan.extras.calibration.fit import fit_curve, non_negative, simplex
from shardplan.extras.calibration.nccl_log import Measurement, read_logs
from shardplan.extras.calibration.products import calibrate as calibrate_products
from shardplan.extras.calibration.products import read_products

VERSION_2_0 = """\
# nThread 1 nGpus 2 minBytes 1048576 maxBytes 4194304 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
#   Rank  0 Pid  11801 on      node7 device  0 [0x1a] Tesla V100-SXM2-32GB
#   Rank  1 Pid  11801 on      node7 device  1 [0x1b] Tesla V100-SXM2-32GB
#
#                                                     out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144   float     sum    40.00   26.21   26.21  0e+00    42.00   24.97   24.97  0e+00
     2097152        524288   float     sum    60.00   34.95   34.95  0e+00    62.00   33.83   33.83  0e+00
     4194304       1048576   float     sum   100.00   41.94   41.94  0e+00   104.00   40.33   40.33  0e+00
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 33.7
"""
VERSION_2_13 = """\
mpirun -np 4 ./build/all_gather_perf -b 1M -e 2M -f 2 -g 1
# nThread 1 nGpus 1 minBytes 1048576 maxBytes 2097152 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1
#
# Using devices
#  Rank  0 Group  0 Pid 300 on    a-1 device  0 [0x07] NVIDIA A100-SXM4-80GB
#  Rank  1 Group  0 Pid 301 on    a-1 device  1 [0x0f] NVIDIA A100-SXM4-80GB
#  Rank  2 Group  0 Pid 302 on    a-2 device  0 [0x07] NVIDIA A100-SXM4-80GB
#  Rank  3 Group  0 Pid 303 on    a-2 device  1 [0x0f] NVIDIA A100-SXM4-80GB
NCCL version 2.14.3+cuda11.7
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576         65536     float    none      -1    80.00   13.11    9.83      0    82.00   12.79    9.59      0
     2097152        131072     float    none      -1   120.00   17.48   13.11      0   122.00   17.19   12.89    N/A
# Out of bounds values : 0 OK
"""
VERSION_2_17 = """\
0: # Collective test starting: reduce_scatter_perf
0: # nThread 1 nGpus 1 minBytes 1048576 maxBytes 1048576 step: 2(factor) warmup iters: 1 iters: 20
0: #
0: # Using devices
0: #  Rank  0 Group  0 Pid 300 on    a-1 device  0 [0000:07:00] NVIDIA H100 80GB HBM3
0: #  Rank  1 Group  1 Pid 301 on    a-1 device  1 [0000:0f:00] NVIDIA H100 80GB HBM3
0: #  Rank  2 Group  0 Pid 302 on    a-2 device  0 [0000:07:00] NVIDIA H100 80GB HBM3
0: #  Rank  3 Group  1 Pid 303 on    a-2 device  1 [0000:0f:00] NVIDIA H100 80GB HBM3
0: #                                                              out-of-place                       in-place
0: #       size         count      type   redop    root     time   algbw   busbw #wrong    time   algbw   busbw #wrong
0: #        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
0:      1048576        262144     float     sum      -1    55.00   19.07    9.53       0   57.00   18.40    9.20      0
"""


def test_the_oldest_tables_name_no_root_and_an_error():
    (found,) = read_logs([("logs/all_reduce_perf.2gpu.txt", VERSION_2_0)])
    assert (found.collective, found.nodes, found.per_node) == ("all_reduce", 1, 2)
    assert [size for size, _ in found.points] == [1048576, 2097152, 4194304]
    assert [seconds for _, seconds in found.points] == pytest.approx([41e-6, 61e-6, 102e-6])


def test_hosts_tell_machines_apart_and_the_command_names_the_test():
    (found,) = read_logs([("slurm-4711.out", VERSION_2_13)])
    assert (found.collective, found.nodes, found.per_node, found.siblings) == ("all_gather", 2, 2, 1)
    assert found.points == ((1048576, pytest.approx(81e-6)), (2097152, pytest.approx(121e-6)))


def test_split_groups_are_siblings_and_launchers_may_number_lines():
    (found,) = read_logs([("x.log", VERSION_2_17)])
    assert (found.collective, found.nodes, found.per_node, found.siblings) == ("reduce_scatter", 2, 1, 2)
    assert found.points == ((1048576, pytest.approx(56e-6)),)


def test_runs_of_one_kind_are_taken_together():
    slower = VERSION_2_0.replace(" 40.00 ", " 90.00 ").replace(" 42.00 ", " 92.00 ")
    (found,) = read_logs([("all_reduce_1.txt", VERSION_2_0), ("all_reduce_2.txt", slower)])
    assert found.points[0] == (1048576, pytest.approx(66e-6))


def test_logs_that_say_too_little_are_refused_together():
    bare = "\n".join(line for line in VERSION_2_0.splitlines() if "Rank" not in line)
    with pytest.raises(ShardplanError) as caught:
        read_logs([("run1.txt", VERSION_2_0), ("all_reduce.txt", bare), ("empty.log", "hello\n")])
    assert str(caught.value) == (
        "run1.txt:10: error[unknown-collective]: it does not say which collective was measured\n"
        "hint: name the log after the test, such as all_reduce_perf.log\n"
        "all_reduce.txt:8: error[unknown-group]: it does not list the ranks\n"
        "hint: say on what it ran: --group MACHINESxDEVICES\n"
        "empty.log: error[no-measurements]: there is no table of nccl-tests in it\n"
        "hint: run nccl-tests and keep all it prints, comments included"
    )
    (found,) = read_logs([("all_reduce.txt", bare)], group=(2, 8))
    assert found.ranks == 16


@pytest.mark.parametrize("count", ["    3", "1e+06", "1.04858e+06", "  inf"])
def test_times_of_wrong_results_are_refused(count):
    wrong = VERSION_2_13.replace("9.59      0", f"9.59  {count}")
    with pytest.raises(ShardplanError) as caught:
        read_logs([("all_gather.log", wrong)])
    assert str(caught.value) == (
        "all_gather.log:14: error[wrong-results]: the test counted wrong values, so its times mean nothing\n"
        "hint: find out what is wrong with the machine, and measure again"
    )


@pytest.mark.parametrize("count", ["0", "0e+00", "N/A", "nan"])
def test_what_was_not_checked_is_not_wrong(count):
    (found,) = read_logs([("all_gather.log", VERSION_2_13.replace("9.59      0", f"9.59    {count}"))])
    assert found.points[0] == (1048576, pytest.approx(81e-6))


def test_a_table_without_a_single_time_is_none():
    nothing = VERSION_2_0.replace("40.00", "0.00").replace("42.00", "inf").splitlines()[:10]
    with pytest.raises(ShardplanError, match="there is no table of nccl-tests in it"):
        read_logs([("all_reduce.log", "\n".join(nothing))])


SIZES = [float(2**power) for power in range(9, 31)]


@given(st.floats(1e-6, 1e-4), st.floats(1e-12, 1e-9), st.floats(0, 1e-8))
def test_a_fit_finds_the_curve_that_made_the_points(a, b, c):
    points = [(size, a + b * size + c * np.sqrt(size)) for size in SIZES]
    found = fit_curve(points)
    again = [found[0] + found[1] * size + found[2] * np.sqrt(size) for size in SIZES]
    assert again == pytest.approx([seconds for _, seconds in points], rel=1e-4)
    assert min(found) >= 0


def test_least_squares_do_not_go_below_zero():
    terms = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    assert non_negative(terms, np.array([3.0, 2.0, 1.0])) == pytest.approx([2.0, 0.0])
    assert non_negative(terms, np.array([1.0, 2.0, 3.0])) == pytest.approx([0.0, 1.0])


def test_the_simplex_walks_down_a_bent_valley():
    found = simplex(lambda p: float((1 - p[0]) ** 2 + 100 * (p[1] - p[0] ** 2) ** 2), np.array([-1.2, 1.0]))
    assert found == pytest.approx([1.0, 1.0], abs=1e-3)


def measured(profile, mesh, kind, axes, nodes, per_node, siblings=1, noise=0.0):
    """What nccl-tests would see if the profile were true."""
    model = CollectiveModel(make_cluster(load_profile(profile), mesh))
    wobble = np.random.default_rng(nodes * 100 + per_node)
    points = [(s, model.seconds(kind, axes, s) * (1 + noise * wobble.uniform(-1, 1))) for s in SIZES]
    return Measurement(kind, nodes, per_node, tuple(points), siblings)


KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def test_a_machine_like_another_is_recognised():
    """Logs made with the prices of the H100 profile turn the A100 profile into one with those prices."""
    logs = [measured("h100-dgx", f"gpu={n}", kind, (0,), 1, n, noise=0.03) for kind in KINDS for n in (2, 4, 8)]
    text, fits = calibrate(logs, load_profile("a100-dgx"), "mine")
    assert max(fit.error for fit in fits) < 0.15
    assert not any(fit.kept for fit in fits)
    profile = profile_from_text(text, "mine")
    assert profile.provenance["status"] == "measured"
    ours = CollectiveModel(make_cluster(profile, "gpu=8"))
    theirs = CollectiveModel(make_cluster(load_profile("h100-dgx"), "gpu=8"))
    for kind in KINDS:
        for size in (2.0**22, 2.0**28):
            assert ours.seconds(kind, (0,), size) == pytest.approx(theirs.seconds(kind, (0,), size), rel=0.15)


def test_efficiency_between_machines_follows_whole_machines():
    logs = [measured("h100-dgx", "4x8", kind, (0, 1), 4, 8) for kind in KINDS[:3]]
    text, fits = calibrate(logs, load_profile("h100-dgx"), "mine")
    assert max(fit.error for fit in fits) < 0.15
    eta = profile_from_text(text, "mine").levels[-1].eta
    assert eta["all_reduce"] == pytest.approx(load_profile("h100-dgx").levels[-1].eta["all_reduce"], rel=0.1)


def test_what_no_key_fits_is_kept_as_measured():
    """A machine with a cliff at 64 MiB; an all-reduce alone would be priced as its two halves, which have none."""
    points = tuple((s, 1e-5 + s / (2e11 if s < 2**26 else 1e10)) for s in SIZES)
    logs = [Measurement(kind, 1, 8, points) for kind in KINDS]
    text, fits = calibrate(logs, load_profile("h100-dgx"), "mine")
    assert all(fit.kept and fit.error > 0.15 for fit in fits)
    model = CollectiveModel(make_cluster(profile_from_text(text, "mine"), "1x8"))
    size, seconds = points[-1]
    assert model.seconds("all_reduce", (1,), size) == pytest.approx(seconds, rel=0.01)


def test_matrix_products_give_back_the_constants_that_made_them():
    device = load_profile("h100-dgx").device
    text = "schema: 1\nextends: builtin:h100-dgx\ndevice: {gemm: {e: 0.73, m0: 51, n0: 42, k0: 132, sustained: 1}}\n"
    true = make_cluster(profile_from_text(text, "true.yaml"))
    model = ComputeModel(true)
    rows = ["m,n,k,dtype,seconds"]
    for m in (16, 128, 1024, 8192):
        for n in (256, 1024, 4096):
            for k in (128, 1024, 8192):
                moved = 2.0 * (m * k + k * n + m * n)
                seconds = model.seconds(
                    "gemm", "bfloat16", *(np.array([float(x)]) for x in (2 * m * n * k, moved, m, n, k))
                )[0]
                rows.append(f"{m},{n},{k},bf16,{seconds:.9e}")
    products = read_products("\n".join(rows), "gemm.csv")
    text, left = calibrate_products(products, load_profile("h100-dgx"), "mine")
    assert left < 0.05
    found = profile_from_text(text, "mine").device
    reached = found.gemm.e * found.peak_flops["bf16"]
    assert reached == pytest.approx(true.device.gemm.e * true.device.peak_flops["bf16"], rel=0.05)
    assert found.gemm.sustained == device.gemm.sustained


def test_a_table_of_products_with_faults():
    with pytest.raises(ShardplanError) as caught:
        read_products("m,n,k,dtype,seconds\n1,2,3,bf17,1\n1,2,3,bf16,-1\n1,2\n1,2,3,bf16,nan\n", "t.csv")
    assert str(caught.value) == (
        "t.csv:2: error[bad-row]: '1,2,3,bf17,1' is no measurement\n"
        "hint: sizes and seconds are positive numbers, dtype is bf16, fp16, fp32, tf32 or fp8\n"
        "t.csv:3: error[bad-row]: '1,2,3,bf16,-1' is no measurement\n"
        "hint: sizes and seconds are positive numbers, dtype is bf16, fp16, fp32, tf32 or fp8\n"
        "t.csv:4: error[bad-row]: '1,2,,,' is no measurement\n"
        "hint: sizes and seconds are positive numbers, dtype is bf16, fp16, fp32, tf32 or fp8\n"
        "t.csv:5: error[bad-row]: '1,2,3,bf16,nan' is no measurement\n"
        "hint: sizes and seconds are positive numbers, dtype is bf16, fp16, fp32, tf32 or fp8"
    )
    with pytest.raises(ShardplanError, match=r"t.csv:1: error\[bad-table\]: missing columns k, seconds"):
        read_products("m,n,dtype\n", "t.csv")
    with pytest.raises(ShardplanError, match=r"t.csv: error\[bad-table\]: no table can be read: field larger than"):
        read_products("m" * 200_000, "t.csv")
    products = read_products("m,n,k,dtype,seconds\n" + "1,2,3,bf16,1\n" * 2, "t.csv")
    with pytest.raises(ShardplanError, match="2 matrix products are too few"):
        calibrate_products(products, load_profile("h100-dgx"), "mine")


def test_products_that_fit_nothing_are_refused():
    noise = np.random.default_rng(1)
    rows = [f"1024,1024,1024,bf16,{10.0 ** noise.uniform(-6, 0)}" for _ in range(40)]
    products = read_products("\n".join(["m,n,k,dtype,seconds", *rows]), "t.csv")
    with pytest.raises(ShardplanError, match=r"error\[bad-fit\]: the best fit is off by \d+ % on average"):
        calibrate_products(products, load_profile("h100-dgx"), "mine")


def attentions(shares, keys):
    """Rows of a table that a device with these constants would measure."""
    peak = load_profile("h100-dgx").device.peak_flops["bf16"]
    rows = ["batch,heads,seq,head_size,causal,seconds"]
    for size, share in shares.items():
        for seq in (256, 1024, 4096, 16384):
            for causal in (0, 1):
                seen = seq / 2 if causal else seq
                flops = 3.5 * 4 * 2 * 8 * seq * seen * size
                rows.append(f"2,8,{seq},{size},{causal},{flops / (peak * share * seen / (seen + keys)):.9e}")
    return "\n".join(rows)


def test_attention_gives_back_the_constants_that_made_it():
    true = {64: 0.44, 128: 0.6, 256: 0.41}
    measured = read_attention(attentions(true, 350), "attention.csv")
    text, left = calibrate_attention(measured, load_profile("h100-dgx"), "mine")
    assert left < 0.01
    device = profile_from_text(text, "mine").device
    assert device.attention == pytest.approx({**true, 96: 0.52, 192: 0.505}, abs=0.002)
    assert device.attention_keys == 350


def test_a_table_of_attention_with_faults():
    hint = "hint: batch, heads, seq and head_size are whole numbers from 1, causal is 0 or 1, seconds are positive"
    head = "batch,heads,seq,head_size,causal,seconds\n"
    with pytest.raises(ShardplanError) as caught:
        read_attention(head + "1,2,3,64,yes,1\n1,2,3.5,64,1,1\n1,2,0,64,1,1\n1,2,3,64,1,inf\n", "t.csv")
    assert str(caught.value) == "\n".join(
        f"t.csv:{line}: error[bad-row]: '{row}' is no measurement\n{hint}"
        for line, row in enumerate(("1,2,3,64,yes,1", "1,2,3.5,64,1,1", "1,2,0,64,1,1", "1,2,3,64,1,inf"), 2)
    )
    with pytest.raises(ShardplanError, match=r"t.csv:1: error\[bad-table\]: missing column seconds\n"):
        read_attention("batch,heads,seq,head_size,causal\n", "t.csv")
    with pytest.raises(ShardplanError, match="1 row of attention is too few for a fit"):
        calibrate_attention(read_attention(head + "1,2,3,64,1,1\n", "t.csv"), load_profile("h100-dgx"), "mine")


def test_attention_that_fits_nothing_is_refused():
    noise = np.random.default_rng(1)
    rows = [f"1,16,2048,64,1,{10.0 ** noise.uniform(-6, 0)}" for _ in range(40)]
    measured = read_attention("\n".join(["batch,heads,seq,head_size,causal,seconds", *rows]), "t.csv")
    with pytest.raises(ShardplanError, match=r"error\[bad-fit\]: the best fit is off by \d+ % on average"):
        calibrate_attention(measured, load_profile("h100-dgx"), "mine")
