"""Matching of a module's parameters with the tensors of a plan: by name, by alias, or by the caller's renaming.

Frameworks name and orient parameters in their own ways: flax has `dense.kernel` of shape (in, out) where the checkpoint
has `dense.weight` of (out, in). `rename` gives the checkpoint's name for the module's, and the permutation of its dims;
everything else follows from the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from shardplan.errors import Diagnostic, ShardplanError, did_you_mean, error
from shardplan.layout.layout import Layout
from shardplan.patterns import matches
from shardplan.plan.orientation import checkpoint_layout, checkpoint_shape, graph_layout, graph_shape
from shardplan.plan.padding import unpadded
from shardplan.plan.types import Plan, TensorDecision
from shardplan.runtime.stages import one_mesh
from shardplan.units import counted

Rename = Callable[[str], "str | tuple[str, Sequence[int]] | None"]
"""Module name -> checkpoint name, or (checkpoint name, perm) where module dim i is checkpoint dim perm[i]; None: this
parameter is none of the plan's."""
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Named:
    """A parameter of a module and its decision. `shape`, `layout` (kept) and `served` are in the module's dims.

    `perm`: checkpoint dims in the module's order, i.e. module tensor = checkpoint tensor transposed by `perm`
    (identity when empty).
    """

    name: str
    decision: TensorDecision
    shape: tuple[int, ...]
    layout: Layout
    served: Layout
    perm: tuple[int, ...] = ()


def parameters_by_name(plan: Plan) -> dict[str, TensorDecision]:
    """Checkpoint names and aliases -> the parameter, in the plan's order. Raises `ShardplanError` (`pipeline-plan`,
    `padded-plan`)."""
    parameters = [tensor for tensor in unpadded(one_mesh(plan)).tensors if tensor.role == "parameter"]
    found = {tensor.checkpoint: tensor for tensor in parameters}
    for tensor in parameters:
        for alias in tensor.aliases:
            found.setdefault(alias, tensor)
    return found


def match_names(
    plan: Plan,
    given: Mapping[str, Sequence[int]],
    *,
    rename: Rename | None = None,
    ignore: Iterable[str] = (),
    strict: bool = True,
) -> dict[str, Named]:
    """Every parameter in `given` (name -> shape in the module's dims) with its decision, in the order of `given`.

    `rename`: from module names to checkpoint names (the same without it). `ignore`: patterns (`*.inv_freq`) of names,
    the plan's and the module's, that need no partner. `strict`: also refuse parameters without a partner; without it
    they are left out. Tied parameters may appear under any of their names, or under all.

    Raises `ShardplanError` with everything that does not fit: `unplanned-parameter` (the module has it, the plan does
    not), `missing-parameter` (the other way round), `wrong-shape`, `ambiguous-parameter` (two names of one weight that
    the plan does not know to be tied).
    """
    known, patterns = parameters_by_name(plan), tuple(ignore)
    matched: dict[str, Named] = {}
    extra: list[str] = []
    faults: list[Diagnostic] = []
    for name, shape in given.items():
        wanted, perm = _renamed(name, rename)
        if wanted is None:
            continue
        if wanted not in known:
            extra.append(name)
            continue
        matched[name] = _oriented(name, known[wanted], perm)
        faults += _check_shape(matched[name], tuple(shape))
    faults += _check_once(matched, rename)
    if strict:
        faults += _check_extra(_kept(extra, patterns), given, known, rename)
        faults += _check_missing(plan, matched, patterns)
    if faults:
        raise ShardplanError(*faults)
    return matched


def _renamed(name: str, rename: Rename | None) -> tuple[str | None, tuple[int, ...]]:
    found = rename(name) if rename is not None else name
    if found is None or isinstance(found, str):
        return found, ()
    return found[0], tuple(found[1])


def _oriented(name: str, decision: TensorDecision, perm: tuple[int, ...]) -> Named:
    """`decision` in the dims of the module, whose tensor is the checkpoint's transposed by `perm`."""
    shape = checkpoint_shape(decision.shape, decision.perm)
    if perm and sorted(perm) != list(range(len(shape))):
        dims = f"the {counted(len(shape), 'dim')} of '{decision.checkpoint}'"
        summary = f"'{name}': perm {list(perm)} is not a permutation of {dims}"
        raise ShardplanError(error("wrong-perm", summary))
    kept, served = (checkpoint_layout(layout, decision.perm) for layout in (decision.layout, decision.served))
    return Named(name, decision, graph_shape(shape, perm), graph_layout(kept, perm), graph_layout(served, perm), perm)


