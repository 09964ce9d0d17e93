"""A model in which a dim is held as a larger one computes what the model computes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from control_models import CONTROL_MODELS, TRIPS
from forced_plans import INFERENCE, forced_plan
from node_cases import NodeCase, collect
from node_reference import evaluate
from onnx import parser
from small_models import proto_of

import shardplan
from shardplan.errors import ShardplanError
from shardplan.model.digest import structure_digest
from shardplan.model.read import read_model
from shardplan.padding import neutral
from shardplan.padding.padded import pad_class, padded
from shardplan.plan.file import read_plan
from shardplan.program.machine.values import random_values
from shardplan.program.machine.verify import verify_plan
from shardplan.program.machine.whole import padded_differs
from shardplan.program.padding import padded_values, real_values
from shardplan.program.shrink.classes import carried, relate
from shardplan.rules import model_rules
from shardplan.study.instance import load_model

SMALL = "transformer:layers=2,hidden=60,heads=5,head_size=12,batch=3,seq=8,vocab=61"
SAMPLE = (
    "matmul", "gemm", "einsum", "softmax", "layernormalization", "reducemean", "reducemax", "reduceprod", "reducel2",
    "argmax", "transpose", "reshape", "slice", "split", "concat", "gather", "cumsum", "convtranspose", "lstm",
    "softmax_cross_entropy_loss", "attention", "batch_normalization",
)  # fmt: skip
NEGATIVE = frozenset({"test_gather_elements_negative_indices", "test_gather_negative_indices"})
"""Indices that count from the end of a dim, which is elsewhere when it is padded."""


def with_constants(case: NodeCase):
    """The model of a test case in which all operands are constants, as exporters fold them."""
    given = zip(case.operator.inputs, case.operands, strict=True)
    constants = {name: array for name, array in given if name and array is not None}
    roles = {name: replace(case.model.tensors[name], role="constant") for name in constants}
    return replace(case.model, constants=constants, tensors={**case.model.tensors, **roles})


def growths(model):
    """Every way to hold a dim of a model as one larger: the model, or why there is none."""
    rules = model_rules(model)
    classes = relate(model, rules)
    dims = ((name, dim, size) for name, tensor in model.tensors.items() for dim, size in enumerate(tensor.shape))
    roots = {classes.find((name, dim)): size for name, dim, size in dims if size > 1}
    for root, size in roots.items():
        if root not in classes.fixed:
            yield pad_class(model, rules, classes, root, size + 1)


def outputs(model, values):
    held = dict(values)
    for operator in model.operators:
        operands = [held[name] if name else None for name in operator.inputs]
        made = evaluate(operator.kind, operator.version, operator.attributes, operands, len(operator.outputs))
        held |= dict(zip(operator.outputs, made, strict=True))
    return held


@pytest.mark.parametrize("module", SAMPLE)
def test_padding_changes_nothing_or_is_refused(module):
    """On every test case of the onnx package for an operator."""
    held = refused = 0
    for name, _, case in collect(module):
        if not isinstance(case, NodeCase) or name in NEGATIVE:
            continue
        for larger in (*growths(case.model), *growths(with_constants(case))):
            if isinstance(larger, str):
                refused += 1
                continue
            values = dict(larger.constants)
            for given, array in zip(case.operator.inputs, case.operands, strict=True):
                if array is not None and given in larger.tensors and given not in values:
                    values[given] = padded_values(array, given, larger.tensors[given].shape, larger.padding)
            found = outputs(larger, values)
            for made, expected in zip(case.outputs, case.results, strict=True):
                if made:
                    np.testing.assert_allclose(
                        real_values(found[made], made, larger.padding), expected, rtol=1e-5, atol=1e-7, err_msg=name
                    )
            held += 1
    assert held or refused


@pytest.mark.parametrize("style", ["gpt", "llama"])
@pytest.mark.parametrize(
    ("pads", "masks"),
    [
        ({"input_ids[0]": 4}, 0),
        ({"lm_head.weight[0]": 64}, 0),
        ({"{block}.Reshape[2]": 6}, 2),
        ({"input_ids[0]": 4, "{block}.Reshape[2]": 6}, 2),
    ],
)
def test_a_transformer_with_padded_batch_vocabulary_or_heads(style, pads, masks):
    block = "transformer.h.0.attn" if style == "gpt" else "model.layers.0.self_attn"
    model = load_model(f"{SMALL},style={style}", {})
    if style == "gpt" and "lm_head.weight[0]" in pads:
        pads = {"transformer.wte.weight[0]": 64}  # tied: the vocabulary is looked up, and multiplied with
    larger = padded(model, {name.format(block=block): size for name, size in pads.items()})
    assert len(larger.operators) == len(model.operators) + masks
    assert [len(block.copies) for block in larger.blocks] == [2], "layers are still alike"
    _, error = padded_differs(larger, random_values(model, 3))
    assert error < 1e-12


def test_heads_of_all_layers_are_padded_and_so_are_their_weights():
    larger = padded(load_model(SMALL, {}), {"model.layers.0.self_attn.Reshape[2]": 6})
    shapes = {parameter.name: larger.tensors[parameter.tensor].shape for parameter in larger.parameters}
    assert shapes["model.layers.1.self_attn.q_proj.weight"] == (60, 72)
    assert larger.dims["pad:model.layers.0.self_attn.Reshape[2]"] == 6


@pytest.mark.parametrize("name", sorted(CONTROL_MODELS))
def test_what_loops_carry_is_padded_alike_and_run_iteration_by_iteration(name, tmp_path):
    onnx.save(proto_of(CONTROL_MODELS[name], 21), tmp_path / "m.onnx")
    model = read_model(tmp_path / "m.onnx", TRIPS.get(name, {}))
    held = [larger for larger in growths(model) if not isinstance(larger, str)]
    assert held
    for larger in held:
        _, error = padded_differs(larger, random_values(model, 3))
        assert error < 1e-12
        for begins, ends in carried(larger):
            assert larger.tensors[begins].shape == larger.tensors[ends].shape


LOSS = """<ir_version: 10, opset_import: ["" : 21]>
g (float[6, 10] x, int64[6] t, float[10, 10] w) => (float loss)
  { h = MatMul(x, w) loss = SoftmaxCrossEntropyLoss(h, t) }"""


def test_a_device_whose_classes_are_all_padding_adds_nothing_to_a_loss(tmp_path):
    """Their scores are minus infinity, which times 0 is not a number."""
    onnx.save(parser.parse_model(LOSS), tmp_path / "m.onnx")
    larger = padded(load_model(str(tmp_path / "m.onnx"), {}), {"w[1]": 14})
    splits = set()
    for seed in range(8):
        plan = forced_plan(larger, "7", INFERENCE, seed=seed)
        splits.add(plan.operators[-1].split)
        assert verify_plan(larger, plan).verified
    assert ("c",) in splits


DROPPED = """<ir_version: 10, opset_import: ["" : 21]>
g (float[6, 16] x, float[16, 16] w) => (float[6, 16] y, bool[6, 16] kept)
  <float ratio = {0.5}, bool training = {1}> { h = MatMul(x, w) y, kept = Dropout(h, ratio, training) }"""


def test_a_padded_model_draws_the_numbers_of_the_model(tmp_path):
    onnx.save(parser.parse_model(DROPPED), tmp_path / "m.onnx")
    model = load_model(str(tmp_path / "m.onnx"), {})
    larger = padded(model, {"x[0]": 8, "w[1]": 18})
    assert larger.tensors["kept"].shape == (8, 18)
    assert padded_differs(larger, random_values(model, 0)) == ("y", 0.0)


EXPANDED = """<ir_version: 10, opset_import: ["" : 21]>
g (float[8, 1, 16] x, float[16, 16] w) => (float[8, 4, 16] y)
  <int64[2] s = {4, 1}> { h = MatMul(x, w) y = Expand(h, s) }"""


def test_a_padded_model_depends_on_the_sizes_alone(tmp_path):
    """Its digest is in the plan, which has the sizes only, and not the steps in which they were found."""
    onnx.save(parser.parse_model(EXPANDED), tmp_path / "m.onnx")
    model = load_model(str(tmp_path / "m.onnx"), {})
    at_once = padded(model, {"w[1]": 18, "x[0]": 10})
    turned = padded(model, {"x[0]": 10, "w[1]": 18})
    in_steps = padded(padded(padded(model, {"x[0]": 9}), {"w[1]": 18}), {"x[0]": 10})
    assert at_once.tensors["y"].shape == (10, 4, 18)
    assert structure_digest(at_once) == structure_digest(turned) == structure_digest(in_steps)
    assert at_once.dims == turned.dims == in_steps.dims == {"pad:w[1]": 18, "pad:x[0]": 10}


def plan_of(tmp_path, **asked):
    path = tmp_path / "a.plan.json"
    shardplan.save(shardplan.make_plan(SMALL, "2x2", **asked, effort="quick"), path)
    return path


PADS = {"input_ids[0]": 4, "lm_head.weight[0]": 64, "model.layers.0.self_attn.Reshape[2]": 8}
PINS = ["lm_head.weight=[[machine,gpu], null]", "model.layers.*.self_attn.?_proj.weight=[gpu, null]"]


def test_a_plan_of_padded_shards_is_verified_and_its_own(tmp_path):
    path = plan_of(tmp_path, pads=PADS, pins=PINS)
    plan = read_plan(path)
    model = load_model(SMALL, plan.model["dims"])
    report = verify_plan(model, plan)
    assert report.verified
    assert report.worst < 1e-10
    verdict = shardplan.check(path)
    assert verdict.status == "fresh", verdict.findings
    stale = shardplan.check(path, cluster="a100-dgx")
    assert "--pad 'input_ids[0]=4'" in stale.repair.text


def test_verifying_sees_padding_that_counts(tmp_path, monkeypatch):
    plan = read_plan(plan_of(tmp_path, pads={"model.layers.0.self_attn.Reshape[2]": 6}))
    monkeypatch.setitem(neutral.NEUTRAL, "MatMul", 1.0)
    model = load_model(SMALL, plan.model["dims"])
    values = random_values(model.padding.of, 0)
    name, error = padded_differs(model, values)
    assert (name, error > 0.01) == ("lm_head.MatMul", True)


UNKNOWN = """\
error[unknown-pad]: --pad 'input_id[0]': a dim is called by its tensor and number, such as 'input_ids[0]'
hint: did you mean 'input_ids'?"""
NORMALISED = """\
error[cannot-pad]: --pad 'model.norm.weight[0]=64': the dim cannot be padded
  'model.layers.0.input_layernorm.RMSNormalization' (RMSNormalization) combines the entries of the dim \
