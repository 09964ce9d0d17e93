"""Parameters of configurations beside those of transformers: `config_counts.py [NAME ...] [--library] [--write]`.

Takes transformers and torch, whose models are built without memory (device `meta`). A line for each configuration of
`tests/support/published_configs.py`: what its description has, what transformers has, their distance in parts per
million. `--write` puts the counts of transformers into that file. `--library` takes, in place of published
configurations, all model types of causal language models that the installed transformers has, with the sizes that it
gives them: same, another number, or refused and why; `--write` keeps those that are the same in
`tests/models/library_counts.json`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tests" / "support" / "published_configs.py"
sys.path[:0] = [str(ROOT / "planner"), str(TABLE.parent)]
LIBRARY = ROOT / "tests" / "models" / "library_counts.json"
UNREAD = {
    "architectures", "bos_token_id", "chunk_size_feed_forward", "eos_token_id", "id2label", "initializer_range",
    "is_encoder_decoder", "label2id", "output_attentions", "output_hidden_states", "pad_token_id", "problem_type",
    "return_dict", "rope_parameters", "sep_token_id", "time_step_limit", "transformers_version", "use_cache",
}  # fmt: skip
"""Keys that no description reads."""
TEXT_PARTS = {
    "qwen2_5_vl": ("Qwen2_5_VLTextConfig", "Qwen2_5_VLTextModel"),
    "qwen3_vl_text": ("Qwen3VLTextConfig", "Qwen3VLTextModel"),
    "qwen3_vl_moe_text": ("Qwen3VLMoeTextConfig", "Qwen3VLMoeTextModel"),
}
"""Text parts that have no causal model of their own: the class lacks the output matrix."""


def described(config: dict[str, Any]) -> int:
    """Parameters of the described model."""
    from shardplan.models import configured

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config))
        model = configured(path, {"batch": 1})
    return sum(model.tensor(weight.tensor).elements for weight in model.parameters)


def of_transformers(config: dict[str, Any]) -> int:
    """Parameters of the model that transformers builds."""
    import torch
    import transformers

    keys = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        if config["model_type"] in TEXT_PARTS:
            kind, module = (getattr(transformers, name) for name in TEXT_PARTS[config["model_type"]])
            model = module(kind(**keys))
            head = 0 if keys.get("tie_word_embeddings") else keys["vocab_size"] * keys["hidden_size"]
        else:
            given = transformers.AutoConfig.for_model(config["model_type"], **keys)
            model, head = transformers.AutoModelForCausalLM.from_config(given), 0
    return head + sum(weight.numel() for weight in model.parameters() if weight.requires_grad)


def library(*, write: bool) -> None:
    """A line for every model type of transformers."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    from shardplan.errors import ShardplanError

    same = dict[str, Any]()
    for kind in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        found = as_it_is(kind)
        if found is None:
            print(f"{kind:28} transformers cannot build it with the sizes it has", flush=True)
            continue
        config, theirs = found
        try:
            ours = described(config)
        except ShardplanError as refused:
            print(f"{kind:28} refused: {str(refused).partition(': ')[2][:100]}".replace("\n", " "), flush=True)
            continue
        print(f"{kind:28} {'same' if ours == theirs else f'{ours:,} and'} {theirs:,}", flush=True)
        if ours == theirs and "text_config" not in config:
            kept = {key: value for key, value in config.items() if key not in UNREAD}
            same[kind] = {"parameters": theirs, "config": kept}
    if write:
        rows = (f"{json.dumps(kind)}: {json.dumps(row, sort_keys=True)}" for kind, row in same.items())
        LIBRARY.write_text("{\n" + ",\n".join(rows) + "\n}\n")


def as_it_is(kind: str) -> tuple[dict[str, Any], int] | None:
    """The configuration that transformers writes for a model type, and the trainable parameters of its model."""
    import torch
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        try:
            config = transformers.AutoConfig.for_model(kind)
            config.save_pretrained(folder)
            with torch.device("meta"):
                model = transformers.AutoModelForCausalLM.from_config(config)
        except Exception:  # noqa: BLE001 - whatever the library raises
            return None
        written = json.loads((Path(folder) / "config.json").read_text())
    return written, sum(weight.numel() for weight in model.parameters() if weight.requires_grad)


def main() -> None:
    """Print the table."""
    from published_configs import CONFIGS, COUNTS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--library", action="store_true")
    asked = parser.parse_args()
    if asked.library:
        library(write=asked.write)
        return
    counts = dict[str, int](COUNTS)
    for name in asked.names or list(CONFIGS):
        config = CONFIGS[name]
        ours, counts[name] = described(config), of_transformers(config)
        distance = (ours / counts[name] - 1) * 1e6
        print(f"{name:32} {config['model_type']:18} {ours:>15,} {counts[name]:>15,} {distance:10.1f}", flush=True)
    if asked.write:
        head, _, rest = TABLE.read_text().partition("COUNTS: Final = {")
        rows = "".join(f'    "{name}": {counts[name]:_},\n' for name in CONFIGS if name in counts)
        TABLE.write_text(f"{head}COUNTS: Final = {{\n{rows}{rest[rest.index('}') :]}")


if __name__ == "__main__":
    main()
