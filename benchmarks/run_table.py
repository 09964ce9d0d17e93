"""Published training runs of several groups, a row each: `measured/training_runs.csv` as `shardplan price` is asked.

A row says model, machine, configuration, metric, value, source, and `split`: `held out` where no constant was fitted to
it. What a row does not say (the kind of attention, how experts are routed) is the model's; see `MODELS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

Columns = Mapping[str, str]
CLUSTERS = {
    "a100-800": "extends: builtin:a100-dgx\nlevels:\n  net: {node_gbit: 800, nics: 4}\n",
    "a100-400": "extends: builtin:a100-dgx\nlevels:\n  net: {node_gbit: 400, nics: 4}\n",
    "a100-40": "extends: builtin:a100-dgx\ndevice: {kind: A100-SXM4-40GB, memory_bytes: 40 GB, hbm_gbps: 1555}\n",
    "a100-40-800": "extends: builtin:a100-dgx\ndevice: {kind: A100-SXM4-40GB, memory_bytes: 40 GB, hbm_gbps: 1555}\n"
    "levels:\n  net: {node_gbit: 800, nics: 4}\n",
    "h100-500w": "extends: builtin:h100-dgx\ndevice: {kind: H100-SXM5-96GB, memory_bytes: 96 GB, hbm_gbps: 2400, "
    "gemm: {sustained: 0.78}}\n",
}
"""Machines that are no shipped profile: vTrain's network (800 Gb/s, as it says), Jean Zay's (four Omni-Path links of
100 Gb/s for eight GPUs), llm-foundry's A100 of 40 GB (1600 Gb/s, as it says), GPT-NeoX's of 40 GB (four cards of
200 Gb/s for eight GPUs), and torchtitan's H100 (96 GB of HBM2e, 2.4 TB/s, as it says, and 500 W: clocks that a chip
keeps go with the cube root of its power, so that of 0.87 at 700 W 0.78 are left)."""
HARDWARE = {
    "a100": "a100-dgx", "a100-400": "a100-400", "a100-40-800": "a100-40-800", "h100": "h100-dgx",
    "h200": "h200-dgx", "b200": "b200-dgx", "b300": "b300-dgx", "gb200": "gb200-nvl72", "gb300": "gb300-nvl72",
    "h100-500w": "h100-500w",
    "mi325x": "mi325x-8", "mi355x": "mi355x-8",
}  # fmt: skip
MODELS = {
    "gpt3-5b": "style=gpt,layers=24,hidden=4096,heads=32,vocab=51200",
    "gpt3-20b": "style=gpt,layers=44,hidden=6144,heads=48,vocab=51200",
    "gpt3-175b": "gpt-175b",
    "llama2-13b": "style=llama,layers=40,hidden=5120,heads=40,ffn=13824,vocab=32000",
    "nemotron-8b": "style=nemotron,layers=32,hidden=4096,heads=32,ffn=16384,vocab=256000",
    "nemotron-15b": "style=nemotron,layers=32,hidden=6144,heads=48,kv_heads=8,ffn=24576,vocab=256000",
    "nemotron-22b": "style=nemotron,layers=40,hidden=6144,heads=48,ffn=24576,vocab=256000",
    "nemotron-340b": "style=nemotron,layers=96,hidden=18432,heads=96,kv_heads=8,ffn=73728,vocab=256000",
}
"""Models that no description has by name; their sizes give the FLOPs of a token that the sources say."""
FURTHER = {"deepseek-v3": 1, "nemotron-3-super": 2}
"""How many further tokens Megatron-Bridge's recipes train to predict (`mtp_num_layers` in `recipes/deepseek` and
`recipes/nemotronh`; Super runs one module twice). Nemotron 3 Nano, Kimi K2 and torchtitan's DeepSeek-V3 train none."""
SPLITS = {
    "megatron-bridge": 3, "nemo-24.07": 1, "dgxc-benchmarking": 1, "torchtitan": 3, "primus": 2, "mt-nlg": 1,
    "bigscience": 1, "automodel": 1, "gpt-neox": 1,
}  # fmt: skip
"""Sources of the table, and how many of their rows are taken where nobody says."""


@dataclass(frozen=True)
class TrainingRun:
    """One published run. `model`: MODEL of the command line; `asked`: what `shardplan.price` is told besides; `choice`:
    runs of one are alternatives for the same model, devices and batch; `memory_gib`: what an allocator reserved at the
    peak, 0 where nobody says; `split`: `fitted` or `held out`, or nothing where a source is one or the other."""

    source: str
    case: str
    choice: str
    model: str
    profile: str
    asked: Mapping[str, int | str | bool]
    measured_s: float
    memory_gib: float = 0.0
    split: str = ""


def published(source: str) -> Callable[[Columns], TrainingRun | None]:
    """Rows of one source of the table."""

    def read(row: Columns) -> TrainingRun | None:
        return run_of(row) if row["source"] == source else None

    return read


def run_of(row: Columns) -> TrainingRun:
    """A row of the table as a run: beside tensor parallelism trainers cut the hidden state by sequence and keep experts
    whole."""
    ways = {name: int(row[name]) for name in ("tp", "pp", "cp", "vp", "ep")}
    gpus, micro, rows, seq = (int(row[name]) for name in ("gpus", "micro_batch", "global_batch", "seq"))
    asked: dict[str, int | str | bool] = {**ways, "dp": gpus // (ways["tp"] * ways["pp"] * ways["cp"])}
    asked |= {"zero": int(row["zero"]), "micro_batch": micro, "global_batch": rows, "recompute": row["recompute"]}
    # Megatron-DeepSpeed, of the rows on A100, kept the hidden state whole
    asked |= {"precision": row["precision"], "sequence_parallel": ways["tp"] > 1 and "a100" not in row["hardware"]}
    if ways["tp"] > 1 and ways["ep"] > 1:
        asked["etp"] = 1
    # torchtitan compiles its loss since the spring of 2025; AutoModel's recipes compute it in 16 bits
    asked["grad_dtype"] = "bf16" if row["source"] == "torchtitan" else "fp32"
    compiled = row["source"] == "torchtitan" and row["release"] >= "2025-03"
    asked["fused_loss"] = compiled or row["source"] == "automodel"
    value = float(row["value"])
    step = value if row["metric"] == "s/step" else rows * seq / gpus / value
    told = " ".join(f"{name}{ways[name]}" for name in ways if ways[name] > 1)
    case = f"{row['model']} {row['hardware']} x{gpus} zero{row['zero']} {told} mb{micro} gb{rows}"
    further = FURTHER.get(row["model"], 0) if row["source"] == "megatron-bridge" else 0
    model = f"transformer:{MODELS.get(row['model'], row['model'])},seq={seq},mtp={further}"
    return TrainingRun(
        row["source"], f"{case} {row['precision'] or 'bf16'} {row['release']}",
        f"{row['model']} {row['hardware']} {gpus} {rows} {row['precision']}", model, HARDWARE[row["hardware"]], asked,
        step, float(row["memory_gib"] or 0), row["split"],
    )  # fmt: skip
