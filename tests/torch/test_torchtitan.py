"""What torchtitan's loop needs of a model under a plan: weights that it draws, and rows that processes have read.

The loop itself runs in `benchmarks/trainers.py`, where torchtitan is installed.
"""

import functools

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxscript")

import torch
import torch_titan
from torch.distributed.tensor import Replicate, Shard

import shardplan.torch
from shardplan.layout.mesh import Mesh
from shardplan.torch.trainers.rows import rows_of

PINS = {
    "by batch": ("tokens=[[machine, gpu], null]", "head.weight=[gpu, machine]"),
    "parts": ("tokens=[machine, null]", "relu=[machine, null, gpu]", "mul=[machine, null, gpu]"),
}


@functools.cache
def plan_of(pins):
    with torch.device("meta"):
        model = torch_titan.Model()
    return shardplan.torch.plan(model, torch_titan.batch(), "2x2", pins=PINS[pins])


@pytest.mark.parametrize("readers", [1, 2, 4])
@pytest.mark.parametrize("pins", PINS)
def test_rows_of_ones_own_train_as_one_process_does(four, pins, readers):
    for found in four.run("torch_titan", "train", plan_of(pins), readers):
        assert pins != "parts" or "packed.weight" not in found
        assert found.pop("drawn") == 0
        assert max(found.values()) < 1e-5, found


def test_selective_checkpoints_are_refused(four):
    for said in four.run("torch_titan", "selecting", plan_of("by batch")):
        assert said.startswith(
            "error[selective-checkpoint]: a block under a plan is run by a checkpoint that saves some"
        )
        assert said.endswith(
            "checkpoint it whole (without context_fn), or let the plan choose: shardplan solve --remat"
        )


def test_what_of_a_config_a_plan_does_not_go_with():
    pytest.importorskip("torchtitan.trainer", exc_type=ImportError)  # it imports triton
    from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
    from torchtitan.distributed import ParallelDims
    from torchtitan.distributed.activation_checkpoint import SelectiveAC

    from shardplan.errors import ShardplanError
    from shardplan.torch.trainers.torchtitan import parallelize_fn

    asked = ParallelismConfig(data_parallel_replicate_degree=3, tensor_parallel_degree=2, context_parallel_degree=2)
    with pytest.raises(ShardplanError) as raised:
        parallelize_fn(plan_of("by batch"))(
            torch.nn.Linear(2, 2), parallel_dims=ParallelDims.from_config(asked, 12), training=TrainingConfig(),
            parallelism=asked, compile_config=CompileConfig(enable=True), ac_config=SelectiveAC.Config(),
            dump_folder="",
        )  # fmt: skip
    begins = "torchtitan's config does not go with a plan: "
    assert [each.summary.removeprefix(begins) for each in raised.value.diagnostics] == [
        "parallelism.context_parallel_degree is 2",
        "3 groups of processes read rows of their own, the plan's mesh is machine=2 x gpu=2",
        "parallelism.tensor_parallel_degree is 2",
        "CUDA graphs are on",
        "compile.components has the model",
        "activation_checkpoint is SelectiveAC.Config",
    ]


def test_rows_are_those_of_the_first_axes():
    mesh = Mesh.of(machine=2, rack=3, gpu=4)
    assert rows_of(mesh, 1) == (Replicate(),) * 3
    assert rows_of(mesh, 6) == (Shard(0), Shard(0), Replicate())
    assert rows_of(mesh, 24) == (Shard(0),) * 3
    assert [readers for readers in range(25) if rows_of(mesh, readers)] == [1, 2, 6, 24]
