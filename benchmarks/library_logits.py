"""What described models compute beside transformers: `python benchmarks/library_logits.py [MODEL_TYPE ...] [--write]`.

Takes transformers and torch. A line for each tiny configuration of `tests/support/library_models.py`: how far the
logits of the described model are from those of transformers with the same weights, relative to the largest. `--write`
puts what transformers computes into `tests/models/library_logits.json`, with which a test compares.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "planner"), str(ROOT / "tests" / "support")]


def of_transformers(kind: str, model: Any, values: dict[str, Any]) -> Any:
    """The logits of transformers' model with the weights of the described one."""
    import torch
    import transformers
    from library_models import CONFIGS

    config = transformers.AutoConfig.for_model(**{"model_type": kind, **CONFIGS[kind]})
    eager = {"attn_implementation": "eager", "experts_implementation": "eager"}
    made = transformers.AutoModelForCausalLM.from_config(config, **eager).eval().double()
    state, filled = dict(made.named_parameters()), set[str]()
    with torch.no_grad():
        for weight in model.parameters:
            array = np.asarray(values[weight.tensor], dtype=np.float64)
            array = np.transpose(array, np.argsort(weight.perm)) if weight.perm else array
            name, array = of_experts(weight.name, array, state)
            stored(kind, name, array, state[name], made.config)
            filled.add(name)
        assert filled == set(state), sorted(filled ^ set(state))
        ids = torch.from_numpy(values["input_ids"])
        return made(input_ids=ids, use_cache=False).logits.numpy()


def of_experts(name: str, array: Any, state: dict[str, Any]) -> tuple[str, Any]:
    """The weight that holds this one, and all of it: gates and ups of experts are one, and each [out, in]."""
    module, _, part = name.removesuffix(".weight").rpartition(".")
    if not module.endswith(".experts"):
        return name, array
    array = np.swapaxes(array, 1, 2)
    if part == "down":
        return f"{module}.down_proj", array
    whole = state[f"{module}.gate_up_proj"].detach().numpy().copy()
    half = whole.shape[1] // 2
    whole[:, :half] = array if part == "gate" else whole[:, :half]
    whole[:, half:] = array if part == "up" else whole[:, half:]
    return f"{module}.gate_up_proj", whole


def stored(kind: str, name: str, array: Any, place: Any, config: Any) -> None:
    """A weight as transformers holds it: norms of Qwen without the one that they add, heads of Kimi's queries with the
    part that would be rotated behind the other, and OPT's positions from the third row on."""
    import torch

    if kind.startswith("qwen") and "norm" in name and "linear_attn" not in name:
        array = array - 1
    if config.model_type == "opt" and name.endswith("embed_positions.weight"):
        array = np.roll(array, 2, axis=0)
    sizes = (getattr(config, "qk_rope_head_dim", 0), getattr(config, "qk_nope_head_dim", 0))
    if sum(sizes) and name.endswith("q_proj.weight") and len(array) == config.num_attention_heads * sum(sizes):
        heads = array.reshape(config.num_attention_heads, sum(sizes), -1)
        array = np.concatenate([heads[:, sizes[0] :], heads[:, : sizes[0]]], axis=1).reshape(array.shape)
    place.data = torch.from_numpy(array.reshape(place.shape).copy()).double()


def main() -> None:
    """Print the table."""
    from library_models import CONFIGS, LOGITS, tiny_model, values_of

    from shardplan.program.machine.whole import run_whole

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    known = json.loads(LOGITS.read_text()) if LOGITS.exists() else {}
    for kind in asked.kinds or list(CONFIGS):
        with tempfile.TemporaryDirectory() as folder:
            model = tiny_model(kind, Path(folder))
        values = values_of(kind, model)
        (ours,) = run_whole(model, values).values()
        theirs = of_transformers(kind, model, values)
        print(f"{kind:20} {np.abs(ours - theirs).max() / np.abs(theirs).max():.1e}", flush=True)
        known[kind] = [[float(f"{each:.7g}") for each in row] for row in theirs[0]]
    if asked.write:
        rows = (f"{json.dumps(kind)}: {json.dumps(known[kind])}" for kind in CONFIGS if kind in known)
        LOGITS.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
