"""Tied weights: the transfers that keep a weight equal in all stages that hold it, once per step.

After the last microbatch every other stage sends its gradient to the first one that holds the weight, and receives the
new weight, or the sum of the gradients. These transfers are exposed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shardplan.graph.build import CostGraph
from shardplan.pipeline.cut_points import Chain, shared_weights
from shardplan.pipeline.p2p import Transfers
from shardplan.pipeline.submeshes import Submesh
from shardplan.plan.types import Plan, Transfer


def tied_transfers(
    transfers: Transfers,
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
                there = transfers.send_receive(parts[first], parts[other], target, size_bytes).steps
                back = transfers.send_receive(parts[other], parts[first], source, size_bytes).steps
                found.append(Transfer(name, first, other, source, target, there, back, 1, 0.0))
    return tuple(found)


def waited_ns(transfers: Sequence[Transfer]) -> float:
    """What of transfers a step waits for."""
    return sum((1.0 - transfer.hidden) * transfer.time_ns for transfer in transfers)


def tied_at_both_ends(chain: Chain, graphs: Sequence[CostGraph]) -> dict[str, tuple[int, ...]]:
    """Trained weights that the first and the last unit hold, and so two stages wherever a pipeline is cut, with the
    units that hold them. `graphs`: the whole model on every part."""
    last = len(chain) - 1
    return {
        name: units
        for name, units in shared_weights(chain, range(1, len(chain))).items()
        if units[0] == 0 and units[-1] == last and all(name in built.trainable for built in graphs)
    }


def tied_ns(
    transfers: Transfers, parts: Sequence[Submesh], graphs: Sequence[CostGraph], name: str
) -> list[list[NDArray[np.float64]]]:
    """What keeping a weight equal costs in a step, by the parts of the first and of the last stage: nanoseconds, shape
    (its layouts in the first, in the last)."""
    spaces = [built.kept[name] for built in graphs]
    layouts = [[space.layout(choice) for choice in range(len(space))] for space in spaces]
    size_bytes = graphs[0].model.tensor(name).size_bytes

    def handed(sender: int, receiver: int) -> NDArray[np.float64]:
        ends = parts[sender], parts[receiver]
        moves = (transfers.send_receive(*ends, layout, size_bytes) for layout in layouts[receiver])
        return np.array([float(move.time_ns) for move in moves])

    each = range(len(parts))
    return [[handed(last, first)[:, None] + handed(first, last)[None, :] for last in each] for first in each]


def least_tied_ns(transfers: Transfers, chain: Chain, parts: Sequence[Submesh], graphs: Sequence[CostGraph]) -> float:
    """The least that tied weights cost in a step of any pipeline of several stages."""
    devices, each = transfers.cluster.mesh.size, range(len(parts))
    pairs = [(a, b) for a in each for b in each if parts[a].size + parts[b].size <= devices]
    total = 0.0
    for name in tied_at_both_ends(chain, graphs):
        tables = tied_ns(transfers, parts, graphs, name)
        total += min((float(tables[a][b].min()) for a, b in pairs), default=0.0)
    return total
