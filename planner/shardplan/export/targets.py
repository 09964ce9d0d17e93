"""The formats that `shardplan export --to` knows: one line each.

To add one, write the function in a module of this package and a line in `TARGETS`. What the function gets and gives
follows from the line:

| writes   | needs_model | the function                                        |
|----------|-------------|-----------------------------------------------------|
| `text`   | no          | `(plan: Plan) -> Exported`                          |
| `text`   | yes         | `(plan: Plan, source: Source) -> Exported`          |
| `file`   | yes         | `(plan: Plan, source: Source, output: Path) -> Exported` |
| `folder` | yes         | `(plan: Plan, source: Source, output: Path) -> Exported` |

Text ends with a newline and is printed, or written to `--output` so that it is whole or not there; a file that is there
is replaced if it `begins` as texts of the format do. Files and folders are written by the function, with the helpers of
`shardplan.export.files`. Every function is pure otherwise: equal input, equal bytes out.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from shardplan.errors import ShardplanError, did_you_mean, error
from shardplan.export.types import Exported
from shardplan.request import TARGET_ALIASES


@dataclass(frozen=True, slots=True)
class Target:
    """A format. `function`: `"module:attribute"`, imported when it is used. `summary`: one line of the help."""

    name: str
    summary: str
    function: str
    needs_model: bool
    writes: Literal["text", "file", "folder"]
    begins: str = ""
    """Of text: the pattern of how all of its files begin."""
    takes_padding: bool = False
    """Whether it can express a plan that holds dims as larger ones; other formats are of the model as it is."""

    def load(self) -> Callable[..., Exported]:
        """The function behind the name."""
        module, _, attribute = self.function.partition(":")
        found: Callable[..., Exported] = getattr(importlib.import_module(module), attribute)
        return found


TARGETS: tuple[Target, ...] = (
    Target(
        "onnx",
        "the model's file with ONNX's multi-device annotations on its nodes",
        "shardplan.export.onnx.annotations:export_annotations",
        needs_model=True,
        writes="file",
    ),
    Target(
        "onnx-spmd",
        "the program of every rank in ONNX, with collectives as nodes and the weights cut",
        "shardplan.export.onnx.folder:export_spmd",
        needs_model=True,
        writes="folder",
        takes_padding=True,
    ),
    Target(
        "shard-info",
        "steps for loaders that shard while they load (TVM Disco, MLC)",
        "shardplan.export.shard_info:export_shard_info",
        needs_model=False,
        writes="text",
        begins=r'\{\}|\{\n  "[^\n]*": \[\[',
    ),
    Target(
        "jax",
        "a Python module of PartitionSpecs",
        "shardplan.export.jax_specs:export_jax",
        needs_model=False,
        writes="text",
        begins=r'"""Shardings of [^\n]*(?<! for torchtitan), made by shardplan',
    ),
    Target(
        "shardy",
        "the mesh and the shardings of arguments and results in Shardy's text (MLIR)",
        "shardplan.export.shardy:export_shardy",
        needs_model=False,
        writes="text",
        begins=r"module @[^\n]* \{\n  sdy\.mesh @mesh = ",
    ),
    Target(
        "tp-plan",
        "the tp_plan of Hugging Face transformers 5",
        "shardplan.export.tp_plan:export_tp_plan",
        needs_model=False,
        writes="text",
        begins=r'\{\n  "tp_size": \d+,\n  "tp_plan": ',
    ),
    Target(
        "tp-plan-portable",
        "a tp_plan of the five styles that transformers, vLLM and SGLang all read",
        "shardplan.export.tp_plan:export_portable",
        needs_model=False,
        writes="text",
        begins=r'\{\n  "tp_size": \d+,\n  "tp_plan": ',
    ),
    Target(
        "deepspeed",
        "the tensor_parallel section of a DeepSpeed configuration (AutoTP)",
        "shardplan.export.deepspeed:export_deepspeed",
        needs_model=False,
        writes="text",
        begins=r'\{\n  "tensor_parallel": \{\n    "autotp_size": ',
    ),
    Target(
        "fsdp2",
        "a Python module of torch's own fully_shard and parallelize_module",
        "shardplan.export.fsdp2:export_fsdp2",
        needs_model=False,
        writes="text",
        begins=r"\"{3}[^\n]*: torch's fully_shard and parallelize_module\.\n",
    ),
    Target(
        "megatron",
        "arguments of Megatron-LM: degrees of parallelism",
        "shardplan.export.trainers:export_megatron",
        needs_model=True,
        writes="text",
        begins=r"--tensor-model-parallel-size \d+\n",
    ),
    Target(
        "maxtext",
        "the ici and dcn parallelism of a MaxText configuration",
        "shardplan.export.trainers:export_maxtext",
        needs_model=True,
        writes="text",
        begins=r"dcn_data_parallelism: \d+\ndcn_fsdp_parallelism: ",
    ),
    Target(
        "torchtitan",
        "what enters and leaves every module, as torchtitan's ShardingConfig",
        "shardplan.export.titan:export_titan",
        needs_model=False,
        writes="text",
        begins=r'"""Shardings of [^\n]* for torchtitan, made by shardplan',
    ),
)


def find_target(name: str) -> Target:
    """The target called `name`; `transformers` is `tp-plan`, as in `solve --for`. Raises `ShardplanError`
    (`unknown-format`) that lists the names there are."""
    name = TARGET_ALIASES.get(name, name)
    found = {target.name: target for target in TARGETS}
    if name not in found:
        hint = did_you_mean(name, found) or f"the formats are {', '.join(sorted(found))}"
        raise ShardplanError(error("unknown-format", f"there is no export format '{name}'", hint=hint))
    return found[name]
