"""Models of torch's own modules train as in one process: losses, gradients, buffers, under plans of all kinds."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from forced_plans import forced_plan

from shardplan.model.read import read_model

FOLDER = Path(__file__).parent / "models"
NAMES = ("encoder", "attentive", "residual", "upsampling", "recurrent", "assembled")
STRICT = {
    *((name, "ZeRO-3") for name in ("encoder", "attentive", "residual", "assembled")),
    *((name, "Megatron") for name in ("encoder", "attentive", "residual", "assembled", "upsampling")),
}


@pytest.fixture(scope="module")
def plan_of():
    return lambda name, **options: forced_plan(read_model(FOLDER / f"{name}.onnx"), "2x2", exposed=0.02, **options)


def check(results):
    for steps, without_rule in results:
        assert max(error for step in steps for error in step) < 1e-5
        assert without_rule == {}


CASES = [("ZeRO-3", "eager"), ("Megatron", "eager"), ("ZeRO-3", "exported")]
CASES += [("seed 1", "eager"), ("seed 2", "exported")]
"""Plans drawn at random are the dearest to run, so each form of a program gets one of its own. Both forms ask the same
rules of operators; Megatron's plans as graphs are those of GPTs in `test_training.py`."""


@pytest.mark.parametrize(("recipe", "mode"), CASES)
@pytest.mark.parametrize("name", NAMES)
def test_trains_as_one_process(four, plan_of, name, recipe, mode):
    given = {"seed": int(recipe[5:])} if recipe.startswith("seed") else {"recipe": recipe}
    is_strict = (name, recipe) in STRICT and mode == "eager"
    check(four.run("torch_families", "train", name, plan_of(name, **given), is_strict, mode))


@pytest.mark.parametrize("recipe", ["ZeRO-3", "Megatron"])
def test_blocks_may_be_recomputed(four, plan_of, recipe):
    """Hugging Face asks for gradients of what a block is given."""
    plan = plan_of("encoder", recipe=recipe)
    check(four.run("torch_families", "train", "encoder", plan, recipe == "ZeRO-3", "eager", True))
