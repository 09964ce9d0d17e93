"""Train a small GPT with Lightning, as a plan says.

    shardplan solve transformer:style=gpt,layers=2,hidden=64,heads=4,vocab=256,seq=32,batch=8,dtype=float \
        --mesh 2x2 --constraints docs/examples/tensor_parallel.yaml -o gpt.plan.json
    torchrun --nproc-per-node 4 docs/examples/train_lightning.py gpt.plan.json
    python docs/examples/train_lightning.py gpt.plan.json --alone

The last command trains the same model on one process, without the plan: losses are the same.
"""

import argparse

import lightning
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.nn import functional
from train_torch import build, in_checkpoint

import shardplan


class Training(lightning.LightningModule):
    def __init__(self, model, plan):
        super().__init__()
        self.model, self.plan, self.losses = model, plan, []

    def configure_model(self):
        """Lightning calls it when the processes have found each other, before it asks for optimizers."""
        if self.plan is not None:
            shardplan.torch.parallelize(self.model, self.plan, shardplan.torch.mesh(self.plan), rename=in_checkpoint)
            self.plan = None  # Lightning may call it again

    def training_step(self, ids):
        logits = self.model(ids)
        whole = logits.full_tensor() if hasattr(logits, "full_tensor") else logits
        loss = functional.cross_entropy(whole.flatten(0, 1), ids.roll(-1, 1).flatten())
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()
    plan = shardplan.load(args.plan)
    torch.manual_seed(0)  # the same on all processes
    model = build(plan, 4, "cpu")
    batch, seq = next(tensor.shape for tensor in plan.tensors if tensor.name == "input_ids")
    text = torch.utils.data.DataLoader(torch.randint(0, 256, (64, seq)), batch_size=batch)
    # all processes get the same batches, in the loader's own order: in Lightning's words, all of this is tensor parallelism
    asked = {
        "use_distributed_sampler": False,
        "max_steps": args.steps,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
    }
    if not args.alone:
        size = plan.mesh.size
        asked |= {"strategy": ModelParallelStrategy(1, size), "devices": size}
    else:
        asked |= {"devices": 1}
    trainer = lightning.Trainer(accelerator="auto" if torch.cuda.is_available() else "cpu", **asked)
    training = Training(model, None if args.alone else plan)
    trainer.fit(training, text)
    if trainer.is_global_zero:
        for step, loss in enumerate(training.losses):
            print(f"step {step} loss {loss:.4f}")


if __name__ == "__main__":
    main()
