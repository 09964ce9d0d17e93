"""Options of a rule on a mesh of several axes, carried out by the simulated devices that `shardplan verify` uses."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

import numpy as np
from mesh_values import shard
from node_cases import NodeCase
from node_reference import widen

from shardplan.layout.layout import Layout
from shardplan.layout.legal import is_legal
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import R
from shardplan.program.collectives import unshard
from shardplan.program.localise import localise
from shardplan.program.lower import dtypes_around
from shardplan.program.machine.interpreter import run_operator
from shardplan.program.reference.evaluate import evaluate
from shardplan.program.reference.random import draws
from shardplan.program.types import Site
from shardplan.rules import family_of
from shardplan.rules.types import Option

Strategy = tuple[Option | None, ...]
RTOL, SINGLE_RTOL = 1e-6, 1e-4
"""The second for functions, which have constants of single precision."""
SMALLEST_EXPONENT = -700
"""The exponential of less is 0 in double precision."""


def layouts(strategy: Strategy, side: str, count: int) -> list[Layout]:
    """The forward layout of each operand or result."""
    return [
        Layout.of(*(R if option is None else getattr(option, side)[place] for option in strategy)).forward
        for place in range(count)
    ]


def strategies(case: NodeCase, mesh: Mesh) -> Iterator[Strategy]:
    """Every strategy that splits something along every axis: all options of one axis, all pairs of two."""
    options = case.rule.options
    for strategy in itertools.combinations_with_replacement(options, len(mesh)):
        if _divides(strategy, mesh) and _fits(case, strategy, mesh):
            yield strategy


def _divides(strategy: Strategy, mesh: Mesh) -> bool:
    """All axes that split one factor together must divide it."""
    ways: Counter[str] = Counter()
    for option, axis in zip(strategy, mesh.axes, strict=True):
        ways[option.factor] = (ways[option.factor] or 1) * axis.size
    return all(option.size % ways[option.factor] == 0 for option in strategy)


def _fits(case: NodeCase, strategy: Strategy, mesh: Mesh) -> bool:
    tensors = case.model.tensors
    for side, names in (("operands", case.operator.inputs), ("results", case.operator.outputs)):
        for name, layout in zip(names, layouts(strategy, side, len(names)), strict=True):
            if name and not is_legal(layout, mesh, tensors[name].shape):
                return False
    return True


def execute(case: NodeCase, strategy: Strategy, mesh: Mesh, seed: int = 0) -> str:
    """What is wrong with the results of the devices, `""` if they are those of the whole operator.

    Raises `ShardplanError` where the devices cannot run it."""
    operator, tensors = case.operator, case.model.tensors
    held = layouts(strategy, "operands", len(operator.inputs))
    made = layouts(strategy, "results", len(operator.outputs))
    known = {
        place: case.model.constants[name] for place, name in enumerate(operator.inputs) if name in case.model.constants
    }
    site = Site(
        operator, case.rule, mesh, strategy,
        tuple(layout if name else None for name, layout in zip(operator.inputs, held, strict=True)),
        tuple(layout if name else None for name, layout in zip(operator.outputs, made, strict=True)),
        tuple(tensors[name].shape if name else None for name in operator.inputs),
        tuple(tensors[name].shape if name else None for name in operator.outputs),
        known,
        dtypes_around(operator, case.model),
    )  # fmt: skip
    devices: list[list[np.ndarray | None]] = [[] for _ in range(mesh.size)]
    for array, layout in zip(case.operands, held, strict=True):
        shards = [None] * mesh.size if array is None else shard(widen(case.kind, array), layout, mesh, seed)
        for rank, device in enumerate(devices):
            device.append(shards[rank])
    results = run_operator(site, localise(site), devices, Counter())
    whole = case.results
    if draws(operator, case.operands):  # other numbers than the evaluator's
        whole = evaluate(operator, case.attributes, [None if a is None else widen(case.kind, a) for a in case.operands])
    for place, (expected, layout) in enumerate(zip(whole, made, strict=True)):
        if operator.outputs[place]:
            problem = _compared(case.kind, [parts[place] for parts in results], layout, mesh, expected)
            if problem:
                return f"result {place}: {problem}"
    return ""


def _compared(kind: str, parts: list[np.ndarray], layout: Layout, mesh: Mesh, expected: np.ndarray) -> str:
    if expected.dtype.kind == "V" or expected.dtype.name not in np.sctypeDict:  # numbers of few bits
        parts, expected = [part.astype(np.float32) for part in parts], expected.astype(np.float32)
    scale = _scale(expected)
    try:
        found = unshard(parts, layout, mesh, rtol=RTOL, atol=RTOL * scale)
    except ValueError as problem:
        return str(problem)
    if found.shape != expected.shape:
        return f"shape {found.shape}, not {expected.shape}"
    if expected.dtype.kind not in "fc":
        return "" if np.array_equal(found, expected) else "its elements differ"
    with np.errstate(all="ignore"):
        same = (found == expected) | (np.isnan(found) & np.isnan(expected))
        if kind == "LogSoftmax":  # where the evaluator takes the logarithm of an exponential that is too small
            same |= np.isneginf(expected) & (found < SMALLEST_EXPONENT)
        worst = np.where(same, 0, np.abs(found - expected) / (np.abs(expected) + scale)).max(initial=0)
    allowed = SINGLE_RTOL if family_of(kind) == "unknown" else RTOL
    return "" if worst <= allowed else f"its elements differ by {worst:.1e}"


def _scale(array: np.ndarray) -> float:
    """The median size of the finite elements that are not 0."""
    if array.dtype.kind not in "fc":
        return 0.0
    sizes = np.abs(array)
    sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
    return float(np.quantile(sizes, 0.5, method="lower")) if sizes.size else 0.0
