"""What exports are, to the programs they are for: `python benchmarks/consumers.py`.

A decoder layer is solved for each format on 1x2, with a projection split, exported, and given to the
parser of its consumer. A line for each: format, consumer and its version, what it said. A consumer that is not
installed is a line, too. Nothing runs here on several ranks: the tests of each format do that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.metadata
import io
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "planner"), str(ROOT / "tests" / "support")]


def transformers_styles(path: Path) -> str:
    """The words of a tp-plan are styles that transformers has."""
    styles = importlib.import_module("transformers.integrations.tensor_parallel").ALL_PARALLEL_STYLES
    plan = json.loads(path.read_text(encoding="utf-8"))["tp_plan"]
    unknown = sorted({style for style in plan.values() if style not in styles})
    return f"unknown styles: {unknown}" if unknown else f"{len(plan)} modules, {len(set(plan.values()))} styles known"


def deepspeed_config(path: Path) -> str:
    """The configuration is one that AutoTP reads."""
    config = importlib.import_module("deepspeed.runtime.tensor_parallel.config")
    given = json.loads(path.read_text(encoding="utf-8"))["tensor_parallel"]
    return f"read: autotp_size {config.TPTrainingConfig(**given).autotp_size}"


def python_program(path: Path) -> str:
    """The program is imported, with all that it takes from its framework."""
    text = path.read_text(encoding="utf-8")
    exec(compile(text, path.name, "exec"), {"__name__": "exported"})
    return f"{len(text.splitlines())} lines imported"


def mlir_module(path: Path) -> str:
    """The module is parsed and verified by jaxlib's MLIR with the dialects that it is in."""
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir

    with mlir.make_ir_context():
        module = ir.Module.parse(path.read_text(encoding="utf-8"))
        return "verified" if module.operation.verify() else "not verified"


def checked_ranks(path: Path) -> str:
    """Every model of the folder passes the checker of ONNX."""
    checker = importlib.import_module("onnx.checker")
    models = sorted(path.rglob("*.onnx"))
    for model in models:
        checker.check_model(str(model))
    return f"{len(models)} models checked"


def maxtext_keys(path: Path) -> str:
    """Every key is one of the trainer's own base configuration."""
    files = importlib.metadata.files("maxtext") or ()
    base = next(file for file in files if str(file) == "maxtext/configs/base.yml")
    known = set(yaml.safe_load(Path(base.locate()).read_text(encoding="utf-8")))
    given = yaml.safe_load(path.read_text(encoding="utf-8"))
    unknown = sorted(given.keys() - known)
    return f"unknown keys: {unknown}" if unknown else f"{len(given)} keys known"


def megatron_settings(path: Path) -> str:
    """Every argument is a field of Megatron Core's configurations, which take these values. The parser of Megatron-LM
    itself, which makes arguments of these fields, is not in a registry; it adds the three of `_OF_THE_PARSER`."""
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
        return f"unknown arguments: {unknown}"
    own = {field.name for field in dataclasses.fields(core)}
    made = core(**{name: value for name, value in given.items() if name in own})
    return f"{len(given)} arguments known, tensor {made.tensor_model_parallel_size}"


def onnxruntime_session(path: Path) -> str:
    """The first rank's model is loaded by a session."""
    runtime = importlib.import_module("onnxruntime")
    model = min(path.rglob("*.onnx"))
    runtime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return "loaded"


CONSUMERS: tuple[tuple[str, str, str, Callable[[Path], str]], ...] = (
    ("tp-plan", "tp-plan", "transformers", transformers_styles),
    ("deepspeed", "deepspeed", "deepspeed", deepspeed_config),
    ("torchtitan", "torchtitan", "torchtitan", python_program),
    ("fsdp2", "fsdp2", "torch", python_program),
    ("shardy", "shardy", "jaxlib", mlir_module),
    ("maxtext", "maxtext", "maxtext", maxtext_keys),
    ("megatron", "megatron", "megatron-core", megatron_settings),
    ("", "onnx-spmd", "onnx", checked_ranks),
    ("", "onnx-spmd", "onnxruntime", onnxruntime_session),
)
"""What is solved for, the format of the export, the consumer, and how it takes it."""

SPLIT = ("--pin", "*.up_proj.weight=[gpu, null]")


_OF_THE_PARSER = frozenset({"micro_batch_size", "global_batch_size", "ckpt_format"})


def exported(target: str, form: str, folder: Path) -> Path:
    """A decoder layer, solved for `target` and exported to `form` by the command line."""
    from tensor_parallel import QWEN, one_layer

    from shardplan.cli import main

    model, plan, out = one_layer(QWEN, folder), folder / f"{form}.plan.json", folder / form
    said = ("--for", target) if target else ()
    with contextlib.redirect_stdout(io.StringIO()):
        if main(["solve", str(model), "--mesh", "1x2", *said, "-o", str(plan), "--quiet", "--no-advice", *SPLIT]):
            raise RuntimeError("it has no plan")
        if not out.exists() and main(["export", str(plan), str(model), "--to", form, "-o", str(out), "--quiet"]):
            raise RuntimeError("it was not exported")
    return out


def main() -> None:
    """Print the table."""
    print(f"{'format':12} {'consumer':14} {'version':12} said")
    with tempfile.TemporaryDirectory() as folder:
        for target, form, package, take in CONSUMERS:
            try:
                version = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                print(f"{form:12} {package:14} {'-':12} not installed")
                continue
            try:
                said = take(exported(target, form, Path(folder)))
            except Exception as problem:  # noqa: BLE001 - a refusal of any kind is what the line says
                said = f"{type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}"
            print(f"{form:12} {package:14} {version:12} {said}", flush=True)


if __name__ == "__main__":
    main()
