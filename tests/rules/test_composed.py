"""Rules composed from the bodies of functions, compared with the tables and carried out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from node_cases import NodeCase, collect, grown
from node_reference import evaluate, widen
from rule_mesh import execute, strategies

from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import RP, P, R, S
from shardplan.model.types import Model, Operator, Tensor
from shardplan.rules import rule_for
from shardplan.rules.body import body_of, has_body
from shardplan.rules.composed import _MERGED, _Composer, _State, _Walk, composed
from shardplan.rules.signature import Shaped, Signature, sign
from shardplan.rules.types import InnerCollective, Rule

LATEST = 23


def signature(
    kind: str, *shapes: tuple[int, ...], made: tuple[int, ...], version: int = LATEST, **attributes
) -> Signature:
    operands = tuple(Shaped(shape, "float") for shape in shapes)
    return Signature(kind, version, operands, (Shaped(made, "float"),), tuple(sorted(attributes.items())))


def placed(rule: Rule) -> list[tuple]:
    """What each option does, by placements."""
    return [(option.size, option.operands, option.results) for option in rule.options]


CASES = {
    name: case
    for name, _, case in collect(
        "gelu", "softplus", "celu", "swiglu", "softmax", "logsoftmax", "layernormalization", "rmsnormalization",
        "meanvariancenormalization", "rotaryembedding", "reducel1", "reducesumsquare", "hardswish", "mish", "selu",
        "flexattention",
    )
    if isinstance(case, NodeCase)
}  # fmt: skip


def compose(case: NodeCase) -> Rule:
    """The rule from the body, as if no table had the operator."""
    known = tuple(range(len(case.operands))) if case.kind.startswith("Reduce") else ()
    found = composed(sign(case.operator, case.model, known), rule_for)
    assert found is not None
    return found


def splits(rule: Rule) -> dict[str, bool]:
    """Shards of the operands, as text -> whether the option communicates inside."""
    options = (option for option in (*rule.options, *rule.latent) if not any(p.segments for p in option.operands))
    return {", ".join(str(p) if p.is_shard else "_" for p in o.operands): bool(o.inner) for o in options}


FLATTENED = {"LayerNormalization", "RotaryEmbedding"}
"""Operators whose bodies merge dims, of which then only the first can be split."""


@pytest.mark.parametrize("name", CASES)
def test_bodies_allow_what_the_tables_allow(name):
    """The same splits, free or not, as the line that people wrote; fewer where the body merges dims."""
    case = grown(CASES[name], 1, 4)
    found, own = splits(compose(case)), splits(case.rule)
    assert found.items() <= own.items()
    assert found == own or case.op_type in FLATTENED
    assert found


@pytest.mark.parametrize("name", ["test_gelu_default_2", "test_swiglu", "test_rotary_embedding", "test_selu"])
def test_free_options_give_what_the_whole_gives(name):
    case = grown(CASES[name], 1, 4)
    rule = compose(case)
    twin = replace(case)
    twin.__dict__["rule"] = replace(rule, options=tuple(option for option in rule.options if not option.inner))
    for mesh in (Mesh.of(x=2), Mesh.of(x=2, y=2)):
        found = list(strategies(twin, mesh))
        assert found
        for strategy in found:
            assert execute(twin, strategy, mesh) == "", [option.label for option in strategy]


def carry_out(case: NodeCase, factor: str, ways: int = 2) -> None:
    """Run the body operator by operator on all devices, all-reducing what the rule combines inside; `AssertionError`
    unless the devices together have the results of the whole operator."""
    found = sign(case.operator, case.model, ())
    body = body_of(found)
    composer = _Composer(found, body, [rule_for(operator, body.model) for operator in body.model.operators])
    places, option = next(pair for pair in composer.options() if pair[1].factor == factor)
    walk = _Walk(body.model, composer.rules, places, {name: _State(S(dim)) for name, dim in places if name[0] == "o"})
    walk.run()
    held: list[dict[str, np.ndarray]] = [{} for _ in range(ways)]
    for name, array, placement in zip(composer.operands, case.operands, option.operands, strict=True):
        for rank, device in enumerate(held):
            shard = np.split(array, ways, placement.dim)[rank] if placement.is_shard else array
            device.update({name: widen(case.kind, shard)})
    tensors = zip(composer.operands, found.operands, strict=True)
    shapes = tuple(Shaped(held[0][name].shape, tensor.dtype) for name, tensor in tensors)
    local = body_of(replace(found, operands=shapes)).model
    numbers = {name: array for name, array in body.model.constants.items() if array.dtype.kind == "f"}
    constants = {**local.constants, **numbers}  # shapes are those of the shards, but a scale is that of the whole
    partial: dict[str, tuple[str, bool]] = {}
    sums = 0
    for operator, whole, rule in zip(local.operators, body.model.operators, composer.rules, strict=True):
        for device in held:
            given = [device.get(name, constants.get(name)) if name else None for name in operator.inputs]
            made = evaluate(operator.kind, operator.version, operator.attributes, given, len(operator.outputs))
            device.update(zip(operator.outputs, made, strict=True))
        split = walk._option(whole, rule)
        passed = [partial[name] for name in whole.inputs if name in partial]
        for place, name in enumerate(whole.outputs):
            if split and split.results[place].kind == "P":
                partial[name] = (split.results[place].reduction, split.averaged)
            elif not split and passed:
                partial[name] = passed[0]
            if name in partial and walk.of(name) == _MERGED:
                merge(held, name, *partial.pop(name))
                sums += 1
    assert sums == sum(collective.phase == "forward" for collective in option.inner)
    for name, expected, placement in zip(composer.results, case.results, option.results, strict=True):
        parts = [device[name] for device in held]
        together = {"S": lambda parts, p: np.concatenate(parts, p.dim), "P": lambda parts, _: sum(parts)}
        made = together.get(placement.kind, lambda parts, _: parts[0])(parts, placement)
        np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)


def merge(held: list[dict[str, np.ndarray]], name: str, reduction: str, averaged: bool) -> None:
    """All-reduce a value."""
    combined = {"sum": np.add, "max": np.maximum}[reduction].reduce([device[name] for device in held])
    for device in held:
        device.update({name: combined / len(held) if averaged else combined})


INSIDE = {
    "test_softmax_axis_1": "b", "test_logsoftmax_axis_0": "a", "test_layer_normalization_2d_axis1": "b",
    "test_rms_normalization_3d_axis2_epsilon": "c", "test_mvn": "ac", "test_flexattention": "d",
}  # fmt: skip
"""Factors that are split at the price of combining values of the body itself."""


@pytest.mark.parametrize("name", INSIDE)
def test_collectives_inside_give_what_the_whole_gives(name):
    case = grown(CASES[name], 1, 4)
    found = [option.factor for option in compose(case).options if option.inner]
    assert set(INSIDE[name]) <= set(found)
    for factor in INSIDE[name]:
        carry_out(case, factor)


def test_statistics_are_all_reduced_inside():
    rule = composed(signature("Softmax", (4, 6), made=(4, 6), axis=-1), rule_for)
    rows, columns = rule.options
    assert placed(rule) == [(4, (S(0),), (S(0),)), (6, (S(1),), (S(1),))]
    assert rows.inner == ()
    both = (InnerCollective("all_reduce", 16), InnerCollective("all_reduce", 16, "backward"))
    assert columns.inner == both + both, "the largest of each row, and the sum of its exponentials"
    assert rule.equation == "a ~b -> a ~b"


def test_partial_sums_pass_through_linear_bodies():
    rule = composed(signature("SwiGLU", (4, 6), (4, 6), made=(4, 6), version=28), rule_for)
    assert rule.linear == ((1,),), "linear in what the gate multiplies"
    assert composed(signature("Gelu", (4, 6), made=(4, 6)), rule_for).linear == ()


def test_sums_that_nothing_reads_inside_are_results():
    operands = (Shaped((4, 6), "float"), Shaped((1,), "int64"))
    found = Signature("ReduceL1", 18, operands, (Shaped((4,), "float"),), (("keepdims", 0),), ((1, (1,)),))
    assert placed(composed(found, rule_for)) == [(4, (S(0), RP), (S(0),)), (6, (S(1), RP), (P(),))]


def test_counts_in_attributes_stand_against_a_split():
    """Groups come out of a reshape to their number, which is an attribute: half of the channels are no half of it."""
    shapes = (4, 12, 8, 8), (12,), (12,)
    rule = composed(signature("GroupNormalization", *shapes, made=(4, 12, 8, 8), num_groups=4), rule_for)
    assert [option.operands for option in rule.options] == [(S(0), RP, RP)]


def test_attributes_that_are_not_given_have_their_defaults():
    """A mean over all dims but the channels is the default; without it the body would take the mean over everything."""
    rule = composed(signature("MeanVarianceNormalization", (2, 4, 6, 8), made=(2, 4, 6, 8)), rule_for)
    assert [bool(option.inner) for option in rule.options] == [True, False, True, True]


def test_a_table_with_a_gap_is_filled():
    """As if `Gelu` had no line: the body stands in for it, and what is in the body keeps its own rules."""
    asked = []

    def without_gelu(operator: Operator, model: Model) -> Rule:
        asked.append(operator.kind)
        return rule_for(operator, model)

    rule = composed(signature("Gelu", (4, 6), made=(4, 6)), without_gelu)
    assert "Gelu" not in asked
    assert "Erf" in asked
    assert rule.cost == "pointwise"
    assert rule.saved_operands == (0,)
    assert rule.backward_flops > rule.flops > 24


def one_operator(operator: Operator, *shapes: tuple[int, ...], made: tuple[int, ...]) -> Model:
    tensors = {
        name: Tensor(name, shape, "float", "activation") for name, shape in zip(operator.inputs, shapes, strict=True)
    }
    tensors["y"] = Tensor("y", made, "float", "activation")
    return Model("m", (operator,), tensors, (), (), (), {})


FLEX = Operator("n", "FlexAttention", ("q", "k", "v"), ("y",), {}, "ai.onnx.preview", 1)


def test_an_operator_that_no_table_has():
    assert has_body("ai.onnx.preview.FlexAttention", 1)
    model = one_operator(FLEX, (2, 4, 8, 16), (2, 4, 6, 16), (2, 4, 6, 16), made=(2, 4, 8, 16))
    rule = rule_for(FLEX, model)
    assert not rule.fallback
    assert rule is rule_for(FLEX, model)
    assert rule.equation == "a b c ~d, a b ~e ~d, a b ~e f -> a b c f"
    assert rule.options[1].operands == (S(1), S(1), S(1))
    assert rule.options[2].operands == (S(2), RP, RP)
    assert rule.linear == ((2,),)
    assert rule.cost == "gemm"
    assert rule.flops > 2 * 2 * 4 * 8 * 6 * (16 + 16)


def test_what_has_a_nested_graph_is_replicated():
    attributes = {"score_mod": "sha256:0123"}
    model = one_operator(
        replace(FLEX, attributes=attributes), (2, 4, 8, 16), (2, 4, 6, 16), (2, 4, 6, 16), made=(2, 4, 8, 16)
    )
    assert rule_for(model.operators[0], model).fallback


@pytest.mark.parametrize("kind", ["MatMul", "NoSuchOperator", "com.example.Thing"])
def test_without_a_body_there_is_no_rule(kind):
    assert not has_body(kind, LATEST)
    assert composed(signature(kind, (4, 6), (6, 4), made=(4, 4)), rule_for) is None


def test_shapes_that_do_not_fit_give_no_rule():
    assert body_of(signature("LayerNormalization", (4, 6), (5,), made=(4, 6))) is None


def test_absent_operands_stay_absent():
    operands = (Shaped((4, 6), "float"), Shaped((6,), "float"), None)
    rule = composed(Signature("LayerNormalization", LATEST, operands, (Shaped((4, 6), "float"),)), rule_for)
    assert placed(rule) == [(4, (S(0), RP, R), (S(0),)), (6, (S(1), S(0), R), (S(1),))]
