"""What autograd saves under a plan, beside transforms of `torch.func`."""

import pytest

pytest.importorskip("torch")

import torch
from torch_layers import plan_of

from shardplan.torch.batches import _asked_for
from shardplan.torch.saved_tensors import saving


def test_transforms_run_where_tensors_are_saved_in_another_form():
    packed, x = [], torch.linspace(0, 1, 4, requires_grad=True)

    def pack(saved):
        packed.append(saved)
        return saved

    refuses = torch.autograd.graph.disable_saved_tensors_hooks
    with saving(pack, lambda kept: kept):
        before = x.exp().sum()
        many = len(packed)
        slopes = torch.func.vmap(torch.func.grad(torch.sin))(x)
        assert len(packed) == many  # transforms save as they do without a plan
        twice = torch.func.hessian(lambda y: y.exp().sum())(x)
        after = x.sin().sum()
        assert len(packed) > many
    (before + after + slopes.sum() + twice.diagonal().sum()).backward()
    wanted = 2 * x.exp() + x.cos() - x.sin()
    assert torch.allclose(x.grad, wanted)
    assert torch.autograd.graph.disable_saved_tensors_hooks is refuses


def test_hooks_of_the_program_are_still_refused_by_transforms():
    with (
        saving(lambda kept: kept, lambda kept: kept),
        torch.autograd.graph.saved_tensors_hooks(lambda kept: kept, lambda kept: kept),
        pytest.raises(RuntimeError, match="saved tensor hooks"),
    ):
        torch.func.grad(torch.sin)(torch.tensor(1.0))


@pytest.mark.parametrize("recipe", ["data parallel", "ZeRO-3", "Megatron"])
@pytest.mark.parametrize("mode", ["eager", "exported"])
def test_passes_without_backward_keep_nothing(four, recipe, mode):
    """Functions that save their own result kept it, and all before it, for ever."""
    for many in four.run("torch_layers", "discarded", plan_of(recipe), mode):
        assert len(set(many)) == 1


@pytest.mark.parametrize(
    ("planned", "batch", "asked"),
    [
        ("input.noise", {"noise"}, "noise"),
        ("input.noise", {"input.noise"}, "input.noise"),
        ("noise", {"noise"}, "noise"),
        ("input.noise", set(), "input.noise"),
    ],
)
def test_a_batch_may_call_an_argument_as_the_model_does(planned, batch, asked):
    assert _asked_for(planned, {planned}, batch) == asked
