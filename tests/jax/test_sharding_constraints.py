"""Pins: both ends of every move, by names of values, of modules and of all layers at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
import numpy as np
from forced_plans import cluster_of, forced_plan
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec
from tiny_models import megatron, tiny_gpt, tiny_llama

import shardplan
from shardplan.constraints.parse import parse_constraints
from shardplan.errors import ShardplanError
from shardplan.extras.xla.emitted import emitted_collectives
from shardplan.extras.xla.hlo import parse_module
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh as PlanMesh
from shardplan.layout.placement import P, R, S
from shardplan.planning import PlanOptions, plan_model


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """Megatron's plan of the tiny GPT with sequence parallelism, and a ZeRO-3 plan of the tiny Llama."""
    folder = tmp_path_factory.mktemp("pins")
    gpt, llama = tiny_gpt(fused=True), tiny_llama()
    constraints = parse_constraints(megatron(gpt, sequence=True), "megatron.yaml")
    sequence = plan_model(gpt.model(folder), cluster_of("4x4"), PlanOptions(constraints=constraints))
    return sequence, forced_plan(llama.model(folder), "4x4", recipe="ZeRO-3")


@pytest.fixture
def pinned(plans, devices):
    """The specs to which `name` pins an array of `shape`, one after the other."""
    plan = plans[0]
    mesh = shardplan.jax.mesh(plan)

    def specs(name, *shape, reader=""):
        def pin(x):
            return shardplan.jax.constrain(plan, mesh, name, x, reader=reader)

        jaxpr = jax.make_jaxpr(pin)(jnp.zeros(shape))
        return [str(equation.params["sharding"].spec) for equation in jaxpr.eqns]

    return specs


def refusal(call, *args, **options):
    with pytest.raises(ShardplanError) as caught:
        call(*args, **options)
    return str(caught.value)


BLOCK = (4, 16, 32)


def test_a_value_is_pinned_where_it_is_made_kept_and_read(pinned):
    assert pinned("layernormalization_3", *BLOCK) == ["P('machine', 'gpu')", "P('machine',)"]
    assert pinned("add_25", *BLOCK) == ["P('machine', 'gpu')"]


def test_sums_are_whole_before_they_are_cut(pinned):
    """Made as partial sums, kept in parts: an all-reduce and a slice, which is a reduce-scatter."""
    assert pinned("gather_0", *BLOCK) == ["P('machine',)", "P('machine', 'gpu')"]


def test_partial_sums_that_are_added_to_a_cut_value_are_cut_too(plans, devices):
    """The plan adds partial sums to a value that is cut by sequence, and then reduces: told so in parts, XLA scatters
    the sums, adds, and gathers the result, which sends as much."""
    plan = plans[0]
    partial, whole = Layout.of(S(0), P()), Layout.of(S(0), R)
    kept = {"matmul_23": partial, "add_25": whole}
    tensors = [replace(t, layout=kept[t.name], served=kept[t.name]) if t.name in kept else t for t in plan.tensors]
    adds = {"inputs": ("gather_0", "matmul_23"), "reads": (partial, partial), "makes": (partial,)}
    without = {"inputs": (), "reads": ()}
    operators = [
        replace(op, **(adds if op.name == "node_add_25" else without if "matmul_23" in op.inputs else {}))
        for op in plan.operators
    ]
    changed = replace(plan, tensors=tuple(tensors), operators=tuple(operators))
    mesh = shardplan.jax.mesh(changed)
    specs = {}
    for name in kept:
        jaxpr = jax.make_jaxpr(lambda x, name=name: shardplan.jax.constrain(changed, mesh, name, x))(jnp.zeros(BLOCK))
        specs[name] = [str(equation.params["sharding"].spec) for equation in jaxpr.eqns]
    assert specs["matmul_23"] == ["P('machine',)", "P('machine', 'gpu')"]
    assert specs["add_25"][0] == "P('machine', 'gpu')"
    assert specs["add_25"][1] == "P('machine',)"


