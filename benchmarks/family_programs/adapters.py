"""Small models of transformers with adapters of PEFT, whose own weights are frozen.

Needs `transformers` and `peft`; without them there are none. `python benchmarks/families.py --library` runs them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from family_programs.libraries import Labelled
from family_programs.torchvision_names import declare

VOCAB, BATCH, SEQ = 64, 4, 8
Program = tuple[nn.Module, tuple[Tensor, ...]]
_LLAMA: Mapping[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "use_cache": False,
}  # fmt: skip
_GPT2: Mapping[str, Any] = {
    "vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "use_cache": False,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 1,
}  # fmt: skip
_BERT: Mapping[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": 4,
}  # fmt: skip
_T5: Mapping[str, Any] = {
    "vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0,
    "decoder_start_token_id": 1, "use_cache": False,
}  # fmt: skip
_MIXTRAL: Mapping[str, Any] = {**_LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2}
_BASES: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", _LLAMA),
    "tied llama": ("LlamaConfig", "LlamaForCausalLM", {**_LLAMA, "tie_word_embeddings": True}),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", _GPT2),
    "bert": ("BertConfig", "BertForSequenceClassification", _BERT),
    "t5": ("T5Config", "T5ForConditionalGeneration", _T5),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", _MIXTRAL),
}
_TASKS = {"bert": "SEQ_CLS", "t5": "SEQ_2_SEQ_LM"}


def _lively(model: nn.Module) -> nn.Module:
    """With noise in what is trained: adapters begin where they change nothing, and half of them has no gradient."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def _adapted(base: str, kind: str, **given: Any) -> Callable[[], Program]:
    def make() -> Program:
        declare()
        import peft
        import transformers

        config, model, sizes = _BASES[base]
        inner = getattr(transformers, model)(getattr(transformers, config)(**sizes, attn_implementation="eager"))
        if base == "mixtral":
            inner.set_experts_implementation("batched_mm")  # the kernel for groups knows no double precision
        asked = getattr(peft, f"{kind}Config")(task_type=_TASKS.get(base, "CAUSAL_LM"), **given)
        ids = torch.randint(2, VOCAB, (BATCH, SEQ))
        labels = torch.randint(4, (BATCH,)) if base == "bert" else torch.randint(2, VOCAB, (BATCH, SEQ))
        return Labelled(_lively(peft.get_peft_model(inner, asked)), ("input_ids", "labels")), (ids, labels)

    return make


def _merged() -> Program:
    """A model whose adapters have been merged into its weights, all of which are trained on."""
    model, batch = _adapted("llama", "Lora", r=4, target_modules=["q_proj", "down_proj"])()
    merged = model.model.merge_and_unload()
    return Labelled(merged.requires_grad_(True), ("input_ids", "labels")), batch


def _several() -> Program:
    """Two adapters at once."""
    import peft

    model, batch = _adapted("llama", "Lora", r=4, target_modules=["q_proj", "v_proj"])()
    model.model.add_adapter("other", peft.LoraConfig(r=2, target_modules=["q_proj", "up_proj"]))
    model.model.base_model.set_adapter(["default", "other"])
    return Labelled(_lively(model.model), ("input_ids", "labels")), batch


_QV = {"target_modules": ["q_proj", "v_proj"]}
_ALL = {"target_modules": "all-linear"}
ADAPTERS: dict[str, Callable[[], Program]] = {
    "peft lora": _adapted("llama", "Lora", r=4, lora_alpha=8, **_QV),
    "peft lora all": _adapted("llama", "Lora", r=4, use_rslora=True, lora_bias=False, **_ALL),
    "peft dora": _adapted("llama", "Lora", r=4, use_dora=True, **_QV),
    "peft lora gpt2": _adapted("gpt2", "Lora", r=4, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True),
    "peft dora gpt2": _adapted("gpt2", "Lora", r=4, use_dora=True, target_modules=["c_attn", "wte"],
                               fan_in_fan_out=True),
    "peft lora tied": _adapted("tied llama", "Lora", r=4, target_modules=["embed_tokens", "lm_head", "q_proj"]),
    "peft saved head": _adapted("tied llama", "Lora", r=4, modules_to_save=["lm_head", "embed_tokens"], **_QV),
    "peft lora bert": _adapted("bert", "Lora", r=4, target_modules=["query", "value"], bias="all"),
    "peft lora t5": _adapted("t5", "Lora", r=4, target_modules=["q", "v", "wi"]),
    "peft lora experts": _adapted("mixtral", "Lora", r=2, target_modules=["q_proj"],
                                  target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]),
    "peft tokens": _adapted("tied llama", "Lora", r=4, trainable_token_indices=[3, 5, 8], **_QV),
    "peft ia3": _adapted("llama", "IA3", target_modules=["k_proj", "v_proj", "down_proj"],
                         feedforward_modules=["down_proj"]),
    "peft ia3 gpt2": _adapted("gpt2", "IA3", target_modules=["c_attn", "mlp.c_proj"],
                              feedforward_modules=["mlp.c_proj"], fan_in_fan_out=True),
    "peft prefix": _adapted("llama", "PrefixTuning", num_virtual_tokens=4),
    "peft prefix gpt2": _adapted("gpt2", "PrefixTuning", num_virtual_tokens=4, prefix_projection=True,
                                 encoder_hidden_size=16),
    "peft prompt": _adapted("llama", "PromptTuning", num_virtual_tokens=4),
    "peft prompt bert": _adapted("bert", "PromptTuning", num_virtual_tokens=4),
    "peft p-tuning": _adapted("gpt2", "PromptEncoder", num_virtual_tokens=4, encoder_hidden_size=16),
    "peft adaption": _adapted("llama", "AdaptionPrompt", adapter_len=4, adapter_layers=2),
    "peft adalora": _adapted("llama", "AdaLora", total_step=100, init_r=4, target_r=2, **_QV),
    "peft loha": _adapted("llama", "LoHa", r=4, **_QV),
    "peft lokr": _adapted("llama", "LoKr", r=4, decompose_both=True, **_QV),
    "peft oft": _adapted("llama", "OFT", r=0, oft_block_size=4, **_QV),
    "peft boft": _adapted("llama", "BOFT", boft_block_size=4, boft_n_butterfly_factor=2, **_QV),
    "peft vera": _adapted("llama", "Vera", r=4, target_modules=["q_proj"]),
    "peft randlora": _adapted("llama", "RandLora", r=4, target_modules=["q_proj"]),
    "peft fourier": _adapted("llama", "FourierFT", n_frequency=16, **_QV),
    "peft hra": _adapted("llama", "HRA", r=4, **_QV),
    "peft norms": _adapted("llama", "LNTuning", target_modules=["input_layernorm", "norm"]),
    "peft bone": _adapted("llama", "Miss", r=4, target_modules=["q_proj"]),
    "peft shira": _adapted("llama", "Shira", r=2, target_modules=["q_proj"]),
    "peft merged": _merged,
    "peft several": _several,
}  # fmt: skip
if not all(importlib.util.find_spec(name) for name in ("transformers", "peft")):
    ADAPTERS = {}
