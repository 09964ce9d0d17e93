"""Train a Llama of Hugging Face's transformers with its Trainer, as a plan says.

    python docs/examples/train_hugging_face.py --solve llama.plan.json --mesh 2x2
    torchrun --nproc-per-node 4 docs/examples/train_hugging_face.py --plan llama.plan.json
    python docs/examples/train_hugging_face.py

The first command plans, the second trains on four processes, the third on one, without a plan: losses are the same.
"""

import argparse

import torch
import transformers

import shardplan

BATCH, SEQ = 8, 32
SPLIT = (  # a model this small is fastest on one device, so the planner has to be told to split it at all
    "input_ids=[machine]",
    "*.[qkv]_proj={gpu: n}",
    "*.o_proj={gpu: k}",
    "*.gate_proj={gpu: n}",
    "*.up_proj={gpu: n}",
    "*.down_proj={gpu: k}",
    "*.gate_proj.weight=[gpu, machine]",
    "*.up_proj.weight=[gpu, machine]",
    "*.down_proj.weight=[machine, gpu]",
    "lm_head.weight=[gpu, null]",
)


def llama(device="cpu"):
    torch.manual_seed(0)  # the same on all processes: weights are drawn alike
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, use_cache=False,
    )  # fmt: skip
    with torch.device(device):
        return transformers.LlamaForCausalLM(config)


def texts(count):
    drawn = torch.randint(0, 256, (count, SEQ), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in drawn]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--solve", metavar="FILE", help="write the plan and end")
    parser.add_argument("--mesh", default="2x2")
    parser.add_argument("--plan", help="train under this plan; without it on one process")
    parser.add_argument("--output", default="trained-llama")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--bf16", action="store_true")
    given = parser.parse_args()
    if given.solve:
        ids = torch.zeros(BATCH, SEQ, dtype=torch.long, device="meta")
        plan = shardplan.torch.plan(llama("meta"), {"input_ids": ids, "labels": ids}, given.mesh, pins=SPLIT)
        shardplan.save(plan, given.solve)
        return

    asked = transformers.TrainingArguments(
        output_dir=given.output, use_cpu=not torch.cuda.is_available(), max_steps=given.steps, learning_rate=1e-3,
        per_device_train_batch_size=BATCH, gradient_accumulation_steps=given.accumulate, max_grad_norm=1.0,
        logging_steps=1, save_strategy="no", report_to=[], bf16=given.bf16, seed=0, disable_tqdm=True,
    )  # fmt: skip
    if given.plan:
        from shardplan.torch.trainers.transformers import PlannedTrainer

        trainer = PlannedTrainer(llama(), asked, plan=shardplan.load(given.plan), train_dataset=texts(256))
    else:
        trainer = transformers.Trainer(llama(), asked, train_dataset=texts(256))
    trainer.train()
    trainer.save_model()
    if trainer.is_world_process_zero():
        for entry in trainer.state.log_history:
            if "grad_norm" in entry:
                print(f"step {entry['step']} loss {entry['loss']:.5f} norm {entry['grad_norm']:.5f}")
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