def test_a_weight_whose_parts_are_added_to_sums_is_gathered_as_itself(tmp_path, devices):
    """No sharding says that a device adds its part of a bias to partial sums; left to it, XLA gathers the bias when it
    is as large as the sums. A plan for jax has none of these."""
    model = tiny_gpt(fused=True).model(tmp_path)
    limit = forced_plan(model, "4x4").summary.memory.total // 4

    def in_pieces(plan):
        kept = {t.name: t.served for t in plan.tensors if t.role == "parameter" and "S" in kinds(t.served)}
        reads = [each for o in plan.operators for each in zip(o.inputs, o.reads, strict=True)]
        return [name for name, read in reads if name in kept and "P" in kinds(read)]

    def kinds(layout):
        return [placement.kind for placement in layout.forward.placements]

    plan = forced_plan(model, "4x4", limit_bytes=limit)
    name = "transformer.h.0.attn.c_proj.bias"
    assert name in in_pieces(plan)
    mesh = shardplan.jax.mesh(plan)
    jaxpr = jax.make_jaxpr(lambda x: shardplan.jax.constrain(plan, mesh, name, x))(jnp.zeros(32))
    specs = [equation.params["sharding"].spec for equation in jaxpr.eqns]
    assert specs == [Spec("gpu"), Spec()]
    assert not in_pieces(forced_plan(model, "4x4", limit_bytes=limit, runtime="jax"))


def test_a_module_means_what_it_returns(pinned):
    assert pinned("transformer.h.0.ln_1", *BLOCK) == pinned("layernormalization_3", *BLOCK)


def test_a_star_means_all_layers(pinned):
    assert pinned("transformer.h.*.ln_1", *BLOCK) == pinned("transformer.h.0.ln_1", *BLOCK)
    assert pinned("transformer.h.*.attn.c_proj.weight", 32, 32) == ["P(None, 'gpu')"]
    assert pinned("transformer.h.*.attn.c_proj.weight", 2, 32, 32) == ["P(None, None, 'gpu')"]


def test_a_reader_has_its_own_way(pinned):
    assert pinned("layernormalization_3", *BLOCK, reader="node_matmul_5") == ["P('machine',)"]
    assert pinned("transformer.h.*.ln_1", *BLOCK, reader="transformer.h.*.attn") == ["P('machine',)"]


def test_segments_are_a_dim_of_their_own(pinned):
    assert pinned("add_6", 4, 16, 3, 32) == ["P('machine', None, None, 'gpu')"]
    assert pinned("add_6", 4, 16, 3, 4, 8) == ["P('machine', None, None, 'gpu')"]
    message = refusal(pinned, "add_6", 4, 16, 96)
    assert message.startswith(
        "error[segmented-dim]: dim 2 of 'add_6' is sharded in each of its segments (32, 32, 32), "
    )


def test_other_sizes_may_be_pinned(pinned):
    assert pinned("add_25", 8, 64, 32) == ["P('machine', 'gpu')"]


def test_wrong_names_are_told(pinned):
    assert refusal(pinned, "transformer.h.0.ln_3", *BLOCK) == (
        "error[unknown-tensor]: the plan has no value, parameter or module 'transformer.h.0.ln_3'\n"
        "hint: did you mean 'transformer.h.0.ln_2'?"
    )
    assert refusal(pinned, "nowhere_near", *BLOCK) == (
        "error[unknown-tensor]: the plan has no value, parameter or module 'nowhere_near'\n"
        "hint: names are those of `plan.tensors`, such as gather_0, gather_1, add_2 and 62 more"
    )
    assert refusal(pinned, "transformer.h.0.attn", *BLOCK[1:]) == (
        "error[wrong-rank]: the array pinned as 'transformer.h.0.attn' has shape [16, 32], the plan has [4, 16, 32]"
    )
    assert refusal(pinned, "add_25", *BLOCK, reader="node_matmul_5") == (
        "error[unknown-reader]: 'node_matmul_5' is no reader of 'add_25': no operator there reads it\n"
        "  it is read by node_layernormalization_26, node_add_34"
    )


def test_a_module_with_several_results_is_asked_about(plans, devices):
    plan = forced_plan_of_parts(plans[0])
    message = refusal(shardplan.jax.constrain, plan, shardplan.jax.mesh(plan), "qkv", jnp.zeros((4, 16, 32)))
    assert message == (
        "error[several-outputs]: module 'qkv' hands on 3 values\n"
        "hint: name one of them: split_7_0, split_7_1, split_7_2"
    )


def forced_plan_of_parts(plan):
    """The plan with its first Split in a module of its own."""
    operators = [replace(op, module="qkv") if op.name == "node_split_7_0" else op for op in plan.operators]
    return replace(plan, operators=tuple(operators))


