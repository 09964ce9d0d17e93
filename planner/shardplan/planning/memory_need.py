"""What fills the memory of a device at the fullest moment: by category, and the largest tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardplan.folding import folded, pattern
from shardplan.graph.build import CostGraph, Node
from shardplan.graph.memory import Holding, MemoryRows
from shardplan.layout.text import to_text
from shardplan.plan.step.memory_timeline import bytes_by_moment, peak_moment
from shardplan.plan.types import Memory
from shardplan.units import size, sizes_in_one_unit

_CALLED = {"kept": "", "served": "gathered copy of ", "updated": "optimizer state of ", "operator": "workspace of "}
_CACHE = "KV cache of "
_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Holder:
    """Equal tensors of identical layers: their folded name, number, total bytes and layout."""

    name: str
    count: int
    size_bytes: int
    layout: str


@dataclass(frozen=True, slots=True)
class Need:
    """`memory`: bytes by category at the fullest moment; `largest`: the largest holders, which take most of it;
    `cache_bytes`: the part of the activations that is the KV cache of serving."""

    memory: Memory
    largest: tuple[Holder, ...]
    cache_bytes: int = 0

    def lines(self) -> list[str]:
        """Text for people: a line with the categories and their sum, and a line for each of the largest holders."""
        parts = {name: getattr(self.memory, name) for name in Memory.__slots__}
        parts |= {"activations": self.memory.activations - self.cache_bytes, "KV cache": self.cache_bytes}
        used = [(name, number) for name, number in parts.items() if number]
        total = self.memory.total
        (shown, *amounts), unit = sizes_in_one_unit([total, *(number for _, number in used)], total)
        terms = " + ".join(f"{name} {amount}" for (name, _), amount in zip(used, amounts, strict=True))
        sizes = [size(holder.size_bytes) for holder in self.largest]
        width = max(map(len, sizes), default=0)
        largest = [f"  {held:>{width}}  {_shown(holder)}" for held, holder in zip(sizes, self.largest, strict=True)]
        return [f"{terms} = {shown} {unit}, most of it in", *largest]


def need_of(rows: MemoryRows, choice: Mapping[Node, int]) -> Need:
    """The memory of one assignment at its fullest moment, and the `_SHOWN` largest holders then."""
    held = bytes_by_moment(rows, choice)
    moment = peak_moment(held)
    names = _names(rows.built)
    groups: dict[tuple[str, str, str], dict[Node, int]] = {}
    for holding, amount in zip(rows.holdings, rows.amounts(choice).tolist(), strict=True):
        node = holding.node
        if holding.start <= moment < holding.end:
            layout = _layout(rows.built, node, choice)
            key = (_called(holding), pattern(names.get(node, node[1])), layout)
            group = groups.setdefault(key, {})
            group[node] = group.get(node, 0) + amount
    everything = [names.get(node, node[1]) for node in choice]
    largest = sorted(groups.items(), key=lambda group: (-sum(group[1].values()), group[0]))[:_SHOWN]
    holders = [
        Holder(
            called + folded([names.get(node, node[1]) for node in group], everything),
            len(group),
            sum(group.values()),
            layout,
        )
        for (called, _, layout), group in largest
    ]
    cache = sum(sum(group.values()) for (called, _, _), group in groups.items() if called == _CACHE)
    return Need(Memory(*(int(value) for value in held[:, moment])), tuple(holders), cache)


def _called(holding: Holding) -> str:
    """Names memory that an operator holds for the whole step as KV cache (of serving), other memory of it as
    temporary."""
    return _CACHE if holding.node[0] == "operator" and holding.category == "activations" else _CALLED[holding.node[0]]


def _names(built: CostGraph) -> dict[Node, str]:
    """Names of holders: weights by their names in the checkpoint, results and operators' memory by the module, if
    known."""
    operators = built.model.operators
    made = {name: operators[index].module for name, (index, _) in built.flow.makers.items()}
    names: dict[Node, str] = {("kept", name): f"output of {module}" for name, module in made.items() if module}
    names |= {("operator", operator.name): operator.module for operator in operators if operator.module}
    return names | {("kept", parameter.tensor): parameter.name for parameter in built.model.parameters}


def _layout(built: CostGraph, node: Node, choice: Mapping[Node, int]) -> str:
    if node[0] == "operator":
        return ""
    space = built.graph.nodes[node]["space"]
    return to_text(space.layout(choice[node]).forward, built.cluster.mesh)


def _shown(holder: Holder) -> str:
    many = f" ×{holder.count}" if holder.count > 1 else ""
    how = {"": "", "R": ", whole on every device"}.get(holder.layout, f", {holder.layout}")
    return f"{holder.name}{many}{how}"
