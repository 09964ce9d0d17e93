"""`shardplan.jax.plan`: a function's graph computes what the function does, and its plan runs."""

import functools

import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from jax_functions import PROGRAMS
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

import shardplan
from shardplan.errors import ShardplanError
from shardplan.jax.planning.plan import onnx_program, read_function
from shardplan.jax.planning.strides import without_strides

FIXED = {"inputs": {"ids": ["machine"], "targets": ["machine"]}, "parameters": {"layers.{qkv,up}": [None, None, "gpu"]}}


@functools.cache
def program(name):
    return PROGRAMS[name]()


@functools.cache
def planned(name, *, fixed=False):
    """The plan of a program on 2x4, and its mesh."""
    fn, params, batch = program(name)
    plan = shardplan.jax.plan(fn, params, *batch, mesh="2x4", constraints=[FIXED] if fixed else [])
    return plan, shardplan.jax.mesh(plan, devices=jax.devices()[: plan.mesh.size])


@functools.cache
def computed(name):
    """What a program gives on one device."""
    fn, params, batch = program(name)
    return jax.jit(fn)(params, *batch)


def filled(proto, params):
    """The graph with the values of its weights."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    values = {jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf) for path, leaf in leaves}
    for stored in proto.graph.initializer:
        if stored.name in values:
            stored.CopyFrom(numpy_helper.from_array(values[stored.name], stored.name))
    return proto


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_graph_computes_what_the_function_does(name):
    fn, params, batch = program(name)
    proto = filled(onnx_program(fn, params, *batch), params)
    onnx.checker.check_model(proto, full_check=True)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(batch)]
    feeds = dict(zip((value.name for value in proto.graph.input), leaves, strict=True))
    for ours, theirs in zip(ReferenceEvaluator(proto).run(None, feeds), jax.tree.leaves(computed(name)), strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_plan_runs_and_gives_the_same(name):
    fn, params, batch = program(name)
    plan, mesh = planned(name)
    placed = jax.device_put(params, shardplan.jax.shardings(plan, mesh, params))
    inputs = jax.tree.leaves(batch)
    names = [tensor.name for tensor in plan.tensors if tensor.role == "input"]
    read = read_function(fn, params, *batch).inputs
    given = [
        jax.device_put(leaf, shardplan.jax.sharding(plan, mesh, each)) if each in names else leaf
        for each, leaf in zip(read, inputs, strict=True)
    ]
    given = jax.tree.unflatten(jax.tree.structure(batch), given)
    for ours, theirs in zip(jax.tree.leaves(jax.jit(fn)(placed, *given)), jax.tree.leaves(computed(name)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-4)


def gated(params, x):
    """Its two halves of a product are fastest if both are split."""
    both = x @ params["w"]
    return (jnp.tanh(both[:, :32]) * both[:, 32:] @ params["v"]).mean()


def test_a_plan_is_one_that_shardings_can_express():
    params = {"w": jnp.zeros((16, 64)), "v": jnp.zeros((32, 16))}
    options = {"mesh": "2x2", "cluster": "generic", "pins": ["v=[gpu, null]"]}
    plan = shardplan.jax.plan(gated, params, jnp.zeros((8, 16)), **options)
    mesh = shardplan.jax.mesh(plan, devices=jax.devices()[:4])
    assert shardplan.jax.shardings(plan, mesh, params)["v"].spec[0] == "gpu"
    freely = shardplan.jax.plan(gated, params, jnp.zeros((8, 16)), target="", **options)
    with pytest.raises(ShardplanError, match="dim 1 of 'w' is sharded in each of its segments"):
        shardplan.jax.shardings(freely, mesh, params)


def test_names_are_paths_and_stacked_layers_have_one_sharding():
    fn, params, batch = program("scanned_gpt")
    read = read_function(fn, params, *batch)
    assert {"wte", "layers.qkv", "layers.ln_1.scale"} <= {parameter.name for parameter in read.parameters}
    assert set(read.inputs) == {"ids", "targets"}
    assert all(parameter.trainable for parameter in read.parameters)


def test_shapes_are_enough():
    fn, params, batch = program("mlp")
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (params, batch))
    assert shardplan.jax.plan(fn, shapes[0], *shapes[1], mesh="2x2") == shardplan.jax.plan(
        fn, params, *batch, mesh="2x2"
    )


def _with_unread():
    """A loss that does not read all of its weights."""
    params = {"used": jnp.ones((16, 16)), "spare": {"w": jnp.ones((16, 8)), "steps": jnp.ones(8, jnp.int32)}}
    return lambda p, x: jnp.mean(jnp.tanh(x @ p["used"])), params, jnp.ones((8, 16))


def test_decompositions_are_planned_by_their_sizes():
    """Products stand for them: a plan needs shapes and costs, and the function under it computes what it is for."""

    def fn(p, x):
        z = x @ p + 4 * jnp.eye(8)
        found = [
            jnp.linalg.solve(z, x),
            jnp.linalg.qr(z[:, :, :6])[1],
            jnp.linalg.svd(z[:, :, :6])[0],
            jnp.linalg.inv(z),
        ]
        return sum(map(jnp.sum, found)) + jnp.linalg.slogdet(z)[1].sum() + jnp.linalg.eigh(z)[0].sum()

    p, x = jnp.eye(8), jnp.sin(jnp.arange(512.0)).reshape(8, 8, 8)
    plan = shardplan.jax.plan(fn, p, x, mesh="2x2", mode="inference", pins=["x=[[machine, gpu]]"])
    mesh = shardplan.jax.mesh(plan, devices=jax.devices()[:4])
    placed = jax.device_put(x, *shardplan.jax.batch_shardings(plan, mesh, fn, x))
    ours = jax.jit(shardplan.jax.parallelize(fn, plan, mesh))(p, placed)
    np.testing.assert_allclose(ours, fn(p, x), rtol=1e-3)


def test_weights_that_the_loss_never_reads_have_shardings():
    """A train step holds them and their state; they are split as any other, or as they are pinned."""
    fn, params, x = _with_unread()
    for pins, wanted in (([], 8), (["spare.w=[gpu, null]"], 4), (["spare.w=[null, null]"], 1)):
        plan = shardplan.jax.plan(fn, params, x, mesh="2x4", pins=pins)
        mesh = shardplan.jax.mesh(plan, devices=jax.devices()[:8])
        found = shardplan.jax.shardings(plan, mesh, params)
        assert found["spare"]["w"].shard_shape((16, 8)) in {(16 // wanted, 8), (16, 8 // wanted)}
        assert np.allclose(shardplan.jax.parallelize(fn, plan, mesh)(params, x), fn(params, x))


def test_complex_arguments_are_refused():
    with pytest.raises(ShardplanError, match="'mask' holds complex numbers") as problem:
        shardplan.jax.plan(lambda p, x: jnp.abs(p["mask"] * x), {"mask": jnp.ones(4, jnp.complex64)}, jnp.ones(4))
    assert "jax.lax.complex" in str(problem.value)


def _spectrum(p, x):
    return jax.lax.top_k(jnp.fft.irfft(jnp.fft.rfft(x @ p["w"], axis=1) * p["by"], axis=1), 2)[0]


def _by_groups(p, x):
    return jax.lax.conv_general_dilated(
        x, p["w"].reshape(8, 4, 2), (1,), "SAME", dimension_numbers=("NWC", "OIW", "NWC"), feature_group_count=2
    )


def _pooled(p, x):
    return jax.lax.reduce_window(x @ p["w"], -jnp.inf, jax.lax.max, (1, 2, 1), (1, 2, 1), "VALID")


ROWS = ["x=[[machine, gpu]]", "{topk,conv,transpose}_*=[[machine, gpu]]"]
MOVED = ["x=[[machine, gpu]]", "{matmul,maxpool}_*=[[machine, gpu]]", "transpose_4=[null, gpu]"]
GROUPS = ["x=[machine, null, gpu]", "conv_*=[machine, gpu]", "transpose_3=[machine, null, gpu]", "w=[gpu]"]


@pytest.mark.parametrize(
    ("fn", "split"), [(_spectrum, ROWS), (_by_groups, ROWS), (_by_groups, GROUPS), (_pooled, MOVED)]
)
def test_rows_stay_on_their_device(fn, split):
    """XLA gathers the operand of a transform, a `top_k` or a convolution by groups, in whatever dims it is split. The
    plan moves the result of a pool in the order of dims of ONNX, inside of one primitive."""
    if fn is _spectrum and jax.__version_info__ < (0, 10):
        pytest.skip("JAX has no gradients of transforms under shard_map")
    params, x = {"w": jnp.ones((8, 8)), "by": jnp.ones((9, 1))}, jnp.ones((16, 16, 8))
    plan = shardplan.jax.plan(fn, params, x, mesh="2x2", mode="inference", pins=split)
    mesh = shardplan.jax.mesh(plan, devices=jax.devices()[:4])
    placed = jax.device_put(x, *shardplan.jax.batch_shardings(plan, mesh, fn, x))
    planned_fn = shardplan.jax.parallelize(fn, plan, mesh)
    checked = shardplan.jax.check(planned_fn, (params, placed), plan)
    assert checked.agrees, str(checked)
    loss = lambda f: lambda p: jnp.sum(jnp.sin(f(p, placed)))  # noqa: E731
    ours, theirs = (jax.jit(jax.grad(loss(f)))(params)["w"] for f in (planned_fn, fn))
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("start", "limit", "stride"), [(0, 24, 3), (1, 24, 3), (2, 23, 5), (0, 1, 4), (5, 24, 2)])
def test_a_slice_with_strides_is_one_without(start, limit, stride):
    given = ((1, start), (7, limit), (2, stride))
    x = jnp.arange(8.0 * 24).reshape(8, 24)
    np.testing.assert_array_equal(without_strides(x, *given), jax.lax.slice(x, *given))
    ours, theirs = (
        jax.grad(lambda x, f=f: jnp.sum(jnp.sin(f(x, *given))))(x) for f in (without_strides, jax.lax.slice)
    )
    np.testing.assert_array_equal(ours, theirs)


def test_gradients_pass_a_slice_with_strides_of_a_dim_that_is_split(tmp_path):
    """XLA pads a dim that is split with wrong values between its elements. Where devices are slow, the plan reads the
    operand of the slice as it is made, split."""
    peak = ", ".join(f"{dtype}: 0.2" for dtype in ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8"))
    slow = tmp_path / "slow.yaml"
    slow.write_text(
        f"extends: builtin:generic\nname: slow\ndevice: {{peak_tflops: {{{peak}}}, hbm_gbps: 100}}\n"
        "levels: {up: {base_us: 0.1}, net: {base_us: 0.1}}\n"
    )
    loss = lambda p, x: jnp.mean(jnp.square(jnp.tanh(x @ p["w"])[:, ::3]))  # noqa: E731
    params = {"w": jax.random.normal(jax.random.key(1), (24, 24)) / 5}
    x = jax.random.normal(jax.random.key(0), (16, 8, 24))
    plan = shardplan.jax.plan(loss, params, x, mesh="2x4", cluster=str(slow), pins=["x=[gpu, machine, null]"])
    mesh = shardplan.jax.mesh(plan, devices=jax.devices()[:8])
    params = jax.device_put(params, shardplan.jax.shardings(plan, mesh, params))
    placed = jax.device_put(x, *shardplan.jax.batch_shardings(plan, mesh, loss, x))
    planned_loss = shardplan.jax.parallelize(loss, plan, mesh)
    ours, theirs = (jax.jit(jax.grad(f))(params, placed)["w"] for f in (planned_loss, loss))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-7)


def test_what_is_not_trained_needs_no_optimizer():
    fn, params, batch = program("mlp")
    frozen = shardplan.jax.plan(fn, params, *batch, mesh="2x2", trainable=lambda name: not name.startswith("up"))
    assert frozen.summary.memory.optimizer < shardplan.jax.plan(fn, params, *batch, mesh="2x2").summary.memory.optimizer


@pytest.mark.parametrize(
    ("fn", "said", "hint"),
    [
        (lambda p, x: jnp.log(jnp.fft.fft(x)).real * p, "no form for 'log' of complex numbers", "the imaginary part"),
        (lambda p, x: jax.lax.bessel_i0e(x) * p, "the primitive 'bessel_i0e'", "other functions of jax.numpy"),
    ],
)
def test_what_has_no_form_is_refused_with_its_line(fn, said, hint):
    with pytest.raises(ShardplanError) as problem:
        shardplan.jax.plan(fn, jnp.ones(4), jnp.ones((4, 4)), mesh="2x2")
    told = str(problem.value)
    assert "error[cannot-export]: " in told
    assert said in told
    assert hint in told
    assert "test_function_plans.py:" in told


def test_a_function_that_draws_draws_the_same_under_its_plan():
    """Keys for a step, for each layer and for each row."""

    def drop(key, x):
        return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x / 0.9, 0)

    def fn(p, x, rng):
        x = x + jax.random.normal(jax.random.fold_in(rng, 1), x.shape)
        x, _ = jax.lax.scan(
            lambda x, layer: (drop(layer[1], jnp.tanh(x @ layer[0])), None), x, (p, jax.random.split(rng, 3))
        )
        return jax.vmap(drop)(jax.random.split(jax.random.key(5), 8), x).sum() + jax.random.randint(rng, (), 0, 9)

    given = 0.1 * jnp.ones((3, 8, 8)), jnp.arange(64.0).reshape(8, 8) / 64, jax.random.PRNGKey(3)
    plan = shardplan.jax.plan(fn, *given, mesh="2x2", pins=["x=[machine, null]", "params=[null, null, gpu]"])
    mesh = shardplan.jax.mesh(plan, jax.devices()[:4])
    places = shardplan.jax.batch_shardings(plan, mesh, fn, *given[1:])
    found = jax.jit(shardplan.jax.parallelize(fn, plan, mesh))(given[0], *jax.device_put(given[1:], places))
    np.testing.assert_allclose(found, fn(*given), rtol=1e-5)


def test_what_a_function_prints_is_printed_under_its_plan(capsys):
    """Values printed inside of a scan, under differentiation."""

    def fn(p, x):
        def layer(x, weight):
            x = jnp.tanh(x @ weight)
            jax.debug.print("mean {}", jnp.rint(100 * x.mean()).astype(int))
            return x, None

        return jax.lax.scan(layer, x, p)[0].sum()

    given = 0.1 * jnp.ones((3, 8, 8)), jnp.ones((8, 8))
    plan = shardplan.jax.plan(fn, *given, mesh="2x2", pins=["x=[machine, null]"])
    mesh = shardplan.jax.mesh(plan, jax.devices()[:4])
    jax.block_until_ready(jax.jit(jax.grad(shardplan.jax.parallelize(fn, plan, mesh)))(*given))
    jax.effects_barrier()
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("mean")]
    assert sorted(printed) == ["mean 37", "mean 49", "mean 66"]


def test_all_branches_of_a_choice_and_one_turn_of_a_loop_are_planned():
    def fn(p, x):
        branches = [lambda x: x @ p["one"], lambda x: jnp.tanh(x @ p["two"]), lambda x: x]
        x = jax.lax.switch(x[0, 0].astype(int), branches, x)
        x = jax.lax.cond(x.sum() > 0, lambda x: x @ p["three"], lambda x: x, x)
        return jax.lax.while_loop(lambda c: c[1] < 3, lambda c: (c[0] @ p["again"], c[1] + 1), (x, 0))[0].sum()

    params = {name: 0.1 * jnp.ones((8, 8)) for name in ("one", "two", "three", "again")}
    x = jnp.arange(64.0).reshape(8, 8) / 64
    with pytest.warns(UserWarning, match="one turn of it is planned"):
        plan = shardplan.jax.plan(fn, params, x, mesh="1x4", cluster="generic")
    assert sorted(t.checkpoint for t in plan.tensors if t.role == "parameter") == sorted(params)
    mesh = shardplan.jax.mesh(plan, devices=jax.devices()[:4])
    with pytest.warns(UserWarning, match="one turn"):
        ours = jax.jit(shardplan.jax.parallelize(fn, plan, mesh))(params, x)
    np.testing.assert_allclose(ours, fn(params, x), rtol=1e-5)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "others"])
def test_a_parallelized_function_has_the_same_value_and_gradients(name):
    fn, params, batch = program(name)
    plan, mesh = planned(name, fixed=name == "scanned_gpt")
    placed = jax.device_put(params, shardplan.jax.shardings(plan, mesh, params))
    ours, gradients = jax.jit(jax.value_and_grad(shardplan.jax.parallelize(fn, plan, mesh)))(placed, *batch)
    theirs, wanted = jax.jit(jax.value_and_grad(fn))(params, *batch)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    for one, other in zip(jax.tree.leaves(gradients), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-5)


def test_xla_sends_forward_what_is_planned():
    fn, params, batch = program("scanned_gpt")
    plan, mesh = planned("scanned_gpt", fixed=True)
    placed = jax.device_put(params, shardplan.jax.shardings(plan, mesh, params))
    of_batch = {name: shardplan.jax.sharding(plan, mesh, name) for name in batch[0]}
    check = shardplan.jax.check(
        shardplan.jax.parallelize(fn, plan, mesh), (placed, jax.device_put(batch[0], of_batch)), plan
    )
    assert check.predicted_bytes("forward") > 0
    assert check.emitted_bytes("forward") == pytest.approx(check.predicted_bytes("forward"), rel=0.05)


def test_a_gradient_inside_of_a_loss_belongs_to_the_forward_pass():
    """A penalty on gradients: what XLA sends for them is that of the plan, and no derivative of the loss."""
    params = {"a": jnp.sin(jnp.arange(2048.0)).reshape(32, 64), "b": jnp.cos(jnp.arange(2048.0)).reshape(64, 32)}

    def fn(params, x):
        slope = jax.grad(lambda z: jnp.sum(jnp.tanh(z @ params["a"]) @ params["b"]))
        return jnp.mean(jax.vmap(slope)(x) ** 2)

    x = jnp.ones((16, 32))
    pins = [
        "x=[]",
        "einsum_16=[[machine, gpu]]",
        *(f"{name}=[null, [machine, gpu]]" for name in ("a", "tanh_*", "add_*")),
    ]
    plan = shardplan.jax.plan(fn, params, x, mesh="2x4", pins=pins)
    mesh = shardplan.jax.mesh(plan, devices=jax.devices()[:8])
    placed = jax.device_put((params, x), (shardplan.jax.shardings(plan, mesh, params), None))
    check = shardplan.jax.check(jax.value_and_grad(shardplan.jax.parallelize(fn, plan, mesh)), placed, plan)
    assert check.predicted_bytes("forward") > 1000
    assert check.agrees, str(check)


def test_another_function_than_planned_is_refused():
    fn, params, batch = program("mlp")
    plan, mesh = planned("mlp")
    other = functools.wraps(fn)(lambda *_: jnp.exp(jnp.zeros(3)).sum())
    with pytest.raises(ShardplanError, match=r"error\[stale-plan\]: the plan was made of another function"):
        shardplan.jax.parallelize(other, plan, mesh)(params, *batch)


def test_optimizer_states_are_sharded_as_their_weights():
    optax = pytest.importorskip("optax")
    _, params, _ = program("scanned_gpt")
    plan, mesh = planned("scanned_gpt", fixed=True)
    state = jax.eval_shape(optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)).init, params)
    found = {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf.spec
        for path, leaf in jax.tree_util.tree_flatten_with_path(shardplan.jax.state_shardings(plan, mesh, state))[0]
    }
    assert found["1.0.mu.layers.up"] == found["1.0.nu.layers.up"] == jax.sharding.PartitionSpec(None, None, "gpu")
    assert found["1.0.count"] == jax.sharding.PartitionSpec()
    factored = jax.eval_shape(optax.adafactor(1e-3, min_dim_size_to_factor=8).init, params)
    assert jax.tree.structure(shardplan.jax.state_shardings(plan, mesh, factored)) == jax.tree.structure(factored)
    history = shardplan.jax.state_shardings(plan, mesh, jax.eval_shape(optax.scale_by_lbfgs(3).init, params))
    spec = history.diff_params_memory["layers"]["up"].spec
    assert spec == jax.sharding.PartitionSpec(None, None, None, "gpu")


def test_a_batch_has_shardings_as_it_is_given():
    fn, _, batch = program("scanned_gpt")
    plan, mesh = planned("scanned_gpt", fixed=True)
    (found,) = shardplan.jax.batch_shardings(plan, mesh, fn, *batch)
    assert {name: each.spec for name, each in found.items()} == {
        name: jax.sharding.PartitionSpec("machine") for name in ("ids", "targets")
    }
    (more,) = shardplan.jax.batch_shardings(plan, mesh, fn, {**batch[0], "unused": jnp.ones((8, 8))})
    assert more["unused"].spec == jax.sharding.PartitionSpec()


@pytest.mark.parametrize("kind", ["linen", "nnx"])
def test_modules_of_flax_are_functions_of_their_parameters(kind):
    x = jnp.ones((16, 8))
    if kind == "linen":
        linen = pytest.importorskip("flax.linen")
        model = linen.Sequential([linen.Dense(32), linen.relu, linen.LayerNorm(), linen.Dense(8)])
        params = model.init(jax.random.key(0), x)["params"]
        fn, first = (lambda params, x: jnp.mean(model.apply({"params": params}, x) ** 2)), "layers_0.kernel"
    else:
        nnx = pytest.importorskip("flax.nnx")
        model = nnx.Sequential(nnx.Linear(8, 32, rngs=nnx.Rngs(0)), nnx.relu, nnx.Linear(32, 8, rngs=nnx.Rngs(0)))
        graph, params = nnx.split(model, nnx.Param)
        fn, first = (lambda params, x: jnp.mean(nnx.merge(graph, params)(x) ** 2)), "layers.0.kernel"
    plan = shardplan.jax.plan(fn, params, x, mesh="2x4")
    mesh = shardplan.jax.mesh(plan, devices=jax.devices()[: plan.mesh.size])
    names = [tensor.checkpoint for tensor in plan.tensors if tensor.role == "parameter"]
    assert first in names
    placed = jax.device_put(params, shardplan.jax.shardings(plan, mesh, params))
    np.testing.assert_allclose(jax.jit(shardplan.jax.parallelize(fn, plan, mesh))(placed, x), fn(params, x), rtol=1e-4)


def test_an_input_with_the_name_of_a_parameter():
    """It is called by its argument too; two leaves that would have one name are refused."""

    def fn(params, batch):
        return jnp.mean(jnp.square(batch["task"] @ params["task"] - batch["wanted"]))

    params = {"task": jnp.ones((64, 32))}
    batch = {"task": jnp.ones((64, 64)), "wanted": jnp.ones((64, 32))}
    plan = shardplan.jax.plan(fn, params, batch, mesh="2x4", cluster="h100-dgx")
    assert {tensor.name for tensor in plan.tensors if tensor.role == "input"} == {"batch.task", "wanted"}
    mesh = shardplan.jax.mesh(plan, devices=jax.devices()[:8])
    (of_batch,) = shardplan.jax.batch_shardings(plan, mesh, fn, batch)
    assert of_batch["task"] == shardplan.jax.sharding(plan, mesh, "batch.task")
    made = shardplan.jax.parallelize(fn, plan, mesh)(params, jax.device_put(batch, of_batch))
    np.testing.assert_allclose(made, fn(params, batch), rtol=1e-5)
    with pytest.raises(ShardplanError, match="two leaves of the arguments have one name"):
        shardplan.jax.plan(fn, {"a.b": params["task"], "a": {"b": params["task"]}, **params}, batch, mesh="2x4")
