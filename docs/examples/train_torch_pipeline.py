"""Train a small GPT in torch as a plan with stages says, one process per device.

    shardplan solve transformer:style=gpt,layers=2,hidden=64,heads=4,vocab=256,seq=32,batch=8,dtype=float \
        --mesh 2x2 --stages 2 --microbatches 4 -o gpt.stages.plan.json
    torchrun --nproc-per-node 4 docs/examples/train_torch_pipeline.py gpt.stages.plan.json --heads 4

The model is that of train_torch.py and knows nothing of stages. With --checkpoint every process reads the part that it
runs, and nothing is ever held whole.
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn import functional
from train_torch import build, in_checkpoint

import shardplan


def next_token(logits, ids):
    return functional.cross_entropy(logits.flatten(0, 1), ids.roll(-1, 1).flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--checkpoint")
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()

    plan = shardplan.load(args.plan)
    mesh = shardplan.torch.mesh(plan)
    torch.manual_seed(0)  # the same on all processes
    model = build(plan, args.heads, "meta" if args.checkpoint else "cpu")
    shape = next(t.shape for t in plan.pipeline.stages[0].plan.tensors if t.name == "input_ids")
    text = torch.randint(0, 256, shape)

    one_microbatch = text[: shape[0] // plan.model["microbatches"]]
    pipeline = shardplan.torch.pipeline(model, (one_microbatch,), plan, mesh, loss=next_token, rename=in_checkpoint)
    if args.checkpoint:
        shardplan.torch.load_(pipeline, plan, mesh, args.checkpoint)
    optimizer = torch.optim.AdamW(pipeline.parameters(), lr=1e-3)
    for step in range(args.steps):
        loss = pipeline.step(text, target=text)
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == plan.pipeline.stages[-1].first_device:  # of the last stage, whose loss is not None
            print(f"step {step} loss {loss:.4f}", flush=True)
    dist.barrier()  # nobody leaves while another still sends
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
