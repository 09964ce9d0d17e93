"""Networks planned in many ways, and each plan run: a sample of what benchmarks/models.py does with all of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from plan_forms import decisions_of, plans_of

from shardplan.graph.options import PlanOptions
from shardplan.model.read import read_model
from shardplan.model.types import Operator
from shardplan.program.machine.verify import verify_plan
from shardplan.program.reference.evaluate import evaluate
from shardplan.program.shrink.shrink import shrink

MODELS = Path(__file__).parents[1] / "models"
LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
TRAINING, INFERENCE = PlanOptions(effort="quick"), PlanOptions(effort="quick", mode="inference")


@cache
def network(name):
    folder = LIGHT if name.startswith("light_") else MODELS
    return read_model(folder / f"{name}.onnx")


def assert_all_run(name, mesh, options, forms):
    """Every value is right, and every collective moves what it was priced with; the decisions of the plans."""
    model = network(name)
    decisions = set()
    for form, plan in plans_of(model, mesh, options, forms):
        assert plan is not None, form
        report = verify_plan(*shrink(model, plan))
        assert report.mismatch is None, (form, report.mismatch)
        assert report.mispriced == [], form
        decisions.add(decisions_of(plan))
        for kind in report.priced_bytes.keys() - {"permute", "all_to_all"}:
            assert report.moved_bytes[kind] == report.priced_bytes[kind], (form, kind)
    return decisions


@pytest.mark.parametrize(
    ("name", "forms"),
    [
        ("gpt2_small", ("tight memory", "Megatron + sequence", "random")),
        ("llama3_8b", ("dear net", "ZeRO-3")),
        ("resnet50", ("cheap net",)),
        ("gshard_moe", ("Megatron", "random")),
        ("lstm_lm", ("best", "dear net", "random")),
    ],
)
def test_models_of_this_repository(name, forms):
    assert len(assert_all_run(name, "2x2", TRAINING, forms)) == len(forms)


@pytest.mark.parametrize("name", ["light_bvlc_alexnet", "light_squeezenet", "light_zfnet512"])
def test_networks_of_the_onnx_package(name):
    """`random` finds what nobody plans: shards of flattened images, of every space dim, of segments of channels."""
    assert_all_run(name, "2x2", INFERENCE, ("dear net", "random"))


def test_on_three_axes():
    assert_all_run("lstm_lm", "2x2x2", TRAINING, ("cheap net", "random"))


@pytest.mark.parametrize("version", [18, 21])
def test_groups_are_normalised_as_the_evaluator_does(version):
    draw = np.random.default_rng(0)
    data, per = draw.standard_normal((2, 8, 3, 5)), 4 if version == 18 else 8
    operands = [data, draw.standard_normal(per), draw.standard_normal(per)]
    operator = Operator("n", "GroupNormalization", ("x", "s", "b"), ("y",), {"num_groups": 4}, version=version)
    node = helper.make_node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=4)
    infos = [helper.make_tensor_value_info(name, onnx.TensorProto.DOUBLE, None) for name in "xsby"]
    graph = helper.make_graph([node], "g", infos[:3], infos[3:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])
    (expected,) = ReferenceEvaluator(model).run(None, dict(zip("xsb", operands, strict=True)))
    (found,) = evaluate(operator, operator.attributes, operands)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
