"""Programs that are hard to write as graphs: right under `parallelize_exported`, or refused in words."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxscript")

import torch_graphs
from forced_plans import forced_plan

from shardplan.torch.planning.plan import read_module


@pytest.fixture(scope="module")
def model():
    return read_module(*torch_graphs.seeded())


@pytest.mark.parametrize("how", [{"recipe": "ZeRO-3"}, {"seed": 1}, {"seed": 3}])
def test_views_that_are_changed_and_norms_of_split_dims(four, model, how):
    for loss_error, gradient_error in four.run("torch_graphs", "train", forced_plan(model, "2x2", exposed=0.02, **how)):
        assert loss_error < 1e-5
        assert gradient_error < 1e-5


SAID = {
    "shape of data": "error[cannot-export]: 'index_1' has a shape that depends on data, and a graph has fixed ones",
    "own function": "Doubled is an autograd.Function, of which a graph has the forward alone: its gradient is that of ",
    "hook": "this model as a graph: it hooks the gradient of a value (Tensor.register_hook), which a graph leaves out",
    "gradient of an input": "error[input-gradient]: input 'x' is to have a gradient, which this graph does not bring",
}


@pytest.mark.parametrize("kind", SAID)
def test_what_a_graph_cannot_hold_is_said(four, model, kind):
    for said in four.run("torch_graphs", "told", forced_plan(model, "2x2", recipe="ZeRO-3"), kind):
        assert SAID[kind] in said
