"""What exports are, to the programs they are for.

    python benchmarks/consumers.py [CONSUMER ...]
    python benchmarks/consumers.py --model transformer:style=llama,layers=2,hidden=256,heads=8,batch=16 --mesh 2x2x2

A decoder layer is solved for each format on 1x2, with a projection split, exported, and given to its consumer: to its
own parser of configurations, or imported, or run. `--model` and `--mesh`: another model, which nothing pins, and
another mesh. A line for each: format, consumer and its version, what it said. A consumer that is not installed is a
line, too. MaxText takes Python 3.12, and its package brings nothing that it imports (without CUDA: jax, flax,
transformers, grain, drjax, jaxtyping, qwix, aqtp, pathwaysutils, pillow, omegaconf); megatron-core has Megatron-LM's
parser since 0.17, for which Python 3.11 is too old. Exits with 1 where an installed consumer refuses.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import importlib.metadata
import io
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "planner"), str(ROOT / "tests" / "support")]


def transformers_styles(path: Path) -> str:
    """The words of a tp-plan are styles that transformers has."""
    styles = importlib.import_module("transformers.integrations.tensor_parallel").ALL_PARALLEL_STYLES
    plan = json.loads(path.read_text(encoding="utf-8"))["tp_plan"]
    unknown = sorted({style for style in plan.values() if style not in styles})
    if unknown:
        raise ValueError(f"unknown styles: {unknown}")
    return f"{len(plan)} modules, {len(set(plan.values()))} styles known"


def deepspeed_config(path: Path) -> str:
    """The parser of a whole DeepSpeed configuration reads it."""
    given = json.loads(path.read_text(encoding="utf-8"))
    whole = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, **given}
    read = importlib.import_module("deepspeed.runtime.config").DeepSpeedConfig(whole).tensor_parallel_config
    return (
        f"DeepSpeedConfig: autotp_size {read.autotp_size}, {len(read.partition_config['layer_specs'])} kinds of modules"
    )


def python_program(path: Path) -> str:
    """The program is imported, with all that it takes from its framework."""
    text = path.read_text(encoding="utf-8")
    exec(compile(text, path.name, "exec"), {"__name__": "exported"})
    return f"{len(text.splitlines())} lines imported"


def jax_arrays(path: Path) -> str:
    """Every parameter is put onto two devices, each of which gets what the plan says its rank holds."""
    jax = importlib.import_module("jax")

    from shardplan import load
    from shardplan.runtime.shards import shard_of

    plan = load(path.parent / "jax.plan.json")
    jax.config.update("jax_num_cpu_devices", plan.mesh.size)
    made: dict[str, Any] = {"__name__": "exported"}
    exec(compile(path.read_text(encoding="utf-8"), path.name, "exec"), made)
    shardings = made["shardings"](made["make_mesh"]())
    for name, sharding in shardings.items():
        shape = shard_of(plan, name, 0).shape
        array = jax.device_put(np.arange(np.prod(shape), dtype=np.float32).reshape(shape), sharding)
        for rank, shard in enumerate(array.addressable_shards):
            (piece,) = shard_of(plan, name, rank).pieces
            if not np.array_equal(shard.data, np.asarray(array)[piece.source]):
                raise ValueError(f"device {rank} does not hold what the plan says of '{name}'")
    cut = sum(not sharding.is_fully_replicated for sharding in shardings.values())
    return f"{len(shardings)} parameters on {plan.mesh.size} devices as planned, {cut} in pieces"


def mlir_module(path: Path) -> str:
    """The module is parsed and verified by jaxlib's MLIR with the dialects that it is in."""
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir

    with mlir.make_ir_context():
        module = ir.Module.parse(path.read_text(encoding="utf-8"))
        if not module.operation.verify():
            raise ValueError("not verified")
        return "verified"


def checked_ranks(path: Path) -> str:
    """Every model of the folder passes the checker of ONNX."""
    checker = importlib.import_module("onnx.checker")
    models = sorted(path.rglob("*.onnx"))
    for model in models:
        checker.check_model(str(model))
    return f"{len(models)} models checked"


class _OfSlice:
    """A simulated device that says of which slice it is, as devices between which the network is do."""

    def __init__(self, device: Any, slice_index: int) -> None:
        self._device, self.slice_index = device, slice_index

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)


