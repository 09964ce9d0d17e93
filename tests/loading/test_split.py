"""Splitting once equals sharding at load time, bit for bit; interrupted splits go on; little memory is used."""

import dataclasses
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors_files import write_indexed, write_safetensors
from small_plans import plan_of, weight

from shardplan.errors import ShardplanError
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import R, S
from shardplan.loading import split as splitting
from shardplan.loading.assign import assign
from shardplan.loading.checkpoint import open_checkpoint
from shardplan.loading.header import read_header
from shardplan.loading.layout import MANIFEST
from shardplan.loading.load import load_rank
from shardplan.loading.presharded import load_presharded, open_presharded
from shardplan.loading.split import JOURNAL, split
from shardplan.plan.file import write_plan
from shardplan.runtime.arrays import assemble, cut
from shardplan.runtime.shards import shard_of

MESH = Mesh.of(dp=2, tp=2)
RNG = np.random.default_rng(0)
PLAN = plan_of(
    MESH,
    {
        "embed.weight": ((12, 8), Layout.of(S(0), S(0), order=(1, 0))),
        "q.weight": ((8, 6), Layout.of(R, S(1)), (1, 0)),
        "qkv.weight": ((16, 4), Layout.of(R, S(0, (8, 4, 4)))),
        "out.weight": ((4, 6, 8), Layout.of(S(2), S(0)), (2, 0, 1)),
        "norm.weight": ((8,), Layout.of(R, R)),
    },
)


def weights():
    shapes = {"embed.weight": (12, 8), "q.weight": (8, 6), "qkv.weight": (16, 4), "out.weight": (4, 6, 8)}
    made = {name: RNG.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return {**made, "norm.weight": RNG.standard_normal(8).astype(np.float16), "step": np.array(3, np.int64)}


def stored(tmp_path, arrays=None):
    return open_checkpoint(
        write_safetensors(tmp_path / "model.safetensors", arrays or weights(), metadata={"format": "pt"})
    )


def test_every_rank_gets_what_the_plan_says(tmp_path):
    arrays = weights()
    checkpoint = stored(tmp_path, arrays)
    made = split(assign(PLAN, checkpoint), tmp_path / "out")
    assert len(made.files) == 4
    found = [load_presharded(tmp_path / "out", rank, ranks=4) for rank in range(4)]
    for name, array in arrays.items():
        if name == "step":
            assert all(int(tensors[name].array) == 3 for tensors in found)
            continue
        shards = [shard_of(PLAN, name, rank) for rank in range(4)]
        locals_ = [tensors[name].array for tensors in found]
        for shard, local in zip(shards, locals_, strict=True):
            assert local.dtype == array.dtype
            assert local.tobytes() == cut(array, shard).tobytes()
        assert assemble(locals_, shards).tobytes() == array.tobytes()


def test_splitting_equals_loading(tmp_path):
    checkpoint = stored(tmp_path)
    split(assign(PLAN, checkpoint), tmp_path / "out")
    for rank in range(4):
        before, after = load_rank(checkpoint, PLAN, rank), load_presharded(tmp_path / "out", rank)
        assert set(before) == set(after)
        for name, tensor in before.items():
            assert (tensor.dtype, tensor.array.shape) == (after[name].dtype, after[name].array.shape)
            assert tensor.array.tobytes() == after[name].array.tobytes()


@settings(max_examples=25)
@given(st.integers(1, 40), st.permutations([Layout.of(S(0), S(1)), Layout.of(R, S(1)), Layout.of(S(1), S(0))]))
def test_the_size_of_windows_does_not_matter(tmp_path_factory, window, layouts):
    folder = tmp_path_factory.mktemp("w")
    arrays = {f"w{place}": RNG.integers(0, 99, (4, 8, 2)).astype(np.int16) for place in range(3)}
    plan = plan_of(MESH, {name: ((4, 8, 2), layout) for name, layout in zip(arrays, layouts, strict=True)})
    checkpoint = stored(folder, arrays)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splitting, "WINDOW_BYTES", window)
        split(assign(plan, checkpoint), folder / "out")
    for rank in range(4):
        for name, tensor in load_presharded(folder / "out", rank).items():
            assert np.array_equal(tensor.array, cut(arrays[name], shard_of(plan, name, rank)))


