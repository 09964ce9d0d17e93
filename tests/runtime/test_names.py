"""Parameters of a module and the tensors of a plan: who is who, and what is said when somebody is missing."""

import pytest
from example_plans import example_plan

from shardplan.errors import ShardplanError
from shardplan.layout.layout import Layout
from shardplan.layout.placement import R, S
from shardplan.plan.orientation import checkpoint_shape
from shardplan.runtime.names import match_names, parameters_by_name

PLAN = example_plan()
QKV = "layers.0.attention.qkv.weight"


def module():
    """Every parameter under its first name, with the checkpoint's shape."""
    return {t.checkpoint: checkpoint_shape(t.shape, t.perm) for t in PLAN.tensors if t.role == "parameter"}


def refusal(given, **options):
    with pytest.raises(ShardplanError) as caught:
        match_names(PLAN, given, **options)
    return str(caught.value)


def test_every_parameter_finds_its_decision():
    matched = match_names(PLAN, module())
    assert list(matched) == list(module())
    assert matched[QKV].layout == Layout.of(R, S(0, (1024, 1024, 1024)))
    assert matched[QKV].shape == (3072, 1024)
    assert matched["embed.weight"].served != matched["embed.weight"].layout


def test_tied_parameters_may_have_any_of_their_names():
    both = {**module(), "head.weight": (32000, 1024)}
    assert match_names(PLAN, both)["head.weight"].decision is match_names(PLAN, both)["embed.weight"].decision
    second = {name: shape for name, shape in both.items() if name != "embed.weight"}
    assert match_names(PLAN, second)["head.weight"].decision.checkpoint == "embed.weight"
    assert set(parameters_by_name(PLAN)) == set(both)


def test_a_module_may_rename_and_transpose():
    def rename(name):
        return (name.replace("kernel", "weight"), (1, 0)) if name.endswith("kernel") else name

    given = {}
    for name, shape in module().items():
        given[name.replace("weight", "kernel") if len(shape) == 2 else name] = shape[::-1]
    matched = match_names(PLAN, given, rename=rename)
    kernel = matched["layers.0.attention.qkv.kernel"]
    assert kernel.layout == Layout.of(R, S(1, (1024, 1024, 1024)))
    assert (kernel.shape, kernel.perm) == ((1024, 3072), (1, 0))


def test_what_is_missing_and_what_is_too_much_is_said_at_once():
    given = module()
    del given["layers.1.norm.weight"]
    given["layers.1.nrom.weight"] = (1024,)
    del given["embed.weight"]
    assert refusal(given) == (
        "error[unplanned-parameter]: the model has a parameter that the plan does not name\n"
        "  layers.1.nrom.weight [1024]: did you mean 'layers.1.norm.weight'?\n"
        "hint: solve again for this model, or ignore it by name or pattern\n"
        "error[missing-parameter]: the plan names 2 parameters that the model does not have\n"
        "  embed.weight [32000, 1024], also head.weight\n"
        "  layers.1.norm.weight [1024]\n"
        "hint: solve again for this model, or ignore them by name or pattern"
    )
    assert match_names(PLAN, given, ignore=["*.norm.weight", "*.nrom.weight", "embed.*"])
    assert len(match_names(PLAN, given, strict=False)) == len(given) - 1


def test_wrapped_modules_are_recognised():
    wrapped = {f"module.{name}": shape for name, shape in module().items()}
    assert "hint: the model's names begin with 'module.': rename=lambda name: name.removeprefix('module.')" in refusal(
        wrapped
    )
    inner = {name.removeprefix("layers."): shape for name, shape in module().items() if name.startswith("layers.")}
    assert "hint: the plan's names begin with 'layers.': rename=lambda name: 'layers.' + name" in refusal(inner)


def test_long_lists_are_cut():
    text = refusal({f"x{number}": (1,) for number in range(12)})
    assert "  x7 [1]\n  and 4 more\n" in text
    assert "  and 3 more\n" in text


def test_shapes_must_agree():
    assert refusal({**module(), QKV: (1024, 3072)}) == (
        f"error[wrong-shape]: '{QKV}' has shape [1024, 3072], the plan has [3072, 1024]\n"
        "hint: if the module stores it transposed, let the renaming return (name, perm) with perm [1, 0]"
    )
    assert refusal({**module(), QKV: (3072, 512)}) == (
        f"error[wrong-shape]: '{QKV}' has shape [3072, 512], the plan has [3072, 1024]\n"
        "hint: is this the model that was planned, with the same sizes?"
    )


def test_renamings_must_not_merge_or_bend():
    norms = {"a": (1024,), "b": (1024,)}
    assert refusal(norms, rename=lambda _: "layers.0.norm.weight", strict=False) == (
        "error[ambiguous-parameter]: 'a' and 'b' are all called 'layers.0.norm.weight' by the renaming\n"
        "hint: let it return a different name of the checkpoint for each"
    )
    assert refusal({"a": (1024,)}, rename=lambda _: ("layers.0.norm.weight", (1, 0))) == (
        "error[wrong-perm]: 'a': perm [1, 0] is not a permutation of the 1 dim of 'layers.0.norm.weight'"
    )
    assert match_names(PLAN, norms, rename=lambda _: None, strict=False) == {}
