"""A plan as the `tensor_parallel` section of a DeepSpeed configuration (AutoTP with custom patterns).

Sources: https://www.deepspeed.ai/tutorials/autotp-training, "Custom Patterns" and "Custom Layer Specifications";
`module_inject/autotp_config.py` and `auto_tp.py` of DeepSpeed 0.19.8.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from shardplan.errors import warning
from shardplan.export.modules import ModuleStyle, one_axis, wildcards
from shardplan.export.specs import cannot_say, solve_for
from shardplan.export.types import Exported
from shardplan.plan.types import Plan

Spec = dict[str, object]


def export_deepspeed(plan: Plan) -> Exported:
    """One layer spec for all columns, one for all rows, one for every fused column; other modules stay whole. In
    training, vectors that meet heads (`q_norm`) get a spec by which their gradients are summed."""
    found = one_axis(plan)
    reasons: list[str] = []
    modules = wildcards(found.modules, reasons)
    reasons += [*_unknown(modules.values()), *found.refused]
    refused = cannot_say("AutoTP", "what this plan does", reasons, solve_for("deepspeed"))
    mode = str(plan.model.get("mode"))
    specified = {pattern: spec for pattern, module in modules.items() if (spec := _spec(module, mode))}
    for field in ("gather_output", "grad_allreduce"):
        named = [name for name, spec in specified.items() if field in spec]
        if named:
            summary = f"{', '.join(named)}: {field} is known to recent versions of DeepSpeed only"
            refused.append(warning("not-said", summary))
    if found.other_axes:
        summary = f"{' and '.join(found.other_axes)}: data parallelism, which DeepSpeed makes of the remaining ranks"
        refused.append(warning("not-said", summary))
    patterns: dict[str, list[str]] = {}
    for pattern, spec in specified.items():
        patterns.setdefault(json.dumps(spec), []).append(_regex(pattern))
    specs = [{"patterns": listed, **json.loads(text)} for text, listed in patterns.items()]
    size = plan.mesh.shape[found.axis] if found.axis is not None else 1
    section = {"autotp_size": size, "partition_config": {"use_default_specs": False, "layer_specs": specs}}
    return Exported(json.dumps({"tensor_parallel": section}, indent=2) + "\n", tuple(refused))


def _spec(module: ModuleStyle, mode: str) -> Spec:
    """What is said of a module beside its name; `{}`: nothing, it stays whole."""
    if module.style == "per head" and mode == "training":
        return {"partition_type": "skip", "grad_allreduce": True}
    if module.style not in {"column", "row"}:
        return {}
    spec: Spec = {"partition_type": module.style}
    if module.segments:
        equal = len(set(module.segments)) == 1
        spec |= {"shape": [len(module.segments) if equal else list(module.segments), -1], "partition_dim": 0}
    return spec | ({"gather_output": True} if module.gathered else {})


def _regex(pattern: str) -> str:
    r"""`(.*\.)?model\.layers\.\d+\.q_proj\.weight$`: DeepSpeed matches names of parameters."""
    return r"(.*\.)?" + re.escape(pattern).replace(r"\*", r"\d+") + r"\.weight$"


def _unknown(modules: Iterable[ModuleStyle]) -> Iterator[str]:
    for module in modules:
        if module.style in {"vocabulary", "width"}:
            yield f"'{module.name}' is an embedding that is cut; AutoTP leaves embeddings whole"
        elif module.experts and module.style in {"column", "row"}:
            yield f"'{module.name}' is a stack of experts that is cut"
        elif module.transposed and module.style in {"column", "row"}:
            yield f"'{module.name}' stores its weight as [in, out] (Conv1D), and layer specs are for nn.Linear"
        elif module.split_input:
            yield f"'{module.name}' cuts its input itself; a row of AutoTP takes slices"
        elif module.gathered and module.segments:
            yield f"'{module.name}' is fused and its result is gathered; AutoTP does either"
        elif module.style == "row" and module.segments:
            yield f"'{module.name}' is a row that sums over a fused dim in segments"
