"""`calibrate` and `timeline` from the command line."""

import json
from pathlib import Path

from example_plans import example_plan
from nsys_export import exported
from traced_runs import made

from shardplan.plan.file import dumps, read_plan, write_plan

LOG = """\
# Using devices
#  Rank  0 Group  0 Pid 300 on    a-1 device  0 [0x07] NVIDIA A100-SXM4-80GB
#  Rank  1 Group  0 Pid 301 on    a-1 device  1 [0x0f] NVIDIA A100-SXM4-80GB
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
"""


def write_log() -> None:
    rows = [
        f"{2**p} {2**p // 4} float sum -1 {t:.2f} 1 1 0 {t:.2f} 1 1 0" for p in range(10, 29) if (t := 10 + 2**p / 2e5)
    ]
    Path("all_reduce_perf.log").write_text(LOG + "\n".join(rows) + "\n")


def test_links_are_fitted_and_the_profile_is_usable(shardplan, folder):
    write_log()
    run = shardplan("calibrate", "nccl", "all_reduce_perf.log", "-c", "a100-dgx", "-o", "mine.yaml")
    assert (run.code, run.err) == (0, "")
    _, first, last = run.out.splitlines()
    assert first.split() == ["all_reduce", "1x2", "200.0", "GB/s", "10.0", "us", "0.0", "%", "keys"]
    assert last == "wrote mine.yaml"
    assert shardplan("profiles", "check", "mine.yaml").code == 0
    text = Path("mine.yaml").read_text()
    assert "extends: builtin:a100-dgx" in text
    assert "busbw_gbps: {all_reduce: {2: 200}}" in text


def test_attention_is_fitted_by_size_of_a_head(shardplan, folder):
    rows = [f"4,8,{seq},{size},0,{seq * seq * size / 1e12}" for seq in (512, 2048, 8192) for size in (48, 64, 80, 128)]
    Path("attention.csv").write_text("\n".join(["batch,heads,seq,head_size,causal,seconds", *rows]))
    run = shardplan("calibrate", "attention", "attention.csv", "-o", "mine.yaml")
    assert (run.code, run.err) == (0, "")
    assert run.out == "12 rows, off by 0.0 % on average\nwrote mine.yaml\n"
    assert shardplan("profiles", "check", "mine.yaml").code == 0
    assert "  attention: {48: " in Path("mine.yaml").read_text()


def test_a_profile_and_a_trace_replace_their_like_and_nothing_else(shardplan, folder):
    write_log()
    write_plan(example_plan(), "two.plan.json")
    for _ in range(2):
        assert shardplan("calibrate", "nccl", "all_reduce_perf.log", "-o", "mine.yaml").code == 0
        assert shardplan("timeline", "two.plan.json", "-o", "trace.json").code == 0
    Path("blank.txt").write_text("\n" * 300 + "hello\n")
    for path in ("trace.json", "all_reduce_perf.log", "blank.txt"):
        run = shardplan("calibrate", "nccl", "all_reduce_perf.log", "-o", path)
        assert run.code == 2
        assert run.err.splitlines() == [
            f"{path}: error[output-not-a-profile]: this file exists and is not a profile; it is left as it is",
            "hint: write elsewhere with --output, or remove the file",
        ]
    run = shardplan("timeline", "two.plan.json", "-o", "two.plan.json")
    assert run.code == 2
    assert "two.plan.json: error[output-not-a-trace]: this file exists and is not a trace" in run.err
    assert read_plan("two.plan.json") == example_plan()
    run = shardplan("calibrate", "step", "two.plan.json", "--measured-ms", "nan")
    assert run.code == 2
    assert "Invalid value for '--measured-ms': nan is not a finite number\n" in run.err


def test_a_log_that_says_nothing_is_refused(shardplan, folder):
    Path("empty.log").write_text("")
    run = shardplan("calibrate", "nccl", "empty.log", "--group", "2by8", "-o", "mine.yaml")
    assert run.code == 2
    assert "error[bad-group]: --group '2by8' cannot be read" in run.err
    run = shardplan("calibrate", "nccl", "empty.log", "absent.log", "-o", "mine.yaml")
    assert run.code == 2
    assert "absent.log: error[unreadable-file]: cannot read the file: No such file or directory" in run.err
    assert not Path("mine.yaml").exists()


def test_a_measured_step_is_told_and_applied_to_nothing(shardplan, folder):
    plan = example_plan()
    write_plan(plan, "two.plan.json")
    before = Path("two.plan.json").read_bytes()
    run = shardplan("calibrate", "step", "two.plan.json", "--measured-ms", str(plan.summary.step_ns * 1.1e-6), "--json")
    assert run.code == 0
    assert json.loads(run.out)["result"]["factor"] == 1.1
    assert Path("two.plan.json").read_bytes() == before
    assert "warning[far-off]" in shardplan("calibrate", "step", "two.plan.json", "--measured-ms", "1e9").err


