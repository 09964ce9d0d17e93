"""Training steps and fused attention on one GPU, measured, beside what `shardplan price` says of the steps.

    python benchmarks/one_gpu.py measure -o rows.csv [--trace FOLDER]   on a machine with a GPU, torch and transformers
    python benchmarks/one_gpu.py attention -o attention.csv             on a machine with a GPU and torch
    python benchmarks/one_gpu.py price [rows.csv] [--cluster h200-dgx]  anywhere
    python benchmarks/one_gpu.py halves [rows.csv]                      the same: `training.eager_us` fitted to halves

Models are transformers' own, of the configurations below, in bf16 with random weights and Adam on fp32 masters, with
scaled dot product attention; `compiled` compiles each layer and the loss by itself. A row is a model, batch, sequence,
way and recomputation, the step (alone, and in a row with others), and what the allocator held and reserved at the peak.
`price` is asked without options but the batch and `--eager`, or of compiled rows `--fused-loss`; by default for the
rows of `measured/one_gpu.csv`. `shardplan calibrate attention` reads the other table.
"""

from __future__ import annotations

import argparse
import csv
import gc
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "planner"))


def _llama(hidden: int, layers: int, heads: int, kv_heads: int, ffn: int, vocab: int, **more: Any) -> dict[str, Any]:
    return {
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "intermediate_size": ffn, "vocab_size": vocab, "hidden_act": "silu",
        "max_position_embeddings": 8192, "dtype": "bfloat16", "tie_word_embeddings": True,
        "model_type": "llama", "rms_norm_eps": 1e-6, **more,
    }  # fmt: skip


def _gpt2(hidden: int, layers: int, heads: int) -> dict[str, Any]:
    sizes = {"n_embd": hidden, "n_layer": layers, "n_head": heads, "vocab_size": 50257, "n_positions": 1024}
    off = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
    return {"model_type": "gpt2", "dtype": "bfloat16", **sizes, **off}


MODELS: dict[str, dict[str, Any]] = {
    "smollm-360m": _llama(960, 32, 15, 5, 2560, 49152, head_dim=64),
    "qwen3-0.6b": _llama(1024, 28, 16, 8, 3072, 151936, model_type="qwen3", head_dim=128),
    "llama-1b": _llama(2048, 16, 32, 8, 8192, 128256, head_dim=64),
    "qwen3-1.7b": _llama(2048, 28, 16, 8, 6144, 151936, model_type="qwen3", head_dim=128),
    "llama-3b": _llama(3072, 28, 24, 8, 8192, 128256, head_dim=128),
    "narrow-llama": _llama(512, 24, 8, 8, 1536, 32000, head_dim=64),
    "gpt2": _gpt2(768, 12, 12),
    "gpt2-xl": _gpt2(1600, 48, 25),
    "small-moe": _llama(
        1024, 12, 16, 4, 3072, 50304, model_type="qwen3_moe", head_dim=64, num_experts=32, num_experts_per_tok=4,
        moe_intermediate_size=768, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[],
    ),
}  # fmt: skip


class Case(NamedTuple):
    """One run. `recompute`: `none` or `full`, as `price` has it; `micro`: microbatches of a step."""

    model: str
    rows: int
    seq: int
    way: str = "eager"
    recompute: str = "none"
    micro: int = 1


CASES = (
    Case("narrow-llama", 1, 512), Case("narrow-llama", 1, 512, "compiled"), Case("narrow-llama", 16, 1024, "compiled"),
    Case("smollm-360m", 8, 2048), Case("smollm-360m", 8, 2048, "compiled"),
    Case("qwen3-0.6b", 1, 1024), Case("qwen3-0.6b", 1, 1024, "compiled"), Case("qwen3-0.6b", 2, 4096, "compiled"),
    Case("llama-1b", 4, 2048), Case("llama-1b", 4, 2048, "compiled"), Case("llama-1b", 1, 8192, "compiled"),
    Case("llama-1b", 4, 2048, "compiled", micro=4), Case("llama-1b", 8, 2048, "compiled", "full"),
    Case("qwen3-1.7b", 2, 4096, "compiled"), Case("llama-3b", 1, 4096, "compiled", "full"),
    Case("gpt2", 16, 1024), Case("gpt2", 16, 1024, "compiled"), Case("gpt2", 1, 1024, "compiled"),
    Case("gpt2-xl", 4, 1024, "compiled"), Case("small-moe", 4, 2048), Case("small-moe", 4, 2048, "compiled"),
)  # fmt: skip
_BEFORE, _STEPS = 4, 10
_CHUNK = 1 << 25
"""Elements that the optimizer takes at once: what their gradients take in fp32 is held beside all else."""


