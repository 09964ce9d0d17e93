"""The plan file: what is written, that it is read back, and what is refused."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from example_plans import example_plan, example_summary
from hypothesis import given, settings
from hypothesis import strategies as st

from shardplan.errors import ShardplanError
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import RP, P, Placement, R, S
from shardplan.plan.file import check_output, dumps, loads, read_plan, write_plan
from shardplan.plan.types import Plan, TensorDecision

TEXT = dumps(example_plan())


def refused(text: str, path: str = "a.plan.json") -> str:
    with pytest.raises(ShardplanError) as caught:
        loads(text, path)
    return str(caught.value)


class TestText:
    def test_sections_stand_in_a_fixed_order(self):
        assert list(json.loads(TEXT)) == [
            "format_version",
            "digest",
            "model",
            "cluster",
            "mesh",
            "summary",
            "details",
            "parameters",
            "inputs",
            "outputs",
            "tensors",
            "operators",
            "moves",
            "blocks",
        ]

    def test_every_decision_has_a_line_of_its_own(self):
        plan = example_plan()
        rows = [line for line in TEXT.splitlines() if line.startswith("    {") and not line.endswith("[")]
        decisions = len(plan.tensors) + len(plan.operators) + len(plan.moves) + sum(len(b[0]) for b in plan.blocks)
        assert len(rows) == decisions
        assert all(isinstance(json.loads(row.strip().rstrip(",")), dict) for row in rows)

    def test_summary_has_the_keys_scripts_read(self):
        summary = json.loads(TEXT)["summary"]
        assert summary == {
            "outcome": "optimal",
            "objective": 41234.567,
            "step_us": 41234.567,
            "bound_us": 41234.567,
            "gap": 0.0,
            "compute_us": 33100.001,
            "communication_us": 8134.566,
            "memory_bytes": 30_200_000_000,
            "memory_limit_bytes": 76_000_000_000,
            "memory": {
                "parameters": 1_500_000_000,
                "gradients": 1_400_000_000,
                "optimizer": 5_600_000_000,
                "activations": 21_000_000_000,
                "temporaries": 700_000_000,
            },
        }

    def test_parameters_are_written_as_the_checkpoint_stores_them(self):
        qkv = next(p for p in json.loads(TEXT)["parameters"] if p["name"] == "layers.1.attention.qkv.weight")
        assert qkv == {
            "name": "layers.1.attention.qkv.weight",
            "tensor": "layers.1.attention.qkv.weight.value",
            "onnx": "val_1",
            "perm": [1, 0],
            "aliases": [],
            "trainable": True,
            "shape": [3072, 1024],
            "dtype": "bfloat16",
            "layout": "S(0;3x1024)@gpu",
            "dims": [["gpu"], []],
            "segments": {"0": [1024, 1024, 1024]},
            "bytes_per_device": 1_572_864,
        }

    def test_axes_of_a_dim_are_listed_major_first(self):
        embed = json.loads(TEXT)["parameters"][0]
        assert (embed["layout"], embed["dims"], embed["served"]) == (
            "S(0)@gpu,machine",
            [["gpu", "machine"], []],
            "R/P@machine, S(0)@gpu",
        )

    def test_mesh_says_how_the_devices_are_spread_over_machines(self):
        assert json.loads(TEXT)["mesh"] == {
            "axes": [{"name": "machine", "size": 4, "link": "net"}, {"name": "gpu", "size": 4, "link": "up"}],
            "devices": 16,
            "hosts": 4,
            "devices_per_host": 4,
        }

    def test_a_torus_has_no_machines_to_speak_of(self):
        cluster = {"name": "tpu", "profile": {"levels": [{"name": "up", "topology": "torus"}]}}
        assert "hosts" not in json.loads(dumps(example_plan(cluster=cluster)))["mesh"]

    def test_moves_list_their_collectives_with_bytes_and_nanoseconds(self):
        assert json.loads(TEXT)["moves"][5] == {
            "tensor": "layers.0.attention.qkv.weight.value",
            "from": "S(1;3x1024)@gpu",
            "to": "R/P@machine, S(1;3x1024)@gpu",
            "reader": "layers/0/attention/qkv/MatMul",
            "phase": "backward",
            "collectives": [
                {"kind": "all_reduce", "axes": ["machine"], "share": "1/4", "bytes": 2_097_152, "time_ns": 171_000}
            ],
            "count": 2,
            "hidden": 0.9,
            "time_ns": 342_000,
        }

    def test_ends_with_one_newline_and_holds_no_path(self):
        assert TEXT.endswith("}\n")
        assert not TEXT.endswith("\n\n")
        assert str(Path.cwd()) not in TEXT

    def test_bytes_are_the_same_in_processes_with_other_hash_seeds(self):
        script = (
            f"import sys; sys.path[:0] = {sys.path!r}\n"
            "from example_plans import example_plan\n"
            "from shardplan.plan.file import dumps\n"
            "sys.stdout.write(dumps(example_plan()))"
        )
        for seed in ("0", "12345"):
            run = subprocess.run(
                [sys.executable, "-c", script], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
            )
            assert run.stdout == TEXT


class TestRoundTrip:
    def test_example(self):
        assert loads(TEXT) == example_plan()

    def test_blocks_whose_operators_are_scattered(self):
        blocks = ((("a", "b"), ((0, 2, 3, 9), (1, 5, 4, 8))), (("c", "d"), ((6,), (7,))))
        assert loads(dumps(example_plan(blocks=blocks))).blocks == blocks

    def test_keys_of_a_later_minor_version_are_ignored(self):
        document = json.loads(TEXT)
        document["format_version"] = "1.7"
        document["moves"][0]["colour"] = "blue"
        document["later"] = {}
        assert loads(json.dumps(document)) == example_plan()


AXES = 3
SMALL_MESH = Mesh.of(a=2, b=2, c=3)


@st.composite
def layouts(draw: st.DrawFn, rank: int) -> Layout:
    shards: list[Placement] = [S(dim) for dim in range(rank)] + [S(dim, (4, 8)) for dim in range(rank)]
    placements = draw(st.lists(st.sampled_from([R, RP, P(), P("max"), *shards]), min_size=AXES, max_size=AXES))
    return Layout.of(*placements, order=draw(st.permutations(range(AXES))))


@st.composite
def parameters(draw: st.DrawFn) -> TensorDecision:
    rank = draw(st.integers(1, 4))
    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
    return TensorDecision(
        name=draw(text),
        role="parameter",
        shape=tuple(draw(st.lists(st.integers(0, 2**40), min_size=rank, max_size=rank))),
        dtype="bfloat16",
        layout=draw(layouts(rank)),
        served=draw(layouts(rank)),
        bytes_per_device=draw(st.integers(0, 2**60)),
        saved=draw(st.booleans()),
        checkpoint=draw(text),
        onnx=draw(text),
        perm=draw(st.one_of(st.just(()), st.permutations(range(rank)).map(tuple))),
        aliases=tuple(draw(st.lists(text, max_size=2))),
        trainable=draw(st.booleans()),
    )


def test_a_file_that_an_editor_saved_for_windows_is_read(tmp_path: Path):
    path = tmp_path / "one.plan.json"
    path.write_bytes(b"\xef\xbb\xbf" + dumps(example_plan()).replace("\n", "\r\n").encode())
    assert read_plan(path) == example_plan()


@given(parameter=parameters(), time_ns=st.integers(0, 10**15), gap=st.floats(0, 1))
@settings(max_examples=80)
def test_any_parameter_and_any_time_come_back(parameter: TensorDecision, time_ns: int, gap: float):
    summary = example_summary(step_ns=time_ns, gap=gap)
    model = {"name": "m", "digest": "d", "mode": "training"}
    cluster = {"name": "c", "digest": "e", "profile": {}}
    plan = Plan(model, cluster, SMALL_MESH, ("up",) * AXES, summary, (parameter,), (), ())
    assert loads(dumps(plan)) == plan


class TestRefused:
    def test_not_json(self):
        written = "hint: plans are written by shardplan solve"
        said = "a.plan.json: error[not-a-plan]: this is not a plan of shardplan: it is not JSON"
        assert refused("# notes\n") == f"{said}\n{written}"
        assert refused("[" * 100_000).endswith(f"this is not a plan of shardplan: it is nested too deeply\n{written}")

    def test_other_json(self):
        said = "a.plan.json: error[not-a-plan]: this is JSON, but not a plan of shardplan"
        assert refused("[1, 2]") == f"{said}\nhint: plans are written by shardplan solve"

    def test_cut_off(self):
        cut = TEXT[: TEXT.index('  "tensors"')]
        line = cut.count("\n") + 1
        assert refused(cut) == (
            f"a.plan.json:{line}:1: error[damaged-plan]: the plan is not valid JSON: "
            "Expecting property name enclosed in double quotes\nhint: was it cut off or edited? solve again"
        )

    def test_conflict_markers(self):
        lines = TEXT.splitlines()
        lines.insert(20, "<<<<<<< HEAD")
        assert refused("\n".join(lines)) == (
            "a.plan.json:21: error[damaged-plan]: the plan contains git's conflict markers\n"
            "hint: solve again instead of merging by hand"
        )

    def test_another_major_version(self):
        assert refused(TEXT.replace('"format_version": "1.5"', '"format_version": "2.3"')) == (
            "a.plan.json: error[unsupported-format]: this plan has format version 2.3; this shardplan reads 1.x\n"
            "hint: solve again with this version, or install the version that wrote the plan"
        )

    @pytest.mark.parametrize(
        ("found", "made", "where", "what"),
        [
            ('"op": "Gather"', '"op": 7', "operators[0]", "'op' is 7, expected a text"),
            ('"from": "S(0)@machine, S(1)@gpu"', '"origin": ""', "moves[0]", "'from' is missing"),
            ('"layout": "S(0)@gpu,machine"', '"layout": "S(4)@gpu"', "parameters[0]",
             "'layout' is 'S(4)@gpu', but S(4) is not a dim of a tensor of rank 2"),
            ('"layout": "S(0)@gpu,machine"', '"layout": "S(0)@gqu"', "parameters[0]",
             "layout 'S(0)@gqu': the mesh has no axis 'gqu'"),
            ('"outcome": "optimal"', '"outcome": "best"', "summary",
             "'outcome' is 'best', expected one of optimal, feasible, interrupted"),
            ('"gap": 0.0', '"gap": "none"', "summary", "'gap' is 'none', expected a number"),
        ],
    )  # fmt: skip
    def test_a_wrong_entry_is_named_with_its_line(self, found: str, made: str, where: str, what: str):
        line = TEXT[: TEXT.index(found)].count("\n") + 1
        if where == "summary":
            line = TEXT[: TEXT.index('"summary"')].count("\n") + 1
        assert refused(TEXT.replace(found, made, 1)) == (
            f"a.plan.json:{line}: error[damaged-plan]: {where}: {what}\nhint: solve again"
        )

    def test_missing_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(ShardplanError) as caught:
            read_plan("none.plan.json")
        assert str(caught.value) == (
            "none.plan.json: error[unreadable-plan]: cannot read the plan: no such file or directory"
        )


class TestWriting:
    def test_writes_and_reads(self, tmp_path: Path):
        path = tmp_path / "plans" / "two.plan.json"
        assert write_plan(example_plan(), path)
        assert read_plan(path) == example_plan()
        assert [entry.name for entry in path.parent.iterdir()] == ["two.plan.json"]

    def test_equal_plan_is_left_alone(self, tmp_path: Path):
        path = tmp_path / "two.plan.json"
        write_plan(example_plan(), path)
        before = path.stat()
        assert not write_plan(example_plan(), path)
        assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)

    def test_other_plan_is_replaced(self, tmp_path: Path):
        path = tmp_path / "two.plan.json"
        write_plan(example_plan(), path)
        assert write_plan(example_plan(moves=()), path)
        assert read_plan(path).moves == ()

    def test_a_link_keeps_being_a_link(self, tmp_path: Path):
        (tmp_path / "link").symlink_to("two.plan.json")
        write_plan(example_plan(), tmp_path / "link")
        assert (tmp_path / "link").is_symlink()
        assert read_plan(tmp_path / "two.plan.json") == example_plan()

    def test_failure_leaves_the_old_plan_and_nothing_else(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        path = tmp_path / "two.plan.json"
        write_plan(example_plan(), path)

        def full(self: Path, target: Path) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Path, "replace", full)
        with pytest.raises(ShardplanError, match="cannot write the plan: no space left on device"):
            write_plan(example_plan(moves=()), path)
        assert [entry.name for entry in tmp_path.iterdir()] == ["two.plan.json"]
        assert read_plan(path) == example_plan()

    def refuses(self, path: str) -> str:
        with pytest.raises(ShardplanError) as caught:
            check_output(path)
        return str(caught.value)

    def test_refuses_a_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.chdir(tmp_path)
        Path("plans").mkdir()
        assert self.refuses("plans") == "plans: error[unwritable-output]: cannot write the plan: it is a folder"

    def test_refuses_a_path_below_a_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.chdir(tmp_path)
        Path("plans").write_text("")
        assert self.refuses("plans/a.json") == (
            "plans/a.json: error[unwritable-output]: cannot write the plan: 'plans' is not a folder"
        )

    def test_refuses_a_device(self):
        assert self.refuses("/dev/null") == (
            "/dev/null: error[unwritable-output]: cannot write the plan: it is not a regular file"
        )

    @pytest.mark.parametrize("text", ["notes\n", "{}", '{"format_version": "1.0", "command": "solve", "result": {}}'])
    def test_refuses_a_file_that_is_no_plan(self, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.chdir(tmp_path)
        Path("notes").write_text(text)
        assert self.refuses("notes") == (
            "notes: error[output-not-a-plan]: this file exists and is not a plan; it is left as it is\n"
            "hint: write elsewhere with --output, or remove the file"
        )

    def test_refuses_a_plan_of_another_format(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.chdir(tmp_path)
        Path("old.json").write_text(TEXT.replace('"1.5"', '"2.0"', 1))
        assert self.refuses("old.json") == (
            "old.json: error[unsupported-format]: the plan here has format version 2.0; "
            "this shardplan writes 1.x and does not overwrite it\n"
            "hint: write elsewhere with --output, or remove the file"
        )

    def test_an_empty_or_damaged_plan_may_be_replaced(self, tmp_path: Path):
        (tmp_path / "empty").write_text("")
        (tmp_path / "cut").write_text(TEXT[:500])
        check_output(tmp_path / "empty")
        check_output(tmp_path / "cut")