def _check_shape(named: Named, shape: tuple[int, ...]) -> list[Diagnostic]:
    if shape == named.shape:
        return []
    hint = "is this the model that was planned, with the same sizes?"
    if sorted(shape) == sorted(named.shape):
        order = [named.shape.index(size) for size in shape]
        spelled = f"perm {order}" if len(set(order)) == len(order) else "a perm"
        hint = f"if the module stores it transposed, let the renaming return (name, perm) with {spelled}"
    summary = f"'{named.name}' has shape {list(shape)}, the plan has {list(named.shape)}"
    return [error("wrong-shape", summary, hint=hint)]


def _check_once(matched: Mapping[str, Named], rename: Rename | None) -> list[Diagnostic]:
    """Checks that a renaming maps no two parameters to one name."""
    owners: dict[str, list[str]] = {}
    for name in matched:
        wanted, _ = _renamed(name, rename)
        owners.setdefault(str(wanted), []).append(name)
    return [
        error(
            "ambiguous-parameter",
            f"{_listed(names)} are all called '{wanted}' by the renaming",
            hint="let it return a different name of the checkpoint for each",
        )
        for wanted, names in owners.items()
        if len(names) > 1
    ]


def _kept(names: Iterable[str], patterns: tuple[str, ...]) -> list[str]:
    return [name for name in names if not any(matches(name, pattern) for pattern in patterns)]


def _check_extra(
    extra: list[str], given: Mapping[str, Sequence[int]], known: Mapping[str, TensorDecision], rename: Rename | None
) -> list[Diagnostic]:
    if not extra:
        return []
    lines = []
    for name in extra[:_SHOWN]:
        near = did_you_mean(str(_renamed(name, rename)[0]), known)
        lines.append(f"{name} {list(given[name])}" + (f": {near}" if near else ""))
    what = "a parameter" if len(extra) == 1 else f"{len(extra)} parameters"
    pronoun = "it" if len(extra) == 1 else "them"
    summary = f"the model has {what} that the plan does not name"
    hint = _prefix_hint(extra, known) or f"solve again for this model, or ignore {pronoun} by name or pattern"
    return [error("unplanned-parameter", summary, detail="\n".join(_cut(lines, len(extra))), hint=hint)]


def _check_missing(plan: Plan, matched: Mapping[str, Named], patterns: tuple[str, ...]) -> list[Diagnostic]:
    present = {named.decision.checkpoint for named in matched.values()}
    missing = []
    for tensor in plan.tensors:
        names = (tensor.checkpoint, *tensor.aliases)
        if (
            tensor.role == "parameter"
            and tensor.checkpoint not in present
            and len(_kept(names, patterns)) == len(names)
        ):
            shape = list(checkpoint_shape(tensor.shape, tensor.perm))
            also = f", also {', '.join(tensor.aliases)}" if tensor.aliases else ""
            missing.append(f"{tensor.checkpoint} {shape}{also}")
    if not missing:
        return []
    what = "a parameter" if len(missing) == 1 else f"{len(missing)} parameters"
    pronoun = "it" if len(missing) == 1 else "them"
    summary = f"the plan names {what} that the model does not have"
    hint = f"solve again for this model, or ignore {pronoun} by name or pattern"
    detail = "\n".join(_cut(missing[:_SHOWN], len(missing)))
    return [error("missing-parameter", summary, detail=detail, hint=hint)]


def _prefix_hint(extra: list[str], known: Mapping[str, TensorDecision]) -> str:
    """A hint for the case that all names differ from the plan's by one prefix."""
    for name in extra[:1]:
        head, _, rest = name.partition(".")
        if rest and all(other.removeprefix(f"{head}.") in known and other.startswith(f"{head}.") for other in extra):
            return f"the model's names begin with '{head}.': rename=lambda name: name.removeprefix('{head}.')"
    prefixes = {full.removesuffix(extra[0]) for full in known if full.endswith(f".{extra[0]}") and full != extra[0]}
    for prefix in sorted(prefixes):
        if all(prefix + name in known for name in extra):
            return f"the plan's names begin with '{prefix}': rename=lambda name: '{prefix}' + name"
    return ""


def _cut(lines: list[str], number: int) -> list[str]:
    return [*lines, f"and {number - _SHOWN} more"] if number > _SHOWN else lines


def _listed(names: Sequence[str]) -> str:
    quoted = [f"'{name}'" for name in names]
    return f"{', '.join(quoted[:-1])} and {quoted[-1]}"