class Adam:
    """Adam with weight decay on fp32 masters of 16-bit weights, a few at a time."""

    def __init__(self, model: Any) -> None:
        import torch

        self.parts: list[tuple[list[Any], Any]] = [([], None)]
        for weight in model.parameters():
            if sum(each.numel() for each in self.parts[-1][0]) + weight.numel() > _CHUNK and self.parts[-1][0]:
                self.parts.append(([], None))
            self.parts[-1][0].append(weight)
        self.parts = [
            (weights, torch.optim.AdamW([each.detach().float() for each in weights], lr=1e-5, fused=True))
            for weights, _ in self.parts
        ]

    def step(self) -> None:
        """From the gradients of the weights, which are dropped."""
        import torch

        for weights, adam in self.parts:
            masters = adam.param_groups[0]["params"]
            for master, weight in zip(masters, weights, strict=True):
                master.grad = weight.grad.float()
                weight.grad = None
            adam.step()
            adam.zero_grad(set_to_none=True)
            torch._foreach_copy_([each.data for each in weights], masters)


def _stepper(case: Case) -> tuple[Any, Callable[[], None]]:
    """A model, and what makes one step of it."""
    import torch
    from torch.nn.functional import cross_entropy
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**MODELS[case.model])
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.bfloat16)
    model.config.use_cache = False
    model.train()
    if case.recompute == "full":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    def loss_of(hidden: Any, weight: Any, labels: Any) -> Any:
        return cross_entropy((hidden @ weight.t()).flatten(0, 1).float(), labels.flatten())

    body = model.get_decoder()
    if case.way == "compiled":
        loss_of = torch.compile(loss_of)
        for layer in getattr(body, "layers", None) or body.h:
            layer.compile()
    ids = torch.randint(0, config.vocab_size, (case.micro, case.rows, case.seq), device="cuda")
    adam = Adam(model)

    def step() -> None:
        for part in ids:
            hidden = body(input_ids=part, use_cache=False).last_hidden_state
            (loss_of(hidden, model.get_output_embeddings().weight, part) / case.micro).backward()
        adam.step()

    return model, step


def measure(case: Case, trace: Path | None = None) -> dict[str, Any]:
    """The median step in ms and peaks in GiB; a trace of two steps if `trace` is a folder."""
    import torch

    model, step = _stepper(case)
    for _ in range(_BEFORE):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    took = []
    for _ in range(_STEPS):
        begun = time.perf_counter()
        step()
        torch.cuda.synchronize()
        took.append(time.perf_counter() - begun)
    held, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    begun = time.perf_counter()
    for _ in range(_STEPS):
        step()
    torch.cuda.synchronize()
    running = (time.perf_counter() - begun) / _STEPS
    if trace is not None:
        _traced(step, trace / f"{case.model}-{case.way}-{case.rows}x{case.seq}.json.gz")
    return {
        **case._asdict(), "parameters": sum(each.numel() for each in model.parameters()),
        "step_ms": round(1e3 * statistics.median(took), 3), "in_a_row_ms": round(1e3 * running, 3),
        "held_gib": round(held / 2**30, 3), "reserved_gib": round(reserved / 2**30, 3),
    }  # fmt: skip


def _traced(step: Callable[[], None], path: Path) -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as seen:
        for _ in range(2):
            step()
    seen.export_chrome_trace(str(path))


def _measured(cases: tuple[Case, ...], trace: Path | None) -> Iterator[dict[str, Any]]:
    import torch

    for case in cases:
        try:
            yield measure(case, trace if case.way == "eager" and case.model in ("llama-1b", "gpt2") else None)
        except Exception as problem:  # noqa: BLE001 - another case may run
            print(f"{case}: {type(problem).__name__}: {str(problem).splitlines()[0][:300]}", file=sys.stderr)
        gc.collect()
        torch.compiler.reset()
        torch.cuda.empty_cache()


HEADS = {64: 32, 96: 24, 128: 16, 192: 16, 256: 8}
"""Sizes of a head, and how many of them."""
_TOKENS, _FIRST = 16384, 512


