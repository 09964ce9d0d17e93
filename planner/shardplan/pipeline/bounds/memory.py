"""Memory lower bounds of runs of units at the turn from forward to backward, by the choices of their own nodes.

A stage is planned as a model of its own, which may save other values than the whole model does for the same units. So
only what every part of the model with the unit holds is counted:

- weights that no other unit reads, with their gradients and optimizer state;
- values that a unit saves for itself: saved with and without the rematerialisation flag, not views of another unit's
  values, and not in a kernel that continues in another unit. If the search chooses what is recomputed there are none;
- the value that a unit receives: as an input of a part it is held until the backward of the unit; inside of a part it
  is saved if the unit's backward reads it and no recomputed segment crosses the border.

All except the weights are held once for every microbatch in flight.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from shardplan.graph.build import CostGraph, Node
from shardplan.graph.flow import storage_of
from shardplan.graph.memory import MemoryRows
from shardplan.graph.remat import latest_reads
from shardplan.pipeline.bounds.units import AddedCosts
from shardplan.pipeline.cut_points import Chain
from shardplan.solve.problem import Costs

_STATE = ("parameters", "gradients", "optimizer")


@dataclass(frozen=True)
class MemoryBound:
    """Bytes per choice of a node: `state` of weights; `saved` of one microbatch; `fed`, the same for borders. Equal
    ones are the same array."""

    state: dict[Node, Costs]
    saved: dict[Node, Costs]
    fed: dict[Node, Costs]

    def added_costs(self, waiting: int, multiplier: float) -> AddedCosts:
        """The memory term of the Lagrangian for a given multiplier of a byte and so many microbatches in flight."""
        state, saved = _scaled(self.state, multiplier), _scaled(self.saved, multiplier * waiting)
        return AddedCosts({**state, **saved}, _scaled(self.fed, multiplier * waiting))


def _scaled(held: dict[Node, Costs], factor: float) -> dict[Node, Costs]:
    scaled: dict[int, Costs] = {}
    found = {}
    for node, amount in held.items():
        if id(amount) not in scaled:
            scaled[id(amount)] = factor * amount
        found[node] = scaled[id(amount)]
    return found


def memory_bound(built: CostGraph, chain: Chain) -> MemoryBound:
    """What every part of `chain.model` holds of its units on the mesh of `built`; nothing is saved in inference."""
    memory = MemoryRows(built)
    turn = memory.count - 1
    state: dict[Node, list[Costs]] = {}
    saved: dict[Node, list[Costs]] = {}
    own, fed = _saved_for_itself(built, chain), _fed_and_saved(built, chain)
    for holding in memory.holdings:
        if not holding.start <= turn < holding.end:
            continue
        kind, name = holding.node
        if holding.category in _STATE:
            state.setdefault(holding.node, []).append(holding.amount.astype(np.float64))
        elif holding.category == "activations" and kind == "kept" and name in own | fed:
            saved.setdefault(holding.node, []).append(holding.amount.astype(np.float64))
    sums = {node: np.sum(amounts, axis=0) for node, amounts in (*state.items(), *saved.items())}
    alike: dict[bytes, Costs] = {}
    summed = {node: alike.setdefault(amount.tobytes(), amount) for node, amount in sums.items()}
    return MemoryBound(
        {node: summed[node] for node in state},
        {node: summed[node] for node in saved if node[1] in own},
        {node: summed[node] for node in saved if node[1] in fed},
    )


def _unit_of(chain: Chain) -> dict[int, int]:
    return {index: unit for unit, run in enumerate(chain.units) for index in run}


def _across(built: CostGraph, chain: Chain) -> set[int]:
    """Kernels, by number, that run operators of several units."""
    unit_of = _unit_of(chain)
    units: dict[int, set[int | None]] = {}
    for index, kernel in enumerate(built.fusion.groups):
        units.setdefault(kernel, set()).add(unit_of.get(index))
    return {kernel for kernel, found in units.items() if len(found) > 1}


def _beside(built: CostGraph, name: str) -> Iterable[int]:
    """The operators that make and read a value."""
    return (built.flow.makers[name][0], *(reader for reader, _ in built.flow.readers.get(name, ())))


def _saved_for_itself(built: CostGraph, chain: Chain) -> set[str]:
    """Values that the unit that makes them saves in any part of the model."""
    if built.options.remat == "auto":
        return set()
    unit_of, across = _unit_of(chain), _across(built, chain)
    storage = storage_of(built.model, built.rules)
    found = set()
    for name in built.recompute.saved & built.fusion.saved:
        root = storage.get(name, (name, ""))[0]
        if root not in built.flow.makers or name in chain.borders or root in chain.borders:
            continue
        beside = {*_beside(built, name), built.flow.makers[root][0]}
        units = {unit_of.get(index) for index in beside}
        if len(units) == 1 and None not in units and not any(built.fusion.groups[index] in across for index in beside):
            found.add(name)
    return found


def _fed_and_saved(built: CostGraph, chain: Chain) -> set[str]:
    """Borders that the unit behind saves, whatever is recomputed."""
    unit_of, across = _unit_of(chain), _across(built, chain)
    latest = latest_reads(built.model, built.rules, built.flow, built.fusion)
    begun = {copy[0] for block in built.model.blocks for copy in block.copies}
    begun |= {block.copies[-1][-1] + 1 for block in built.model.blocks}
    found = set()
    for unit, name in enumerate(chain.borders, start=1):
        if name not in latest or unit_of.get(latest[name]) != unit:
            continue
        begins = min(chain.units[unit])
        apart = built.options.remat != "auto" or begins in begun
        if apart and not any(built.fusion.groups[index] in across for index in _beside(built, name)):
            found.add(name)
    return found
