"""What each of the processes of `torch_operators.py` does with one operator of torch's own database."""

from __future__ import annotations

import itertools
import random
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch_twins
from tiny_models import Tiny
from torch import Tensor
from torch.testing._internal import common_methods_invocations as database
from torch.testing._internal.opinfo import core
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch_cases import mesh_of

import shardplan.torch
from shardplan.errors import ShardplanError
from shardplan.layout.layout import Layout
from shardplan.layout.legal import is_legal
from shardplan.layout.placement import R, S
from shardplan.plan.types import Plan
from shardplan.torch.applied_plan import applied_to
from shardplan.torch.collectives.steps import shard_of_whole
from shardplan.torch.eager.planned_tensor import Planned, value_of
from shardplan.torch.propagation.engine import Record
from shardplan.torch.propagation.plan_graph import Key
from shardplan.torch.propagation.values import Value

SAMPLES, LAYOUTS = 12, 3
for module in (database, core):  # sizes that axes of two divide
    for letter, size in {"S": 4, "M": 8, "L": 12, "XS": 2}.items():
        setattr(module, letter, size)
OPERATORS = {f"{one.name}{f' {one.variant_test_name}' if one.variant_test_name else ''}": one for one in database.op_db}
_ENGINES: list[Any] = []


def compare(tiny: Tiny, plan: Plan, name: str, seed: int) -> dict[str, int | str]:
    """How often an operator was as it is by one process, and what was said where it was not."""
    warnings.simplefilter("ignore")
    if not _ENGINES:
        model = torch_twins.twin(tiny)
        shardplan.torch.parallelize(model, plan, mesh_of(plan), strict=False)
        _ENGINES.append(applied_to(model).engine)
    engine, found = _ENGINES[0], {"exact": 0}
    draw = random.Random(f"{seed} {name}")
    torch.manual_seed(seed)
    for kind, said in _cases(engine, OPERATORS[name], draw):
        if kind == "exact":
            found["exact"] += 1
        elif kind not in found:
            found[kind] = said
    return found


def _cases(engine: Any, operator: Any, draw: random.Random) -> Iterator[tuple[str, str]]:
    with torch.random.fork_rng():
        samples = list(
            itertools.islice(
                operator.sample_inputs("cpu", torch.float64, requires_grad=operator.supports_autograd), SAMPLES
            )
        )
    for sample in samples:
        for _ in range(LAYOUTS):
            try:
                expected, other = (_run(operator, sample, None, draw) for _ in range(2))
                if _differs(expected[0], other[0]):  # it draws numbers, or shows memory as it is
                    break
            except Exception:  # noqa: BLE001 - what plain torch refuses is not asked for
                break
            try:
                made = _run(operator, sample, engine, draw)
                fell_back = engine.record.without_rule
                yield _judged(expected, made, engine)
                if fell_back:
                    yield "fell back", ", ".join(sorted(fell_back))
                engine.record = Record()
            except ShardplanError as problem:
                yield "refused", str(problem.diagnostics[0]).splitlines()[0]
            except Exception as problem:  # noqa: BLE001 - it is what is looked for
                frames = [f for f in traceback.extract_tb(problem.__traceback__) if "shardplan" in f.filename]
                where = " ".join(f"[{f.filename.rpartition('/')[2]}:{f.lineno}]" for f in frames[-2:])
                said = str(problem).strip().splitlines()
                yield "crashed", f"{type(problem).__name__}: {said[0] if said else ''} {where}"


def _differs(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return any(
        one.shape == other.shape and not torch.equal(one.nan_to_num(), other.nan_to_num())
        for one, other in zip(ours, theirs, strict=True)
    )


def _run(operator: Any, sample: Any, engine: Any, draw: random.Random) -> tuple[list[Any], list[Any]]:
    """Results, and gradients of operands; of a planned run, with the layouts they have."""
    given, form = tree_flatten((sample.input, sample.args, sample.kwargs))
    leaves: list[tuple[Tensor, Layout | None]] = []
    for place, item in enumerate(given):
        if not isinstance(item, Tensor):
            continue
        wants = item.requires_grad and item.dtype.is_floating_point
        if engine is None:
            given[place] = item.detach().clone().requires_grad_(wants)
            leaves.append((given[place], None))
            continue
        layout = _layout(engine.groups.mesh, tuple(item.shape), draw)
        part = shard_of_whole(item.detach(), layout, engine.groups).clone().requires_grad_(wants)
        kept = layout if wants else layout.forward
        key = Key(engine.graph.signatures.leaf("input", f"operand {place}"), tuple(item.shape))
        given[place] = Planned.of(Value(part, kept, tuple(item.shape), part.dtype, wants, key), engine)
        leaves.append((part, kept))
    first, args, kwargs = tree_unflatten(given, form)
    held = [planned for planned in given if isinstance(planned, Planned)]
    inner = first * 1 if isinstance(first, Tensor) and first.requires_grad else first  # a leaf cannot be changed
    made = [each for each in tree_flatten(operator.op(inner, *args, **kwargs))[0] if isinstance(each, Tensor)]
    if engine is not None:
        del held
        whole = Layout.replicated(len(engine.groups.mesh))
        made = [engine.convert(value_of(each), whole).local if isinstance(each, Planned) else each for each in made]
    total = sum(
        (each * torch.linspace(1, 2, each.numel(), dtype=torch.float64).reshape(each.shape)).sum()
        for each in made
        if each.dtype == torch.float64 and each.requires_grad
    )
    if isinstance(total, Tensor):
        total.backward()
    return [each.detach() for each in made], [(leaf.grad, layout) for leaf, layout in leaves]


def _layout(mesh: Any, shape: tuple[int, ...], draw: random.Random) -> Layout:
    """A layout that is legal for `shape`, sharded if there is one."""
    choices = [R, *(S(dim) for dim in range(len(shape)))]
    for _ in range(8):
        layout = Layout.of(*(draw.choice(choices) for _ in range(len(mesh))))
        if layout != Layout.replicated(len(mesh)) and is_legal(layout, mesh, shape):
            return layout
    return Layout.replicated(len(mesh))


def _judged(theirs: Any, ours: Any, engine: Any) -> tuple[str, str]:
    results, gradients = theirs
    for number, (one, other) in enumerate(zip(results, ours[0], strict=False)):
        if one.shape != other.shape:
            return "WRONG", f"result {number} has the shape {list(other.shape)}, not {list(one.shape)}"
        if one.dtype != other.dtype or not torch.allclose(one, other, rtol=1e-7, atol=1e-7, equal_nan=True):
            return "WRONG", f"result {number} of {list(one.shape)} {one.dtype} {other.dtype}"
    if len(results) != len(ours[0]):
        return "WRONG", f"{len(ours[0])} results, not {len(results)}"
    for number, ((one, _), (other, layout)) in enumerate(zip(gradients, ours[1], strict=True)):
        if one is None:
            continue
        wanted = shard_of_whole(one, layout, engine.groups)
        if other is None:
            if bool((wanted != 0).any()):
                return "WRONG", f"the gradient of operand {number} is missing"
        elif not torch.allclose(wanted, other, rtol=1e-7, atol=1e-7, equal_nan=True):
            return "WRONG", f"the gradient of operand {number}"
    return "exact", ""