def maxtext_config(path: Path) -> str:
    """MaxText's own configuration takes the keys, and makes its mesh of simulated devices from them."""
    given = yaml.safe_load(path.read_text(encoding="utf-8"))
    ranks = math.prod(size for name, size in given.items() if name.startswith(("ici_", "dcn_")))
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={ranks}"
    files = importlib.metadata.files("maxtext") or ()
    base = next(file for file in files if str(file) == "maxtext/configs/base.yml").locate()
    slices = math.prod(size for name, size in given.items() if name.startswith("dcn_"))
    settings = [f"{name}={value}" for name, value in {**given, "num_slices": slices}.items()]
    quiet = ["run_name=consumer", "hardware=cpu", "enable_checkpointing=False", "skip_jax_distributed_system=True"]
    with contextlib.redirect_stdout(io.StringIO()):
        pyconfig = importlib.import_module("maxtext.configs.pyconfig")
        config = pyconfig.initialize(["train", str(base), *quiet, *settings])
        simulated = importlib.import_module("jax").devices()
        inside = len(simulated) // slices
        simulated = [_OfSlice(device, place // inside) for place, device in enumerate(simulated)]
        devices = importlib.import_module("maxtext.utils.maxtext_utils").create_device_mesh(config, simulated)
    axes = zip(config.mesh_axes, devices.shape, strict=True)
    return f"{len(given)} keys read, mesh {', '.join(f'{name} {size}' for name, size in axes if size > 1)}"


def megatron_arguments(path: Path) -> str:
    """Megatron-LM's own parser takes the arguments and finds them consistent, beside those of the model."""
    try:
        arguments = importlib.import_module("megatron.training.arguments")
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("megatron"):
            return megatron_settings(path)
        raise
    # the machine that is asked is this one, which has no GPU: it is said to be an H100
    arguments.get_device_arch_version = lambda: 9
    given = path.read_text(encoding="utf-8").split()
    sizes = "--num-layers 2 --hidden-size 64 --num-attention-heads 8 --seq-length 64 --max-position-embeddings 64"
    run = "--lr 1e-4 --train-iters 1 --transformer-impl local --bf16"
    argv, world = sys.argv, os.environ.get("WORLD_SIZE")
    ranks = json.loads((path.parent / "megatron.plan.json").read_text(encoding="utf-8"))["mesh"]["axes"]
    world_size = str(math.prod(axis["size"] for axis in ranks))
    sys.argv, os.environ["WORLD_SIZE"] = ["pretrain_gpt.py", *given, *sizes.split(), *run.split()], world_size
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            read = arguments.validate_args(arguments.parse_args())
    finally:
        sys.argv = argv
        os.environ.pop("WORLD_SIZE") if world is None else os.environ.update(WORLD_SIZE=world)
    ways = f"tensor {read.tensor_model_parallel_size}, data {read.data_parallel_size}"
    return f"Megatron-LM's parser: {len([word for word in given if word.startswith('--')])} arguments, {ways}"


def megatron_settings(path: Path) -> str:
    """Every argument is a field of Megatron Core's configurations, which take these values: the parser of Megatron-LM,
    which makes arguments of these fields, is not in older packages; it adds the three of `_OF_THE_PARSER`."""
    core = importlib.import_module("megatron.core.model_parallel_config").ModelParallelConfig
    kinds = [core, importlib.import_module("megatron.core.transformer.transformer_config").TransformerConfig]
    kinds.append(importlib.import_module("megatron.core.distributed").DistributedDataParallelConfig)
    kinds.append(importlib.import_module("megatron.core.optimizer").OptimizerConfig)
    fields = {field.name for kind in kinds for field in dataclasses.fields(kind)}
    given = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        name, _, value = line.removeprefix("--").partition(" ")
        name, no = name.replace("-", "_"), name.startswith("no-")
        given[name.removeprefix("no_") if no else name] = int(value) if value.isdigit() else value or not no
    unknown = sorted(given.keys() - fields - _OF_THE_PARSER)
    if unknown:
        raise ValueError(f"unknown arguments: {unknown}")
    own = {field.name for field in dataclasses.fields(core)}
    made = core(**{name: value for name, value in given.items() if name in own})
    return f"{len(given)} arguments known, tensor {made.tensor_model_parallel_size}"


def onnxruntime_ranks(path: Path) -> str:
    """Four ranks of a small GPT, split at random, in ONNX Runtime: together they compute what the model computes."""
    from exported import feeds_of, run_whole
    from forced_plans import INFERENCE, forced_plan
    from small_models import small_model

    from shardplan.export.onnx.folder import write_folder
    from shardplan.export.onnx.reference import read_ranks
    from shardplan.program.collectives import unshard
    from shardplan.program.lower import lower_program
    from shardplan.program.machine.values import random_values

    folders = [path.parent / name for name in ("ranks", "feeds", "results")]
    for folder in folders[1:]:
        folder.mkdir()
    model = small_model("gpt", path.parent)
    plan = forced_plan(model, "2x2", INFERENCE, seed=5)
    program, values = lower_program(model, plan), random_values(model)
    write_folder(program, plan, None, folders[0])
    for rank, feed in enumerate(feeds_of(read_ranks(folders[0])[0], program, values)):
        np.savez(folders[1] / f"rank-{rank}.npz", **feed)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    example = ROOT / "docs" / "examples" / "run_onnx_ranks.py"
    done = subprocess.run([*launch, example, *folders], capture_output=True, text=True, check=True)
    made = [dict(np.load(folders[2] / f"rank-{rank}.npz")) for rank in range(4)]
    kept, whole = {decision.name: decision.layout.forward for decision in plan.tensors}, run_whole(model, values)
    far = 0.0
    for name in model.outputs:
        found = unshard([rank[name].astype(np.float64) for rank in made], kept[name], plan.mesh, rtol=1e-3, atol=1e-3)
        far = max(far, float(np.abs(found - whole[name]).max() / np.abs(whole[name]).max()))
    if far > 1e-4:
        raise ValueError(f"off by {far:.0e}")
    return f"{done.stdout.strip().splitlines()[-1]}, off by {far:.0e}"


CONSUMERS: tuple[tuple[str, str, str, Callable[[Path], str]], ...] = (
    ("tp-plan", "tp-plan", "transformers", transformers_styles),
    ("tp-plan-portable", "tp-plan-portable", "transformers", transformers_styles),
    ("deepspeed", "deepspeed", "deepspeed", deepspeed_config),
    ("torchtitan", "torchtitan", "torchtitan", python_program),
    ("fsdp2", "fsdp2", "torch", python_program),
    ("jax", "jax", "jax", jax_arrays),
    ("shardy", "shardy", "jaxlib", mlir_module),
    ("maxtext", "maxtext", "maxtext", maxtext_config),
    ("megatron", "megatron", "megatron-core", megatron_arguments),
    ("", "onnx-spmd", "onnx", checked_ranks),
    ("", "onnx-spmd", "onnxruntime", onnxruntime_ranks),
)
"""What is solved for, the format of the export, the consumer, and how it takes it."""

SPLIT = ("--pin", "*.up_proj.weight=[gpu, null]")


_OF_THE_PARSER = frozenset({"micro_batch_size", "global_batch_size", "ckpt_format"})


def exported(target: str, form: str, folder: Path, model: str | None, mesh: str) -> Path:
    """A model, by default a decoder layer, solved for `target` and exported to `form` by the command line."""
    from tensor_parallel import QWEN, one_layer

    from shardplan.cli import main

    plan, out = folder / f"{form}.plan.json", folder / form
    said = (*(("--for", target) if target else ()), *(() if model else SPLIT), "--mesh", mesh)
    model = model or str(one_layer(QWEN, folder))
    with contextlib.redirect_stdout(io.StringIO()):
        if main(["solve", model, *said, "-o", str(plan), "--quiet", "--no-advice"]):
            raise RuntimeError("it has no plan")
        if not out.exists() and main(["export", str(plan), model, "--to", form, "-o", str(out), "--quiet"]):
            raise RuntimeError("it was not exported")
    return out


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("consumers", nargs="*")
    parser.add_argument("--model")
    parser.add_argument("--mesh", default="1x2")
    asked = parser.parse_args()
    print(f"{'format':16} {'consumer':14} {'version':12} said")
    chosen, refused = set(asked.consumers), 0
    with tempfile.TemporaryDirectory() as folder:
        for target, form, package, take in CONSUMERS:
            if chosen and package not in chosen:
                continue
            try:
                version = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                print(f"{form:16} {package:14} {'-':12} not installed")
                continue
            try:
                said = take(exported(target, form, Path(folder), asked.model, asked.mesh))
            except (Exception, SystemExit) as problem:  # noqa: BLE001 - a refusal of any kind is what the line says
                said = f"{type(problem).__name__}: {' '.join(str(problem).split())[:300]}"
                refused += 1
            print(f"{form:16} {package:14} {version:12} {said}", flush=True)
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
