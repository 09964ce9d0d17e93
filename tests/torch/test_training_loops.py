"""What training loops do beside forward and backward, checkpoints and data loaders: under a plan as in one process."""

import functools
import pathlib
import random
import tempfile

import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors")

import onnx
import torch
from forced_plans import cluster_of, forced_plan
from small_models import proto_of
from tiny_models import Sizes, megatron, tiny_gpt, tiny_llama
from torch_fused import GATED
from torch_layers import plan_of as plan_of_layers

from shardplan.constraints.parse import parse_constraints
from shardplan.model.read import read_model
from shardplan.planning import PlanOptions, plan_model

MEGATRON, SEQUENCE = "Megatron by hand", "Megatron + sequence by hand"
KINDS = (
    "plain", "clipping", "accumulation", "fused optimizer", "scaler", "overflow", "inference mode", "copy",
)  # fmt: skip
PLANS = (("gpt packed", SEQUENCE), ("llama tied", "ZeRO-3"))
TINIES = {
    "gpt": functools.partial(tiny_gpt, Sizes(layers=1)),
    "gpt packed": functools.partial(tiny_gpt, Sizes(layers=1), fused=True),
    "gpt packed, two blocks": functools.partial(tiny_gpt, fused=True),
    "llama tied": functools.partial(tiny_llama, Sizes(layers=1, heads=8, kv_heads=4), tied=True),
}


@functools.cache
def tiny_of(name):
    return TINIES[name]()


@functools.cache
def model_of(name):
    with tempfile.TemporaryDirectory() as folder:
        return tiny_of(name).model(pathlib.Path(folder))


@functools.cache
def plan_of(name, recipe, mesh="2x2"):
    if recipe not in {MEGATRON, SEQUENCE}:
        return forced_plan(model_of(name), mesh, recipe=recipe)
    constraints = parse_constraints(megatron(tiny_of(name), sequence=recipe == SEQUENCE), "megatron.yaml")
    return plan_model(model_of(name), cluster_of(mesh), PlanOptions(constraints=constraints))


@pytest.mark.parametrize(
    ("name", "recipe", "kind"),
    [*((*plan, kind) for plan in PLANS for kind in KINDS), (*PLANS[0], "fewer rows"), (*PLANS[1], "another weight")],
)
def test_loops_train_as_in_one_process(four, name, recipe, kind):
    for told, weights in four.run("torch_trainers", "loop", tiny_of(name), plan_of(name, recipe), kind):
        assert told < 1e-5
        assert weights < 1e-5


@pytest.mark.parametrize(("name", "recipe"), [("gpt packed, two blocks", SEQUENCE), PLANS[1]])
def test_autocast_rounds_where_one_process_does(four, name, recipe):
    for told, weights in four.run("torch_trainers", "loop", tiny_of(name), plan_of(name, recipe), "autocast"):
        assert told < 2e-2
        assert weights < 2.1e-3  # at most the steps of the optimizer


@pytest.mark.parametrize("recipe", ["ZeRO-3", "Megatron"])
@pytest.mark.parametrize("mode", ["eager", "exported"])
def test_a_bias_is_added_in_the_dtype_of_autocast(four, recipe, mode):
    """It is added apart, and torch's promotion made float32 of the sum."""
    for ours, theirs, result, gradient in four.run("torch_layers", "autocast", plan_of_layers(recipe), mode):
        assert ours == theirs == [torch.bfloat16] * len(ours)
        assert result < 2e-2
        assert gradient < 2e-2


@pytest.mark.parametrize(("name", "recipe", "other", "mesh"), [
    ("gpt packed", SEQUENCE, "ZeRO-3", "4"), ("llama tied", "ZeRO-3", MEGATRON, "2x2"),
])  # fmt: skip
def test_checkpoints_are_read_on_another_mesh_and_whole(four, tmp_path, name, recipe, other, mesh):
    plans = plan_of(name, recipe), plan_of(name, other, mesh)
    for found in four.run("torch_trainers", "checkpoint", tiny_of(name), *plans, tmp_path):
        assert found.pop("another mesh, a step later") < 1e-5
        assert not {name: error for name, error in found.items() if error}


