"""Plans applied in torch on four processes: losses, gradients and weights are those of one process, and what is sent is
what the plan says, collective by collective."""

import functools
import pathlib
import tempfile
from dataclasses import replace

import pytest

pytest.importorskip("torch")

from forced_plans import INFERENCE, cluster_of, forced_plan
from tiny_models import Sizes, megatron, tiny_gpt, tiny_llama, tiny_moe

from shardplan.constraints.parse import parse_constraints
from shardplan.planning import PlanOptions, plan_model
from shardplan.planning.recipes import RECIPES

ONE, GROUPED = Sizes(layers=1), Sizes(layers=1, heads=8, kv_heads=4)
TINIES = {
    "gpt": tiny_gpt,
    "gpt of one block": functools.partial(tiny_gpt, ONE),
    "gpt tied": functools.partial(tiny_gpt, ONE, tied=True),
    "gpt packed": functools.partial(tiny_gpt, ONE, fused=True),
    "llama": functools.partial(tiny_llama, GROUPED),
    "llama tied": functools.partial(tiny_llama, GROUPED, tied=True),
    "moe": functools.partial(tiny_moe, replace(GROUPED, ffn=64)),
}
"""What goes from one block to the next is the same in all of them, so only `gpt` has two."""
OTHERS = ("gpt tied", "gpt packed", "llama", "llama tied", "moe")
HAND_MADE = ("Megatron by hand", "Megatron + sequence by hand")


@functools.cache
def tiny_of(name):
    return TINIES[name]()


@functools.cache
def model_of(name):
    with tempfile.TemporaryDirectory() as folder:
        return tiny_of(name).model(pathlib.Path(folder))


@functools.cache
def plan_of(name, recipe, mesh="2x2"):
    if recipe in HAND_MADE:
        text = megatron(tiny_of(name), sequence="sequence" in recipe)
        options = PlanOptions(constraints=parse_constraints(text, "megatron.yaml"), effort="quick")
        return plan_model(model_of(name), cluster_of(mesh), options)
    seed = int(recipe.split()[1]) if recipe.startswith("seed") else None
    return forced_plan(model_of(name), mesh, recipe=recipe if recipe in RECIPES else "", seed=seed)


CASES = [("gpt", recipe) for recipe in (*RECIPES, *HAND_MADE, "solved")]
CASES += [(name, recipe) for name in OTHERS for recipe in ("ZeRO-3", *HAND_MADE, "solved")]
GRAPHS = [("gpt packed", HAND_MADE[1]), ("llama tied", "ZeRO-3"), ("moe", HAND_MADE[0])]
KERNELS = [("gpt packed", HAND_MADE[1]), ("llama", HAND_MADE[1])]


def check(results):
    for seen in results:
        assert seen.loss_error < 1e-5
        assert seen.gradient_error < 1e-5
        assert seen.record == ({}, {})


@pytest.mark.parametrize(("name", "recipe"), CASES)
def test_trains_as_one_process_and_sends_what_the_plan_says(four, name, recipe):
    first = name in ("gpt", "gpt packed")
    steps = 2 if first or recipe == "ZeRO-3" else 1
    results = four.run("torch_cases", "train", tiny_of(name), plan_of(name, recipe), "eager", False, steps, True, first)
    check(results)
    assert [seen.differences for seen in results] == [{}] * 4


@pytest.mark.parametrize(("name", "recipe"), GRAPHS)
def test_a_graph_with_the_plan_written_into_it_does_the_same(four, name, recipe):
    results = four.run("torch_cases", "train", tiny_of(name), plan_of(name, recipe), "exported")
    check(results)
    assert [seen.differences for seen in results] == [{}] * 4


@pytest.mark.parametrize("mode", ["eager", "exported"])
@pytest.mark.parametrize(("name", "recipe"), KERNELS)
def test_fused_kernels_stand_for_the_operators_of_the_plan(four, name, recipe, mode):
    results = four.run("torch_cases", "train", tiny_of(name), plan_of(name, recipe), mode, True, 1)
    check(results)
    assert [seen.differences for seen in results] == [{}] * 4


@pytest.mark.parametrize("mode", ["eager", "exported"])
def test_ids_that_are_gathered_are_not_kept_but_gathered_again(four, mode):
    model = model_of("gpt of one block")
    lookup = next(operator.name for operator in model.operators if "transformer.wte.weight" in operator.inputs)
    text = f"axes: {{gpu: {{inputs: 0}}}}\noperators: {{{lookup}: {{gpu: none}}}}"
    constraints = parse_constraints(text, "gathered.yaml")
    plan = plan_model(model, cluster_of("2x2"), PlanOptions(constraints=constraints))
    assert {move.phase for move in plan.moves if move.tensor == "input_ids"} == {"forward", "backward"}
    results = four.run("torch_cases", "train", tiny_of("gpt of one block"), plan, mode, False, 1)
    check(results)
    assert [seen.differences for seen in results] == [{}] * 4


