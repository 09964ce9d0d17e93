"""Models of Hugging Face's transformers under plans, in torch: `python benchmarks/hugging_face.py [NAME ...]`.

Takes transformers and onnxscript beside `shardplan[torch]`. A small model of each kind is exported by torch, planned on
2x2 in five ways, and run as it is (its own code, no twin) by four gloo processes: forward, loss, backward. A line for
each plan: the largest error of the result and of the gradients, relative to the largest entry of what one process
computes, and `as planned` where every move of the forward pass, and no other, was made; else what was refused.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import re
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "planner"), str(ROOT / "tests" / "support")]
FORMS = ("Megatron", "Megatron + sequence", "ZeRO-3", "cheap net", "dear net")
VOCAB, BATCH, SEQ = 512, 4, 16
SMALL = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
GROUPED = {"num_key_value_heads": 2, "head_dim": 16}
OPT = {"ffn_dim": 128, "word_embed_proj_dim": 64}
GPT2 = {"vocab_size": VOCAB, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
FALCON = {
    "vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 1),
}  # fmt: skip
BLOOM = {"vocab_size": VOCAB, "hidden_size": 64, "n_layer": 2, "n_head": 4, "pad_token_id": 0}
VIT = {"image_size": 32, "patch_size": 8}
WHISPER = {
    "vocab_size": VOCAB, "num_mel_bins": 16, "d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 4,
    "encoder_ffn_dim": 128, "decoder_layers": 1, "decoder_attention_heads": 4, "decoder_ffn_dim": 128,
    "max_source_positions": 32,
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 1),
}  # fmt: skip
MODELS: dict[str, tuple[str, str, dict[str, Any], tuple[int, ...]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", {**SMALL, "num_key_value_heads": 2}, ()),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**SMALL, **GROUPED}, ()),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {**SMALL, **GROUPED}, ()),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", {**SMALL, "num_key_value_heads": 2}, ()),
    "falcon": ("FalconForCausalLM", "FalconConfig", FALCON, ()),
    "bloom": ("BloomForCausalLM", "BloomConfig", BLOOM, ()),
    "neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", SMALL, ()),
    "opt": ("OPTForCausalLM", "OPTConfig", {**SMALL, **OPT}, ()),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2, ()),
    "bert": ("BertForMaskedLM", "BertConfig", SMALL, ()),
    "vit": ("ViTForImageClassification", "ViTConfig", {**SMALL, **VIT}, (BATCH, 3, 32, 32)),
    "whisper": ("WhisperModel", "WhisperConfig", WHISPER, (BATCH, 16, 64)),
}
"""Class, class of its configuration, sizes, and the shape of the input where that is not token ids."""


def made(name: str) -> tuple[Any, Any]:
    """The model, which takes one tensor and returns one, and its input; the same in every process."""
    import torch

    kind, config, sizes, shape = MODELS[name]
    module = importlib.import_module("transformers")
    torch.manual_seed(0)
    inner = getattr(module, kind)(getattr(module, config)(**sizes)).eval()
    inner = inner.get_encoder() if name == "whisper" else inner

    class One(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = inner

        def forward(self, given: Any) -> Any:
            found = self.model(given, **({} if shape else {"use_cache": False} if name != "bert" else {}))
            return found.logits if hasattr(found, "logits") else found.last_hidden_state

    given = torch.randn(shape) if shape else torch.randint(0, VOCAB, (BATCH, SEQ))
    return One(), given


def prepare(name: str, folder: Path) -> None:
    """Export a model and write its plans."""
    import torch
    from plan_forms import plans_of

    from shardplan.graph.options import PlanOptions
    from shardplan.model.read import read_model
    from shardplan.plan.file import write_plan

    model, given = made(name)
    program = torch.onnx.export(model, (given,), dynamo=True, optimize=False, input_names=["given"], verbose=False)
    program.save(folder / f"{name}.onnx")
    planned = read_model(folder / f"{name}.onnx")
    for form, plan in plans_of(planned, "2x2", PlanOptions(), FORMS):
        if plan is not None:
            write_plan(plan, folder / f"{name}.{FORMS.index(form)}.plan.json")


def run(names: list[str], folder: Path) -> None:
    """What one process does: every plan of every model."""
    import torch

    torch.distributed.init_process_group("gloo")
    for name in names:
        for number, form in enumerate(FORMS):
            path = folder / f"{name}.{number}.plan.json"
            if not path.exists():
                continue
            said = one(name, path)
            if torch.distributed.get_rank() == 0:
                print(f"{name:8} {form:20} {said}", flush=True)
    torch.distributed.destroy_process_group()


def one(name: str, path: Path) -> str:
    """One plan of one model, run beside the model in one process."""
    import shardplan.torch
    from shardplan.errors import ShardplanError

    model, given = made(name)
    reference = copy.deepcopy(model)
    plan = shardplan.load(path)
    mesh = shardplan.torch.mesh(plan)
    try:
        shardplan.torch.parallelize(model, plan, mesh)
        result = model(**shardplan.torch.inputs(plan, mesh, {"given": given}))
    except ShardplanError as problem:
        return "refused: " + re.sub(r"\s+", " ", str(problem.diagnostics[0]))[:150]
    result.float().square().mean().backward()
    expected = reference(given)
    expected.float().square().mean().backward()
    others = reference.named_parameters()
    pairs = [(gradient(model, key), theirs.grad) for key, theirs in others if theirs.grad is not None]
    top = max(theirs.abs().max() for _, theirs in pairs)
    gradients = max(((ours - theirs).abs().max() / top).item() for ours, theirs in pairs)
    error = ((result.full_tensor() - expected).abs().max() / expected.abs().max()).item()
    return f"{error:8.1e}  {gradients:8.1e}  as planned"


def gradient(model: Any, name: str) -> Any:
    """The whole gradient of a weight, which may be kept in parts (see docs/torch.md, "Fused weights")."""
    path, _, attribute = name.rpartition(".")
    owner = model.get_submodule(path)
    if attribute in owner._parameters:  # noqa: SLF001 - a weight in parts is a property
        return owner.get_parameter(attribute).grad.full_tensor()
    held = owner.parametrizations[attribute]
    return held[0].parts.join([part.grad.full_tensor() for part in held.parameters()])


def main() -> None:
    """Prepare, then start four processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    names = given.names or list(MODELS)
    if given.work:
        run(names, given.work)
        return
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        ready = []
        for name in names:
            try:
                prepare(name, Path(folder))
                ready.append(name)
            except Exception as problem:  # noqa: BLE001 - exporters raise anything
                print(f"{name:8} not exported or planned: {str(problem).splitlines()[0]}", flush=True)
        print(f"{'model':8} {'plan':20} {'result':>8}  {'gradients':>8}", flush=True)
        starter = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4"]
        if ready:
            subprocess.run([*starter, __file__, *ready, "--work", folder], check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
