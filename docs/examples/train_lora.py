"""Train LoRA adapters of Hugging Face's PEFT in a Llama, as a plan says.

    python docs/examples/train_lora.py --solve lora.plan.json
    torchrun --nproc-per-node 4 docs/examples/train_lora.py --plan lora.plan.json
    python docs/examples/train_lora.py

The first command plans, the second trains on four processes, the third on one, without a plan: losses are the same.
"""

import argparse

import peft
import torch
from train_hugging_face import BATCH, SEQ, llama

import shardplan

SPLIT = (  # a model this small is fastest on one device, so the planner has to be told to split it at all
    "input_ids=[machine]",
    "*.lm_head.weight=[gpu, null]",
    "*.gate_proj={gpu: n}",
    "*.up_proj={gpu: n}",
    "*.down_proj={gpu: k}",
)


def adapted():
    model = llama()
    torch.manual_seed(1)
    asked = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    return peft.get_peft_model(model, asked)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--solve", metavar="FILE", help="write the plan and end")
    parser.add_argument("--plan", help="train under this plan; without it on one process")
    given = parser.parse_args()
    model, ids = adapted(), torch.randint(0, 256, (BATCH, SEQ), generator=torch.Generator().manual_seed(0))
    if given.solve:
        shardplan.save(shardplan.torch.plan(model, {"input_ids": ids, "labels": ids}, "2x2", pins=SPLIT), given.solve)
        return
    if given.plan:
        plan = shardplan.load(given.plan)
        shardplan.torch.parallelize(model, plan, shardplan.torch.mesh(plan))
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2)
    for step in range(4):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        shown = (loss.full_tensor() if given.plan else loss).item()
        if not given.plan or torch.distributed.get_rank() == 0:
            print(f"step {step} loss {shown:.4f}")
    if given.plan:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