def test_layers_that_differ_have_no_common_pin(plans, devices):
    plan, whole = plans[0], Layout.of(R, R)
    tensors = [replace(t, layout=whole, served=whole) if t.name == "add_66" else t for t in plan.tensors]
    changed = replace(plan, tensors=tuple(tensors))
    mesh = shardplan.jax.mesh(changed)
    assert refusal(shardplan.jax.constrain, changed, mesh, "transformer.h.*", jnp.zeros(BLOCK)) == (
        "error[layers-differ]: 'transformer.h.*' stands for values that the plan lays out differently\n"
        "  S(0)@machine, S(1)@gpu: add_34\n"
        "  S(0)@machine, S(1)@gpu -> R -> S(0)@machine, S(1)@gpu: add_66\n"
        "hint: solve again with all alike, such as --pin 'transformer.h.*=[machine, gpu, null]', "
        "or do not scan the layers that differ"
    )


def test_a_tree_is_gathered_layer_by_layer(plans, devices):
    """Under ZeRO-3 the body of a scan gathers the weights of its own layer: as often as there are layers."""
    plan = plans[1]
    mesh = shardplan.jax.mesh(plan)
    names = {
        "up": ("model.layers.*.mlp.up_proj.weight", (1, 0)),
        "down": ("model.layers.*.mlp.down_proj.weight", (1, 0)),
    }
    tree = {"up": jnp.ones((2, 32, 128)), "down": jnp.ones((2, 128, 32))}
    stored = jax.device_put(tree, shardplan.jax.shardings(plan, mesh, tree, names=names, strict=False))

    def layer(x, w):
        w = shardplan.jax.constrain_tree(plan, mesh, w, names=names)
        return x + jnp.tanh(x @ w["up"]) @ w["down"], None

    def run(w, x):
        return jax.lax.scan(layer, x, w)[0]

    x = jax.device_put(np.ones((16, 32), np.float32), shardplan.jax.sharding(plan, mesh, "input_ids"))
    check = shardplan.jax.check(run, (stored, x), plan)
    rows = {(row.kind, row.axes, row.count, row.payload_bytes) for row in check.emitted}
    assert rows == {("all_gather", ("machine", "gpu"), 2, 32 * 128 * 4)}
    assert len(check.emitted) == 2
    np.testing.assert_allclose(jax.jit(run)(stored, x), run_plain(tree, np.ones((16, 32), np.float32)), rtol=1e-5)


def run_plain(w, x):
    for layer in range(2):
        x = x + np.tanh(x @ np.asarray(w["up"][layer])) @ np.asarray(w["down"][layer])
    return x


def changed_plan(plan, name, *layouts):
    """The plan with `name` made in one layout and kept in another."""
    made, kept = layouts
    tensors = [replace(t, layout=kept, served=kept) if t.name == name else t for t in plan.tensors]
    operators = [replace(op, makes=(made,)) if op.outputs == (name,) else op for op in plan.operators]
    readless = [replace(op, inputs=(), reads=()) if name in op.inputs else op for op in operators]
    return replace(plan, tensors=tuple(tensors), operators=tuple(readless))


@pytest.mark.parametrize(
    ("made", "kept", "specs"),
    [
        (
            Layout.of(S(2), S(2)),
            Layout.of(S(0), S(1)),
            ["P(None, None, ('machine', 'gpu'))", "P(None, 'gpu', 'machine')", "P('machine', 'gpu')"],
        ),
        (
            Layout.of(S(2), S(2), order=(1, 0)),
            Layout.of(S(0), S(1)),
            ["P(None, None, ('gpu', 'machine'))", "P('machine', None, 'gpu')", "P('machine', 'gpu')"],
        ),
        (
            Layout.of(S(2), S(2)),
            Layout.of(S(1), S(1)),
            ["P(None, None, ('machine', 'gpu'))", "P(None, ('machine', 'gpu'))"],
        ),
        (
            Layout.of(S(0), S(2)),
            Layout.of(R, S(1)),
            ["P('machine', None, 'gpu')", "P('machine', 'gpu')", "P(None, 'gpu')"],
        ),
        # the two would meet on dim 0, of 4
        (Layout.of(S(0), S(1)), Layout.of(S(1), S(0)), ["P('machine', 'gpu')", "P('gpu', 'machine')"]),
    ],
    ids=["two ways", "two ways, other order", "one way", "one moves, one is gathered", "no room"],
)
def test_axes_that_go_to_different_dims_go_one_after_the_other(made, kept, specs, plans, devices):
    plan = changed_plan(plans[0], "add_25", made, kept)
    mesh = shardplan.jax.mesh(plan)
    jaxpr = jax.make_jaxpr(lambda x: shardplan.jax.constrain(plan, mesh, "add_25", x))(jnp.zeros(BLOCK))
    assert [str(equation.params["sharding"].spec) for equation in jaxpr.eqns] == specs


