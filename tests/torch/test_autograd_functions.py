"""`autograd.Function`s of a program run under plans, with the backward that the program gives them."""

import pytest

pytest.importorskip("torch")

from forced_plans import forced_plan
from tiny_models import tiny_gpt

TINY = tiny_gpt()


@pytest.fixture(scope="module")
def plan_of(tmp_path_factory):
    model = TINY.model(tmp_path_factory.mktemp("model"))
    return lambda recipe, **options: forced_plan(model, "2x2", recipe=recipe, **options)


@pytest.mark.parametrize("recipe", ["Megatron + sequence", "ZeRO-3"])
def test_it_trains_as_one_process_and_sends_what_the_plan_says(four, plan_of, recipe):
    for loss_error, gradient_error, extra, differences in four.run(
        "torch_autograd", "step", TINY, plan_of(recipe), 3.0, False
    ):
        assert loss_error < 1e-5
        assert gradient_error < 1e-5
        assert extra == differences == {}


def test_it_may_be_recomputed(four, plan_of):
    for loss_error, gradient_error, extra, _ in four.run(
        "torch_autograd", "step", TINY, plan_of("Megatron + sequence"), 3.0, True
    ):
        assert loss_error < 1e-5
        assert gradient_error < 1e-5
        assert extra == {}


def test_any_plan_at_all_trains_right(four, plan_of):
    for loss_error, gradient_error, _, _ in four.run(
        "torch_autograd", "step", TINY, plan_of("", seed=1), 3.0, False, False
    ):
        assert loss_error < 1e-5
        assert gradient_error < 1e-5
