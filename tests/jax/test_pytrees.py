"""From leaves of pytrees to parameters of plans: names, transposed kernels, stacked layers, divided dims."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("jax")

from example_plans import example_plan

from shardplan.errors import ShardplanError
from shardplan.jax.flax import flax_names
from shardplan.jax.fused_weights import Part
from shardplan.jax.pytrees import match_leaves
from shardplan.layout.layout import Layout
from shardplan.layout.placement import R, S

QKV = "layers.*.attention.qkv.weight"
SHAPES = {
    "embed": (32000, 1024),
    "norm": (2, 1024),
    "qkv": (2, 1024, 3, 16, 64),
    "out": (2, 1024, 1024),
    "up": (2, 1024, 4096),
    "down": (2, 4096, 1024),
}
NAMES = {
    "embed": "head.weight",  # by its alias
    "norm": "layers.*.norm.weight",
    "qkv": (QKV, (1, 0)),
    "out": ("layers.*.attention.out.weight", (1, 0)),
    "up": "layers.*.mlp.up.weight",
    "down": "layers.*.mlp.down.weight",
}


def refusal(**changes):
    names = {**NAMES, **changes.pop("names", {})}
    with pytest.raises(ShardplanError) as caught:
        match_leaves(changes.pop("plan", example_plan()), {**SHAPES, **changes}, names)
    return str(caught.value)


def test_stacked_transposed_and_divided_leaves():
    leaves = match_leaves(example_plan(), SHAPES, NAMES)
    assert {path: [named.decision.checkpoint for named in leaf.parameters] for path, leaf in leaves.items()} == {
        "embed": ["embed.weight"],
        "norm": ["layers.0.norm.weight", "layers.1.norm.weight"],
        "qkv": ["layers.0.attention.qkv.weight", "layers.1.attention.qkv.weight"],
        "out": ["layers.0.attention.out.weight", "layers.1.attention.out.weight"],
        "up": ["layers.0.mlp.up.weight", "layers.1.mlp.up.weight"],
        "down": ["layers.0.mlp.down.weight", "layers.1.mlp.down.weight"],
    }
    assert [leaf.stacked for leaf in leaves.values()] == [False, True, True, True, True, True]
    qkv = leaves["qkv"]
    assert qkv.divided == ((1024,), (3, 16, 64))
    assert qkv.first.shape == (1024, 3072)
    assert qkv.first.layout == Layout.of(R, S(1, (1024, 1024, 1024)))


def test_names_may_be_a_function_or_absent():
    plan = example_plan()
    by_function = match_leaves(plan, SHAPES, NAMES.__getitem__)
    assert by_function == match_leaves(plan, SHAPES, NAMES)
    shapes = {"embed.weight": (32000, 1024)}
    assert list(match_leaves(plan, shapes, strict=False)) == ["embed.weight"]


def test_leaves_of_none_are_left_out():
    leaves = match_leaves(example_plan(), {**SHAPES, "step": ()}, {**NAMES, "step": None})
    assert list(leaves) == list(SHAPES)


def test_layers_are_stacked_in_the_order_of_their_numbers():
    tensors = [
        replace(
            tensor, checkpoint=tensor.checkpoint.replace("layers.0.", "layers.10.").replace("layers.1.", "layers.9.")
        )
        for tensor in example_plan().tensors
    ]
    leaves = match_leaves(example_plan(tensors=tuple(tensors)), SHAPES, NAMES)
    assert [named.decision.checkpoint for named in leaves["norm"].parameters] == [
        "layers.9.norm.weight",
        "layers.10.norm.weight",
    ]


PARTS = {part: Part(QKV, start, start + 1024, perm=(1, 0)) for part, start in (("q", 0), ("k", 1024), ("v", 2048))}


def test_parts_of_a_fused_weight():
    shapes = {name: shape for name, shape in SHAPES.items() if name != "qkv"}
    shapes |= {"q": (2, 1024, 16, 64), "k": (2, 1024, 1024), "v": (2, 1024, 1024)}
    leaves = match_leaves(example_plan(), shapes, {**NAMES, **PARTS})
    assert leaves["q"].divided == ((1024,), (16, 64))
    assert leaves["q"].part == Part("layers.0.attention.qkv.weight", 0, 1024, perm=(1, 0))
    assert [named.decision.checkpoint for named in leaves["v"].parameters] == [
        "layers.0.attention.qkv.weight",
        "layers.1.attention.qkv.weight",
    ]


@pytest.mark.parametrize(
    ("part", "code", "what"),
    [
        (
            Part(QKV, 0, 512, perm=(1, 0)),
            "wrong-shape",
            "'qkv' has shape [1024, 1024], that part of '{name}' has [1024, 512]",
        ),
        (
            Part(QKV, 2048, 4096),
            "wrong-part",
            "entries 2048 to 4096 of dim 0 are no part of '{name}' of shape [3072, 1024]",
        ),
    ],
)
def test_wrong_parts_are_refused(part, code, what):
    first = refusal(qkv=(2, 1024, 1024), names={"qkv": part}).splitlines()[0]
    assert first == f"error[{code}]: {what.format(name='layers.0.attention.qkv.weight')}"


def test_a_stack_of_another_height_is_refused():
    assert refusal(norm=(3, 1024)) == (
        "error[wrong-stack]: 'norm' has shape [3, 1024], but the plan has 2 of what it stacks\n"
        "  layers.0.norm.weight, layers.1.norm.weight ...\n"
        "hint: layers are stacked on the first dim"
    )


def test_layers_that_differ_cannot_be_stacked():
    tensors = [
        replace(tensor, layout=Layout.of(R, R), served=Layout.of(R, R))
        if tensor.checkpoint == "layers.1.mlp.down.weight"
        else tensor
        for tensor in example_plan().tensors
    ]
    assert refusal(plan=example_plan(tensors=tuple(tensors))) == (
        "error[layers-differ]: 'down' stacks layers that the plan lays out differently\n"
        "  S(0)@gpu, served S(0)@gpu: layers.0.mlp.down.weight\n"
        "  R, served R: layers.1.mlp.down.weight\n"
        "hint: solve again with all alike, such as --pin 'layers.*.mlp.down.weight=[gpu, null]', "
        "or keep the layers apart"
    )


def test_a_kernel_that_is_not_said_to_be_transposed_is_refused():
    message = refusal(up=(2, 4096, 1024))
    assert message.startswith("error[wrong-shape]: 'up[0]' has shape [4096, 1024], the plan has [1024, 4096]\n")
    assert "let the renaming return (name, perm) with perm [1, 0]" in message


def test_leaves_and_parameters_without_a_partner_are_refused():
    message = refusal(names={"up": "layers.*.mlp.upp.weight"})
    assert "error[unplanned-parameter]: the model has a parameter that the plan does not name" in message
    assert "error[missing-parameter]: the plan names 2 parameters that the model does not have" in message


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("params.layers_0.mlp.up.kernel", ("layers.0.mlp.up.weight", (1, 0))),
        ("params.layers_11.norm.scale", "layers.11.norm.weight"),
        ("params.embed.embedding", "embed.weight"),
        ("params.head.bias", "head.bias"),
        ("layers.3.attn.q_proj.kernel.value", ("layers.3.attn.q_proj.weight", (1, 0))),
        ("batch_stats.bn_1.mean", "bn.1.running_mean"),
        ("params.q_proj.kernel", ("q_proj.weight", (1, 0))),
        ("params.rotary.inv_freq", "rotary.inv_freq"),
    ],
)
def test_names_of_flax(path, target):
    assert flax_names(path) == target