def test_the_trace_is_written(shardplan, folder):
    write_plan(example_plan(), "two.plan.json")
    run = shardplan("timeline", "two.plan.json", "-o", "trace.json")
    assert (run.code, run.err) == (0, "")
    *chart, step, _ = run.out.splitlines()
    assert chart[0].startswith("stream")
    assert [line.split()[0] for line in chart[1:4]] == ["compute", "up", "net"]
    assert step.startswith("step ")
    assert "; the file says 41.2 ms: " in step
    assert "trace.json" in run.out
    trace = json.loads(Path("trace.json").read_text())
    assert {event["ph"] for event in trace["traceEvents"]} == {"M", "X"}
    piped = shardplan("timeline", "two.plan.json", "-o", "-")
    assert json.loads(piped.out) == trace
    document = json.loads(shardplan("timeline", "two.plan.json", "--json").out)
    assert document["result"]["trace"] is None
    assert document["result"]["scheduled_us"] > 0


def test_why_a_schedule_takes_another_time_than_its_file_says(shardplan, folder):
    def said(**changes: object) -> tuple[str, str]:
        document = {**json.loads(dumps(example_plan())), **changes}
        Path("two.plan.json").write_text(json.dumps({key: value for key, value in document.items() if value}))
        run = shardplan("timeline", "two.plan.json")
        assert run.code == 0
        return run.out.splitlines()[-1].partition("the file says 41.2 ms: ")[2], run.err

    assert said() == ("another version of shardplan wrote it, or its digest was made anew after an edit", "")
    assert said(format_version="1.3", digest=None) == (
        "it is older than format 1.4, whose steps are scheduled",
        "",
    )
    edited, warning = said(digest="sha256:" + 64 * "0")
    assert edited == "it was edited after it was written"
    assert warning.startswith("two.plan.json: warning[edited-plan]: it was edited after it was written: its digest is ")


def test_a_profile_is_fitted_to_a_trace_of_a_run(shardplan, folder):
    events = []
    for number in range(4):
        dims = {"External id": number, "Input Dims": [[8192, 8192]] * 2, "Input type": ["c10::BFloat16"] * 2}
        events.append({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 9, "args": dims})
        kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 9, "dur": 2000, "args": {"External id": number}}
        events.append(kernel)
    for name, length in (("void flash::flash_fwd_kernel<int>(int)", 1500), ("[red]\x1bx", 500)):
        events.append({"ph": "X", "cat": "kernel", "name": name, "ts": 9, "dur": length})
    Path("run.json").write_text(json.dumps({"traceEvents": events}))
    run = shardplan("calibrate", "trace", "run.json", "-c", "h100-dgx", "-o", "mine.yaml")
    assert (run.code, run.err) == (0, "")
    _, first, covered, last = run.out.splitlines()
    assert first.split() == ["matrix", "product", "device", "4", "1.30", "±1", "%"]
    assert covered == (
        "covered    80.0 % of 10 ms of kernel time; not used: flash_fwd_kernel 15.0 %, [red]\\x1bx 5.0 %"
    )
    assert last == "wrote mine.yaml"
    assert shardplan("profiles", "check", "mine.yaml").code == 0
    assert "spread:\n  compute: 0.01\n" in Path("mine.yaml").read_text()
    told = json.loads(shardplan("calibrate", "trace", "run.json", "-o", "again.yaml", "--json").out)["result"]
    assert [(each["kind"], each["level"], each["kernels"]) for each in told["factors"]] == [("product", None, 4)]
    assert (told["kernel_us"], told["covered"]) == (10_000, 0.8)
    assert [(each["name"], each["share"]) for each in told["unused"]][:1] == [("flash_fwd_kernel", 0.15)]
    Path("run.json").write_text("{")
    run = shardplan("calibrate", "trace", "run.json", "-o", "other.yaml")
    assert run.code == 2
    assert run.err.splitlines()[1] == "hint: give what torch.profiler's export_chrome_trace wrote, as .json or .json.gz"
    assert not Path("other.yaml").exists()


def test_a_profile_is_fitted_to_an_export_of_nsight_systems(shardplan, folder):
    exported(made(products=1.25), Path("run.sqlite"))
    run = shardplan("calibrate", "trace", "run.sqlite", "-o", "mine.yaml")
    assert (run.code, run.err) == (0, "")
    kinds = [line.split()[0] for line in run.out.splitlines()[1:]]
    assert kinds == ["all-reduce", "memory-bound", "matrix", "covered", "wrote"]
    assert shardplan("profiles", "check", "mine.yaml").code == 0
    Path("run.sqlite").write_bytes(Path("run.sqlite").read_bytes()[:9000])
    run = shardplan("calibrate", "trace", "run.sqlite", "-o", "other.yaml")
    assert run.code == 2
    assert run.err.splitlines() == [
        "run.sqlite: error[bad-trace]: no export of Nsight Systems can be read: database disk image is malformed",
        "hint: run nsys export --type sqlite --include-blobs=true REPORT.nsys-rep, and give what it wrote",
    ]
    assert not Path("other.yaml").exists()


def test_a_group_of_collectives_has_ranks(shardplan, folder):
    exported(made(), Path("run.sqlite"))
    for group, said in (("2x", "cannot be read"), ("99999x99999", "cannot be read")):
        run = shardplan("calibrate", "trace", "run.sqlite", "--group", group, "-o", "mine.yaml")
        assert (run.code, said in run.err) == (2, True)
    assert shardplan("calibrate", "trace", "run.sqlite", "--group", "2x4", "-o", "mine.yaml").code == 0