def test_xla_does_not_gather_all_axes_where_one_is_gathered_and_one_moves(plans, devices):
    """Of layouts alone XLA gathers over all 16 devices: 7,680 bytes."""
    plan = changed_plan(plans[0], "add_25", Layout.of(S(2), S(2)), Layout.of(R, S(1)))
    mesh = shardplan.jax.mesh(plan)
    x = jax.device_put(jnp.zeros(BLOCK), NamedSharding(mesh, Spec(None, None, ("machine", "gpu"))))
    check = shardplan.jax.check(lambda x: jnp.cos(shardplan.jax.constrain(plan, mesh, "add_25", x)), (x,), plan)
    assert [(row.kind, row.axes, row.wire_bytes) for row in check.emitted] == [
        ("all_to_all", ("gpu",), 512 * 3 // 4),
        ("all_gather", ("machine",), 512 * 3),
    ]


def test_xla_gathers_nothing_on_such_a_way(plans, devices):
    plan = changed_plan(plans[0], "add_25", Layout.of(S(2), S(2)), Layout.of(S(0), S(1)))
    mesh = shardplan.jax.mesh(plan)
    x = jax.device_put(jnp.zeros(BLOCK), NamedSharding(mesh, Spec(None, None, ("machine", "gpu"))))
    check = shardplan.jax.check(lambda x: jnp.cos(shardplan.jax.constrain(plan, mesh, "add_25", x)), (x,), plan)
    assert [(row.kind, row.axes, row.wire_bytes) for row in check.emitted] == [
        ("all_to_all", ("gpu",), 512 * 3 // 4),
        ("all_to_all", ("machine",), 512 * 3 // 4),
    ]


def test_both_ends_make_an_all_to_all(devices):
    """What pins are for: told both layouts, XLA sends a quarter of what it sends when told one."""
    mesh = Mesh(np.array(devices[:4]), ("gpu",))
    tokens, heads = (NamedSharding(mesh, Spec(*spec)) for spec in (("gpu",), (None, "gpu")))

    def moved(x):
        x = jax.lax.with_sharding_constraint(jnp.sin(x), tokens)
        return jnp.cos(jax.lax.with_sharding_constraint(x, heads))

    text = jax.jit(moved, in_shardings=tokens).lower(jnp.zeros((64, 64))).compile().as_text()
    (row,) = emitted_collectives(parse_module(text), PlanMesh.of(gpu=4))
    assert (row.kind, row.wire_bytes) == ("all_to_all", 3 * 1024)


def test_explicit_axes_and_shard_map_are_refused_in_words(plans, devices):
    plan = plans[0]
    mesh = shardplan.jax.mesh(plan)
    explicit = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Explicit,) * 2)
    with pytest.raises(
        ShardplanError, match=r"error\[explicit-mesh\]: machine, gpu are axes of another type than Auto"
    ):
        shardplan.jax.constrain(plan, explicit, "add_25", jnp.zeros(BLOCK))
    others = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2, devices=devices[:4])
    with (
        jax.set_mesh(others),
        pytest.raises(ShardplanError, match=r"error\[explicit-mesh\]: x, y are axes of another type"),
    ):
        shardplan.jax.constrain(plan, mesh, "add_25", jnp.zeros(BLOCK))

    def inside(x):
        return shardplan.jax.constrain(plan, mesh, "add_25", x)

    mapped = jax.shard_map(inside, mesh=mesh, in_specs=Spec(), out_specs=Spec())
    with pytest.raises(ShardplanError, match=r"error\[inside-shard-map\]: inside shard_map over machine, gpu a device"):
        jax.make_jaxpr(mapped)(jnp.zeros(BLOCK))
