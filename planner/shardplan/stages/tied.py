"""Weights that several stages hold (tied embeddings): what it takes to keep them equal, once a step.

When all microbatches are through, every other stage sends its gradient to the first one that holds the weight, and gets
the new weight back, or the sum of the gradients. Nothing hides that.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardplan.graph.build import CostGraph
from shardplan.plan.types import Plan, Transfer
from shardplan.stages.cut import Chain, shared_weights
from shardplan.stages.submeshes import Submesh
from shardplan.stages.transfer import Transfers


def tied_transfers(
    prices: Transfers,
    chain: Chain,
    starts: Sequence[int],
    parts: Sequence[Submesh],
    plans: Sequence[Plan],
    *,
    training: bool,
) -> tuple[Transfer, ...]:
    """The transfers that keep weights equal. `starts`: the units at which stages but the first begin."""
    if not training:
        return ()
    layouts = [{tensor.name: tensor for tensor in plan.tensors if tensor.trainable} for plan in plans]
    found = []
    for name, (first, *others) in shared_weights(chain, starts).items():
        for other in others:
            if name in layouts[first] and name in layouts[other]:
                source, target = layouts[first][name].layout, layouts[other][name].layout
                size_bytes = chain.model.tensor(name).size_bytes
                there = prices.handover(parts[first], parts[other], target, size_bytes).steps
                back = prices.handover(parts[other], parts[first], source, size_bytes).steps
                found.append(Transfer(name, first, other, source, target, there, back, 1, 0.0))
    return tuple(found)


def waited_ns(transfers: Sequence[Transfer]) -> float:
    """What of transfers a step waits for."""
    return sum((1.0 - transfer.hidden) * transfer.time_ns for transfer in transfers)


def least_tied_ns(prices: Transfers, chain: Chain, parts: Sequence[Submesh], graphs: Sequence[CostGraph]) -> float:
    """The least that tied weights cost in a step of any pipeline of several stages: of those that the first and the
    last unit hold, and so two stages wherever it is cut. `graphs`: the whole model on every part."""
    last, devices = len(chain) - 1, prices.cluster.mesh.size
    pairs = [(a, b) for a in range(len(parts)) for b in range(a + 1) if parts[a].size + parts[b].size <= devices]
    total = 0.0
    for name, units in shared_weights(chain, range(1, len(chain))).items():
        if units[0] == 0 and units[-1] == last and all(name in built.trainable for built in graphs):
            least = _least_handovers(prices, parts, graphs, name)
            total += min((least[a][b] + least[b][a] for a, b in pairs), default=0)
    return total


def _least_handovers(
    prices: Transfers, parts: Sequence[Submesh], graphs: Sequence[CostGraph], name: str
) -> list[list[int]]:
    """Nanoseconds of handing a weight from every part to every part, in the layout for which that is least."""
    layouts = [[space.layout(choice) for choice in range(len(space))] for space in (g.kept[name] for g in graphs)]
    size_bytes = graphs[0].model.tensor(name).size_bytes
    return [
        [
            min(prices.handover(sender, receiver, layout, size_bytes).time_ns for layout in wanted)
            for receiver, wanted in zip(parts, layouts, strict=True)
        ]
        for sender in parts
    ]