def test_weights_that_cannot_be_written_are_told_by_every_process(four, tmp_path):
    """None waits for the first, and what was there before is still there."""
    (tmp_path / "file").touch()
    (tmp_path / "model.safetensors").write_text("old")
    for said in four.run("torch_trainers", "saved_badly", tiny_of("gpt"), plan_of("gpt", SEQUENCE), tmp_path):
        reason = "error[unwritable-output]: cannot write the weights"
        assert said == (
            f"{tmp_path}/file/model.safetensors: {reason}: file exists",
            f"{tmp_path}/model.safetensors: {reason}: no space left on device",
        )
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "model.safetensors"]
    assert (tmp_path / "model.safetensors").read_text() == "old"


UNREADABLE = [
    "FOLDER/nowhere: error[unreadable-checkpoint]: cannot read the checkpoint: no such file or directory\n{hint}",
    (
        "FOLDER: error[unreadable-checkpoint]: cannot read the checkpoint: there is no checkpoint of save_checkpoint "
        "in this folder\n{hint}"
    ),
    (
        "FOLDER/model: error[missing-state]: the checkpoint has no state of an optimizer\n"
        "hint: save it as well: save_checkpoint(folder, model, optimizer), or load the model alone"
    ),
    (
        "FOLDER/model: error[missing-weight]: the checkpoint has no tensor 'gain'\n"
        "FOLDER/model: error[wrong-weight-shape]: 'pooler.weight' has shape [4, 4] in the checkpoint, the model "
        "has [3, 3]"
    ),
    (
        "FOLDER/both: error[another-state]: of 'w0' the checkpoint has exp_avg, exp_avg_sq, step; SGD keeps "
        "momentum_buffer\nhint: make the optimizer as the one that was saved: of the same class, with the same options"
    ),
    (
        "error[foreign-parameter]: the optimizer has a parameter of shape [16, 16] that is none of the model's\n"
        "hint: make the optimizer of model.parameters(), after the plan has been applied"
    ),
]
CHECKPOINT_HINT = "hint: give it the folder of save_checkpoint; safetensors files are read by shardplan.torch.load_"


def test_a_checkpoint_that_cannot_be_read_is_told_in_words(four, tmp_path):
    onnx.save(proto_of(GATED), tmp_path / "gated.onnx")
    plan = forced_plan(read_model(tmp_path / "gated.onnx"), "2x2", recipe="ZeRO-3")
    wanted = [text.format(hint=CHECKPOINT_HINT) for text in UNREADABLE]
    assert four.run("torch_resumed", "unreadable", plan, tmp_path) == [wanted] * 4


@pytest.mark.parametrize("seed", range(3))
def test_a_rank_reads_its_rows_and_all_read_the_batch(four, seed):
    plan = forced_plan(model_of("gpt"), "2x2", seed=seed)
    batch, seq = next(tensor.shape for tensor in plan.tensors if tensor.role == "input")
    order = list(range(3 * batch + 1))
    random.Random(seed).shuffle(order)
    wanted = torch.arange(len(order) * seq).reshape(-1, seq)[torch.tensor(order)]
    layout = next(tensor.layout.forward for tensor in plan.tensors if tensor.role == "input")
    ways = plan.mesh.ways([axis for axis, placed in enumerate(layout.placements) if placed.is_shard and not placed.dim])
    for batches, read, length in four.run("torch_trainers", "read_batches", plan, order, (batch, seq)):
        assert length == len(batches) == 3
        assert torch.equal(torch.cat([rows for rows, _ in batches]), wanted[: 3 * batch])
        assert torch.cat([numbers for _, numbers in batches]).tolist() == order[: 3 * batch]
        assert len(read) == 3 * batch // ways