def attention(backend: str) -> Iterator[dict[str, Any]]:
    """Forward and backward of torch's fused attention of one kernel (`cudnn`, `flash`), on 16384 tokens."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kernel = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}[backend]
    for size, heads in HEADS.items():
        for length in range(_FIRST.bit_length(), _TOKENS.bit_length() + 1):
            for causal in (True, False):
                seq = 1 << (length - 1)
                batch = _TOKENS // seq
                given = [
                    torch.randn(batch, heads, seq, size, device="cuda", dtype=torch.bfloat16, requires_grad=True)
                    for _ in range(3)
                ]
                with sdpa_kernel(kernel):
                    forward_ms, backward_ms = _both(given, causal=causal)
                yield {
                    "kernel": backend, "batch": batch, "heads": heads, "kv_heads": heads, "seq": seq,
                    "head_size": size, "causal": int(causal), "forward_ms": round(forward_ms, 4),
                    "backward_ms": round(backward_ms, 4), "seconds": round((forward_ms + backward_ms) / 1e3, 7),
                }  # fmt: skip


def _both(given: list[Any], *, causal: bool) -> tuple[float, float]:
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    def forward() -> Any:
        return scaled_dot_product_attention(*given, is_causal=causal)

    made = forward()
    gradient = torch.randn_like(made)
    return _ms(forward), _ms(lambda: torch.autograd.grad(made, given, gradient, retain_graph=True))


def _ms(work: Callable[[], Any]) -> float:
    """The median of some runs, by events of the device, after two to warm up."""
    import torch

    took = []
    for _ in range(7):
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        work()
        ended.record()
        torch.cuda.synchronize()
        took.append(begun.elapsed_time(ended))
    return statistics.median(took[2:])


def priced(row: dict[str, str], cluster: Any) -> Any:
    """What `shardplan.price` says of a row."""
    import shardplan

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(MODELS[row["model"]]))
        rows = int(row["rows"])
        return shardplan.price(
            str(path), cluster=cluster, dims={"seq": int(row["seq"])}, micro_batch=rows,
            global_batch=rows * int(row["micro"]), recompute=row["recompute"], fused_loss=row["way"] == "compiled",
            eager=row["way"] == "eager", grad_dtype="bf16",
        )  # fmt: skip


def _compare(path: Path, cluster: str) -> None:
    print(f"{'':14} {'batch':>10} {'way':9} {'recompute':9}  {'step ms':>8} {'price':>7}         held GiB   price")
    errors: dict[str, list[float]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            found = priced(row, cluster)
            step, ms = found.plan.summary.step_ns / 1e6, float(row["in_a_row_ms"])
            held, gib = found.peak.total / 2**30, float(row["held_gib"])
            errors.setdefault(row["way"], []).append(step / ms - 1)
            batch = f"{int(row['micro'])}x{row['rows']}x{row['seq']}"
            print(
                f"{row['model']:14} {batch:>10} {row['way']:9} {row['recompute']:9}  {ms:8.1f} {step:7.1f}"
                f" {step / ms - 1:+6.0%}  {gib:7.2f} {held:7.2f} {held / gib - 1:+6.0%}",
                flush=True,
            )
    for way, found in errors.items():
        sizes = [abs(error) for error in found]
        print(f"{way}: mean error {statistics.mean(sizes):.1%}, median {statistics.median(sizes):.1%}")


_EAGER_US = (25, 27, 28, 29.5, 31, 32.5, 34, 36, 38, 40)


def _halves(path: Path, name: str) -> None:
    """Errors of the eager rows by `eager_us`, and of every half with the value that suits the other half best."""
    from dataclasses import replace

    from shardplan.cluster.mesh import make_cluster
    from shardplan.cluster.profile import load_profile

    whole = make_cluster(load_profile(name))
    with path.open(newline="") as file:
        rows = {row["model"]: row for row in csv.DictReader(file) if row["way"] == "eager"}
    errors: dict[float, dict[str, float]] = {}
    for us in _EAGER_US:
        cluster = replace(whole, training=replace(whole.training, eager_s=us / 1e6))
        errors[us] = {
            model: abs(priced(row, cluster).plan.summary.step_ns / 1e6 / float(row["in_a_row_ms"]) - 1)
            for model, row in rows.items()
        }
        print(f"eager_us {us:4}: mean error {statistics.mean(errors[us].values()):.1%}", flush=True)
    found = []
    for half in itertools.combinations(rows, len(rows) // 2):
        best = min(_EAGER_US, key=lambda us: sum(errors[us][model] for model in half))
        found.append((statistics.mean(errors[best][model] for model in rows if model not in half), best))
    off = [error for error, _ in found]
    print(f"held out: {len(off)} halves, mean error {statistics.mean(off):.1%}, most {max(off):.1%}, ", end="")
    print(f"eager_us {min(us for _, us in found)} to {max(us for _, us in found)}")


def _write(rows: Iterator[dict[str, Any]], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = None
        for row in rows:
            if writer is None:
                writer = csv.DictWriter(file, list(row), lineterminator="\n")
                writer.writeheader()
            writer.writerow(row)
            file.flush()
            print(row, flush=True)


def main() -> None:
    """Measures, or prices what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("measure", "attention", "price", "halves"))
    parser.add_argument("rows", nargs="?", type=Path, default=ROOT / "benchmarks" / "measured" / "one_gpu.csv")
    parser.add_argument("-o", "--output", type=Path, default=Path("measured.csv"))
    parser.add_argument("--trace", type=Path, help="a folder for traces of torch.profiler")
    parser.add_argument("--models", nargs="*")
    parser.add_argument("--cluster", default="h200-dgx")
    given = parser.parse_args()
    if given.verb == "measure":
        cases = tuple(case for case in CASES if not given.models or case.model in given.models)
        _write(_measured(cases, given.trace), given.output)
    elif given.verb == "halves":
        _halves(given.rows, given.cluster)
    elif given.verb == "attention":
        _write(itertools.chain(attention("cudnn"), attention("flash")), given.output)
    else:
        _compare(given.rows, given.cluster)


if __name__ == "__main__":
    main()
