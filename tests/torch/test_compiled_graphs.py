"""Graphs that are compiled between their moves: results, the order of moves, and gradients."""

import os
import shutil

import pytest

pytest.importorskip("torch")

import onnx
import torch
from forced_plans import forced_plan
from small_models import proto_of
from torch_compiled import TEXT

from shardplan.model.read import read_model
from shardplan.torch.exported.compiled_gradients import ends_of


@pytest.fixture(scope="module")
def plan_of(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "net.onnx"
    onnx.save(proto_of(TEXT), path)
    return lambda mesh, recipe: forced_plan(read_model(path), mesh, recipe=recipe)


@pytest.mark.parametrize(("mesh", "recipe"), [("1x4", "Megatron"), ("2x2", "Megatron"), ("2x2", "ZeRO-3")])
def test_moves_and_missing_gradients_are_those_of_single_operations(four, plan_of, mesh, recipe):
    """On 1x4 one run of operations makes both results, of which one has a gradient. On 2x2 a run gives the gradients of
    a weight and of a bias at once, which operations give one after the other."""
    for error, (plain, compiled), without, runs, again in four.run(
        "torch_compiled", "steps", plan_of(mesh, recipe), "aot_eager"
    ):
        assert runs > 0
        assert again == 0
        assert error < 1e-5
        assert plain == compiled
        assert without == [["scale"], ["scale"]]


@pytest.mark.skipif(not shutil.which(os.environ.get("CXX", "g++")), reason="Inductor needs a C++ compiler")
def test_inductor_compiles_between_moves(four, plan_of):
    for error, (plain, compiled), without, runs, again in four.run(
        "torch_compiled", "steps", plan_of("2x2", "Megatron"), "inductor"
    ):
        assert runs > 0
        assert again == 0
        assert error < 1e-5
        assert plain == compiled
        assert without == [["scale"], ["scale"]]


def test_what_is_written_into_a_tensor_has_the_gradient_of_its_readers():
    """The readers of the tensor do not come behind the write in the graph."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    made = graph.call_method("sin", (x,))
    kept = graph.call_function(torch.zeros, (4,))
    graph.call_method("add_", (kept, made))
    result = graph.call_method("cos", (kept,))
    graph.output([result])
    assert ends_of(graph)[made] == {result}
