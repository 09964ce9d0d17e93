"""What a rank holds: the shards of all ranks tile the tensor, copies agree, and the numpy machine says the same."""

import dataclasses
import math
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from example_plans import MESH, example_plan
from hypothesis import given, settings
from hypothesis import strategies as st
from mesh_values import shard as numpy_shards

import shardplan
from shardplan.errors import ShardplanError
from shardplan.layout.layout import Layout
from shardplan.layout.legal import is_legal
from shardplan.layout.mesh import Axis, Mesh
from shardplan.layout.placement import RP, R, S
from shardplan.plan.file import read_plan
from shardplan.plan.orientation import checkpoint_layout, checkpoint_shape
from shardplan.plan.types import TensorDecision
from shardplan.runtime.arrays import assemble, cut
from shardplan.runtime.lookup import coordinates_of
from shardplan.runtime.shards import Piece, Shard, replica_of, runs_of, shard_of

PLANS = Path(__file__).parents[2] / "plans"


@pytest.fixture(scope="module")
def gpt2():
    return read_plan(PLANS / "gpt2_small.4x4.plan.json")


def decided(name, shape, layout, mesh, perm=(), **fields):
    """A plan of one parameter; `shape` and `layout` as the checkpoint has them."""
    graph_shape = tuple(shape[dim] for dim in perm) if perm else shape
    placements = (
        dataclasses.replace(p, dim=perm.index(p.dim)) if p.is_shard and perm else p for p in layout.placements
    )
    turned = Layout.of(*placements, order=layout.order)
    known = {"checkpoint": name, "onnx": name, "perm": perm, "trainable": True, **fields}
    tensor = TensorDecision(f"{name}.value", "parameter", graph_shape, "float", turned, turned, 0, **known)
    links = ("net",) * len(mesh)
    return example_plan(mesh=mesh, axis_links=links, tensors=(tensor,), operators=(), moves=(), blocks=())


