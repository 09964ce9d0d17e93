"""A plan as the settings of a trainer, Megatron-LM or MaxText, which are degrees of parallelism and little more.

A plan is said by them if its decisions are among those that `shardplan price` allows for the same degrees: of every
operator and tensor, what the words fix. What they leave open (which of two layouts a normalisation reads) is the
trainer's. Sources: Megatron-LM, `megatron/training/arguments.py`; Megatron-FSDP, its README; MaxText,
`src/maxtext/configs/base.yml` and `types.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardplan.errors import warning
from shardplan.export.specs import cannot_say, solve_for
from shardplan.export.types import Exported, Source
from shardplan.plan.recorded_request import cluster_of, options_of
from shardplan.plan.types import Plan
from shardplan.planning import Planner
from shardplan.planning.decided import Decided
from shardplan.planning.parallelism import Parallelism, rows_of
from shardplan.planning.reduction import Allowed
from shardplan.planning.runtimes.arrangement import Arrangement
from shardplan.planning.runtimes.table import RUNTIMES, Roles
from shardplan.planning.runtimes.trainer import check_kind, parallelism_of, refused, uneven


def export_megatron(plan: Plan, source: Source) -> Exported:
    """Arguments of Megatron-LM's `pretrain_gpt.py`, one per line."""
    found, roles = _degrees(plan, source, "megatron")
    if roles is None:
        return found
    ways, micro = _parallelism(plan, roles), _microbatches(plan)
    rows = rows_of(source.model)
    lines = [
        f"--tensor-model-parallel-size {ways.tensor}",
        "--pipeline-model-parallel-size 1",
        f"--context-parallel-size {ways.context}",
        f"--expert-model-parallel-size {ways.expert}",
        *(["--sequence-parallel"] if ways.sequence else []),
        *_sharding(ways),
        f"--micro-batch-size {max(1, rows // (ways.data * micro))}",
        f"--global-batch-size {rows}",
        *_recompute(str(plan.model.get("remat", "none"))),
    ]
    return Exported("\n".join(lines) + "\n", found.refused)


def export_maxtext(plan: Plan, source: Source) -> Exported:
    """The keys of a MaxText configuration (YAML): axes inside of a machine are `ici`, those between machines `dcn`."""
    found, roles = _degrees(plan, source, "maxtext")
    if roles is None:
        return found
    words = {
        "data": "data", "shards": "fsdp", "expert": "expert", "context": "context", "tensor": "tensor",
        "sequence": "tensor_sequence",
    }  # fmt: skip
    degrees = {f"{network}_{word}_parallelism": 1 for network in ("dcn", "ici") for word in words.values()}
    levels = cluster_of(plan, "the plan").axis_levels
    for role, size, level in zip(roles, plan.mesh.shape, levels, strict=True):
        degrees[f"{'dcn' if level else 'ici'}_{words[role]}_parallelism"] *= size
    micro, remat = _microbatches(plan), plan.model.get("remat")
    policy = str(remat) if remat in ("none", "full") else "minimal"
    lines = [
        *(f"{name}: {size}" for name, size in degrees.items()),
        f"per_device_batch_size: {rows_of(source.model) / (plan.mesh.size * micro):g}",
        f"gradient_accumulation_steps: {micro}",
        *([f"remat_policy: {policy}"] if plan.model.get("mode") == "training" else []),
    ]
    said = f"MaxText's remat_policy 'minimal' saves what matrices make; the plan has '{remat}'"
    told = () if policy == remat or plan.model.get("mode") != "training" else (warning("not-said", said),)
    return Exported("\n".join(lines) + "\n", (*found.refused, *told))


def _sharding(ways: Parallelism) -> list[str]:
    if ways.shards_parameters:
        return [
            "--use-megatron-fsdp",
            "--data-parallel-sharding-strategy optim_grads_params",
            "--no-gradient-accumulation-fusion",
            "--use-distributed-optimizer",
            "--ckpt-format fsdp_dtensor",
        ]
    return ["--use-distributed-optimizer"] if ways.zero == 1 else []


def _recompute(remat: str) -> list[str]:
    if remat == "full":
        return ["--recompute-granularity full", "--recompute-method uniform", "--recompute-num-layers 1"]
    return ["--recompute-granularity selective"] if remat == "selective" else []


def _microbatches(plan: Plan) -> int:
    number = plan.model.get("microbatches", 1)
    return number if isinstance(number, int) else 1


def _parallelism(plan: Plan, roles: Roles) -> Parallelism:
    return parallelism_of(roles, plan.mesh, sharded_optimizer=any(t.optimizer is not None for t in plan.tensors))


def _degrees(plan: Plan, source: Source, name: str) -> tuple[Exported, Roles | None]:
    """The roles of the axes under which the trainer does what the plan decides; or why there are none."""
    check_kind(source.model, name)
    options = options_of(plan, "the plan")
    planner = Planner(source.model, cluster_of(plan, "the plan"), options, reasons=False)
    built, _ = planner.built_at()
    masks = Decided.of_plan(plan).masks(built)
    nearest: dict[tuple[bool, int], list[str]] = {}
    for roles in RUNTIMES[name].arrangements(plan.mesh):
        sizes = uneven(roles, plan.mesh, source.model, options.microbatches)
        wrong = [each.summary for each in sizes] or [*_violations(masks, Arrangement(RUNTIMES[name], roles)(built))]
        if not wrong:
            wrong = [each.summary for each in refused(roles, plan.mesh, source.model, name, options.training)]
            if not wrong:
                return Exported(), roles
            nearest = {}
        lines = nearest.setdefault((bool(sizes), len(wrong)), [])
        if sizes or not lines:  # of roles by which no size divides, no one is nearer than another
            lines += [f"with {_roles_text(plan, roles)}: {line}" for line in wrong]
    form = {"megatron": "Megatron-LM's arguments", "maxtext": "a MaxText configuration"}[name]
    return Exported(
        refused=tuple(cannot_say(form, "what this plan does", nearest[min(nearest)], solve_for(name)))
    ), None


def _violations(masks: Allowed, allowed: Allowed) -> Iterator[str]:
    """What is decided that is not allowed."""
    for node, mask in allowed.items():
        if node in masks and not (mask & masks[node]).any():
            kind, name = node[0], node[1]
            yield f"'{name}' is {'split' if kind == 'operator' else kind} otherwise"


def _roles_text(plan: Plan, roles: Roles) -> str:
    real = plan.mesh.real_axes
    return ", ".join(f"{plan.mesh.names[axis]} as {roles[axis]}" for axis in real)
