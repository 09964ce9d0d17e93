"""Train torchtitan's Llama 3 debug model with torchtitan's own trainer, as a plan says.

    python docs/examples/train_torchtitan.py --solve titan.plan.json --mesh 2x2
    torchrun --nproc-per-node 4 docs/examples/train_torchtitan.py --plan titan.plan.json
    torchrun --nproc-per-node 1 docs/examples/train_torchtitan.py

The first command plans, the second trains on four processes, the third on one, without a plan: losses are the same.
"""

import argparse
import dataclasses
import os
from types import SimpleNamespace

import torch

if not torch.accelerator.is_available():  # torchtitan asks for an accelerator; on CPU processes this stands for it
    stand_in = SimpleNamespace(
        current_device=lambda: 0, device_count=lambda: 1, set_device=lambda _: None, empty_cache=lambda: None,
        get_device_name=lambda _: "CPU", memory_stats=lambda _: {}, reset_peak_memory_stats=lambda: None,
        get_device_properties=lambda _: SimpleNamespace(total_memory=1), synchronize=lambda: None,
    )  # fmt: skip
    torch._utils._get_available_device_type = lambda: "cpu"  # noqa: SLF001 - torchtitan reads it
    torch._utils._get_device_module = lambda _: stand_in  # noqa: SLF001 - as above
if not hasattr(torch.distributed, "set_timeout"):  # newer than torch 2.13
    torch.distributed.set_timeout = lambda *_: None

from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import default_adamw
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.config import DebugConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer

import shardplan
from shardplan.torch.trainers.torchtitan import example, parallelize_fn, plannable

SPLIT = (  # a model this small is fastest on one device, so the planner has to be told to split it at all
    "*.wqkv={gpu: n}",
    "*.wo={gpu: k}",
    "*.w1={gpu: n}",
    "*.w3={gpu: n}",
    "*.w2={gpu: k}",
    "lm_head.weight=[gpu, null]",
)


class NoTokens(BaseTokenizer):
    """The data is drawn, so nothing is read."""

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config, **_):
        del config
        super().__init__()

    def encode(self, *_):
        return []

    def decode(self, *_):
        return ""

    def get_vocab_size(self):
        return 2048


class Drawn(BaseDataLoader):
    """Rows of numbers: of one batch, those that this process is asked to read."""

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        pass

    def __init__(self, config, *, dp_world_size, dp_rank, seq_len, local_batch_size, **_):
        del config
        self.shape = (dp_world_size, local_batch_size, seq_len + 1)
        self.rank, self.step = dp_rank, 0

    def __iter__(self):
        while True:
            drawn = torch.randint(0, 256, self.shape, generator=torch.Generator().manual_seed(self.step))[self.rank]
            self.step += 1
            positions = torch.arange(drawn.shape[1] - 1).expand(len(drawn), -1).contiguous()
            yield {"input": drawn[:, :-1], "positions": positions}, drawn[:, 1:]

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state_dict):
        self.step = state_dict["step"]


BATCH, SEQ = 8, 64


def config(steps, processes, recompute=False):
    return Trainer.Config(
        model_spec=plannable(model_registry("debugmodel")),
        loss=CrossEntropyLoss.Config(),
        optimizer=default_adamw(lr=8e-4),
        training=TrainingConfig(
            local_batch_size=BATCH // processes,
            seq_len=SEQ,
            steps=steps,
            mixed_precision_param="float32",
            disable_cuda_graphs=True,
        ),
        parallelism=ParallelismConfig(spmd_backend="partial_dtensor"),
        tokenizer=NoTokens.Config(),
        dataloader=Drawn.Config(),
        metrics=MetricsProcessor.Config(log_freq=1),
        checkpoint=CheckpointManager.Config(),
        activation_checkpoint=FullAC.Config() if recompute else None,
        debug=DebugConfig(seed=0),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--solve", metavar="FILE", help="write the plan and end")
    parser.add_argument("--mesh", default="2x2")
    parser.add_argument("--plan", help="train under this plan; without it on one process")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--recompute", action="store_true", help="recompute every block in the backward pass")
    given = parser.parse_args()
    if given.solve:
        model, batch = example(config(given.steps, processes=4), processes=4)
        shardplan.save(shardplan.torch.plan(model, batch, given.mesh, pins=SPLIT), given.solve)
        return
    asked = config(given.steps, int(os.environ["WORLD_SIZE"]), given.recompute)
    if given.plan:
        asked.model_spec = dataclasses.replace(
            asked.model_spec, parallelize_fn=parallelize_fn(shardplan.load(given.plan))
        )
    trainer = asked.build()
    log, first = trainer.metrics_processor.log, torch.distributed.get_rank() == 0

    def show(step, loss, *others, **more):
        if first:
            print(f"step {step} loss {loss:.5f} norm {others[1]:.3f}", flush=True)
        log(step, loss, *others, **more)

    trainer.metrics_processor.log = show
    trainer.train()
    trainer.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
