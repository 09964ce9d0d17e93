"""Memory of a run whose layouts are decided, without what the search counts twice.

A search adds up what nodes hold, each by itself, so that operands and results count for their operator although most of
them are held already, in the same layout: a bound that no assignment exceeds. Once everything is chosen it is known
which reads are copies:

* an operand that is read in the layout in which it is kept, or served, is that value; so is a result. A value that
  backward does not read is freed;
* a weight that is served as it is kept is not gathered;
* the loss runs between the last operator's forward and its backward, when neither holds workspace;
* a trainer's sharded optimizer shards flat buffers, and FSDP pads its shards: the state divides evenly;
* an activation that only products in a narrow type read again in backward is saved in that type (Transformer Engine);
* results of experts do not wait: trainers multiply the router's shares into what the last product of an expert reads,
  so that the backward of their sum needs no results (Megatron-Core's `weighted_bias_swiglu`, DeepSeek-V3).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shardplan.cluster.types import Cluster
from shardplan.cost.recipes import gradient_dtype
from shardplan.graph.build import CostGraph, Node
from shardplan.graph.experts import results_of_experts
from shardplan.graph.flow import read_in_backward, storage_of
from shardplan.graph.memory import CATEGORIES, MemoryRows
from shardplan.graph.precision import PRECISIONS, PrecisionName, narrowed
from shardplan.graph.tensors import TensorSpace
from shardplan.plan.interrupted import unless_interrupted
from shardplan.plan.step.memory_timeline import bytes_by_moment, peak_of
from shardplan.plan.types import Memory, Plan
from shardplan.planning.chosen import Chosen
from shardplan.study.trainer_step import loss_memory_bytes

_ROW: Final = {category: row for row, category in enumerate(CATEGORIES)}
"""Rows of what is held, by category."""
_OF_RUNNING: Final = [_ROW["activations"], _ROW["temporaries"]]
"""The rows that change while a step runs."""


def as_held(
    chosen: Chosen, cluster: Cluster, *, loss: bool = True, flat: Sequence[int] = (), precision: PrecisionName = ""
) -> Plan:
    """A plan with the memory of a run on `cluster`. `loss`: the model ends in it; `flat`: axes over which the
    optimizer's state is sharded as flat buffers; `precision`: type in which operands of products are saved for
    backward. Raises as `finished`."""
    plan = unless_interrupted(chosen.plan)
    decided = DecidedGraph(chosen.priced.built, chosen.memory, chosen.priced.choice)
    memory = decided.peak(loss_memory_bytes(plan, cluster.training) if loss else None, precision)
    if flat:
        memory = replace(memory, optimizer=_flat_state_bytes(decided, flat, memory))
    return replace(plan, summary=replace(plan.summary, memory=memory))


def waiting_bytes(chosen: Chosen, precision: PrecisionName = "") -> int:
    """Bytes of the activations of one microbatch while they wait for their backward; `precision`: as in `as_held`."""
    decided = DecidedGraph(chosen.priced.built, chosen.memory, chosen.priced.choice)
    return decided.waiting(precision) // decided.built.options.in_flight


def accumulating_in_fp32(plan: Plan, optimizer: str) -> Plan:
    """A plan whose gradients are accumulated in fp32, whatever type they are made and reduced in."""
    weights = [
        (tensor.bytes_per_device, gradient_dtype(optimizer, tensor.dtype) in _16_BITS)
        for tensor in plan.tensors
        if tensor.trainable
    ]
    memory = plan.summary.memory
    narrow = sum(size for size, is_narrow in weights if is_narrow)
    more = memory.gradients * narrow // max(1, sum(size for size, _ in weights))
    return replace(plan, summary=replace(plan.summary, memory=replace(memory, gradients=memory.gradients + more)))


_16_BITS = ("bfloat16", "float16")


@dataclass(frozen=True)
class DecidedGraph:
    """A cost graph with the choice of every node, and its memory holdings."""

    built: CostGraph
    holdings: MemoryRows
    choice: Mapping[Node, int]

    @cached_property
    def amounts(self) -> NDArray[np.int64]:
        """The bytes of every holding."""
        return self.holdings.amounts(self.choice)

    @cached_property
    def sharing(self) -> frozenset[Node]:
        """The nodes that hold nothing of their own in forward, and are not counted."""
        return self.holdings.sharing(self.choice)

    def peak(self, loss_bytes: int | None = None, precision: PrecisionName = "") -> Memory:
        """The peak memory of a device. `loss_bytes`: of the loss, beside the logits; None if there is none;
        `precision`: as in `as_held`."""
        held = bytes_by_moment(self.holdings, self.choice)
        held[_ROW["temporaries"]] = np.maximum(held[_ROW["temporaries"]] - self._twice(), 0)
        fewer = self._fewer(precision)
        for place, amount in fewer.items():
            holding = self.holdings.holdings[place]
            read = self.built.flow.last_reader(holding.node[1]) + 1  # it is there as a whole until then
            held[_ROW["activations"], max(read, holding.start) : holding.end] -= amount
        peak = peak_of(held)
        if loss_bytes is None:
            return peak
        turn = self._at_the_turn(held, fewer)
        turn = replace(turn, temporaries=turn.temporaries + loss_bytes)
        return max(peak, turn, key=lambda memory: memory.total)

    def waiting(self, precision: PrecisionName = "") -> int:
        """Bytes of all activations that wait for their backward."""
        built, fewer, held = self.built, self._fewer(precision), 0
        for place, holding in enumerate(self.holdings.holdings):
            kind, name = holding.node
            waits = name in built.recompute.saved or name not in built.flow.makers
            if holding.category == "activations" and kind == "kept" and waits:
                held += int(self.amounts[place]) - fewer.get(place, 0)
        return held

    def _fewer(self, precision: PrecisionName) -> Mapping[int, int]:
        """The bytes that saved values do not take of what a search counts, by place of the holding: all of the results
        of experts, and what the narrow type saves."""
        results = results_of_experts(self.built.model, self.built.rules)
        found = {place: int(self.amounts[place]) for place, _ in self._saved(results)}
        return {**found, **(self._narrower(precision) if precision else {})}

    def _saved(self, stored: Collection[str]) -> Iterator[tuple[int, str]]:
        """The holdings, with the name of the value, of what is saved for backward of these values or as views of
        them."""
        storage = storage_of(self.built.model, self.built.rules)
        for place, holding in enumerate(self.holdings.holdings):
            name = holding.node[1]
            waits = holding.category == "activations" and name in self.built.recompute.saved
            if waits and storage.get(name, (name, ""))[0] in stored:
                yield place, name

    def _narrower(self, precision: PrecisionName) -> Mapping[int, int]:
        """The bytes saved by the narrow type, by place of the holding, for saved values that only products in a narrow
        type read in backward."""
        built, model = self.built, self.built.model
        products, storage = narrowed(model, built.rules, precision), storage_of(model, built.rules)
        of_products, wide = set[str](), set[str]()
        for index, (operator, rule) in enumerate(zip(model.operators, built.rules, strict=True)):
            read = read_in_backward(operator, rule, built.flow.needs_grad)
            of_products.update(read if index in products else ())
            wide.update(storage.get(name, (name, ""))[0] for name in read if index not in products)
        narrow = {storage.get(name, (name, ""))[0] for name in of_products} - wide
        found = dict[int, int]()
        for place, name in self._saved(narrow):
            wider = model.tensor(name).size_bytes / model.tensor(name).elements
            found[place] = round(int(self.amounts[place]) * (1 - PRECISIONS[precision].saved / wider))
        return found

    def _at_the_turn(self, held: NDArray[np.int64], fewer: Mapping[int, int]) -> Memory:
        """What is held from the last operator's forward to its backward: everything except the workspace of running
        operators."""
        turn, parts = self.holdings.count, held[:, -1].copy()
        parts[_OF_RUNNING] = 0
        for place, holding in enumerate(self.holdings.holdings):
            row = _ROW[holding.category]
            if row in _OF_RUNNING and holding.node[0] != "operator" and holding.start < turn <= holding.end:
                parts[row] += int(self.amounts[place]) - fewer.get(place, 0)
        return Memory(*map(int, parts))

    def _twice(self) -> NDArray[np.int64]:
        """Bytes that are counted twice, at every moment."""
        change, time, flow = np.zeros(self.holdings.moments + 1, dtype=np.int64), self.holdings.time, self.built.flow
        training = self.built.options.training

        def off(start: int, end: int, amount: int) -> None:
            change[start] += amount
            change[end] -= amount

        for index in range(self.holdings.count):
            first, last = flow.windows.get(index, (index, index))
            forward, backward = self._of_operator(index)
            if ("operator", self.built.model.operators[index].name) in self.sharing:
                forward = 0
            off(first, last + 1, forward)
            if training:
                off(time.backward(last), time.backward(first) + 1, backward)
            if index in self.built.recompute.until:
                moment = time.recomputation(index, self.built.recompute.until[index])
                off(moment, moment + 1, forward)
        for name, space in self.built.served.items():
            if name in self.built.fusion.inner or not self._is_served_as_kept(name):
                continue
            amount = int(space.state_bytes[space.forward[self.choice["served", name]]])
            first, last = flow.first_reader(name), flow.last_reader(name)
            if ("served", name) not in self.sharing:
                off(first, last + 1, amount)
            if training and name in flow.needs_grad:
                off(time.backward(last), time.backward(first) + 1, amount)
        return change.cumsum()[:-1]

    def _of_operator(self, index: int) -> tuple[int, int]:
        """The part of an operator's bytes in forward and in backward that count for other nodes too, or that is
        freed."""
        built, forward, backward = self.built, 0, 0
        for name, space, value, gradient, needed in self._operands(index):
            kept, amount = built.kept[name], int(space.state_bytes[value])
            same = value == self._state(name, served=needed is not None)
            forward += amount * same
            is_read = name in built.recompute.saved if needed is None else needed
            if index not in self.holdings.makes_views:
                backward += amount * (same or not is_read)
            if name not in built.flow.needs_grad:
                backward += amount
            elif name in built.flow.makers:
                backward += amount * bool(gradient == kept.gradient[self.choice["kept", name]])
        return forward, backward

    def _operands(self, index: int) -> Iterator[tuple[str, TensorSpace, int, int, bool | None]]:
        """Operands, then results, that are in memory: (name, space, states of the value and of the gradient, whether
        backward reads the operand; None for a result)."""
        operator, strategies = self.built.model.operators[index], self.built.operators[index].strategies
        chosen, inner = self.choice["operator", operator.name], self.built.fusion.inner
        sides = (
            (operator.inputs, strategies.operands, strategies.reads, True),
            (operator.outputs, strategies.results, strategies.makes, False),
        )
        for names, spaces, states, reads in sides:
            for position, (name, space, pair) in enumerate(zip(names, spaces, states, strict=False)):
                if space is None or pair is None or name in inner or name not in self.built.kept:
                    continue
                needed = (index, position) in self.built.recompute.needed if reads else None
                yield name, space, int(pair[0][chosen]), int(pair[1][chosen]), needed

    def _state(self, name: str, *, served: bool) -> int:
        """The state of a value as its readers get it (`served`), or as it is kept."""
        place = "served" if served and name in self.built.served else "kept"
        space = self.built.places[place][name]
        return int(space.forward[self.choice[place, name]])

    def _is_served_as_kept(self, name: str) -> bool:
        return self._state(name, served=True) == self._state(name, served=False)


def _flat_state_bytes(decided: DecidedGraph, axes: Sequence[int], memory: Memory) -> int:
    """Optimizer state of a device if flat buffers are sharded over those `axes` of the mesh over which a weight is
    whole, instead of its dims: the same bytes, in as many pieces."""
    built, found = decided.built, 0.0
    for holding in decided.holdings.holdings:
        if holding.category != "optimizer":
            continue
        name = holding.node[1]
        kept, state = built.kept[name], built.updated.get(name, built.kept[name])
        own, chosen = state.forward[decided.choice[holding.node]], decided.choice["kept", name]
        shape, codes = built.cluster.mesh.shape, kept.codes[chosen]
        whole = math.prod(shape[axis] for axis in axes if codes[axis] >= len(kept.kind.shards))
        ways = int(kept.space.tiles[kept.forward[chosen]].prod()) * whole
        cut = int(state.space.tiles[own].prod())
        found += int(holding.amount[decided.choice[holding.node]]) * cut / max(cut, ways)
    return min(memory.optimizer, math.ceil(found))
