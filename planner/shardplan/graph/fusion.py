"""Fusion of elementwise operators into one kernel: values inside of it are neither written to memory nor saved.

A value is *inner* if an elementwise operator makes it, only elementwise operators read it, none of which also waits for
a later operator of another kind, and it is not an output of the model (so the residual stream of a transformer is not
inner: its next addition waits for matrix products). Operators joined by inner values form a group; the cost of the
group is what it reads and writes, once, and one launch. Backward recomputes inner values from what the group reads (as
compilers do), so those operands are saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardplan.graph.flow import Flow
from shardplan.model.types import Model
from shardplan.rules.types import Rule

_FUSING = frozenset({"pointwise", "view", "free"})


@dataclass(frozen=True)
class Fusion:
    """`read_operands[i]`, `written_results[i]`: positions of operator i whose bytes its kernel reads and writes;
    `launches[i]`: it starts a kernel; `inner`: values that never reach memory; `saved`: what backward reads again;
    `groups[i]`: number of the first operator of the kernel that operator i runs in."""

    read_operands: tuple[tuple[int, ...], ...]
    written_results: tuple[tuple[int, ...], ...]
    launches: tuple[bool, ...]
    inner: frozenset[str]
    saved: frozenset[str]
    groups: tuple[int, ...]


def fuse(model: Model, rules: Sequence[Rule], flow: Flow) -> Fusion:
    """The elementwise groups of `model`."""
    pointwise = [rule.cost == "pointwise" for rule in rules]
    outputs = set(model.outputs)
    depth = _depths(model, rules, flow)
    inner = {
        name
        for name, (maker, _) in flow.makers.items()
        if pointwise[maker]
        and name not in outputs
        and flow.readers.get(name)
        and all(pointwise[reader] and depth[reader] == depth[maker] for reader, _ in flow.readers[name])
        and all(model.operators[reader].loops == model.operators[maker].loops for reader, _ in flow.readers[name])
    }
    groups = _groups(model, flow, inner)
    seen: set[tuple[int, str]] = set()
    operands: list[tuple[int, ...]] = []
    for index, operator in enumerate(model.operators):
        read = []
        for position, name in enumerate(operator.inputs):
            if name in flow.readers and name not in inner and (groups[index], name) not in seen:
                seen.add((groups[index], name))
                read.append(position)
        operands.append(tuple(read))
    results = [tuple(i for i, name in enumerate(op.outputs) if name and name not in inner) for op in model.operators]
    launches = [groups[index] == index for index in range(len(model.operators))]
    saved = _saved(model, flow, inner, groups)
    return Fusion(tuple(operands), tuple(results), tuple(launches), frozenset(inner), saved, tuple(groups))


def _depths(model: Model, rules: Sequence[Rule], flow: Flow) -> list[int]:
    """Per operator, the number of operators that are neither elementwise nor views on the longest path from the inputs.

    Elementwise operators of equal depth can run as one kernel: none of them waits for another through a third operator.
    """
    depth: list[int] = []
    for operator in model.operators:
        before = [flow.makers[name][0] for name in operator.inputs if name in flow.makers]
        depth.append(max((depth[maker] + (rules[maker].cost not in _FUSING) for maker in before), default=0))
    return depth


def _groups(model: Model, flow: Flow, inner: set[str]) -> list[int]:
    """Per operator the number of the first operator of its group."""
    group = list(range(len(model.operators)))

    def root(index: int) -> int:
        while group[index] != index:
            group[index] = group[group[index]]
            index = group[index]
        return index

    for name in sorted(inner):
        maker = root(flow.makers[name][0])
        for reader, _ in flow.readers[name]:
            first, second = sorted((maker, root(reader)))
            group[second] = maker = first
    return [root(index) for index in range(len(group))]


def _saved(model: Model, flow: Flow, inner: set[str], groups: list[int]) -> frozenset[str]:
    """Values that are saved; for inner values, which are recomputed, the operands of their group."""
    recomputing = {groups[flow.makers[name][0]] for name in inner & flow.saved}
    saved = set(flow.saved - inner)
    for index, operator in enumerate(model.operators):
        if groups[index] in recomputing:
            read = [name for name in operator.inputs if name and name not in inner]
            saved.update(name for name in read if model.tensor(name).role == "activation" and name in flow.needs_grad)
    return frozenset(saved)
