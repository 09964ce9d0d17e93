"""A plan as the `tp_plan` of Hugging Face transformers, and such a plan as constraints for the planner.

A `tp_plan` names modules, with `*` for layer numbers, and one style for each, on one axis of tensor parallelism. In
portable form only the five styles are used that vLLM and SGLang read as well. Sources: transformers
`distributed/tensor_parallel.py` and `distributed/mixin.py` (5.23), vLLM `model_executor/models/transformers`, SGLang
`models/transformers.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from shardplan.errors import Diagnostic, ShardplanError, error, warning
from shardplan.escapes import quoted
from shardplan.export.modules import ModuleStyle, one_axis, wildcards
from shardplan.export.specs import cannot_say, solve_for
from shardplan.export.types import Exported
from shardplan.plan.types import Plan

_STYLES: Mapping[str, Mapping[str, str]] = {
    "full": {
        "column": "colwise", "column gathered": "colwise_gather_output", "column packed": "packed_colwise",
        "row": "rowwise", "row split": "rowwise_split_input",
        "vocabulary": "embedding_rowwise", "width gathered": "embedding_colwise",
        "per head": "replicated_with_grad_allreduce", "whole": "replicate",
    },
    "portable": {
        "column": "colwise", "column gathered": "colwise_rep", "row": "rowwise", "row split": "rowwise_rep",
        "vocabulary": "", "per head": "replicate", "whole": "replicate",
    },
}  # fmt: skip
"""What a module is -> its style; `""`: every reader does this unasked, so it has no rule."""


def export_tp_plan(plan: Plan) -> Exported:
    """`tp_plan` for transformers 5: `DistributedConfig(tp_size=..., tp_plan=...)`."""
    return _export(plan, "full")


def export_portable(plan: Plan) -> Exported:
    """`base_model_tp_plan` for `config.json`, which transformers, vLLM and SGLang read."""
    return _export(plan, "portable")


def constraints_from_tp_plan(tp_plan: Mapping[str, str], axis: str) -> str:
    """YAML for `shardplan solve --constraints` that makes the planner find the plan that `tp_plan` is, on mesh axis
    `axis`; names of modules as in the plan (`model.layers.*.self_attn.q_proj`).

    Raises `ShardplanError` (`unknown-style`) for styles that are not tensor parallelism of one linear or embedding.
    """
    splits = {"column": "n", "row": "k", "vocabulary": "v", "width": "d1"}
    meanings = {style: kind for table in _STYLES.values() for kind, style in table.items() if style}
    operators: dict[str, str] = {}
    unknown: list[Diagnostic] = []
    for name, style in tp_plan.items():
        kind = meanings.get(style, "")
        if kind in {"per head", "whole"}:
            continue
        if not kind or "packed" in kind:
            summary = f"'{name}': style '{style}' is none that the planner can be held to"
            unknown.append(error("unknown-style", summary))
            continue
        operators[name] = f"{{{quoted(axis)}: {splits[kind.split()[0]]}}}"
    if unknown:
        raise ShardplanError(*unknown)
    lines = [f"  {quoted(name)}: {split}" for name, split in operators.items()]
    return (
        'inputs: {"*": replicate}\noutputs: {"*": replicate}\n'
        f"axes: {{{quoted(axis)}: {{forbid: [reduce_scatter, all_to_all]}}}}\noperators:\n" + "\n".join(lines) + "\n"
    )


def _export(plan: Plan, form: str) -> Exported:
    found = one_axis(plan)
    reasons: list[str] = []
    rules: dict[str, str] = {}
    modules = wildcards(found.modules, reasons)
    for pattern, module in modules.items():
        kind, why = _kind(module)
        if module.style == "whole":
            for name in _rules_of_whole(pattern, module, modules):
                rules.setdefault(name, _STYLES[form][kind])
            continue
        if module.experts and form == "full":
            rules[pattern.rpartition(".")[0]] = "moe_tp_experts"
        elif module.experts:
            why = "is a stack of experts that is cut"
        if why or kind not in _STYLES[form]:
            known = "" if form == "full" else " of the five that all readers know"
            reasons.append(f"'{module.name}' {why or f'is {_style_text(module)}'}: no style{known}")
        elif _STYLES[form][kind]:
            rules[pattern] = _STYLES[form][kind]
    reasons += found.refused
    name = "a tp_plan" if form == "full" else "a portable tp_plan"
    refused = cannot_say(
        name, "what this plan does", reasons, solve_for("tp-plan" if form == "full" else "tp-plan-portable")
    )
    if found.other_axes:
        axes = " and ".join(found.other_axes)
        refused.append(warning("not-said", f"{axes}: data parallelism, which a tp_plan leaves to the launcher"))
    prefix = _prefix(modules)
    if form == "portable":
        refused += _ignored_by_readers(modules, prefix)
    size = plan.mesh.shape[found.axis] if found.axis is not None else 1
    return Exported(_text(rules, prefix, size), tuple(refused))


def _rules_of_whole(pattern: str, module: ModuleStyle, modules: Mapping[str, ModuleStyle]) -> Iterator[str]:
    """The names under which a whole module needs a rule.

    transformers keeps the rules of the model's class for names that a plan does not have. Classes cut matrices, tables
    and stacks of experts, and sum the gradients of vectors that meet heads (`q_norm`); other vectors, such as the norms
    of a layer, are beside no matrix and have no rule anywhere.
    """
    parent = pattern.rpartition(".")[0]
    beside = (other for name, other in modules.items() if name.rpartition(".")[0] == parent)
    if module.weight != "vector" or any(other.weight == "matrix" for other in beside):
        yield pattern
    if module.experts:
        yield parent


def _kind(module: ModuleStyle) -> tuple[str, str]:
    """Key of the table of styles, and why there is none."""
    if module.transposed and module.style in {"column", "row"}:
        return "", "stores its weight as [in, out] (Conv1D), and styles are for nn.Linear"
    if module.segments:
        if len(set(module.segments)) > 1 or len(module.segments) != 2 or module.gathered or module.split_input:
            return "", f"is fused in segments of {list(module.segments)}; packed styles are for two equal halves"
        return f"{module.style} packed", ""
    suffix = " gathered" if module.gathered else " split" if module.split_input else ""
    return f"{module.style}{suffix}", ""


def _style_text(module: ModuleStyle) -> str:
    words = {
        "vocabulary": "an embedding cut by its vocabulary",
        "width": "an embedding cut by its width",
        "column": "a column",
        "row": "a row",
        "per head": "a vector that meets heads",
    }
    result = " whose result is gathered" if module.gathered else ""
    fused = f" fused in segments of {list(module.segments)}" if module.segments else ""
    return words[module.style] + result + fused


def _ignored_by_readers(modules: Mapping[str, ModuleStyle], prefix: str) -> list[Diagnostic]:
    """What a `base_model_tp_plan` does not change: readers' own handling of embeddings and of heads."""
    tables = [name for name, module in modules.items() if module.style == "whole" and module.weight == "table"]
    heads = [
        name
        for name, module in modules.items()
        if prefix and not name.startswith(f"{prefix}.") and module.weight == "matrix" and not module.gathered
    ]
    found = []
    if tables:
        summary = f"{', '.join(tables)}: whole in the plan; vLLM and SGLang cut it over the vocabulary all the same"
        found.append(warning("not-said", summary))
    if heads:
        summary = f"{', '.join(heads)}: outside of base_model_tp_plan; readers cut heads by columns and gather"
        found.append(warning("not-said", summary))
    return found


def _prefix(modules: Mapping[str, ModuleStyle]) -> str:
    """What the names of all layers start with; `""`: with nothing."""
    layered = next((name for name in modules if ".*." in name), "")
    return "" if layered.startswith(("layers.", "h.", "*")) else layered.partition(".")[0]


def _text(rules: Mapping[str, str], prefix: str, size: int) -> str:
    """`base_model_tp_plan` has the names without the prefix that all layers share, and nothing outside of it."""
    inside = {name[len(prefix) + 1 :]: style for name, style in rules.items() if name.startswith(f"{prefix}.")}
    document = {
        "tp_size": size,
        "tp_plan": dict(rules),
        "base_model_prefix": prefix,
        "base_model_tp_plan": inside if prefix else dict(rules),
    }
    return json.dumps(document, indent=2) + "\n"
