"""Train a small GPT with Hugging Face's accelerate, as a plan says.

    shardplan solve transformer:style=gpt,layers=2,hidden=64,heads=4,vocab=256,seq=32,batch=8,dtype=float \
        --mesh 2x2 --constraints docs/examples/tensor_parallel.yaml -o gpt.plan.json
    torchrun --nproc-per-node 4 docs/examples/train_accelerate.py gpt.plan.json
    python docs/examples/train_accelerate.py gpt.plan.json --alone

The last command trains the same model on one process, without the plan: losses are the same.
"""

import argparse

import torch
from accelerate import Accelerator
from torch.distributed.tensor import DTensor
from torch.nn import functional
from train_torch import build, in_checkpoint

import shardplan


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()
    plan = shardplan.load(args.plan)
    torch.manual_seed(0)  # the same on all processes
    model = build(plan, 4, "cpu")
    asked = {"cpu": not torch.cuda.is_available(), "gradient_accumulation_steps": 2}
    if args.alone:
        accelerator = Accelerator(**asked)
    else:
        from shardplan.torch.trainers.accelerate import PlannedAccelerator

        accelerator = PlannedAccelerator(**asked)
        shardplan.torch.parallelize(model, plan, shardplan.torch.mesh(plan), rename=in_checkpoint)

    batch, seq = next(tensor.shape for tensor in plan.tensors if tensor.name == "input_ids")
    text = torch.randint(0, 256, (64, seq))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, torch.utils.data.DataLoader(text, batch_size=batch, shuffle=True)
    )
    batches = iter(loader)
    for step in range(args.steps):
        shown = 0.0
        for _ in range(2):
            ids = next(batches)
            with accelerator.accumulate(model):
                logits = model(ids)
                targets = ids.roll(-1, 1).flatten()
                if isinstance(logits, DTensor):
                    targets = DTensor.from_local(targets, logits.device_mesh, run_check=False)
                loss = functional.cross_entropy(logits.flatten(0, 1), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            shown += accelerator.gather(loss.detach()).mean().item() / 2
        accelerator.print(f"step {step} loss {shown:.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
