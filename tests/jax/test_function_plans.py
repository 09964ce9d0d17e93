"""`shardplan.jax.plan`: a function's graph computes what the function does, and its plan runs."""

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
    fn, params, batch = PROGRAMS[name]()
    proto = filled(onnx_program(fn, params, *batch), params)
    onnx.checker.check_model(proto, full_check=True)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(batch)]
    feeds = dict(zip((value.name for value in proto.graph.input), leaves, strict=True))
    for ours, theirs in zip(
        ReferenceEvaluator(proto).run(None, feeds), jax.tree.leaves(fn(params, *batch)), strict=True
    ):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_plan_runs_and_gives_the_same(name):
    fn, params, batch = PROGRAMS[name]()
    plan = shardplan.jax.plan(fn, params, *batch, mesh="2x4")
    mesh = shardplan.jax.mesh(plan, devices=jax.devices()[: plan.mesh.size])
    placed = jax.device_put(params, shardplan.jax.shardings(plan, mesh, params))
    inputs = jax.tree.leaves(batch)
    names = [tensor.name for tensor in plan.tensors if tensor.role == "input"]
    read = read_function(fn, params, *batch).inputs
    given = [
        jax.device_put(leaf, shardplan.jax.sharding(plan, mesh, each)) if each in names else leaf
        for each, leaf in zip(read, inputs, strict=True)
    ]
    given = jax.tree.unflatten(jax.tree.structure(batch), given)
    for ours, theirs in zip(
        jax.tree.leaves(jax.jit(fn)(placed, *given)), jax.tree.leaves(fn(params, *batch)), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-4)


def test_names_are_paths_and_stacked_layers_have_one_sharding():
    fn, params, batch = PROGRAMS["scanned_gpt"]()
    read = read_function(fn, params, *batch)
    assert {"wte", "layers.qkv", "layers.ln_1.scale"} <= {parameter.name for parameter in read.parameters}
    assert set(read.inputs) == {"ids", "targets"}
    assert all(parameter.trainable for parameter in read.parameters)


def test_shapes_are_enough():
    fn, params, batch = PROGRAMS["mlp"]()
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (params, batch))
    assert shardplan.jax.plan(fn, shapes[0], *shapes[1], mesh="2x2") == shardplan.jax.plan(
        fn, params, *batch, mesh="2x2"
    )


def test_what_is_not_trained_needs_no_optimizer():
    fn, params, batch = PROGRAMS["mlp"]()
    frozen = shardplan.jax.plan(fn, params, *batch, mesh="2x2", trainable=lambda name: not name.startswith("up"))
    assert frozen.summary.memory.optimizer < shardplan.jax.plan(fn, params, *batch, mesh="2x2").summary.memory.optimizer


@pytest.mark.parametrize(
    ("fn", "said", "hint"),
    [
        (
            lambda p, x: jax.random.normal(jax.random.key(0), x.shape) * p,
            "there is no form for the primitive 'random_",
            "without dropout",
        ),
        (
            lambda p, x: jax.lax.while_loop(lambda c: c.sum() < 9, lambda c: c + p, x),
            "the primitive 'while'",
            "jax.lax.scan",
        ),
        (lambda p, x: x.at[0].set(p[0]), "the primitive 'scatter'", "jnp.where"),
        (lambda p, x: jnp.sort(x) * p, "the primitive 'sort'", "top_k"),
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
