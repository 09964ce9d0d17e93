"""Profiles from exports of Nsight Systems: `shardplan.extras.calibration.nsys` and `nsys_nccl`."""

import sqlite3
from pathlib import Path

import pytest
from nsys_export import Export, exported, operator_text
from traced_runs import BASE, collective, kernel, made, operator

from shardplan.errors import ShardplanError
from shardplan.extras.calibration import nsys
from shardplan.extras.calibration.kineto import ran_in
from shardplan.extras.calibration.nsys import read_export
from shardplan.extras.calibration.nsys_nccl import Call, groups_of, moved_by
from shardplan.extras.calibration.traced import calibrate
from shardplan.extras.calibration.traces import read_traces

THREAD = (77 << 24) + 5
FLOATS = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int)"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.sqlite"


def kinds(path, ranks=()):
    return sorted(each.kind for each in read_export(str(path), ranks))


@pytest.mark.parametrize(("products", "memory", "sent"), [(1.0, 1.0, 1.0), (1.25, 1.1, 1.5)])
def test_the_factors_are_those_of_the_same_run_in_a_trace(path, products, memory, sent):
    run = made(products=products, memory=memory, sent=sent, noise=0.1)
    _, expected = calibrate(ran_in(run, "t"), BASE, "mine")
    text, found = calibrate(read_traces([str(exported(run, path))]), BASE, "mine")
    assert [(each.kind, each.level, each.count) for each in found] == [
        (each.kind, each.level, each.count) for each in expected
    ]
    assert [each.factor for each in found] == pytest.approx([each.factor for each in expected], rel=1e-5)
    assert [each.spread for each in found] == pytest.approx([each.spread for each in expected], rel=1e-4)
    assert "spread:\n" in text


def test_everything_that_ran_is_the_same(path):
    """Kernels beside collectives and collectives of three kinds too, but for the type of those, which is not told."""
    events = [
        operator("aten::mm", 1, [[4096, 512], [512, 1024]]), kernel(1e-3, 1) | {"ts": 0.0},
        kernel(1e-3, 1) | {"ts": 5e3},
        operator("aten::addmm", 2, [[64], [128, 32], [32, 64], []], ["c10::BFloat16"] * 3 + ["Scalar"]),
        kernel(2e-3, 2) | {"ts": 7e3}, operator("aten::nonzero", 3, [[4]]), kernel(1e-3, 3) | {"ts": 9e3},
        collective("allreduce", 1e-3, 1 << 20, range(8)) | {"ts": 2e4},
        collective("_allgather_base", 1e-3, 1 << 20, range(4), gathered=4) | {"ts": 5e3},
        collective("_reduce_scatter_base", 1e-3, 1 << 20, range(2)) | {"ts": 3e4},
    ]  # fmt: skip
    expected = ran_in(events, "t")
    found = read_export(str(exported({"traceEvents": events}, path)))
    assert sorted(map(told, found)) == sorted(map(told, expected))
    assert [each.beside for each in found if each.kind == "product"] == [True, False]


def told(each):
    dtype = "" if each.ranks or each.kind == "other" else each.dtype
    return each.kind, round(each.seconds, 9), dtype, each.moved_bytes, each.sizes, each.flops, each.ranks, each.beside


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("nvjet_tst_128x256_64x6_2x1_2cta_v_bz_TNT", "bfloat16"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", "float16"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "bfloat16"),
        ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize64x64", "float8e4m3fn"),
        ("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x3_tn", "float16"),
        ("ampere_sgemm_128x64_tn", "float"),
        ("cutlass_80_tensorop_d884gemm_64x64_16x3_nn_align1", None),
    ],
)
def test_the_type_of_a_product_is_in_the_name_of_its_kernel(path, name, dtype):
    export = Export(path)
    export.range(operator_text("aten::mm", [(64, 32), (32, 16)]), 1.0, 1.1, THREAD)
    export.kernel(name, 2.0, 1e-3, THREAD, 1.05)
    export.close()
    (found,) = read_export(str(path))
    assert (found.kind, found.dtype) == (("product", dtype) if dtype else ("other", ""))