@pytest.mark.parametrize("mode", ["eager", "exported"])
def test_a_kernel_that_repeats_keys_moves_them_on_the_way_as_planned(four, mode):
    tiny = tiny_llama(Sizes(layers=1, kv_heads=2))
    with tempfile.TemporaryDirectory() as folder:
        model = tiny.model(pathlib.Path(folder))
    apart = [operator for operator in model.operators if operator.op_type == "Unsqueeze"]
    heads = "".join(f"  {operator.outputs[0]}: [machine, gpu, null, null, null]\n" for operator in apart)
    positions = "".join(f"  {operator.name}: {{machine: a, gpu: c}}\n" for operator in apart)
    constraints = parse_constraints(f"tensors:\n{heads}operators:\n{positions}", "repeated.yaml")
    plan = plan_model(model, cluster_of("2x2"), PlanOptions(constraints=constraints))
    sent = {move.tensor for move in plan.moves if any(not step.collective.is_free for step in move.steps)}
    assert sent >= {operator.outputs[0] for operator in apart}
    check(four.run("torch_cases", "train", tiny, plan, mode, True, 1))


@pytest.mark.parametrize(("name", "seed"), [("gpt tied", 2), ("gpt packed", 1), ("llama", 3), ("moe", 4)])
def test_any_plan_at_all_trains_right(four, name, seed):
    """Plans whose every choice is drawn at random: all placements, moves and orders of axes that there are."""
    plan = plan_of(name, f"seed {seed}")
    for seen in four.run("torch_cases", "train", tiny_of(name), plan, "eager", False, 1, False):
        assert seen.loss_error < 1e-5
        assert seen.gradient_error < 1e-5
        assert seen.record[1] == {}


def test_random_plan_of_the_very_same_operators_sends_what_it_says(four):
    """Beside its moves only statistics of split norms are sent; what autograd does not keep is not brought again."""
    name = "gpt of one block"
    results = four.run("torch_cases", "train", tiny_of(name), plan_of(name, "seed 0"), "eager", False, 1)
    check(results)
    for (phase, kind, _), (told, sent) in results[0].differences.items():
        assert phase == "backward" or (kind == "all_reduce" and sent.count > told.count)


@pytest.mark.parametrize("recipe", ["ZeRO-3", "Megatron + sequence"])
def test_blocks_may_be_recomputed_in_backward(four, recipe):
    for loss_error, gradient_error in four.run("torch_cases", "recompute", tiny_of("gpt"), plan_of("gpt", recipe)):
        assert loss_error < 1e-5
        assert gradient_error < 1e-5


@pytest.mark.parametrize("recipe", ["ZeRO-3", "Megatron + sequence"])
def test_what_follows_other_steps_than_the_plans_is_known_by_its_weights(four, recipe):
    for loss_error, gradient_error in four.run("torch_cases", "in_other_steps", tiny_of("gpt"), plan_of("gpt", recipe)):
        assert loss_error < 1e-5
        assert gradient_error < 1e-5


@pytest.mark.parametrize("recipe", ["Megatron", ""])
def test_plans_for_inference(four, recipe):
    plan = forced_plan(model_of("gpt"), "2x2", INFERENCE, recipe=recipe)
    for error, differences in four.run("torch_cases", "infer", tiny_of("gpt"), plan):
        assert error < 1e-5
        assert differences == {}


def test_a_graph_is_compiled_between_its_moves(four):
    """Under a plan that moves weights and activations, both ways. Of one block, since each of some tens of parts takes
    torch's compiler a moment."""
    name = "gpt of one block"
    plan = plan_of(name, "Megatron + sequence")
    roles = {tensor.name: tensor.role for tensor in plan.tensors}
    sent = {
        (move.phase, roles[move.tensor], step.collective.kind)
        for move in plan.moves
        for step in move.steps
        if not step.collective.is_free
    }
    assert sent >= {
        ("forward", "parameter", "all_gather"), ("backward", "parameter", "reduce_scatter"),
        ("forward", "activation", "all_gather"), ("backward", "activation", "all_gather"),
    }  # fmt: skip
    for loss_error, gradient_error, (plain, compiled), parts in four.run(
        "torch_cases", "compiled_between_moves", tiny_of(name), plan
    ):
        assert loss_error < 1e-5
        assert gradient_error < 1e-5
        assert plain == compiled
        assert parts > 5


@pytest.mark.parametrize("what", ["model", "blocks", "graph"])
def test_compilation_changes_nothing(four, what):
    name = "gpt of one block"
    plan = plan_of(name, "Megatron + sequence")
    for loss_error, gradient_error, given_up in four.run("torch_cases", "compiled", tiny_of(name), plan, what):
        assert given_up == 0
        assert loss_error < 1e-5
        assert gradient_error < 1e-5
