"""`shardplan.torch.cross_entropy`: the loss of split logits is torch's of whole ones, and sends numbers for rows."""

import pytest

pytest.importorskip("torch")

import torch
from forced_plans import forced_plan
from tiny_models import tiny_gpt

import shardplan.torch
from shardplan.errors import ShardplanError


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return forced_plan(tiny_gpt().model(tmp_path_factory.mktemp("plan")), "2x2", recipe="Megatron")


def test_loss_and_gradient_are_torchs(four, plan):
    for wrong in four.run("torch_losses", "compare", plan):
        assert wrong == []


def test_nothing_as_wide_as_the_classes_is_sent(four, plan):
    for largest in four.run("torch_losses", "sent", plan):
        assert 0 < largest <= 8


def test_what_is_not_sharded_is_torchs():
    logits, target = torch.randn(4, 8), torch.tensor([1, 2, -100, 0])
    assert shardplan.torch.cross_entropy(logits, target) == torch.nn.functional.cross_entropy(logits, target)


def test_an_unknown_reduction_is_refused():
    with pytest.raises(ShardplanError, match=r"there is no reduction 'avg'"):
        shardplan.torch.cross_entropy(torch.randn(4, 8), torch.zeros(4, dtype=torch.long), reduction="avg")
