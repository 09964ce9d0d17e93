"""The statistics of a batch are communication that a plan prices, where its batch norms train."""

import pytest

pytest.importorskip("torch")

import onnx
import torch
from torch import nn
from torch.nn import functional

import shardplan.torch
from shardplan.runtime.predicted import inner_operators
from shardplan.torch.planning.onnx_program import onnx_bytes
from shardplan.torch.planning.plan import read_module

BATCH = (256, 3, 32, 32)
SPLIT = {"axes": {"machine": {"inputs": 0}, "gpu": {"inputs": 0}}, "parameters": {"*": "replicate"}}


class Net(nn.Module):
    """A batch norm of each kind: one that trains, one that is frozen, and a function that always goes by its batch."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 128, 3, padding=1), nn.BatchNorm2d(128)
        self.second, self.frozen = nn.Conv2d(128, 128, 3, padding=1), nn.BatchNorm2d(128).eval()
        self.third = nn.Conv2d(128, 128, 3, padding=1)

    def forward(self, x):
        x = self.frozen(self.second(torch.relu(self.norm(self.first(x)))))
        return functional.batch_norm(self.third(x), None, None, training=True).mean()


def net():
    with torch.device("meta"):
        return Net()


def norms(model, **asked):
    found = read_module(model, torch.zeros(BATCH, device="meta"), **asked)
    return [each for each in found.operators if each.op_type == "BatchNormalization"]


def training(model, **asked):
    return [each.attributes.get("training_mode", 0) for each in norms(model, **asked)]


def test_norms_that_train_take_statistics_of_the_batch():
    model = net()
    assert training(model)[:2] == [1, 0]
    assert model.norm.training
    assert not model.frozen.training


def test_the_graph_is_legal():
    graph = onnx.load_from_string(onnx_bytes(net(), (torch.zeros(BATCH, device="meta"),), {}, trains=True))
    onnx.shape_inference.infer_shapes(graph, check_type=True, strict_mode=True)
    made = [node.output for node in graph.graph.node if node.op_type == "BatchNormalization"]
    assert [len(names) for names in made[:2]] == [3, 1]


def test_norms_do_not_train_in_evaluation_and_inference():
    assert training(net().eval())[:2] == [0, 0]
    assert training(net(), trains=False)[:2] == [0, 0]


def test_a_function_that_always_trains_does_so_in_evaluation():
    class Always(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))
            self.register_buffer("square", torch.ones(3))

        def forward(self, x):
            return functional.batch_norm(x, self.mean, self.square, training=True)

    assert training(Always().eval(), trains=False) == [1]


def test_statistics_of_a_split_batch_are_priced():
    inputs = torch.zeros(BATCH, device="meta")
    made = [
        shardplan.torch.plan(net(), inputs, "2x2", cluster="h100-dgx", constraints=[SPLIT], mode=mode)
        for mode in ("training", "inference")
    ]
    priced = [[each for each in inner_operators(plan) if "batch_norm" in each] for plan in made]
    names = [each.name for each in norms(net())]
    assert names[0] in priced[0]
    assert names[1] not in priced[0]
    assert not priced[1]
