"""A lower bound by moving costs between nodes and edges ("reparametrisation") until no single node can raise it.

    theta_v(i) = c_v(i) + sum of messages into v,   r_e(i, j) = M_e(i, j) - m_first(i) - m_second(j)
    bound      = const + sum_v min theta_v + sum_e min r_e        for every choice of the messages m

A sweep visits the nodes in order: each takes from its edges to earlier nodes all that they can spare, and shares what
it has above its minimum among its edges to later nodes (Kolmogorov's TRW-S; research on min-sum diffusion). Nodes of
a level are no neighbours, so a level is a few array operations. Shares are rounded down to integers: with integer
costs every number here is an integer below 2**53, and the bound is exact.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from shardplan.solve.core import Core, Indices
from shardplan.solve.problem import Costs

CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class _Batch:
    """Edges of one shape that arrive at one level: `stack[i, j, n]`, i at the far end, j at the arriving; with one n
    for all edges where they share a table."""

    stack: Costs
    far: Indices  # (ki, n) places in the messages
    near: Indices  # (kj, n) places in the messages
    labels: Indices  # (kj, n) places in theta
    ends: Indices  # (n,) positions at the far end


@dataclass(frozen=True, slots=True)
class _Level:
    """One step of a sweep: batches that arrive, and the messages through which its nodes hand on."""

    batches: tuple[_Batch, ...]
    nodes: Indices
    labels: Indices
    starts: Indices
    owner: Indices
    share: Costs
    given: Costs
    out: Indices
    out_labels: Indices


class Dual:
    """Messages of a core, and the bound they prove. Start: all messages zero, or those given."""

    def __init__(self, core: Core) -> None:
        self.core = core
        sizes = core.sizes
        widths = (
            np.stack([sizes[core.first], sizes[core.second]], axis=1).ravel()
            if len(core.first)
            else np.zeros(0, np.int64)
        )
        self.places = np.concatenate([[0], np.cumsum(widths)]).astype(
            np.int64
        )  # message (e, end) starts at places[2e + end]
        self.messages = np.zeros(int(self.places[-1]))
        self.theta = core.costs.copy()
        self._stacks: dict[tuple[int, ...], Costs] = {}
        self._forward = [self._level(level, up=True) for level in range(int(core.levels.max(initial=-1)) + 1)]
        self._backward = [self._level(level, up=False) for level in range(len(self._forward) - 1, -1, -1)]

    def _level(self, level: int, *, up: bool) -> _Level:
        core, near_end = self.core, 1 if up else 0
        near = core.second if up else core.first
        far = core.first if up else core.second
        arriving = np.flatnonzero(core.levels[near] == level)
        leaving = np.flatnonzero(core.levels[far] == level)
        nodes = np.flatnonzero(core.levels == level)
        labels = _spans(core.offsets[nodes], core.sizes[nodes])
        owner = np.repeat(np.arange(len(nodes)), core.sizes[nodes])
        earlier = np.bincount(near[arriving], minlength=len(core.nodes))[nodes]
        later = np.bincount(far[leaving], minlength=len(core.nodes))[nodes]
        place = np.zeros(len(core.costs), dtype=np.int64)
        place[labels] = np.arange(len(labels))
        out = _spans(self.places[2 * leaving + (1 - near_end)], core.sizes[far[leaving]])
        out_labels = place[_spans(core.offsets[far[leaving]], core.sizes[far[leaving]])]
        return _Level(
            batches=tuple(self._batches(arriving, near, far, near_end)),
            nodes=nodes,
            labels=labels,
            starts=np.cumsum([0, *core.sizes[nodes][:-1]]).astype(np.int64),
            owner=owner,
            share=np.maximum(np.maximum(earlier, later), 1).astype(np.float64)[owner],
            given=later.astype(np.float64)[owner],
            out=out,
            out_labels=out_labels,
        )

    def _batches(self, edges: Indices, near: Indices, far: Indices, near_end: int) -> list[_Batch]:
        """Edges of one shape together. Those that share a table need no copies of it: their stack has depth 1."""
        core = self.core
        groups: dict[tuple[int, int, int], list[int]] = {}
        shared = Counter(id(core.tables[edge]) for edge in edges.tolist())
        for edge in edges.tolist():
            table = id(core.tables[edge])
            alone = table if shared[table] > 1 else 0
            groups.setdefault((int(core.sizes[far[edge]]), int(core.sizes[near[edge]]), alone), []).append(edge)
        batches = []
        for (wide, tall, alone), members in groups.items():
            step = max(1, CHUNK // (wide * tall))
            for start in range(0, len(members), step):
                chunk = np.array(members[start : start + step])
                tables = [core.tables[e] for e in chunk[: 1 if alone else None]]
                rows, columns = np.arange(wide)[:, None], np.arange(tall)[:, None]
                batches.append(
                    _Batch(
                        stack=self._stack(tables, turned=not near_end),
                        far=self.places[2 * chunk + (1 - near_end)] + rows,
                        near=self.places[2 * chunk + near_end] + columns,
                        labels=core.offsets[near[chunk]] + columns,
                        ends=far[chunk],
                    )
                )
        return batches

    def _stack(self, tables: list[Costs], *, turned: bool) -> Costs:
        """The tables (or their transposes) side by side; repeated layers meet the same ones again."""
        key = (turned, *map(id, tables))
        if key not in self._stacks:
            sides = [table.T if turned else table for table in tables]
            large = len(sides) == 1 and sides[0].size > CHUNK
            self._stacks[key] = sides[0][:, :, None] if large else np.ascontiguousarray(np.stack(sides, axis=-1))
        return self._stacks[key]

    def sweep(self) -> float:
        """One pass forward and one back; the bound afterwards."""
        for level in self._forward:
            self._visit(level)
        for level in self._backward:
            self._visit(level)
        return self.bound()

    def _visit(self, level: _Level) -> None:
        theta, messages = self.theta, self.messages
        for batch in level.batches:
            fresh = (batch.stack - messages[batch.far][:, None, :]).min(axis=0)
            np.add.at(theta, batch.labels, fresh - messages[batch.near])
            messages[batch.near] = fresh
        mine = theta[level.labels]
        above = mine - np.minimum.reduceat(mine, level.starts)[level.owner]
        share = np.floor(above / level.share)
        messages[level.out] -= share[level.out_labels]
        theta[level.labels] = mine - share * level.given

    def decode(self, *, backward: bool = False) -> Indices:
        """A label per position, level by level: the best for the neighbours that have one, others priced by messages.

        Forbidden pairs may be taken where there is no way out.
        """
        core = self.core
        score = self.theta.copy()
        labels = np.zeros(len(core.nodes), dtype=np.int64)
        for level in self._backward if backward else self._forward:
            for batch in level.batches:
                depth = np.arange(len(batch.ends)) if batch.stack.shape[2] > 1 else 0
                rows = batch.stack[labels[batch.ends], :, depth].T
                np.add.at(score, batch.labels, rows - self.messages[batch.near])
            mine = score[level.labels]
            hits = np.flatnonzero(mine == np.minimum.reduceat(mine, level.starts)[level.owner])
            labels[level.nodes] = hits[np.searchsorted(hits, level.starts)] - level.starts
        return labels

    def bound(self) -> float:
        """Valid right after a sweep, when every edge's least entry is zero."""
        return self.core.const + float(self.least().sum())

    def least(self) -> Costs:
        """Least theta of every position."""
        if not len(self.core.nodes):
            return np.zeros(0)
        return np.asarray(np.minimum.reduceat(self.theta, self.core.offsets[:-1]))

    def message(self, edge: int, end: int) -> Costs:
        """Message of an edge into its end: 0 the first, 1 the second."""
        return self.messages[self.places[2 * edge + end] : self.places[2 * edge + end + 1]]

    def slack(self, edge: int) -> Costs:
        """r_e: what a pair of labels costs above the messages."""
        return np.asarray(self.core.tables[edge] - self.message(edge, 0)[:, None] - self.message(edge, 1)[None, :])


def _spans(starts: Indices, lengths: Indices) -> Indices:
    """Concatenation of `start .. start + length - 1`."""
    if not len(starts):
        return np.zeros(0, dtype=np.int64)
    ends = np.cumsum(lengths)
    return np.asarray(np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths), dtype=np.int64)
