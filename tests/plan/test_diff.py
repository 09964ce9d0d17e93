"""What two plans decide differently, grouped over identical layers, with its effect and its cause."""

from dataclasses import replace

import pytest
from example_plans import MESH, example_plan, example_summary

from shardplan.layout.layout import Layout
from shardplan.layout.placement import R, S
from shardplan.plan.diff import Change, diff_plans


def rewritten(pattern: str, layout: Layout, **changes: object):
    """The example with other layouts for the weights whose checkpoint name ends so."""
    tensors = tuple(
        replace(tensor, layout=layout, served=layout, bytes_per_device=tensor.bytes_per_device + 1000)
        if tensor.checkpoint.endswith(pattern)
        else tensor
        for tensor in example_plan().tensors
    )
    return example_plan(tensors=tensors, **changes)


def weights_of(suffix: str) -> list:
    return [tensor for tensor in example_plan().tensors if tensor.checkpoint.endswith(suffix)]


def test_a_plan_and_itself():
    found = diff_plans(example_plan(), example_plan())
    assert found.is_empty
    assert found.unchanged == len(example_plan().tensors) + len(example_plan().operators)


def test_identical_layers_are_one_change():
    suffix = "mlp.down.weight"
    found = diff_plans(example_plan(), rewritten(suffix, Layout.of(R, R)))
    (change,) = found.changes
    assert (change.kind, change.name, change.count) == ("parameter", f"layers.*.{suffix}", len(weights_of(suffix)))
    assert (change.after, change.bytes_delta, change.sign) == ("R", 2000, "~")


def test_what_appears_and_what_goes():
    less = example_plan(tensors=example_plan().tensors[1:])
    gone, new = diff_plans(example_plan(), less).changes[0], diff_plans(less, example_plan()).changes[0]
    assert (gone.sign, new.sign) == ("-", "+")
    assert (gone.before, gone.after) == (new.after, new.before)
    assert gone.bytes_delta == -new.bytes_delta < 0


def test_the_step_and_the_memory():
    summary = example_summary(step_ns=50_000_000)
    found = diff_plans(example_plan(), example_plan(summary=summary))
    effect = found.effect("step")
    assert (effect.delta, round(effect.share, 3)) == (50_000_000 - 41_234_567, 0.213)
    assert found.changes == ()
    assert not found.is_empty
    assert found.effect("memory").delta == 0


def test_causes():
    base = example_plan()
    profile = {"name": "h100-dgx", "levels": [{"name": "up", "link_gbps": 450.0}], "provenance": {"date": "now"}}
    faster = {**profile, "levels": [{"name": "up", "link_gbps": 900.0}], "provenance": {"date": "later"}}
    slow = example_plan(cluster={"name": "h100-dgx", "digest": "a", "profile": profile})
    cases = {
        "model changed (? operators in both)": (base, example_plan(model={**base.model, "digest": "other"})),
        "optimizer adam-mixed → sgd": (base, example_plan(model={**base.model, "optimizer": "sgd"})),
        "dim batch 32 → 64": (base, example_plan(model={**base.model, "dims": {"batch": 64, "sequence": 512}})),
        "constraint added: x: replicate": (base, example_plan(model={**base.model, "constraints": ["x: replicate"]})),
        "cluster h100-dgx → mine": (base, example_plan(cluster={**base.cluster, "name": "mine", "digest": "b"})),
        "cluster profile changed: levels.up.link_gbps 450.0 → 900.0": (
            slow,
            example_plan(cluster={"name": "h100-dgx", "digest": "b", "profile": faster}),
        ),
    }
    for cause, (old, new) in cases.items():
        assert diff_plans(old, new).causes == (cause,)


@pytest.mark.parametrize(("others", "more"), [(0, ()), (4, ()), (5, ("cluster profile changed: 2 more keys",))])
def test_profiles_of_two_names_are_compared_by_their_first_keys(others, more):
    device = {"memory_bytes": 1, "hbm_gbps": 2, "launch_us": 3, "mem_efficiency": 4, "allow_tf32": 5, "kind": 6}
    other = {key: -value if number <= others else value for number, (key, value) in enumerate(device.items())}
    old, new = (
        example_plan(cluster={"name": name, "digest": name, "profile": {"name": name, "device": numbers}})
        for name, numbers in (("a", device), ("b", other))
    )
    told = [f"cluster profile changed: device.{key} {value} → {-value}" for key, value in device.items()]
    shown = told[: 4 if more else others + 1]
    assert diff_plans(old, new).causes == ("cluster a → b", *shown, *more)


def test_operators_are_compared_by_their_splits():
    operators = example_plan().operators
    other = replace(operators[0], split=tuple("-" for _ in MESH.names), compute_ns=operators[0].compute_ns + 7)
    found = diff_plans(example_plan(), example_plan(operators=(other, *operators[1:])))
    (change,) = found.changes
    assert (change.kind, change.after, change.time_ns_delta) == ("operator", "replicated", 7)
    assert isinstance(change, Change)


def test_layouts_are_those_of_the_checkpoint():
    tensor = next(t for t in example_plan().tensors if t.checkpoint and t.perm == (1, 0))
    moved = replace(tensor, layout=Layout.of(S(0), R), served=Layout.of(S(0), R))
    plan = example_plan()
    tensors = tuple(moved if t.name == tensor.name else t for t in plan.tensors)
    (change,) = diff_plans(plan, example_plan(tensors=tensors)).changes
    assert change.after == "S(1)@machine"


def operators_told(**changes: object) -> tuple[str, str]:
    """What is said of an operator that both plans have, where the new one has it with these fields."""
    old = example_plan()
    first = old.operators[0]
    (change,) = diff_plans(old, example_plan(operators=(replace(first, **changes), *old.operators[1:]))).changes
    assert change.kind == "operator"
    return change.before, change.after


def test_operators_are_told_by_layouts():
    """Of what they make; where that is the same, of what they read; names of factors are said where both are."""
    first = example_plan().operators[0]
    other = tuple("zz" for _ in first.split)
    made = tuple(Layout.of(*(S(0) for _ in range(len(MESH)))) for _ in first.makes)
    assert operators_told(split=other, makes=made)[1] == ", ".join(["S(0)@machine,gpu"] * len(made))
    read = tuple(None for _ in first.reads)
    assert operators_told(split=other, reads=read)[1] == f"reads {', '.join(['-'] * len(read))}"
    assert operators_told(split=other)[1] == "zz@machine, zz@gpu"
    assert operators_told(recomputed_before="x")[1].endswith(", recomputed")