@st.composite
def legal_cases(draw):
    """A mesh, a shape and a legal layout of it, fused dims included."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=3))
    mesh = Mesh(tuple(Axis(f"a{place}", size) for place, size in enumerate(sizes)))
    segments = draw(st.sampled_from([(), (12, 12), (24, 12, 12), (12, 24)]))
    shape = [draw(st.sampled_from([12, 24, 48])) for _ in range(draw(st.integers(1, 3)))]
    if segments:
        shape[0] = sum(segments)
    options = [R, RP, *(S(dim) for dim in range(len(shape)))] + ([S(0, segments)] * 2 if segments else [])
    layout = Layout.of(*(draw(st.sampled_from(options)) for _ in sizes), order=draw(st.permutations(range(len(sizes)))))
    perm = draw(st.sampled_from([(), tuple(draw(st.permutations(range(len(shape)))))]))
    return mesh, tuple(shape), layout, perm


@settings(max_examples=150)
@given(legal_cases())
def test_shards_tile_the_tensor_and_agree_with_the_numpy_machine(case):
    mesh, shape, layout, perm = case
    if not is_legal(layout, mesh, shape):
        return
    plan = decided("w", shape, layout, mesh, perm)
    whole = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    shards = [shard_of(plan, "w", rank) for rank in range(mesh.size)]
    locals_ = [cut(whole, shard) for shard in shards]
    for local, machine in zip(locals_, numpy_shards(whole, layout, mesh), strict=True):
        assert np.array_equal(local, machine)
    assert np.array_equal(assemble(locals_, shards), whole)
    first = [local for local, shard in zip(locals_, shards, strict=True) if shard.replica == 0]
    assert Counter(np.concatenate([local.reshape(-1) for local in first]).tolist()) == Counter(range(whole.size))


@settings(max_examples=60)
@given(legal_cases())
def test_pieces_fill_the_local_tensor_once(case):
    mesh, shape, layout, _ = case
    if not is_legal(layout, mesh, shape):
        return
    for rank in range(mesh.size):
        shard = shard_of(decided("w", shape, layout, mesh), "w", rank)
        filled = np.zeros(shard.local_shape, np.int8)
        for piece in shard.pieces:
            assert filled[piece.target].shape == np.empty(shape)[piece.source].shape
            filled[piece.target] += 1
        assert (filled == 1).all()


def test_every_tensor_of_a_real_plan(gpt2):
    for tensor in gpt2.tensors:
        name = tensor.checkpoint or tensor.name
        shape = checkpoint_shape(tensor.shape, tensor.perm)
        layout = checkpoint_layout(tensor.layout, tensor.perm)
        elements = Counter()
        for rank in range(gpt2.mesh.size):
            shard = shard_of(gpt2, name, rank)
            elements[shard.replica] += math.prod(shard.local_shape)
            assert shard.shape == shape
        if all(p.kind != "P" for p in layout.placements):
            assert set(elements.values()) == {math.prod(shape)}
            assert len(elements) == replica_of(layout, gpt2.mesh, coordinates_of(gpt2.mesh, gpt2.mesh.size - 1)) + 1


def test_slices_by_checkpoint_alias_value_and_onnx_name():
    plan = example_plan()
    expected = (
        Piece((slice(256, 512), slice(0, 1024)), (slice(0, 256), slice(0, 1024))),
        Piece((slice(1280, 1536), slice(0, 1024)), (slice(256, 512), slice(0, 1024))),
        Piece((slice(2304, 2560), slice(0, 1024)), (slice(512, 768), slice(0, 1024))),
    )
    for name in ("layers.1.attention.qkv.weight", "layers.1.attention.qkv.weight.value", "val_1"):
        assert shardplan.slices(plan, name, 5) == expected
    # gpu is major: rank 4 is machine 1, gpu 0 and holds the second sixteenth
    assert shardplan.slices(plan, "head.weight", 4)[0].source == (slice(2000, 4000), slice(0, 1024))
    assert shardplan.slices(plan, "embed.weight", 4, "served")[0].source == (slice(0, 8000), slice(0, 1024))
    assert shardplan.slices(plan, "input_ids", 5)[0].source == (slice(8, 16), slice(128, 256))


def test_grouped_queries_are_cut_by_segment():
    """q has 8 heads, k and v 2: a contiguous half would give one rank only queries."""
    mesh = Mesh.of(tp=2)
    plan = decided("qkv", (48, 3), Layout.of(S(0, (32, 8, 8))), mesh)
    rows = np.arange(48)[:, None].repeat(3, 1)
    assert cut(rows, shard_of(plan, "qkv", 1))[:, 0].tolist() == [*range(16, 32), *range(36, 40), *range(44, 48)]


def test_runs_that_touch_are_one():
    """Plain axes may split the number of segments; what a device then holds is contiguous where it can be."""
    mesh = Mesh.of(a=2)
    assert runs_of(Layout.of(S(0)), mesh, (24,), (1,)) == (((12, 24),),)
    both = Mesh.of(a=1, b=1)
    assert runs_of(Layout.of(R, S(0, (8, 8))), both, (16,), (0, 0)) == (((0, 16),),)


def test_partial_values_say_so():
    loss = shard_of(example_plan(), "loss", 3)
    assert loss.partial
    assert loss.local_shape == ()
    with pytest.raises(ValueError, match="'loss' holds partial values on rank 3; they must be combined first"):
        assemble([np.zeros(())], [loss])


def test_assembling_finds_what_is_wrong():
    plan = decided("w", (4,), Layout.of(S(0), R), Mesh.of(a=2, b=2))
    shards = [shard_of(plan, "w", rank) for rank in range(4)]
    good = [np.array([0, 1]), np.array([0, 1]), np.array([2, 3]), np.array([2, 3])]
    assert assemble(good, shards).tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="rank 3 holds other values of 'w' than its copies"):
        assemble([*good[:3], np.array([2, 4])], shards)
    with pytest.raises(ValueError, match="no rank given holds all of 'w': 2 elements missing"):
        assemble(good[:2], shards[:2])
    with pytest.raises(ValueError, match=r"rank 0 holds 'w' with shape \(3,\), the plan says \(2,\)"):
        assemble([np.zeros(3)], shards[:1])
    with pytest.raises(ValueError, match=r"'w' has shape \(4,\), but this array has \(5,\)"):
        cut(np.zeros(5), shards[0])


def test_unknown_names_and_ranks():
    with pytest.raises(ShardplanError) as caught:
        shardplan.slices(example_plan(), "layers.1.attention.qkv.weigth", 0)
    assert str(caught.value) == (
        "error[unknown-tensor]: the plan has no tensor 'layers.1.attention.qkv.weigth'\n"
        "hint: did you mean 'layers.1.attention.qkv.weight'?"
    )
    with pytest.raises(ShardplanError) as caught:
        shardplan.slices(example_plan(), "embed.weight", 16)
    expected = "error[unknown-rank]: there is no rank 16: the mesh machine=4 x gpu=4 has ranks 0 to 15"
    assert str(caught.value) == expected


def test_ranks_are_row_major():
    assert [coordinates_of(MESH, rank) for rank in range(16)] == list(MESH.coordinates())


def test_a_launcher_needs_nothing_installed():
    """Reading a plan and cutting it takes plain Python; the package itself loads nothing."""
    plan = PLANS / "gpt2_small.4x4.plan.json"
    code = (
        "import sys, shardplan\n"
        "assert not {'shardplan.plan', 'shardplan.runtime'} & set(sys.modules)\n"
        f"plan = shardplan.load({str(plan)!r})\n"
        "assert shardplan.slices(plan, 'transformer.wte.weight', 5)\n"
        "print(sorted({'numpy', 'onnx', 'networkx', 'highspy', 'rich', 'torch', 'jax'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"
    assert "slices" in dir(shardplan)
    with pytest.raises(AttributeError, match="module 'shardplan' has no attribute 'slcies'"):
        shardplan.slcies  # noqa: B018


def test_shards_are_values():
    one, other = (shard_of(example_plan(), "embed.weight", 3) for _ in range(2))
    assert one == other
    assert isinstance(one, Shard)