def test_the_innermost_operator_counts_and_threads_are_kept_apart(path):
    """Two processes, which count launches for themselves, and a backward on a thread of its own."""
    export, other = Export(path), (78 << 24) + 5
    export.range(operator_text("aten::linear", [(64, 32), (16, 32)]), 1.0, 1.4, THREAD)
    export.range(operator_text("aten::mm", [(64, 32), (32, 16)]), 1.1, 1.2, THREAD)
    export.range(operator_text("aten::add", [(8, 8), (8, 8), ()]), 1.1, 1.2, THREAD + 1)
    export.range(operator_text("aten::mm", [(7, 7), (7, 7)]), 1.1, 1.2, other, kind=60)
    export.kernel(FLOATS, 2.0, 1e-3, THREAD, 1.15)
    export.kernel(FLOATS, 3.0, 1e-3, THREAD, 1.3)
    export.kernel(FLOATS, 4.0, 1e-3, THREAD + 1, 1.15)
    export.kernel(FLOATS, 5.0, 1e-3, other, 1.15)
    export.kernel(FLOATS, 6.0, 1e-3, THREAD, 1.35, node=3)
    export.close()
    found = read_export(str(path))
    assert sorted((each.kind, each.sizes, each.moved_bytes) for each in found) == [
        ("memory", (0, 0, 0), 3 * 256.0), ("other", (0, 0, 0), 0.0), ("other", (0, 0, 0), 0.0),
        ("product", (64, 16, 32), 4.0 * (64 * 32 + 32 * 16 + 64 * 16)),
        ("product", (64, 16, 32), 4.0 * (64 * 32 + 32 * 16 + 64 * 16)),
    ]  # fmt: skip


def test_a_collective_of_another_device_is_not_beside(path):
    export = Export(path)
    export.range(operator_text("aten::mm", [(64, 32), (32, 16)]), 1.0, 1.1, THREAD)
    export.kernel("sgemm", 2.0, 1e-3, THREAD, 1.05)
    export.kernel("ncclDevKernel_Broadcast_RING_LL", 2.0, 1e-3, THREAD, 1.2, device=1)
    export.close()
    assert [each.beside for each in read_export(str(path)) if each.kind == "product"] == [False]


def test_copies_inside_of_a_device_are_bound_by_its_memory(path):
    export = Export(path)
    export.kernel("sgemm", 2.0, 1e-3, THREAD, 1.05)
    for kind in (1, 2, 8, 10):
        export.copy(1 << 20, 3.0, 1e-3, THREAD, kind)
    export.close()
    assert sorted((each.kind, each.moved_bytes) for each in read_export(str(path))) == [
        ("memory", 2.0 * (1 << 20)),
        ("other", 0.0),
    ]


def test_a_trace_of_torch_has_these_copies_too():
    copies = [
        {"ph": "X", "cat": "gpu_memcpy", "name": f"Memcpy {way}", "ts": 0, "dur": 9, "args": {"bytes": 1 << 20}}
        for way in ("HtoD (Pageable -> Device)", "DtoD (Device -> Device)")
    ]
    found = ran_in([kernel(1e-3), *copies], "t")
    assert [(each.kind, each.moved_bytes) for each in found] == [("other", 0.0), ("memory", 2.0 * (1 << 20))]


def call(kind, communicator=1, size=100, at=0, each_rank=False):
    return Call(at, kind, communicator, size, 0, each_rank)


@pytest.mark.parametrize(
    ("calls", "sent"),
    [
        ([call("all_reduce")], ("all_reduce", 100.0)),
        ([call("all_gather", each_rank=True)] * 3, ("all_gather", 1200.0)),
        ([call("send")], ("permute", 100.0)),
        ([call("send"), call("recv", size=200)], ("permute", 200.0)),
        ([call("send"), call("recv")] * 4, ("all_to_all", 400.0)),
        ([call("send"), call("recv")] * 3, None),
        ([call("all_reduce"), call("all_gather")], None),
        ([call("all_reduce"), call("all_reduce", 2)], None),
        ([call("all_reduce", 3)], None),
        ([], None),
    ],
)
def test_a_kernel_moves_what_the_calls_before_it_say(calls, sent):
    groups = {1: (0, 1, 2, 3), 2: (0, 1, 2, 3)}
    (found,) = moved_by(calls, [50], groups, ())
    assert (found and (found.kind, found.payload_bytes)) == sent


def test_a_kernel_among_several_moves_nobody_knows_what():
    """The first has its call to itself, the next two share two, and the last has none."""
    calls = [call("all_reduce", at=0), call("all_reduce", at=20), call("all_reduce", at=30), call("send", at=60)]
    found = moved_by(calls, [10, 40, 50], {1: (0, 1)}, ())
    assert [each and each.payload_bytes for each in found] == [100.0, None, None]


def test_groups_lie_as_far_apart_as_their_processes():
    """Four processes of a machine; two of them in every group of 6 ranks, so that it has three machines."""

    def calls(*used):
        return [Call(0, "", number, 0, ranks, False) for number, ranks in used]

    made_by = [
        (10, calls((1, 6), (2, 4))),
        (20, calls((3, 6), (2, 4))),
        (30, calls((1, 6), (2, 4))),
        (40, calls((3, 6), (2, 4))),
    ]
    assert groups_of(made_by) == {1: (0, 2, 4, 6, 8, 10), 2: (0, 1, 2, 3), 3: (0, 2, 4, 6, 8, 10)}
    assert groups_of([(10, calls((1, 6), (9, 1 << 40)))]) == {1: (0, 1, 2, 3, 4, 5)}