def test_replicas_share_a_file(tmp_path):
    plan = plan_of(MESH, {"w": ((4, 4), Layout.of(R, S(0)))})
    checkpoint = stored(tmp_path, {"w": np.arange(16, dtype=np.float32).reshape(4, 4)})
    made = split(assign(plan, checkpoint), tmp_path / "out")
    assert made.files == ("rank-00000-of-00004.safetensors", "rank-00001-of-00004.safetensors")
    assert open_presharded(tmp_path / "out").files == tuple((name,) for name in made.files * 2)
    assert load_presharded(tmp_path / "out", 3)["w"].array[:, 0].tolist() == [8, 12]


def test_every_shard_can_be_written_once(tmp_path):
    """The files are as large as the checkpoint, and give every rank the same as files of its own."""
    checkpoint = stored(tmp_path)
    assignment = assign(PLAN, checkpoint)
    made = split(assignment, tmp_path / "once", once=True)
    split(assignment, tmp_path / "each")
    assert made.by_rank[3] == (
        "shard-dp.tp-00003-of-00004.safetensors",
        "shard-tp-00001-of-00002.safetensors",
        "shard-whole-00000-of-00001.safetensors",
    )
    data = sum(e.size_bytes for name in made.files for e in read_header(tmp_path / "once" / name)[0].values())
    assert data == sum(entry.size_bytes for entry in checkpoint)
    for rank in range(4):
        once, each = (load_presharded(tmp_path / folder, rank, ranks=4) for folder in ("once", "each"))
        assert set(once) == set(each)
        assert all(tensor.array.tobytes() == each[name].array.tobytes() for name, tensor in once.items())
    split(assignment, tmp_path / "each", once=True)
    assert {path.name for path in (tmp_path / "each").iterdir()} == {*made.files, MANIFEST}


def test_equal_input_gives_equal_bytes_and_a_whole_split_is_left_alone(tmp_path):
    checkpoint = stored(tmp_path)
    first, again = split(assign(PLAN, checkpoint), tmp_path / "a"), split(assign(PLAN, checkpoint), tmp_path / "b")
    for name in (*first.files, MANIFEST):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert {path.name for path in (tmp_path / "a").iterdir()} == {*first.files, MANIFEST}
    times = [(tmp_path / "a" / name).stat().st_mtime_ns for name in first.files]
    repeated = split(assign(PLAN, checkpoint), tmp_path / "a")
    assert (again.is_new, repeated.is_new) == (True, False)
    assert times == [(tmp_path / "a" / name).stat().st_mtime_ns for name in first.files]
    os.utime(checkpoint.files[0])  # the checkpoint was written again
    assert split(assign(PLAN, checkpoint), tmp_path / "a").is_new


class StopError(Exception):
    pass


def test_an_interrupted_split_goes_on(tmp_path):
    arrays = weights()
    checkpoint = stored(tmp_path, arrays)
    names = list(arrays)

    def stop(_done, _total, name):
        if name == names[3]:
            raise StopError

    with pytest.raises(StopError):
        split(assign(PLAN, checkpoint), tmp_path / "out", stop, sync_bytes=1)
    with pytest.raises(ShardplanError, match=f"there is no {MANIFEST} here"):
        open_presharded(tmp_path / "out")
    assert json.loads((tmp_path / "out" / JOURNAL).read_text())["done"] == sorted(names[:3])
    seen = []
    made = split(assign(PLAN, checkpoint), tmp_path / "out", lambda done, total, name: seen.append((done, total, name)))
    assert [name for _, _, name in seen] == names[3:]
    total = sum(array.nbytes for array in arrays.values())
    assert seen[-1][:2] == (total, total)
    assert made.resumed_bytes == sum(arrays[name].nbytes for name in names[:3])
    split(assign(PLAN, checkpoint), tmp_path / "whole")
    for name in (*made.files, MANIFEST):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_what_another_attempt_left_is_not_trusted(tmp_path):
    """The plan changed in between: everything is written again."""
    checkpoint = stored(tmp_path)

    def stop(*_):
        raise StopError

    with pytest.raises(StopError):
        split(
            assign(plan_of(Mesh.of(tp=2), {"norm.weight": ((8,), Layout.of(S(0)))}), checkpoint), tmp_path / "out", stop
        )
    made = split(assign(PLAN, checkpoint), tmp_path / "out")
    assert made.resumed_bytes == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*made.files, MANIFEST}


