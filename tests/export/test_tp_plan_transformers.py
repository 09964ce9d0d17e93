"""Exported tp_plans in transformers itself: rules are accepted, and two ranks get logits and gradients of one device.

Skipped where transformers (with accelerate, which its loading needs) is not installed.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tensor_parallel import LAYER, LLAMA, QWEN, one_layer, planned

from shardplan.export.tp_plan import export_portable, export_tp_plan

pytest.importorskip("torch")
pytest.importorskip("accelerate")
pytest.importorskip("transformers", minversion="5.0")

SUPPORT = Path(__file__).parents[1] / "support"
SMALL_LLAMA = "transformer:llama3-8b,layers=2,vocab=4096"
MLP = {name: style for name, style in LLAMA.items() if ".mlp." in name}
DIMS = {"colwise": 0, "colwise_gather_output": 0, "rowwise": 1, "embedding_rowwise": 0}


def test_the_published_plan_is_ours_and_styles_are_known():
    from transformers import LlamaConfig
    from transformers.integrations.tensor_parallel import ALL_PARALLEL_STYLES

    from shardplan.export.tp_plan import _STYLES

    assert LlamaConfig.base_model_tp_plan == LAYER
    styles = {style for table in _STYLES.values() for style in table.values() if style}
    assert styles | {"moe_tp_experts"} <= set(ALL_PARALLEL_STYLES)


def ranks(folder, plans):
    """What rank 0 of two saw of every plan."""
    rules, result = folder / "rules.json", folder / "result.json"
    rules.write_text(json.dumps(plans))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(SUPPORT / "transformers_ranks.py"), str(folder / "llama"), str(rules), str(result)]
    started = [
        subprocess.Popen(
            command,
            env=os.environ | meeting | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=120)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], "\n".join(said)
    return json.loads(result.read_text())


def test_two_ranks_get_logits_and_gradients_of_one_device(tmp_path):
    """Llama's own plan; and one that cuts less than the model's class does, which must not cut more."""
    llama = export_tp_plan(planned(SMALL_LLAMA, tmp_path, LLAMA, "--mode", "inference"))
    mlp = export_portable(planned(str(one_layer(QWEN, tmp_path)), tmp_path, MLP, "--mode", "inference", mesh="gpu=2"))
    assert all(said.severity == "warning" for made in (llama, mlp) for said in made.refused)
    plans = [json.loads(made.text)["tp_plan"] for made in (llama, mlp)]
    plans[1] = {name: style for name, style in plans[1].items() if "_norm" not in name}  # Llama has none of these
    for seen, rules in zip(ranks(tmp_path, plans), (LLAMA, MLP), strict=True):
        assert seen["cut"] == {name: DIMS[style] for name, style in rules.items()}
        assert seen["logits"] < 1e-5
        assert seen["grads"] < 1e-5