def test_the_group_is_given_where_the_export_begins_after_the_communicators(path):
    export = Export(path)
    export.call("ncclAllReduce", 1.0, THREAD, 5, 1 << 20)
    export.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 2.0, 1e-3, THREAD, 1.1)
    export.close()
    assert kinds(path) == ["other"]
    (found,) = read_export(str(path), (0, 1, 8, 9))
    assert (found.kind, found.ranks, found.moved_bytes) == ("all_reduce", (0, 1, 8, 9), float(1 << 20))


def without(table):
    def change(path: Path) -> None:
        opened = sqlite3.connect(path)
        opened.execute(f"DROP TABLE {table}")
        opened.commit()
        opened.close()

    return change


def viewed(path: Path) -> None:
    """A view that never ends, in place of a table."""
    opened = sqlite3.connect(path)
    opened.executescript(
        "DROP TABLE StringIds; CREATE VIEW StringIds AS WITH RECURSIVE n(id, value) AS "
        "(SELECT 1, 'a' UNION ALL SELECT id + 1, 'a' FROM n) SELECT id, value FROM n;"
    )
    opened.close()


def run_of(change: str):
    def changed(path: Path) -> None:
        opened = sqlite3.connect(path)
        opened.execute(change)
        opened.commit()
        opened.close()

    return changed


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without("CUPTI_ACTIVITY_KIND_KERNEL"), "no table CUPTI_ACTIVITY_KIND_KERNEL is in this file"),
        (without("NVTX_EVENTS"), "no table NVTX_EVENTS is in this file, so it is no export of a run"),
        (without("CUPTI_ACTIVITY_KIND_RUNTIME"), "no table CUPTI_ACTIVITY_KIND_RUNTIME is in this file"),
        (viewed, "no table StringIds is in this file"),
        (run_of("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL"), "no kernel of a device is in this export"),
        (run_of("ALTER TABLE NVTX_EVENTS RENAME COLUMN globalTid TO tid"), "table NVTX_EVENTS has no column globalTid"),
        (lambda path: path.write_bytes(path.read_bytes()[:9000]), "no export of Nsight Systems can be read: database"),
        (lambda path: path.write_bytes(nsys.MAGIC + b"\xff" * 9000), "no export of Nsight Systems can be read: "),
        (lambda path: path.write_bytes(nsys.MAGIC), "no export of Nsight Systems can be read: "),
    ],
    ids=["kernels", "ranges", "calls", "view", "empty", "column", "cut off", "torn", "header"],
)
def test_what_is_no_export_is_refused(path, change, said):
    exported(made(), path)
    change(path)
    with pytest.raises(ShardplanError, match=rf"error\[bad-trace\]: {said}"):
        read_traces([str(path)])


def test_a_report_is_exported_first(path):
    with pytest.raises(ShardplanError, match="a report of Nsight Systems is not read") as raised:
        read_traces(["run.nsys-rep"])
    assert "nsys export --type sqlite --include-blobs=true" in str(raised.value)


def test_a_larger_file_is_refused(path, monkeypatch):
    exported(made(), path)
    monkeypatch.setattr(nsys, "_MOST_BYTES", 4096)
    with pytest.raises(ShardplanError, match="it is larger than 0 GiB"):
        read_traces([str(path)])


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = 'many'",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET correlationId = NULL",
        "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET globalTid = -9e99",
        "UPDATE NVTX_EVENTS SET text = 'aten::mm, sizes = [[' || hex(zeroblob(5000)) || ']]', binaryData = 'x'",
        "UPDATE NVTX_EVENTS SET text = 'aten::mm, sizes = [[[[[[9], [9, 99999999999999999999999]]'",
        "UPDATE NVTX_EVENTS SET text = x'ff00', textId = 'no', end = start - 5, binaryData = zeroblob(31)",
        "UPDATE NVTX_EVENTS SET text = NULL, textId = NULL, binaryData = zeroblob(1000)",
        "UPDATE NVTX_PAYLOAD_SCHEMA_ENTRIES SET offset = 9223372036854775807, type = 22",
        "UPDATE NVTX_PAYLOAD_SCHEMA_ENTRIES SET offset = -1, schemaId = 'x'",
        "UPDATE StringIds SET value = x'c3ff'",
    ],
)
def test_odd_values_are_as_if_absent(path, change):
    exported(made(), path)
    run_of(change)(path)
    try:
        assert kinds(path)
    except ShardplanError as refused:
        assert "no kernel of a device is in this export" in str(refused)  # noqa: PT017


def test_odd_words_in_ranges_leave_kernels_without_an_operator(path):
    export = Export(path)
    for place, text in enumerate(
        ("aten::mm", "aten::mm, sizes = ", "aten::mm, sizes = [[4, 4], [4, 4]", "[[4]], sizes = [[4]]")
    ):
        export.range(text, place, place + 0.9, THREAD)
        export.kernel("sgemm", 10.0 + place, 1e-3, THREAD, place + 0.5)
    export.close()
    assert kinds(path) == ["other"] * 4
