"""One rank of a tiny Llama that transformers loads under a `tp_plan`, and that is compared with the whole model.

    python transformers_ranks.py CHECKPOINT RULES RESULT

RULES: a JSON list of `tp_plan`s. RESULT: what rank 0 saw of each: the largest difference of logits and of gradients,
and the parameters that are cut, with the dim.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.distributed import DistributedConfig

IDS = torch.arange(14).reshape(2, 7) * 3 % 97


def config() -> LlamaConfig:
    """Two layers, four heads in two groups, and head and embedding apart."""
    return LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=98,
        tie_word_embeddings=False,
    )


def outcome(model):
    """Logits and the gradients of their mean square, whole ones."""
    logits = model(IDS).logits
    logits.square().mean().backward()
    grads = {name: parameter.grad for name, parameter in model.named_parameters()}
    return logits, {name: grad.full_tensor() if isinstance(grad, DTensor) else grad for name, grad in grads.items()}


def compare(checkpoint: str, rules: dict[str, str]) -> dict[str, object]:
    """The model in slices against the whole one."""
    logits, grads = outcome(LlamaForCausalLM.from_pretrained(checkpoint))
    distributed = DistributedConfig(tp_size=2, tp_plan=rules)
    model = LlamaForCausalLM.from_pretrained(checkpoint, distributed_config=distributed)
    got, got_grads = outcome(model)
    cut = {
        name.removesuffix(".weight").replace(".0.", ".*."): parameter.placements[0].dim
        for name, parameter in model.named_parameters()
        if isinstance(parameter, DTensor) and ".1." not in name
    }
    return {
        "logits": (got - logits).abs().max().item(),
        "grads": max((got_grads[name] - grads[name]).abs().max().item() for name in grads),
        "cut": cut,
    }


def main(checkpoint: str, rules: str, result: str) -> None:
    """Compare every plan; rank 0 writes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        torch.manual_seed(0)
        LlamaForCausalLM(config()).save_pretrained(checkpoint)
    dist.barrier()
    found = [compare(checkpoint, plan) for plan in json.loads(Path(rules).read_text())]
    if dist.get_rank() == 0:
        Path(result).write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
