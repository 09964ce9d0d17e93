"""Checkpoints are read without trust: what is wrong with a file is said, and nothing outside its folder is opened."""

import json

import numpy as np
import pytest
from safetensors_files import write_indexed, write_raw, write_safetensors

from shardplan.errors import ShardplanError
from shardplan.loading.checkpoint import open_checkpoint
from shardplan.loading.ranged import Reader

ARRAYS = {"a.weight": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.array(7, dtype=np.int64)}


def refusal(path):
    with pytest.raises(ShardplanError) as caught:
        open_checkpoint(path)
    return str(caught.value)


def damaged(path, header, data=b"12345678"):
    return refusal(write_raw(path, header if isinstance(header, str) else json.dumps(header), data))


def test_a_file_and_a_folder(tmp_path):
    path = write_safetensors(tmp_path / "model.safetensors", ARRAYS, metadata={"format": "pt"})
    for given in (path, str(path), tmp_path):
        checkpoint = open_checkpoint(given)
        assert {name: entry.shape for name, entry in checkpoint.entries.items()} == {"a.weight": (3, 4), "b": ()}
        assert checkpoint.metadata == {"format": "pt"}
        with Reader() as reader:
            for name, array in ARRAYS.items():
                assert np.array_equal(reader.whole(checkpoint.entry(name)), array)
            assert reader.read_bytes == 56


def test_several_files_and_their_index(tmp_path):
    folder = write_indexed(tmp_path / "m", {"x-1.safetensors": {"a": ARRAYS["b"]}, "x-2.safetensors": ARRAYS})
    for given in (folder, folder / "model.safetensors.index.json"):
        checkpoint = open_checkpoint(given)
        assert list(checkpoint.entries) == ["a", "a.weight", "b"]
        assert [file.name for file in checkpoint.files] == ["x-1.safetensors", "x-2.safetensors"]


def test_links_of_a_cache_are_followed(tmp_path):
    write_safetensors(tmp_path / "blob", ARRAYS)
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "model.safetensors").symlink_to("../blob")
    assert set(open_checkpoint(tmp_path / "snapshot").entries) == set(ARRAYS)


@pytest.mark.parametrize(
    "file",
    [
        "../secret.safetensors",
        "/etc/secret.safetensors",
        "a/../../s.safetensors",
        "C:\\s.safetensors",
        "C:s.safetensors",
        "",
        "a\\b",
    ],
)
def test_an_index_names_nothing_outside_its_folder(tmp_path, file):
    write_safetensors(tmp_path / "secret.safetensors", ARRAYS)
    folder = write_indexed(tmp_path / "m", {"x.safetensors": ARRAYS}, stolen=file)
    assert refusal(folder) == (
        f"{folder}/model.safetensors.index.json: error[hostile-path]: "
        f"the index names the file '{file}', which is not in its folder\n"
        "hint: files of a checkpoint are named relative to its index, without '..'"
    )


def test_an_index_names_weights_only(tmp_path):
    folder = write_indexed(tmp_path / "m", {"x.safetensors": ARRAYS}, stolen="pytorch_model.bin")
    assert "the index names the file 'pytorch_model.bin', which is no .safetensors file" in refusal(folder)


def test_an_index_and_its_files_must_agree(tmp_path):
    folder = write_indexed(tmp_path / "m", {"x.safetensors": ARRAYS}, other="x.safetensors")
    assert "the index says that 'other' is in 'x.safetensors', which does not have it" in refusal(folder)
    both = {"x.safetensors": ARRAYS, "y.safetensors": {"c": ARRAYS["b"]}}
    folder = write_indexed(tmp_path / "n", both, b="y.safetensors")
    assert "'b' is in 'x.safetensors', but the index says that it is in 'y.safetensors'" in refusal(folder)
    for text in ("{", "[]", '{"weight_map": {"a": 1}}', "[" * 100_000):
        (folder / "model.safetensors.index.json").write_text(text)
        assert "error[damaged-checkpoint]: the index " in refusal(folder)


def test_what_is_not_there(tmp_path):
    assert refusal(tmp_path / "none.safetensors") == (
        f"{tmp_path}/none.safetensors: error[unreadable-checkpoint]: cannot read the checkpoint: "
        "no such file or directory"
    )
    assert refusal(tmp_path) == (
        f"{tmp_path}: error[unreadable-checkpoint]: there is no *.safetensors in this folder\n"
        "hint: name the file, or the index of its parts"
    )
    for name in "ab":
        write_safetensors(tmp_path / f"{name}.safetensors", ARRAYS)
    assert "this folder has several: a.safetensors, b.safetensors" in refusal(tmp_path)
    with pytest.raises(ShardplanError) as caught:
        open_checkpoint(tmp_path / "a.safetensors").entry("a.weigth")
    assert "the checkpoint has no tensor 'a.weigth'\nhint: did you mean 'a.weight'?" in str(caught.value)


def row(dtype="U8", shape=(8,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def test_headers_that_lie(tmp_path):
    path = tmp_path / "bad.safetensors"
    assert "'a' of 16 bytes has 8 bytes of data" in damaged(path, {"a": row(shape=[16])})
    assert "the file has" in damaged(path, {"a": row(shape=[9], offsets=[0, 9])})
    assert "hint: was it cut off? fetch it again" in damaged(path, {"a": row(shape=[9], offsets=[0, 9])})
    assert "the file has 4 bytes after its last tensor" in damaged(path, {"a": row(shape=[4], offsets=[0, 4])})
    assert "the data of 'b' overlaps what is before it" in damaged(path, {"a": row(), "b": row(offsets=[0, 8])})
    two = {"a": row(shape=[2], offsets=[0, 2]), "b": row(shape=[4], offsets=[4, 8])}
    assert "the data of 'b' leaves a hole before it" in damaged(path, two)
    for bad in (row(shape=[-8]), row(offsets=[0]), row(shape=[True] * 3), {"dtype": "U8"}, 3, row(shape=["8"])):
        assert "'a' has no proper shape and data_offsets" in damaged(path, {"a": bad})
    assert "'a' is of the unknown type 'F4'\nhint: the types are BF16," in damaged(path, {"a": row("F4")})
    assert "__metadata__ is no table of texts" in damaged(path, {"__metadata__": {"a": 1}, "a": row()})
    twice = f'{{"a": {json.dumps(row())}, "a": {json.dumps(row())}}}'
    assert "the header names 'a' twice" in damaged(path, twice)
    assert "its header is no table of tensors" in damaged(path, "[1]")
    assert "its header is not JSON" in damaged(path, "{")
    assert "its header is not JSON" in damaged(path, "[" * 100_000)


def test_files_that_are_something_else(tmp_path):
    path = tmp_path / "x.safetensors"
    for data in (b"", b"1234", b"\xff" * 64, (200_000_000).to_bytes(8, "little") + b"{}"):
        path.write_bytes(data)
        assert "error[not-safetensors]: this is not a safetensors file: it has no header of a sensible size" in refusal(
            path
        )
