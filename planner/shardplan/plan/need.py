"""What fills the memory of a device at the worst moment: by category, and the largest things in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardplan.folding import folded, pattern
from shardplan.graph.build import CostGraph, Node
from shardplan.graph.memory import Memory as MemoryRows
from shardplan.layout.text import to_text
from shardplan.plan.assemble import held_bytes, peak_moment
from shardplan.plan.types import Memory
from shardplan.units import size, sizes_in_one_unit

_CALLED = {"kept": "", "served": "gathered copy of ", "updated": "optimizer state of ", "operator": "workspace of "}


@dataclass(frozen=True, slots=True)
class Holder:
    """Equal things of identical layers: their folded name, how many, their bytes together, and their layout."""

    name: str
    count: int
    size_bytes: int
    layout: str


@dataclass(frozen=True, slots=True)
class Need:
    """`memory`: by category at the fullest moment; `largest`: the holders of most of it, largest first."""

    memory: Memory
    largest: tuple[Holder, ...]

    def lines(self) -> tuple[str, str]:
        """Two lines for people: categories with their sum, and the largest holders."""
        parts = {name: getattr(self.memory, name) for name in Memory.__slots__}
        used = [(name, number) for name, number in parts.items() if number]
        total = self.memory.total
        (shown, *amounts), unit = sizes_in_one_unit([total, *(number for _, number in used)], total)
        terms = " + ".join(f"{name} {amount}" for (name, _), amount in zip(used, amounts, strict=True))
        holders = ", ".join(_shown(holder) for holder in self.largest)
        return f"{terms} = {shown} {unit}", f"largest: {holders}"


def need_of(rows: MemoryRows, choice: Mapping[Node, int], most: int = 4) -> Need:
    """What one assignment needs at its fullest moment, and the `most` largest holders then."""
    held = held_bytes(rows.holdings, rows.moments, choice)
    moment = peak_moment(held)
    amounts: dict[Node, int] = {}
    for holding in rows.holdings:
        if holding.start <= moment < holding.end:
            amounts[holding.node] = amounts.get(holding.node, 0) + int(holding.amount[choice[holding.node]])
    names = _names(rows.built)
    groups: dict[tuple[str, str, str], list[Node]] = {}
    for node in amounts:
        layout = _layout(rows.built, node, choice)
        groups.setdefault((node[0], pattern(names.get(node, node[1])), layout), []).append(node)
    everything = [names.get(node, node[1]) for node in choice]
    largest = sorted(groups.items(), key=lambda group: (-sum(amounts[node] for node in group[1]), group[0]))[:most]
    holders = [
        Holder(
            _CALLED[kind] + folded([names.get(node, node[1]) for node in nodes], everything),
            len(nodes),
            sum(amounts[node] for node in nodes),
            layout,
        )
        for (kind, _, layout), nodes in largest
    ]
    return Need(Memory(*(int(value) for value in held[:, moment])), tuple(holders))


def _names(built: CostGraph) -> dict[Node, str]:
    """Weights go by their names in the checkpoint, results by the module that makes them, where it is known."""
    operators = built.model.operators
    made = {name: operators[index].module for name, (index, _) in built.flow.makers.items()}
    names: dict[Node, str] = {("kept", name): f"output of {module}" for name, module in made.items() if module}
    return names | {
        (kind, parameter.tensor): parameter.name for parameter in built.model.parameters for kind in ("kept", "updated")
    }


def _layout(built: CostGraph, node: Node, choice: Mapping[Node, int]) -> str:
    if node[0] == "operator":
        return ""
    space = built.graph.nodes[node]["space"]
    return to_text(space.layout(choice[node]).forward, built.cluster.mesh)


def _shown(holder: Holder) -> str:
    many = f" ×{holder.count}" if holder.count > 1 else ""
    how = {"": "", "R": ", whole on every device"}.get(holder.layout, f", {holder.layout}")
    return f"{holder.name}{many} ({size(holder.size_bytes)}{how})"
