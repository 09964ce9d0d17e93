"""A lower bound by message passing: costs move between nodes and edges (reparametrisation) until no single node can
raise it.

    theta_v(i) = c_v(i) + sum of messages into v,   r_e(i, j) = M_e(i, j) - m_first(i) - m_second(j)
    bound      = const + sum_v min theta_v + sum_e min r_e        for every choice of the messages m

A sweep visits the nodes in order: each node takes all slack from its edges to earlier nodes, and distributes the excess
above its minimum over its edges to later nodes (Kolmogorov's TRW-S; min-sum diffusion). Nodes of one level are not
neighbours, so a level takes a few array operations. Shares are rounded down to integers: with integer costs, every
number here is an integer below 2**53, and the bound is exact.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardplan.solve.constants import SWEEP_CHUNK
from shardplan.solve.problem import Costs
from shardplan.solve.reduce.core import Core, Indices, spans


@dataclass(frozen=True, slots=True)
class _Edge:
    """One edge that arrives at a level: `table[i, j]`, i at the far end, j at the arriving end."""

    table: Costs
    far: slice  # ki places in the messages
    near: slice  # kj places in the messages
    labels: slice  # kj places in theta
    end: int  # position at the far end

    def arrive(self, theta: Costs, messages: Costs) -> None:
        """Takes all slack of the edge to its arriving end."""
        fresh = np.minimum.reduce(self.table - messages[self.far][:, None], axis=0)
        theta[self.labels] += fresh - messages[self.near]
        messages[self.near] = fresh

    def add_chosen(self, score: Costs, messages: Costs, labels: Indices) -> None:
        """Adds the costs of every label at the arriving end, for the label at the far end, in place of the message."""
        score[self.labels] += self.table[labels[self.end]] - messages[self.near]


@dataclass(frozen=True, slots=True)
class _Batch:
    """Edges of one shape that arrive at one level: `stack[i, j, n]`, i at the far end, j at the arriving end; n has
    size one if all edges share a table. If `is_long`, j and n are swapped, in all arrays: numpy is fast where the last
    dim is the longer one."""

    is_long: bool
    stack: Costs
    far: Indices  # (ki, 1, n) places in the messages
    near: Indices  # (kj, n) places in the messages
    labels: Indices  # (kj, n) places in theta
    ends: Indices  # (n,) positions at the far end

    def arrive(self, theta: Costs, messages: Costs) -> None:
        """As of one edge."""
        fresh = np.minimum.reduce(self.stack - messages[self.far], axis=0)
        np.add.at(theta, self.labels, fresh - messages[self.near])
        messages[self.near] = fresh

    def add_chosen(self, score: Costs, messages: Costs, labels: Indices) -> None:
        """As of one edge."""
        chosen, depth = labels[self.ends], np.arange(len(self.ends)) % self.stack.shape[1 if self.is_long else 2]
        rows = self.stack[chosen, depth] if self.is_long else self.stack[chosen, :, depth].T
        np.add.at(score, self.labels, rows - messages[self.near])


@dataclass(frozen=True, slots=True)
class _Level:
    """One step of a sweep: batches that arrive, and the messages by which its nodes send on."""

    batches: tuple[_Edge | _Batch, ...]
    nodes: Indices
    labels: Indices
    starts: Indices
    owner: Indices
    share: Costs
    given: Costs
    out: Indices
    out_labels: Indices


class Dual:
    """Messages of a core, and the bound that they prove. Initially all messages are zero, or the given ones."""

    def __init__(self, core: Core, levels: Indices | None = None, partner: Dual | None = None) -> None:
        """Sweeps visit `levels`, by default the core's. A dual with a `partner` shares its messages and theta."""
        self.core = core
        sizes = core.sizes
        self.ends = np.stack([core.first, core.second])
        widths = sizes[self.ends].T.ravel()
        self.places = np.concatenate([[0], np.cumsum(widths)]).astype(np.int64)  # of message (e, end): places[2e + end]
        self.messages: Costs = np.zeros(int(self.places[-1])) if partner is None else partner.messages
        self.theta: Costs = core.costs.copy() if partner is None else partner.theta
        self._stacks: dict[tuple[int, ...], Costs] = {}
        self._forward, self._backward = self._plan(core.levels if levels is None else levels)

    def _plan(self, levels: Indices) -> tuple[list[_Level], list[_Level]]:
        """The steps of a sweep, forward and back."""
        count = int(levels.max(initial=-1)) + 1
        high = (levels[self.core.second] > levels[self.core.first]).astype(np.int64)  # which end is visited later
        every = np.arange(len(high))
        nodes = _split_by(levels, count)
        last = _split_by(levels[self.ends[high, every]], count)
        first = _split_by(levels[self.ends[1 - high, every]], count)
        forward = [self._level(nodes[n], last[n], first[n], high) for n in range(count)]
        backward = [self._level(nodes[n], first[n], last[n], 1 - high) for n in range(count - 1, -1, -1)]
        return forward, backward

    def _level(self, nodes: Indices, arriving: Indices, leaving: Indices, near_end: Indices) -> _Level:
        """A step: `near_end[e]` is the end of an edge that is visited later."""
        core = self.core
        labels = spans(core.offsets[nodes], core.sizes[nodes])
        starts = np.cumsum([0, *core.sizes[nodes]])[:-1].astype(np.int64)
        owner = np.repeat(np.arange(len(nodes)), core.sizes[nodes])
        left = self.ends[1 - near_end[leaving], leaving]
        earlier = _count(nodes, self.ends[near_end[arriving], arriving])
        later = _count(nodes, left)
        out = spans(self.places[2 * leaving + 1 - near_end[leaving]], core.sizes[left])
        return _Level(
            batches=tuple(self._batches(arriving, near_end)),
            nodes=nodes,
            labels=labels,
            starts=starts,
            owner=owner,
            share=np.maximum(np.maximum(earlier, later), 1).astype(np.float64)[owner],
            given=later.astype(np.float64)[owner],
            out=out,
            out_labels=spans(starts[np.searchsorted(nodes, left)], core.sizes[left]),
        )

    def _batches(self, edges: Indices, near_end: Indices) -> list[_Edge | _Batch]:
        """Batches of edges of one shape. Edges with the same table share it: their stack has depth 1."""
        core = self.core
        groups: dict[tuple[int, int, int, int], list[int]] = {}
        shared = Counter((id(core.tables[edge]), int(near_end[edge])) for edge in edges.tolist())
        tall_of = core.sizes[self.ends[near_end[edges], edges]].tolist()
        wide_of = core.sizes[self.ends[1 - near_end[edges], edges]].tolist()
        for edge, wide, tall in zip(edges.tolist(), wide_of, tall_of, strict=True):
            key = (id(core.tables[edge]), int(near_end[edge]))
            table = key if shared[key] > 1 else (0, 0)
            groups.setdefault((wide, tall, *table), []).append(edge)
        batches: list[_Edge | _Batch] = []
        for (wide, tall, alone, _), members in groups.items():
            step = max(1, SWEEP_CHUNK // (wide * tall))
            for start in range(0, len(members), step):
                chunk = np.array(members[start : start + step])
                if len(chunk) == 1:
                    batches.append(self._edge(members[start], int(near_end[members[start]])))
                    continue
                tables = [(int(near_end[e]), core.tables[e]) for e in chunk[: 1 if alone else None]]
                batches.append(self._batch(chunk, near_end[chunk], tables, wide, tall))
        return batches

    def _edge(self, edge: int, near_end: int) -> _Edge:
        """The edge, which arrives at its end `near_end`: 0 the first, 1 the second."""
        table, (far, near) = self.core.tables[edge], (int(self.ends[end, edge]) for end in (1 - near_end, near_end))
        first = int(self.core.offsets[near])
        return _Edge(
            table=table if near_end else table.T,
            far=self._place(edge, 1 - near_end),
            near=self._place(edge, near_end),
            labels=slice(first, first + int(self.core.sizes[near])),
            end=far,
        )

    def _place(self, edge: int, end: int) -> slice:
        """Where the message of an edge into its end is."""
        return slice(int(self.places[2 * edge + end]), int(self.places[2 * edge + end + 1]))

    def _batch(
        self, edges: Indices, near_end: Indices, tables: list[tuple[int, Costs]], wide: int, tall: int
    ) -> _Batch:
        """Edges between `wide` labels at their far ends and `tall` ones at the ends where they arrive."""
        is_long = tall >= len(edges)
        far = self.places[2 * edges + 1 - near_end] + np.arange(wide)[:, None]
        columns = np.arange(tall)[:, None]
        near, labels = (
            np.ascontiguousarray(both.T) if is_long else both
            for both in (
                self.places[2 * edges + near_end] + columns,
                self.core.offsets[self.ends[near_end, edges]] + columns,
            )
        )
        stack, ends = self._stack(tables, is_long=is_long), self.ends[1 - near_end, edges]
        return _Batch(is_long, stack, far[:, :, None] if is_long else far[:, None, :], near, labels, ends)

    def _stack(self, tables: list[tuple[int, Costs]], *, is_long: bool) -> Costs:
        """Tables with the far end's labels as rows, side by side; repeated layers meet the same ones again."""
        key = (int(is_long), *(part for near_end, table in tables for part in (near_end, id(table))))
        if key not in self._stacks:
            sides = [table if near_end else table.T for near_end, table in tables]
            self._stacks[key] = np.ascontiguousarray(np.stack(sides, axis=1 if is_long else 2))
        return self._stacks[key]

    @cached_property
    def _receivers(self) -> Indices:
        """The place in theta of every message."""
        ends = self.ends.T.ravel()
        return spans(self.core.offsets[ends], self.core.sizes[ends])

    def start_from(self, other: Dual) -> None:
        """Takes over the messages of a dual of the same nodes, labels and edges, whose costs may differ."""
        mine, theirs = self.core, other.core
        if mine.nodes == theirs.nodes and all(
            np.array_equal(a, b)
            for a, b in (
                (mine.offsets, theirs.offsets),
                (mine.first, theirs.first),
                (mine.second, theirs.second),
            )
        ):
            self.messages[:] = other.messages
            self.theta[:] = mine.costs + np.bincount(self._receivers, weights=self.messages, minlength=len(self.theta))

    def push(self, before: Costs, share: float) -> None:
        """Moves all messages further by a share of their change since `before` (momentum): sweeps converge in ever
        smaller steps of nearly the same direction. Any messages prove a bound after the next sweep."""
        more = np.floor(share * (self.messages - before))
        self.messages += more
        self.theta += np.bincount(self._receivers, weights=more, minlength=len(self.theta))

    def sweep(self) -> float:
        """One pass forward and one back; returns the bound."""
        for level in self._forward:
            self._visit(level)
        for level in self._backward:
            self._visit(level)
        return self.bound()

    def _visit(self, level: _Level) -> None:
        theta, messages = self.theta, self.messages
        for batch in level.batches:
            batch.arrive(theta, messages)
        mine = theta[level.labels]
        above = mine - np.minimum.reduceat(mine, level.starts)[level.owner]
        share = np.floor(above / level.share)
        messages[level.out] -= share[level.out_labels]
        theta[level.labels] = mine - share * level.given

    def decode(self) -> Indices:
        """A label per position, level by level: the best for the neighbours that have one; others are represented by
        messages.

        Forbidden pairs are taken where there is no alternative.
        """
        core = self.core
        score = self.theta.copy()
        labels = np.zeros(len(core.nodes), dtype=np.int64)
        for level in self._forward:
            for batch in level.batches:
                batch.add_chosen(score, self.messages, labels)
            mine = score[level.labels]
            hits = np.flatnonzero(mine == np.minimum.reduceat(mine, level.starts)[level.owner])
            labels[level.nodes] = hits[np.searchsorted(hits, level.starts)] - level.starts
        return labels

    def bound(self) -> float:
        """The bound. Valid right after a sweep, when every edge's minimum is zero."""
        return self.core.const + float(self.least().sum())

    def least(self) -> Costs:
        """The minimum of theta at every position."""
        if not len(self.core.nodes):
            return np.zeros(0)
        return np.asarray(np.minimum.reduceat(self.theta, self.core.offsets[:-1]))

    def message(self, edge: int, end: int) -> Costs:
        """The message of an edge into its end: 0 the first, 1 the second."""
        return self.messages[self._place(edge, end)]

    def slack(self, edge: int, first: Indices | None = None, second: Indices | None = None) -> Costs:
        """r_e: the cost of a pair of labels above the messages; of the labels `first` and `second` only, if given."""
        table, rows, columns = self.core.tables[edge], self.message(edge, 0), self.message(edge, 1)
        if first is not None and second is not None:
            table, rows, columns = table[np.ix_(first, second)], rows[first], columns[second]
        return np.asarray(table - rows[:, None] - columns[None, :])


def _split_by(keys: Indices, count: int) -> list[Indices]:
    """Places of every key 0 .. count - 1."""
    order = np.argsort(keys, kind="stable")
    return np.split(order, np.cumsum(np.bincount(keys, minlength=count))[:-1]) if count else []


def _count(nodes: Indices, members: Indices) -> Indices:
    """How often each of the sorted `nodes` is among the members."""
    return np.bincount(np.searchsorted(nodes, members), minlength=len(nodes))