(x0 x1 ~k, ~k -> x0 x1 ~k)"""
RANGE = "error[bad-pad]: --pad 'input_ids[0]=9': the dim has a size of 3; it can be held as 4 to 5"
RANK = "error[unknown-pad]: --pad 'input_ids[2]': 'input_ids' has 2 dims, counted from 0"


@pytest.mark.parametrize(
    ("pads", "message"),
    [
        ({"input_id[0]": 4}, UNKNOWN),
        ({"input_ids[2]": 4}, RANK),
        ({"input_ids[0]": 9}, RANGE),
        ({"model.norm.weight[0]": 64}, NORMALISED),
    ],
)
def test_what_cannot_be_padded_is_refused(pads, message):
    with pytest.raises(ShardplanError) as caught:
        padded(load_model(SMALL, {}), pads)
    assert str(caught.value) == message


def test_what_runs_a_model_as_it_is_refuses_a_padded_plan(tmp_path):
    from shardplan.runtime.names import parameters_by_name

    with pytest.raises(ShardplanError) as caught:
        parameters_by_name(read_plan(plan_of(tmp_path, pads={"input_ids[0]": 4})))
    assert str(caught.value) == (
        "error[padded-plan]: the plan holds input_ids[0] as 4, and what is to apply it takes the model as it is\n"
        "hint: solve without --pad and --uneven, or give the model that size; export --to onnx-spmd writes padded"
        " programs"
    )
