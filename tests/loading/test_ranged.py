"""Reading parts: the right values, and not more of the file than is needed."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors_files import write_safetensors

from shardplan.errors import ShardplanError
from shardplan.loading import ranged
from shardplan.loading.checkpoint import open_checkpoint
from shardplan.loading.ranged import CARRIERS, Reader, carrier, kept, windows


@st.composite
def parts(draw):
    """A shape and a product of runs of it."""
    shape = tuple(draw(st.lists(st.integers(1, 7), max_size=4)))
    runs = []
    for size in shape:
        bounds = sorted(draw(st.lists(st.integers(0, size), min_size=2, max_size=4)))
        pairs = tuple(zip(bounds[::2], bounds[1::2], strict=False))
        runs.append(draw(st.sampled_from([((0, size),), pairs])))
    return shape, tuple(runs)


@settings(max_examples=150)
@given(parts(), st.sampled_from([1, 16, 1 << 20]), st.sampled_from([1, 8, 1 << 20]))
def test_parts_are_the_product_of_their_runs(tmp_path_factory, case, window, chunk):
    shape, runs = case
    whole = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    path = write_safetensors(tmp_path_factory.mktemp("p") / "x.safetensors", {"pad": np.zeros(3, np.int8), "x": whole})
    with pytest.MonkeyPatch.context() as patch, Reader() as reader:
        patch.setattr(ranged, "WINDOW_BYTES", window)
        patch.setattr(ranged, "CHUNK_BYTES", chunk)
        found = reader.part(open_checkpoint(path).entry("x"), runs)
    expected = kept(whole, runs)
    assert found.shape == expected.shape
    assert np.array_equal(found, expected)


@settings(max_examples=100)
@given(st.lists(st.integers(0, 5), max_size=4), st.sampled_from([1, 7, 64, 4096]))
def test_windows_cover_a_tensor_in_order(shape, limit):
    whole = np.arange(math.prod(shape), dtype=np.int16).reshape(shape or (1,))
    seen = []
    for window in windows(shape, 2, limit):
        rows = whole[window.lead][slice(*window.rows)]
        assert rows.nbytes <= max(limit, 2)
        seen += rows.reshape(-1).tolist()
    assert seen == list(range(whole.size))


def test_only_what_is_needed_is_read(tmp_path):
    path = write_safetensors(tmp_path / "x.safetensors", {"x": np.zeros((64, 65536), np.uint8)})
    entry = open_checkpoint(path).entry("x")
    with Reader() as reader:
        reader.part(entry, (((16, 32),), ((0, 65536),)))
        assert reader.read_bytes == 16 * 65536
        reader.part(entry, (((0, 64),), ((0, 16384),)))
        assert reader.read_bytes == 16 * 65536 + 64 * 65536  # narrow columns: with their rows
    wide = write_safetensors(tmp_path / "y.safetensors", {"y": np.zeros((8, 1 << 20), np.uint8)})
    with Reader() as reader:
        reader.part(open_checkpoint(wide).entry("y"), (((0, 8),), ((0, 1 << 18),)))
        assert reader.read_bytes == 8 << 18  # wide columns: alone


def test_bits_that_numpy_has_no_name_for(tmp_path):
    bits = np.array([0x3F80, 0xC000, 0x7FC1, 0x0001], np.uint16)
    path = write_safetensors(tmp_path / "x.safetensors", {"x": bits}, {"x": "BF16"})
    with Reader() as reader:
        found = reader.part(open_checkpoint(path).entry("x"), (((1, 4),),))
    assert found.dtype == carrier("BF16") == np.uint16
    assert found.tolist() == bits[1:].tolist()


def test_a_file_that_shrinks_while_it_is_read(tmp_path):
    path = write_safetensors(tmp_path / "x.safetensors", {"x": np.zeros(64)})
    entry = open_checkpoint(path).entry("x")
    path.write_bytes(path.read_bytes()[:100])
    with Reader() as reader, pytest.raises(ShardplanError, match="the file ended inside 'x'; was it changed while"):
        reader.whole(entry)


def test_the_library_reads_the_same(tmp_path):
    numpy_files = pytest.importorskip("safetensors.numpy")
    rng = np.random.default_rng(0)
    names = ["BOOL", "U8", "I8", "U16", "I16", "F16", "U32", "I32", "F32", "U64", "I64", "F64"]
    assert set(names) < set(CARRIERS)
    arrays = {name: rng.integers(0, 2, (3, 5)).astype(carrier(name)) for name in names}
    numpy_files.save_file(arrays, str(tmp_path / "x.safetensors"))
    checkpoint = open_checkpoint(tmp_path)
    with Reader() as reader:
        for name, array in arrays.items():
            assert np.array_equal(reader.whole(checkpoint.entry(name)), array)
            assert checkpoint.entry(name).dtype == name