BY_NAME = "hint: give each input by its name: {'input_ids': ...}"
NO_MAPPING = "and is to be a mapping of names to tensors"
REFUSED_BATCHES = {
    "rows": "error[wrong-shape]: input 'input_ids' has shape [1, 16], the plan is for [16, 16]\n"
    "hint: pad it to a multiple of 4 rows, which the plan can divide, or solve again for this batch",
    "a microbatch": "error[wrong-shape]: input 'input_ids' has shape [4, 16], whose rows the plan cannot divide into 2 "
    "microbatches\nhint: pad it to a multiple of 8 rows, or solve again for this batch",
    "no rows": "error[wrong-shape]: input 'input_ids' has shape [0, 16], each of the plan's 2 microbatches has "
    "[8, 16]\nhint: leave batches without rows out",
    "a tensor": f"error[bad-argument]: the batch is of type Tensor, {NO_MAPPING}\n{BY_NAME}",
    "arguments": f"error[bad-argument]: the batch is of type tuple, {NO_MAPPING}\n{BY_NAME}",
    "microbatches": f"error[bad-argument]: the batch is of type tuple, {NO_MAPPING}\n{BY_NAME}",
    "a list": "error[bad-argument]: 'input_ids' is of type list\nhint: make it a tensor",
    "samples": "error[bad-argument]: the samples come as list, and not by the names of the plan's inputs\n"
    "hint: let dataset[index] be a mapping of names to tensors: input_ids",
    "shuffled": "error[bad-argument]: 'shuffle' is none of the caller's: batches are those of the plan\n"
    "hint: give the order of samples as sampler=",
    "a path": "error[bad-argument]: 'gpt.plan.json' is the path of a plan\nhint: load it: shardplan.load(path)",
    "another order": "error[bad-argument]: the model is of type Plan, and not a torch.nn.Module\n"
    "hint: the order of arguments is: model, plan, mesh",
    "no plan": "error[bad-argument]: the plan is of type Gpt\n"
    "hint: give what shardplan.load or shardplan.torch.plan returns",
    "no mesh": "error[bad-argument]: the mesh is of type NoneType\nhint: make it with shardplan.torch.mesh(plan)",
}


def test_batches_come_with_targets_and_with_fewer_rows(four, tmp_path):
    tiny = tiny_gpt(Sizes(batch=16, layers=1))
    plan = forced_plan(tiny.model(tmp_path), "2x2", recipe="ZeRO-3", options=PlanOptions(microbatches=2))
    for wrong, said in four.run("torch_trainers", "given_batches", tiny, plan):
        assert wrong == []
        assert said == REFUSED_BATCHES


OTHER_SHAPES = [
    (
        "error[wrong-shape]: input 'input_ids' has shape [4, 8], the plan is for [4, 16]\n"
        "hint: solve again for this shape, pad the batch to the plan's, or let more be sent: strict=False"
    ),
    "fewer rows",
    (
        "error[wrong-shape]: input 'input_ids' has shape [1, 16], the plan is for [4, 16]\n"
        "hint: give it a multiple of 2 rows, which the plan can divide, or let more be sent: strict=False"
    ),
]


def test_inputs_of_other_shapes_run_where_more_may_be_sent(four):
    plan = plan_of("gpt packed", SEQUENCE)
    for error, said in four.run("torch_trainers", "other_shapes", tiny_of("gpt packed"), plan):
        assert error < 1e-5
        assert said == OTHER_SHAPES


REFUSED = "error[refused-optimizer] torch.optim.{} cannot run under a plan"


def test_an_optimizer_that_needs_sparse_gradients_is_refused_and_runs_without_a_plan(four):
    wanted = {"SparseAdam": REFUSED.format("SparseAdam")}
    for said in four.run("torch_trainers", "optimizers", tiny_of("gpt packed"), plan_of("gpt packed", SEQUENCE)):
        assert said == {**wanted, "SGD": ""}
