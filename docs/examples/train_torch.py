"""Train a small GPT in torch as a plan says, one process per device.

    shardplan solve transformer:style=gpt,layers=2,hidden=64,heads=4,vocab=256,seq=32,batch=8,dtype=float \
        --mesh 2x2 --constraints docs/examples/tensor_parallel.yaml -o gpt.plan.json
    torchrun --nproc-per-node 4 docs/examples/train_torch.py gpt.plan.json --heads 4

On GPUs torch takes NCCL, without them gloo; nothing here changes. With --checkpoint the weights come from a safetensors
file (or a folder of them), of which every process reads its part alone.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import shardplan


class Attention(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)

    def forward(self, x):
        batch, seq, hidden = x.shape
        q, k, v = (part.view(batch, seq, self.heads, -1).transpose(1, 2) for part in self.c_attn(x).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(mixed.transpose(1, 2).reshape(batch, seq, hidden))


class Mlp(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.c_fc, self.c_proj = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        return self.c_proj(functional.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(hidden), Attention(hidden, heads)
        self.ln_2, self.mlp = nn.LayerNorm(hidden), Mlp(hidden)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    def __init__(self, layers, hidden, heads, vocab, seq):
        super().__init__()
        blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        parts = {"wte": nn.Embedding(vocab, hidden), "wpe": nn.Embedding(seq, hidden), "h": blocks}
        self.transformer = nn.ModuleDict({**parts, "ln_f": nn.LayerNorm(hidden)})
        self.lm_head = nn.Linear(hidden, vocab, bias=False)
        self.lm_head.weight = self.transformer.wte.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, input_ids):
        body = self.transformer
        x = body.wte(input_ids) + body.wpe(torch.arange(input_ids.shape[1], device=input_ids.device))
        for block in body.h:
            x = block(x)
        return self.lm_head(body.ln_f(x))


def in_checkpoint(name):
    """The checkpoint stores these weights [in, out], as GPT-2's does; `nn.Linear` has them [out, in]."""
    turned = name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
    return (name, (1, 0)) if turned else name


def build(plan, heads, device):
    """The model of the sizes that the plan, all its stages together, is for."""
    plans = [stage.plan for stage in plan.pipeline.stages] if plan.pipeline else [plan]
    shapes = {t.checkpoint: t.shape for each in plans for t in each.tensors if t.role == "parameter"}
    vocab, hidden = shapes["transformer.wte.weight"]
    layers = sum(name.endswith("ln_1.weight") for name in shapes)
    with torch.device(device):
        return Gpt(layers, hidden, heads, vocab, shapes["transformer.wpe.weight"][0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--checkpoint")
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()

    plan = shardplan.load(args.plan)
    mesh = shardplan.torch.mesh(plan)
    torch.manual_seed(0)  # the same on all processes: weights and dropout are drawn alike
    if args.checkpoint:
        model = build(plan, args.heads, "meta")
        shardplan.torch.load_(model, plan, mesh, args.checkpoint, rename=in_checkpoint)
    else:
        model = build(plan, args.heads, "cpu")
        shardplan.torch.parallelize(model, plan, mesh, rename=in_checkpoint)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    shape = next(tensor.shape for tensor in plan.tensors if tensor.name == "input_ids")
    text = torch.randint(0, 256, shape)
    batch = shardplan.torch.inputs(plan, mesh, {"input_ids": text})
    targets = batch["input_ids"].roll(-1, 1).flatten()
    for step in range(args.steps):
        with shardplan.torch.count_comms(model) as comms:
            logits = model(**batch)
            loss = functional.cross_entropy(logits.flatten(0, 1), targets)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        shown = loss.full_tensor().item()
        if dist.get_rank() == 0:
            print(f"step {step} loss {shown:.4f}", flush=True)
    if dist.get_rank() == 0:
        print(comms)
    dist.barrier()  # nobody leaves while another still sends
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
