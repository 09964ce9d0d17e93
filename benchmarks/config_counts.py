"""Parameters of published configurations beside those of transformers: `python benchmarks/config_counts.py [NAME ...]`.

Takes transformers and torch, whose models are built without memory (device `meta`). A line for each configuration of
`tests/support/published_configs.py`: what its description has, what transformers has, their distance in parts per
million. `--write` puts the counts of transformers into that file.
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
    return head + sum(weight.numel() for weight in model.parameters())


def main() -> None:
    """Print the table."""
    from published_configs import CONFIGS, COUNTS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
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
