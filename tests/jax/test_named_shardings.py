"""Meshes, shardings and loading: every device gets what the plan says it holds."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("safetensors")

import jax
import jax.numpy as jnp
import ml_dtypes
from forced_plans import cluster_of, forced_plan
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from safetensors.numpy import save_file
from small_models import proto_of
from small_plans import plan_of
from tiny_models import megatron, tiny_gpt, tiny_llama

import shardplan
from shardplan.constraints.parse import parse_constraints
from shardplan.errors import ShardplanError
from shardplan.jax import Part, checkpoint_loading
from shardplan.jax.partition_specs import partition_spec
from shardplan.layout.layout import Layout
from shardplan.layout.legal import is_legal
from shardplan.layout.mesh import Mesh as PlanMesh
from shardplan.layout.placement import R, S
from shardplan.layout.text import to_text
from shardplan.model.read import read_model
from shardplan.plan.orientation import checkpoint_shape
from shardplan.plan.types import Pipeline, Stage
from shardplan.planning import PlanOptions, plan_model
from shardplan.runtime.shards import runs_of, shard_of

CUBE = PlanMesh.of(x=2, y=2, z=4)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """Tiny Llama, its model, and its weights in a file."""
    folder = tmp_path_factory.mktemp("llama")
    tiny = tiny_llama()
    save_file(dict(tiny.weights), folder / "model.safetensors")
    return tiny, tiny.model(folder), folder / "model.safetensors"


@pytest.fixture(scope="module")
def zero(llama):
    """A plan that stores every weight in as many pieces as it can."""
    return forced_plan(llama[1], "4x4", recipe="ZeRO-3")


def shapes_of(weights):
    return {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in weights.items()}


def refusal(call):
    with pytest.raises(ShardplanError) as caught:
        call()
    return str(caught.value)


def test_the_mesh_has_the_axes_of_the_plan_in_rank_order(zero, devices):
    mesh = shardplan.jax.mesh(zero)
    assert mesh.axis_names == ("machine", "gpu")
    assert mesh.devices.shape == (4, 4)
    assert [device.id for device in mesh.devices.flat] == list(range(16))
    reverse = shardplan.jax.mesh(zero, devices=devices[::-1])
    assert [device.id for device in reverse.devices.flat] == list(range(16))[::-1]


def test_optimizer_state_has_shardings_of_its_own(llama, devices):
    """ZeRO-1: the state is cut where the plan cuts it, which leaves the weight as it is."""
    plan = forced_plan(llama[1], "2x2", recipe="data parallel")
    cut = Layout.of(S(0), S(0))
    tensors = [
        dataclasses.replace(t, optimizer=cut) if t.checkpoint == "model.norm.weight" else t for t in plan.tensors
    ]
    changed = dataclasses.replace(plan, tensors=tuple(tensors))
    mesh = shardplan.jax.mesh(changed, devices=devices[:4])
    shapes = shapes_of(llama[0].weights)
    kept, state = (shardplan.jax.shardings(changed, mesh, shapes, form=form) for form in ("kept", "optimizer"))
    with pytest.raises(ShardplanError) as problem:
        shardplan.jax.shardings(changed, mesh, shapes, form="optimiser")
    assert str(problem.value) == (
        "error[bad-argument]: there is no form 'optimiser' of a tensor: it is one of kept, served, read, optimizer\n"
        "hint: did you mean 'optimizer'?"
    )
    assert kept["model.norm.weight"].spec == PartitionSpec()
    assert state.pop("model.norm.weight").spec == PartitionSpec(("machine", "gpu"))
    assert all(state[name] == kept[name] for name in state)
    assert shardplan.jax.sharding(changed, mesh, "model.norm.weight", form="optimizer").spec[0] == ("machine", "gpu")


def test_scalars_are_loaded(tmp_path, devices):
    """A temperature, as CLIP has one."""
    whole, scalar = np.arange(4, dtype=np.float32), np.array(3.5, np.float32)
    save_file({"scale": scalar, "w": whole}, tmp_path / "m.safetensors")
    plan = plan_of(PlanMesh.of(tp=2), {"scale": ((), Layout.of(R)), "w": ((4,), Layout.of(S(0)))})
    mesh = shardplan.jax.mesh(plan, devices=devices[:2])
    found = shardplan.jax.load(plan, mesh, shapes_of({"scale": scalar, "w": whole}), tmp_path)
    assert found["scale"].shape == ()
    assert found["scale"] == 3.5
    assert found["w"].sharding.spec == PartitionSpec("tp")


def test_a_pipeline_has_no_mesh(llama, zero, devices):
    """Each stage has one, over its own devices."""
    stages = tuple(Stage(f"stage {n}", 2 * n, (), 1, forced_plan(llama[1], "1x2")) for n in range(2))
    whole = dataclasses.replace(zero, pipeline=Pipeline("1f1b", stages, (), 0.0), tensors=(), operators=(), moves=())
    message = (
        "error[pipeline-plan]: the plan is a pipeline of 2 stages, of which each has a mesh and a plan of its own\n"
        "hint: take one of them: plan.pipeline.stages[0].plan, or --stage 0 of split and export (to 1)"
    )
    mesh = shardplan.jax.mesh(zero)
    assert refusal(lambda: shardplan.jax.mesh(whole)) == message
    assert refusal(lambda: shardplan.jax.shardings(whole, mesh, {})) == message
    assert refusal(lambda: shardplan.jax.constrain(whole, mesh, "add_1", jnp.zeros(4))) == message
    assert refusal(lambda: shardplan.jax.check(lambda x: x, (jnp.zeros(4),), whole)) == message
    for stage in stages:
        found = shardplan.jax.mesh(stage.plan, devices=devices[stage.first_device : stage.first_device + 2])
        assert [device.id for device in found.devices.flat] == [stage.first_device, stage.first_device + 1]


def test_other_numbers_of_devices_are_refused(llama, zero, devices):
    small = forced_plan(llama[1], "2x2", recipe="ZeRO-3")
    assert refusal(lambda: shardplan.jax.mesh(small)) == (
        "error[wrong-device-count]: the plan is for 4 devices (machine=2 x gpu=2), there are 16\n"
        "hint: pass devices=jax.devices()[:4], or solve for the devices there are"
    )
    square = np.array(devices[:4], dtype=object).reshape(2, 2)
    assert refusal(lambda: shardplan.jax.mesh(zero, devices=square)) == (
        "error[wrong-device-count]: the plan is for 16 devices (machine=4 x gpu=4), given are 4\n"
        "hint: to try the plan on a CPU, set XLA_FLAGS=--xla_force_host_platform_device_count=16 before jax starts"
    )


def test_another_mesh_is_refused(zero, llama, devices):
    mesh = Mesh(np.array(devices).reshape(4, 4), ("gpu", "machine"))
    assert refusal(lambda: shardplan.jax.shardings(zero, mesh, shapes_of(llama[0].weights))) == (
        "error[wrong-mesh]: the plan is for the mesh machine=4 x gpu=4, this mesh is gpu=4 x machine=4\n"
        "hint: make the mesh with shardplan.jax.mesh(plan)"
    )


@pytest.mark.parametrize("seed", range(4))
def test_every_device_holds_what_the_plan_says(seed, llama, devices):
    plan = forced_plan(llama[1], "4x4", seed=seed)
    mesh = shardplan.jax.mesh(plan)
    places = shardplan.jax.shardings(plan, mesh, shapes_of(llama[0].weights))
    for name, place in places.items():
        shape = llama[0].weights[name].shape
        held = place.devices_indices_map(shape)
        for rank, device in enumerate(devices):
            slices = [index.indices(size)[:2] for index, size in zip(held[device], shape, strict=True)]
            assert tuple((run,) for run in slices) == shard_of(plan, name, rank).runs, (name, rank)


@st.composite
def placed(draw):
    """A layout on 2 x 2 x 4 devices, and dims that it divides: two plain ones, and one of three segments."""
    shards = [S(0), S(1), S(2, (16, 16, 16)), S(2)]
    chosen = draw(st.lists(st.sampled_from([R, *shards]), min_size=3, max_size=3))
    layout = Layout.of(*chosen, order=draw(st.permutations(range(3))))
    shape = (16, 32, 48)
    assume(is_legal(layout, CUBE, shape) and (S(2) not in chosen or shards[2] not in chosen))
    return layout, shape


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=placed())
def test_partition_specs_cut_as_layouts_do(devices, case):
    layout, shape = case
    fused = any(placement.segments for placement in layout.placements)
    divided = ((16,), (32,), (3, 16) if fused else (48,))
    spec = partition_spec(layout, CUBE, divided, "w")
    mesh = Mesh(np.array(devices).reshape(CUBE.shape), CUBE.names)
    numbers = np.arange(math.prod(shape)).reshape(shape)
    fine = numbers.reshape([size for sizes in divided for size in sizes])
    held = NamedSharding(mesh, spec).devices_indices_map(fine.shape)
    for place, device in zip(CUBE.coordinates(), devices, strict=True):
        runs = runs_of(layout, CUBE, shape, place)
        expected = numbers[np.ix_(*(np.concatenate([np.arange(*run) for run in dim]) for dim in runs))]
        assert (fine[held[device]].reshape(expected.shape) == expected).all()


def test_stored_served_and_read_differ_under_zero(zero, llama, devices):
    mesh = shardplan.jax.mesh(zero)
    name = "model.layers.0.mlp.up_proj.weight"
    specs = {form: shardplan.jax.sharding(zero, mesh, name, form=form).spec for form in ("kept", "read")}
    assert specs == {"kept": PartitionSpec(None, ("machine", "gpu")), "read": PartitionSpec()}
    places = shardplan.jax.shardings(zero, mesh, shapes_of(llama[0].weights), form="read")
    assert {place.spec for place in places.values()} == {PartitionSpec()}


def test_inputs_are_tensors_like_any_other(zero, devices):
    mesh = shardplan.jax.mesh(zero)
    assert shardplan.jax.sharding(zero, mesh, "input_ids").spec == PartitionSpec("gpu")
    assert refusal(lambda: shardplan.jax.sharding(zero, mesh, "input_idz")) == (
        "error[unknown-tensor]: the plan has no tensor 'input_idz'\nhint: did you mean 'input_ids'?"
    )


def test_partial_sums_have_no_sharding(llama, devices):
    plan = forced_plan(llama[1], "4x4", seed=1)
    partial = next(t for t in plan.tensors if any(p.kind == "P" for p in t.layout.placements))
    message = refusal(lambda: shardplan.jax.sharding(plan, shardplan.jax.mesh(plan), partial.name))
    assert message.startswith(f"error[partial-values]: '{partial.name}' is kept as ")
    assert message.endswith("hint: leave it to XLA, and pin the value that is made of it")


def test_layers_are_loaded_into_stacks(llama, zero, devices):
    tiny, _, path = llama
    mesh = shardplan.jax.mesh(zero)
    tree = {"up": jax.ShapeDtypeStruct((2, 32, 128), jnp.bfloat16), "norm": jax.ShapeDtypeStruct((2, 32), jnp.float32)}
    names = {"up": ("model.layers.*.mlp.up_proj.weight", (1, 0)), "norm": "model.layers.*.input_layernorm.weight"}
    loaded = shardplan.jax.load(zero, mesh, tree, path, names=names, strict=False)
    both = np.stack([tiny.weights[f"model.layers.{layer}.mlp.up_proj.weight"].T for layer in range(2)])
    assert loaded["up"].dtype == jnp.bfloat16
    assert loaded["up"].sharding.spec == PartitionSpec(None, ("machine", "gpu"))
    np.testing.assert_array_equal(loaded["up"], both.astype(ml_dtypes.bfloat16))
    scales = np.stack([tiny.weights[f"model.layers.{layer}.input_layernorm.weight"] for layer in range(2)])
    np.testing.assert_array_equal(loaded["norm"], scales)


def test_leaves_and_weights_that_are_ignored_are_not_loaded(llama, zero, devices):
    _, _, path = llama
    mesh = shardplan.jax.mesh(zero)
    tree = {
        "model.norm.weight": jax.ShapeDtypeStruct((32,), jnp.float32),
        "own.scale": jax.ShapeDtypeStruct((7,), jnp.float32),
    }
    found = shardplan.jax.load(zero, mesh, tree, path, ignore=("own.*", "model.layers.*", "model.embed*", "lm_head*"))
    assert found["own.scale"] is tree["own.scale"]
    np.testing.assert_array_equal(found["model.norm.weight"], llama[0].weights["model.norm.weight"])


def test_a_fused_weight_is_loaded_into_its_three_parts(tmp_path, devices):
    tiny = tiny_gpt(fused=True)
    save_file(dict(tiny.weights), tmp_path / "model.safetensors")
    options = PlanOptions(constraints=parse_constraints(megatron(tiny), "megatron.yaml"))
    plan = plan_model(tiny.model(tmp_path), cluster_of("4x4"), options)
    mesh = shardplan.jax.mesh(plan)
    name = "transformer.h.0.attn.c_attn.weight"

    def load(*shape):
        tree, names = {"qkv": jax.ShapeDtypeStruct(shape, jnp.float32)}, {"qkv": (name, (1, 0))}
        return shardplan.jax.load(plan, mesh, tree, tmp_path, names=names, strict=False)["qkv"]

    loaded = load(32, 3, 4, 8)
    assert loaded.sharding.spec == PartitionSpec(None, None, "gpu")
    np.testing.assert_array_equal(loaded, tiny.weights[name].T.reshape(32, 3, 4, 8))
    held = np.concatenate([tiny.weights[name][part * 32 : part * 32 + 8] for part in range(3)])
    np.testing.assert_array_equal(loaded.addressable_shards[0].data, held.T.reshape(32, 3, 1, 8))
    assert shardplan.jax.sharding(plan, mesh, name, shape=(3, 32, 32)).spec == PartitionSpec(None, "gpu")
    message = refusal(lambda: load(32, 96))
    assert message.startswith("error[segmented-dim]: dim 1 of 'qkv' is sharded in each of its segments (32, 32, 32), ")


GROUPED = """
grouped (float[8,4,32] x) => (float[8,4,32] q, float[8,4,16] k, float[8,4,16] v) <float[32,64] wqkv> {
  sizes = Constant <value = int64[3] {32,16,16}> ()
  p = MatMul (x, wqkv)
  q, k, v = Split <axis = 2> (p, sizes)
}"""
PIECES = {"q": Part("wqkv", 0, 32, 1), "k": Part("wqkv", 32, 48, 1), "v": Part("wqkv", 48, 64, 1)}


@pytest.fixture
def grouped(tmp_path, devices):
    """A plan that cuts a fused q, k, v with fewer key heads in its segments, and the weight."""
    path = tmp_path / "grouped.onnx"
    path.write_bytes(proto_of(GROUPED).SerializeToString())
    text = "operators:\n  MatMul: {gpu: n}\n  Split: {machine: x0, gpu: part0|part1|part2}\n"
    options = PlanOptions(constraints=parse_constraints(text, "grouped.yaml"))
    plan = plan_model(read_model(path), cluster_of("4x4"), options)
    weight = np.arange(32 * 64, dtype=np.float32).reshape(32, 64)
    save_file({"wqkv": weight}, tmp_path / "model.safetensors")
    return plan, shardplan.jax.mesh(plan), tmp_path, weight


def test_parts_of_a_fused_weight_are_sharded_each_on_its_own(grouped):
    plan, mesh, folder, weight = grouped
    (decision,) = (tensor for tensor in plan.tensors if tensor.role == "parameter")
    assert to_text(decision.layout, plan.mesh) == "S(1;32,2x16)@gpu"
    tree = {"q": (32, 4, 8), "k": (32, 16), "v": (32, 16)}
    shapes = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in tree.items()}
    loaded = shardplan.jax.load(plan, mesh, shapes, folder, names=PIECES)
    assert {name: array.sharding.spec for name, array in loaded.items()} == dict.fromkeys(
        tree, PartitionSpec(None, "gpu")
    )
    np.testing.assert_array_equal(loaded["q"], weight[:, :32].reshape(32, 4, 8))
    np.testing.assert_array_equal(loaded["k"], weight[:, 32:48])
    np.testing.assert_array_equal(loaded["v"], weight[:, 48:])
    pinned = jax.jit(lambda w: shardplan.jax.constrain_tree(plan, mesh, w, names=PIECES))(loaded)
    assert pinned["k"].sharding.spec == PartitionSpec(None, "gpu")


def test_parts_between_segments_are_refused(grouped):
    plan, mesh, _, _ = grouped
    tree = {"qk": jax.ShapeDtypeStruct((32, 48), jnp.float32), "v": jax.ShapeDtypeStruct((32, 16), jnp.float32)}
    names = {"qk": Part("wqkv", 0, 48, 1), "v": PIECES["v"]}
    assert refusal(lambda: shardplan.jax.shardings(plan, mesh, tree, names=names)) == (
        "error[split-part]: entries 0 to 48 of dim 1 of 'wqkv' are to be an array of their own, "
        "but the plan shards the tensor as S(1;32,2x16)@gpu\n"
        "hint: take the tensor as one array, or pieces that are its segments"
    )


def test_shards_come_from_the_file_that_the_index_names(llama, zero, tmp_path, devices):
    weights = dict(llama[0].weights)
    halves = [dict(list(weights.items())[:10]), dict(list(weights.items())[10:])]
    index = {}
    for number, half in enumerate(halves):
        save_file(half, tmp_path / f"part-{number}.safetensors")
        index |= dict.fromkeys(half, f"part-{number}.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    loaded = shardplan.jax.load(zero, shardplan.jax.mesh(zero), shapes_of(weights), tmp_path)
    for name, array in loaded.items():
        np.testing.assert_array_equal(array, weights[name])


def test_every_part_is_read_once(llama, zero, devices, monkeypatch):
    """A device reads its own part; devices with the same part share it."""
    read = []
    take = np.ascontiguousarray
    monkeypatch.setattr(checkpoint_loading.np, "ascontiguousarray", lambda part: read.append(part.size) or take(part))
    tree = {"w": jax.ShapeDtypeStruct((128, 32), jnp.float32), "n": jax.ShapeDtypeStruct((32,), jnp.float32)}
    names = {"w": "model.layers.0.mlp.up_proj.weight", "n": "model.norm.weight"}
    loaded = shardplan.jax.load(zero, shardplan.jax.mesh(zero), tree, llama[2], names=names, strict=False)
    kept = {leaf: math.prod(array.sharding.shard_shape(array.shape)) for leaf, array in loaded.items()}
    assert kept == {"w": 8 * 32, "n": 2}
    assert sorted(read) == [2] * 16 + [8 * 32] * 16


def test_what_the_checkpoint_lacks_is_listed(llama, zero, tmp_path, devices):
    weights = dict(llama[0].weights)
    weights["model.layers.0.mlp.upp_proj.weight"] = weights.pop("model.layers.0.mlp.up_proj.weight")
    weights["model.norm.weight"] = np.ones(31, np.float32)
    file = tmp_path / "model.safetensors"
    save_file(weights, file)
    mesh = shardplan.jax.mesh(zero)
    assert refusal(lambda: shardplan.jax.load(zero, mesh, shapes_of(llama[0].weights), file)) == (
        f"{file}: error[missing-weight]: the checkpoint has no tensor 'model.layers.0.mlp.up_proj.weight'\n"
        "hint: did you mean 'model.layers.0.mlp.upp_proj.weight'?\n"
        f"{file}: error[wrong-weight-shape]: 'model.norm.weight' has shape [31] in the checkpoint, the plan has [32]"
    )


def test_every_dtype_of_safetensors_is_read(tmp_path, devices):
    """bfloat16 and the float8 types, which numpy alone does not have, among them."""
    text = "m (float[8,32] x) => (float[8,16] y) <float[32,16] w> { y = MatMul (x, w) }"
    path = tmp_path / "m.onnx"
    path.write_bytes(proto_of(text).SerializeToString())
    plan = forced_plan(read_model(path), "4x4", recipe="ZeRO-3")
    shape = checkpoint_shape((32, 16), ())
    values = np.arange(512, dtype=np.float32).reshape(shape) % 8
    for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.float16, np.float64, np.int32):
        file = tmp_path / "w.safetensors"
        save_file({"w": values.astype(dtype)}, file)
        loaded = shardplan.jax.load(
            plan, shardplan.jax.mesh(plan), {"w": jax.ShapeDtypeStruct(shape, jnp.float32)}, file
        )
        np.testing.assert_array_equal(loaded["w"], values)