def test_files_of_the_same_size_are_not_mixed_up(tmp_path):
    """Rows and columns of a square give files of one size; what was written of one is not taken for the other."""
    arrays = {"a": np.arange(16, dtype=np.float32).reshape(4, 4), "b": np.zeros((4, 4), np.float32)}
    rows, columns = (plan_of(Mesh.of(tp=2), {name: ((4, 4), Layout.of(S(dim))) for name in arrays}) for dim in (0, 1))
    checkpoint = stored(tmp_path, arrays)

    def stop(_done, _total, name):
        if name == "b":
            raise StopError

    with pytest.raises(StopError):
        split(assign(rows, checkpoint), tmp_path / "out", stop, sync_bytes=1)
    assert split(assign(columns, checkpoint), tmp_path / "out").resumed_bytes == 0
    assert load_presharded(tmp_path / "out", 1)["a"].array[:, 0].tolist() == [2, 6, 10, 14]


def test_every_tensor_is_aligned_to_its_type(tmp_path):
    arrays = {"bytes": np.zeros(3, np.int8), "halves": np.zeros(5, np.float16), "wide": np.zeros(3, np.float64)}
    split(assign(plan_of(Mesh.of(tp=1), {}), stored(tmp_path, arrays)), tmp_path / "out")
    for entry in open_presharded(tmp_path / "out").entries(0).values():
        assert entry.start % entry.itemsize == 0


def test_another_split_is_replaced(tmp_path):
    checkpoint = stored(tmp_path)
    split(assign(PLAN, checkpoint), tmp_path / "out")
    two = plan_of(Mesh.of(tp=2), {"norm.weight": ((8,), Layout.of(S(0)))})
    made = split(assign(two, checkpoint), tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*made.files, MANIFEST}
    assert open_presharded(tmp_path / "out").ranks == 2


def test_several_files_become_one_per_rank(tmp_path):
    arrays = weights()
    names = sorted(arrays)
    parts = {"m-1.safetensors": {n: arrays[n] for n in names[:3]}, "m-2.safetensors": {n: arrays[n] for n in names[3:]}}
    checkpoint = open_checkpoint(write_indexed(tmp_path / "m", parts))
    split(assign(PLAN, checkpoint), tmp_path / "out")
    for name, tensor in load_presharded(tmp_path / "out", 1).items():
        if name != "step":
            assert tensor.array.tobytes() == cut(arrays[name], shard_of(PLAN, name, 1)).tobytes()


def test_the_library_reads_the_files(tmp_path):
    numpy_files = pytest.importorskip("safetensors.numpy")
    split(assign(PLAN, stored(tmp_path)), tmp_path / "out")
    found = numpy_files.load_file(str(tmp_path / "out" / "rank-00001-of-00004.safetensors"))
    for name, tensor in load_presharded(tmp_path / "out", 1).items():
        assert np.array_equal(found[name], tensor.array)


def refusal(act):
    with pytest.raises(ShardplanError) as caught:
        act()
    return str(caught.value)


