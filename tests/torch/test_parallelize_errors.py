"""What is said where a model, a mesh or a batch is not the plan's."""

import pytest

pytest.importorskip("torch")

import torch_twins
from forced_plans import forced_plan
from tiny_models import tiny_gpt
from torch import nn
from torch_layers import plan_of

from shardplan.errors import ShardplanError
from shardplan.torch.parameters.gradient_hooks import refuse_hooks_of_several
from shardplan.torch.parameters.naming import name_parameters, trained_and_unnamed

TEXTS = {
    "mesh": "error[wrong-mesh]: the mesh is gpu=4, the plan's is machine=2 x gpu=2",
    "extra": "error[unplanned-parameter]: the results depend on trained parameters that the plan does not name\n  gain",
    "missing": "error[missing-parameter]: the plan names a parameter that the model does not have",
    "shape": "error[wrong-shape]: 'lm_head.weight' has shape [7, 32], the plan has [96, 32]",
    "twice": "error[already-parallel]: a plan has been applied to this model already",
    "batch": "error[wrong-shape]: input 'input_ids' has shape [4, 8], the plan is for [4, 16]",
    "inputs": "error[unknown-input]: the plan has no input 'input_idz'",
    "another model": "\nhint: apply the plan with strict=False: the result is right, but more is sent than the plan "
    "says. If the model is not the one that was planned, solve again for it",
    "unknown operation": "error[unknown-operation]: operations without a rule were run whole on every process: "
    "renorm (1 times)",
    "own collective": "error[own-collective]: the model calls a collective (all_reduce) on a value",
    "inner backward": "error[lost-gradient]: a program calls backward on a value inside a model under a plan, as rever",
    "kept value": "error[lost-gradient]: a loss depends on a value inside of the model, which a forward hook or the "
    "model itself has kept\n  under a plan such values have gradients while the model runs; what it returns has them "
    "afterwards too\nhint: let the model return the value beside its result, and compute the loss of what it returns",
    "not parallel": "error[not-parallel]: no plan has been applied to this model",
}


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return forced_plan(tiny_gpt().model(tmp_path_factory.mktemp("plan")), "2x2", recipe="Megatron + sequence")


@pytest.mark.parametrize("what", TEXTS)
def test_refusal(four, plan, what):
    for said in four.run("torch_cases", "refused", tiny_gpt(), plan, what):
        assert TEXTS[what] in said
        assert "hint: " in said
        if what == "another model":
            assert "error[unrealised-move]" in said


COMPUTED = {
    "pruned": "'up.weight_orig', 'up.weight_mask'",
    "normed": "'up.parametrizations.weight.original0', 'up.parametrizations.weight.original1'",
}


@pytest.mark.parametrize("what", COMPUTED)
def test_a_weight_that_is_computed_since_is_refused(four, what):
    """It was a KeyError. When it is a parameter again, the model runs."""
    for said, error in four.run("torch_layers", "computed", plan_of("ZeRO-3"), what):
        assert said == (
            "error[changed-model]: the model has no parameter 'up.weight' any more, which it had when the plan was "
            f"applied\n  it is now computed from {COMPUTED[what]}\nhint: prune, or put weight norm and other "
            "parametrizations on, before the plan is made and applied; or make the result a parameter again "
            "(prune.remove, parametrize.remove_parametrizations)"
        )
        assert error < 1e-6


def test_weights_that_the_plan_does_not_name_are_left_alone(plan):
    """Adapters of whole layers keep the layers that they are copies of; what is trained is not read."""
    model = torch_twins.twin(tiny_gpt())
    planned = name_parameters(model, plan, rename=None, ignore=(), strict=True)
    model.kept = nn.Linear(2, 2).requires_grad_(False)
    assert name_parameters(model, plan, rename=None, ignore=(), strict=True).keys() == planned.keys()
    model.kept.bias.requires_grad_(True)
    with pytest.raises(ShardplanError, match=r"a parameter that the plan does not name\n  kept.bias"):
        name_parameters(model, plan, rename=None, ignore=(), strict=True)
    assert trained_and_unnamed(model, plan, rename=None, ignore=()) == ["kept.bias"]
    assert trained_and_unnamed(model, plan, rename=None, ignore=("kept.*",)) == []
    del model.lm_head
    with pytest.raises(ShardplanError, match="missing-parameter"):
        name_parameters(model.requires_grad_(False), plan, rename=None, ignore=(), strict=True)


def test_a_hook_on_a_weight_of_several_stages_is_refused():
    model = nn.Linear(2, 2)
    model.weight.register_hook(lambda gradient: gradient.clamp(-1, 1))
    refuse_hooks_of_several(model, {"weight": [1], "bias": [0, 1]})
    with pytest.raises(ShardplanError, match=r"hooked-parameter.*'weight' has a hook on its gradient and several"):
        refuse_hooks_of_several(model, {"weight": [0, 1], "bias": [1]})


def test_what_every_process_computes_whole_later_is_said_once(four, plan):
    said, *others = four.run("torch_cases", "later", tiny_gpt(), plan)
    assert [text.split(":")[0] for text in said] == ["renorm has no rule for what it was given"]
    assert others == [[]] * 3