def test_folders_of_the_user_are_left_alone(tmp_path):
    checkpoint = stored(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    assert refusal(lambda: split(assign(PLAN, checkpoint), tmp_path / "full")) == (
        f"{tmp_path}/full: error[unwritable-output]: cannot write the split: the folder holds something else than a "
        "split (no split.json)\nhint: name a new folder, or empty this one"
    )
    file = tmp_path / "full" / "notes.txt"
    assert "it is a file\nhint: name a folder" in refusal(lambda: split(assign(PLAN, checkpoint), file))
    assert "the checkpoint itself is in it" in refusal(lambda: split(assign(PLAN, checkpoint), tmp_path))
    assert "error[unwritable-output]: cannot write the split: " in refusal(
        lambda: split(assign(PLAN, checkpoint), file / "x")
    )


def test_a_full_disk_is_noticed_before(tmp_path, monkeypatch):
    monkeypatch.setattr(splitting.shutil, "disk_usage", lambda _: SimpleNamespace(free=99))
    text = refusal(lambda: split(assign(PLAN, stored(tmp_path)), tmp_path / "out"))
    assert "error[no-space]: the split takes " in text
    assert "and 99 B is free there\nhint: name a folder on another file system" in text


class NearlyFull:
    """A file on a disk with room for `room` more bytes: like the system, it takes what fits before it fails, and at
    most 7 bytes at a time."""

    room = 1 << 30

    def __init__(self, stream):
        self._stream = stream

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def write(self, data):
        taken = self._stream.write(data[: min(7, NearlyFull.room)])
        NearlyFull.room -= taken
        return taken


@pytest.fixture
def nearly_full(monkeypatch):
    get = splitting._Outputs._get
    monkeypatch.setattr(splitting._Outputs, "_get", lambda outputs, file: NearlyFull(get(outputs, file)))
    monkeypatch.setattr(NearlyFull, "room", NearlyFull.room)
    return NearlyFull


def test_every_byte_is_written_whatever_the_system_takes_at_a_time(tmp_path, nearly_full):
    arrays = weights()
    made = split(assign(PLAN, stored(tmp_path, arrays)), tmp_path / "out")
    for rank in range(4):
        for name, tensor in load_presharded(tmp_path / "out", rank).items():
            whole = arrays[name] if name == "step" else cut(arrays[name], shard_of(PLAN, name, rank))
            assert tensor.array.tobytes() == whole.tobytes()
    assert nearly_full.room < (1 << 30) - made.written_bytes // 2


def test_a_disk_that_fills_up_is_told_and_the_split_goes_on_when_there_is_room(tmp_path, nearly_full):
    """Even in the middle of a tensor, which is not taken for done."""
    assignment = assign(PLAN, stored(tmp_path))

    def filled(_done, _total, name):
        nearly_full.room = 100 if name == "q.weight" else nearly_full.room

    text = refusal(lambda: split(assignment, tmp_path / "out", filled))
    assert text == f"{tmp_path}/out: error[unwritable-output]: cannot write the split: no space left on device"
    assert not (tmp_path / "out" / MANIFEST).exists()
    nearly_full.room = 1 << 30
    made = split(assignment, tmp_path / "out")
    split(assignment, tmp_path / "whole")
    for name in (*made.files, MANIFEST):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_split_for_another_number_of_ranks(tmp_path):
    split(assign(PLAN, stored(tmp_path)), tmp_path / "out")
    assert refusal(lambda: open_presharded(tmp_path / "out", ranks=8)) == (
        f"{tmp_path}/out: error[wrong-rank-count]: the checkpoint was split for 4 ranks (dp=2 x tp=2), and "
        "there are 8\n"
        "hint: split the checkpoint with the plan for this number of ranks"
    )
    assert "there is no rank 4: the checkpoint was split for ranks 0 to 3" in refusal(
        lambda: load_presharded(tmp_path / "out", 4)
    )


def test_files_of_another_split_are_refused(tmp_path):
    split(assign(PLAN, stored(tmp_path)), tmp_path / "out")
    other = plan_of(MESH, {"norm.weight": ((8,), Layout.of(S(0), R))})
    made = split(assign(other, stored(tmp_path)), tmp_path / "other")
    (tmp_path / "out" / made.files[0]).write_bytes((tmp_path / "other" / made.files[0]).read_bytes())
    assert "error[wrong-split]: this file belongs to another split" in refusal(
        lambda: load_presharded(tmp_path / "out", 0)
    )
    path = tmp_path / "out" / MANIFEST
    good = json.loads(path.read_text())
    for bad, text in [
        ({"format_version": "2.0"}, "this split has format version 2.0; this shardplan reads 1.x"),
        ({"files": [["../rank-x"]] * 4}, "the manifest does not name files in its folder for each rank"),
        ({"ranks": "four"}, "this is no manifest of a split"),
    ]:
        path.write_text(json.dumps({**good, **bad}))
        assert text in refusal(lambda: open_presharded(tmp_path / "out"))


def test_a_checkpoint_of_another_size(tmp_path):
    names = [f"layers.{number}.{part}" for number in range(3) for part in "abcdefghij"]
    mesh = Mesh.of(tp=2)
    plan = plan_of(mesh, {name: ((4, 4), Layout.of(S(0))) for name in names})
    said = refusal(lambda: assign(plan, stored(tmp_path, {name: np.zeros((2, 2), np.float32) for name in names})))
    lines = said.splitlines()
    assert lines[0] == "error[wrong-shape]: 'layers.*.a' (×3) has shape [2, 2] in the checkpoint, [4, 4] in the plan"
    assert len(lines) == 10
    assert lines[-2:] == [
        "  and 2 more kinds of tensors",
        "hint: is this the checkpoint of the model that was planned?",
    ]


def test_a_plan_of_another_model(tmp_path):
    arrays = weights()
    arrays["norm.wieght"] = arrays.pop("norm.weight")
    arrays["q.weight"] = arrays["q.weight"].T.copy()
    assert refusal(lambda: assign(PLAN, stored(tmp_path, arrays))) == (
        "error[wrong-shape]: 'q.weight' has shape [6, 8] in the checkpoint, [8, 6] in the plan\n"
        "hint: is this the checkpoint of the model that was planned?\n"
        "error[missing-parameter]: the plan names a parameter that the checkpoint does not have\n"
        "  norm.weight: did you mean 'norm.wieght'?\n"
        "hint: is this the checkpoint of that model?"
    )


def test_prefixes_and_buffers(tmp_path):
    arrays = weights()
    inner = stored(tmp_path, {name.removeprefix("model."): array for name, array in arrays.items()})
    plan = plan_of(
        MESH,
        {f"model.{t.checkpoint}": (t.shape, t.layout) for t in PLAN.tensors if not t.perm},
    )
    text = refusal(lambda: assign(plan, inner))
    assert "hint: the plan's names begin with 'model.': rename '' to 'model.' (--rename =model.)" in text
    found = assign(plan, inner, {"": "model."})
    assert found.layouts["qkv.weight"] == Layout.of(R, S(0, (8, 4, 4)))
    assert [str(said).splitlines()[0] for said in found.warnings] == [
        (
            "warning[unplanned-weight]: the checkpoint has 3 tensors that the plan does not name; every rank gets a "
            "whole copy"
        )
    ]


def test_buffers_need_not_be_stored(tmp_path):
    buffer = dataclasses.replace(weight("inv_freq", (4,), Layout.of(R, R)), trainable=False)
    plan = dataclasses.replace(PLAN, tensors=(*PLAN.tensors, buffer))
    warnings = assign(plan, stored(tmp_path)).warnings
    assert str(warnings[0]) == (
        "warning[missing-buffer]: the plan names a buffer that the checkpoint does not have; the model makes what is "
        "not stored\n  inv_freq"
    )


MEASURE = """
import resource, sys
import numpy, shardplan.loading.split as s, shardplan.loading.assign as a, shardplan.loading.checkpoint as c
import shardplan
plan = shardplan.load(sys.argv[2])
checkpoint = c.open_checkpoint(sys.argv[1])
assignment = a.assign(plan, checkpoint)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
s.split(assignment, sys.argv[3])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="kilobytes of ru_maxrss are Linux's")
def test_a_tensor_is_never_whole_in_memory(tmp_path):
    """192 MiB, one tensor, cut along its inner dim: what is held is a window and its pieces."""
    plan = plan_of(Mesh.of(tp=4), {"w": ((12288, 8192), Layout.of(S(1)))})
    write_plan(plan, tmp_path / "plan.json")
    write_safetensors(tmp_path / "m.safetensors", {"w": np.zeros((12288, 8192), np.uint16)}, {"w": "BF16"})
    given = [str(tmp_path / name) for name in ("m.safetensors", "plan.json", "out")]
    run = [sys.executable, "-c", MEASURE, *given]
    done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=120)
    assert int(done.stdout) < 64 << 10
    part = open_presharded(tmp_path / "out", ranks=4).entries(3)["w"]
    assert (part.shape, part.dtype) == ((12288, 2048), "BF16")
