"""Memory of one device over the step, as usages of choices over time (`shardplan.graph.moments`).

A parameter with its gradient and optimizer state is present all the time; a saved activation from its making until its
last read in backward; any other value while it is made and read; gathered copies and workspace while they are used. A
recomputed value is present again from its recomputation until its last read in backward or by operators that are
recomputed with it. Bytes are those of one microbatch at a time. Gradients of activations live from the backward of the
last reader to that of the maker.

A view of a weight shares its storage as long as nothing is moved on the way. Whether it does shows only once all is
chosen: `MemoryRows.amounts` counts it then. The usages leave out the view, which its reader counts as its operand, and
count what is read to make it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, get_args

import numpy as np

from shardplan.cost.moves import Index
from shardplan.cost.recipes import state_bytes
from shardplan.graph.build import CostGraph, Node
from shardplan.graph.flow import views_of_weights
from shardplan.graph.kv_cache import cache_bytes
from shardplan.graph.moments import Moments
from shardplan.graph.operators import OperatorSpace
from shardplan.graph.tensors import TensorSpace
from shardplan.solve.problem import Usage

Category = Literal["parameters", "gradients", "optimizer", "activations", "temporaries"]
CATEGORIES: Final[tuple[Category, ...]] = get_args(Category)
Fate = Literal["passing", "saved", "saved, recomputed"] | int
"""How a value reaches backward after its last reader ran forward: not at all; saved; saved although its maker is
recomputed; dropped and recomputed right before the backward of that operator."""


@dataclass(frozen=True, slots=True)
class Holding:
    """While start <= moment < end, `node` holds `amount[choice]` bytes of `category`."""

    node: Node
    category: Category
    start: int
    end: int
    amount: Index


class MemoryRows:
    """All holdings of a cost graph; amounts of equal kinds are one shared array."""

    def __init__(self, built: CostGraph, time: Moments | None = None) -> None:
        """`time`: the moments of all operators that may be recomputed, by default of those that are."""
        self.built = built
        self.count = len(built.model.operators)
        segments = _segments(built.recompute.until)
        self.time = time or Moments(self.count, training=built.options.training, segments=segments)
        self.moments = self.time.count
        self._amounts: dict[tuple[object, ...], Index] = {}
        views = views_of_weights(built.model, built.rules).items()
        self.views = {name: view for name, view in views if name in built.kept and view[1] in built.kept}
        self.makes_views = frozenset(index for index, _ in self.views.values())
        self.holdings: tuple[Holding, ...] = tuple(self._all())

    @cached_property
    def usages(self) -> tuple[Usage, ...]:
        """The holdings as usages of a problem, whose nodes are numbers."""
        numbers, shared = self.built.node_numbers, {place for places in self._shared.values() for place in places}
        found = []
        for place, one in enumerate(self.holdings):
            amount = self._counted_in_a_search(one) if place in shared else one.amount
            if amount is not None:
                found.append(Usage(numbers[one.node], one.start, one.end, amount))
        return tuple(found)

    def _counted_in_a_search(self, one: Holding) -> Index | None:
        """What counts of a holding that a view may share: on several devices, where something may be moved, copies
        that readers get and what is read to make a view."""
        kind, name = one.node
        if self.built.cluster.mesh.size == 1 or kind == "kept":
            return None
        if kind == "served":
            return one.amount
        strategies = self.built.operators[self.built.number[name]].strategies
        space, reads = strategies.operands[0], strategies.reads[0]
        assert space is not None
        assert reads is not None
        key = (id(space), "read", reads[0].tobytes())
        if key not in self._amounts:
            self._amounts[key] = space.state_bytes[reads[0]]
        return self._amounts[key]

    def amounts(self, choice: Mapping[Node, int]) -> Index:
        """The bytes of every holding in an assignment."""
        nodes, node, first, table = self._tables
        chosen: Index = table[first + np.array([choice[one] for one in nodes], dtype=np.int64)[node]]
        for one in self.sharing(choice) if self.views else ():
            chosen[self._shared.get(one, [])] = 0
        return chosen

    def sharing(self, choice: Mapping[Node, int]) -> frozenset[Node]:
        """The nodes that hold nothing of their own in forward: views of weights with their operators, and what readers
        of either get, in the layout in which the weight is kept."""
        found = set[Node]()
        for name, (index, source) in self.views.items():
            operator, strategies = self.built.model.operators[index], self.built.operators[index].strategies
            reads, makes = strategies.reads[0], strategies.makes[self.built.flow.makers[name][1]]
            assert reads is not None
            assert makes is not None
            number = choice["operator", operator.name]
            is_held = source not in self.views or ("kept", source) in found
            if not is_held or not self._is_served_as_kept(source, choice):
                continue
            found.add(("served", source))
            kept, made = (self._kept_state(each, choice) for each in (source, name))
            if int(reads[0][number]) == kept and int(makes[0][number]) == made:
                found.add(("kept", name))
                if self._is_served_as_kept(name, choice):
                    found.add(("served", name))
        for index in self.makes_views:
            operator = self.built.model.operators[index]
            if all(("kept", name) in found for name in operator.outputs if name):
                found.add(("operator", operator.name))
        return frozenset(found)

    def _kept_state(self, name: str, choice: Mapping[Node, int]) -> int:
        return int(self.built.kept[name].forward[choice["kept", name]])

    def _is_served_as_kept(self, name: str, choice: Mapping[Node, int]) -> bool:
        served = self.built.served.get(name)
        return served is None or int(served.forward[choice["served", name]]) == self._kept_state(name, choice)

    @cached_property
    def _shared(self) -> dict[Node, list[int]]:
        """The holdings in forward, by number, of the nodes that may hold nothing of their own."""
        shown = {name for view in self.views.items() for name in (view[0], view[1][1])}
        wanted = {("kept", name) for name in self.views} | {("served", name) for name in shown}
        wanted |= {("operator", self.built.model.operators[index].name) for index in self.makes_views}
        found: dict[Node, list[int]] = {}
        for place, one in enumerate(self.holdings):
            if one.node in wanted and (one.category == "activations" or one.start < self.count):
                found.setdefault(one.node, []).append(place)
        return found

    @cached_property
    def _tables(self) -> tuple[list[Node], Index, Index, Index]:
        """The nodes; by holding, the number of its node and the position of its amounts in the last array."""
        nodes = list(dict.fromkeys(one.node for one in self.holdings))
        number = {node: place for place, node in enumerate(nodes)}
        arrays = {id(one.amount): one.amount for one in self.holdings}
        starts = dict(zip(arrays, np.cumsum([0, *map(len, arrays.values())]).tolist(), strict=False))
        node = np.array([number[one.node] for one in self.holdings], dtype=np.int64)
        first = np.array([starts[id(one.amount)] for one in self.holdings], dtype=np.int64)
        return nodes, node, first, np.concatenate([*arrays.values(), np.zeros(0, dtype=np.int64)])

    @cached_property
    def spans_of_all(self) -> tuple[Index, Index, Index]:
        """By holding, the number of its category, its first moment, and the one behind its last."""
        spans = [(CATEGORIES.index(one.category), one.start, one.end) for one in self.holdings]
        category, start, end = np.array(spans, dtype=np.int64).reshape(-1, 3).T
        return category, start, end

    def _all(self) -> Iterator[Holding]:
        parameters = {parameter.tensor for parameter in self.built.model.parameters}
        for name in self.built.flow.planned:
            if name in parameters or self.built.model.tensor(name).role == "constant":
                yield from self._parameter(name)
            else:
                yield from self._activation(name)
            if name in self.built.served:
                yield from self._served(name)
        for index, operator in enumerate(self.built.model.operators):
            space = self.built.operators[index]
            node = ("operator", operator.name)
            first, last = self.built.flow.windows.get(index, (index, index))
            yield Holding(node, "temporaries", first, last + 1, space.forward_bytes)
            yield from self._cache(index, node)
            if self.built.options.training:
                back = self.time.backward(last), self.time.backward(first) + 1
                yield Holding(node, "temporaries", *back, self._in_backward(index, space))
            if index in self.built.recompute.until:
                moment = self.time.recomputation(index, self.built.recompute.until[index])
                yield Holding(node, "temporaries", moment, moment + 1, space.forward_bytes)

    def _in_backward(self, index: int, space: OperatorSpace) -> Index:
        """Values and gradients that the backward of an operator holds; that of a view reads no values."""
        if index not in self.makes_views:
            return space.backward_bytes
        key = (id(space), "gradients")
        if key not in self._amounts:
            self._amounts[key] = space.backward_bytes // 2
        return self._amounts[key]

    def _cache(self, index: int, node: Node) -> Iterator[Holding]:
        tokens = self.built.options.kv_cache_tokens
        if not tokens:
            return
        held = cache_bytes(self.built.model, index, self.built.flow, self.built.operators[index].strategies, tokens)
        if held is not None:
            made_by = self.built.model.operators[index].outputs[0]
            yield Holding(node, "activations", 0, self.moments, self._in_all_copies(made_by, held))

    def _parameter(self, name: str) -> Iterator[Holding]:
        space = self.built.kept[name]
        dtype = self.built.model.tensor(name).dtype
        trained = name in self.built.flow.needs_grad
        per_element = state_bytes(self.built.options.optimizer, dtype) if trained else None
        if per_element is None:
            yield Holding(("kept", name), "parameters", 0, self.moments, self._in_all_copies(name, self._kept(space)))
            return
        wanted: tuple[tuple[Category, float, tuple[Node, TensorSpace]], ...] = (
            ("parameters", per_element.parameter, (("kept", name), space)),
            ("gradients", per_element.gradient, (("kept", name), space)),
            ("optimizer", per_element.state, self.built.optimizer_node(name)),
        )
        for category, each, (node, chosen) in wanted:
            if each:
                yield Holding(node, category, 0, self.moments, self._in_all_copies(name, self._state(chosen, each)))

    def _state(self, space: TensorSpace, element_bytes: float) -> Index:
        key = (id(space), element_bytes)
        if key not in self._amounts:
            ways = space.space.tiles.prod(axis=1)[space.forward]
            elements = int(np.prod(space.kind.shape))
            self._amounts[key] = np.ceil(elements * element_bytes / ways).astype(np.int64)
        return self._amounts[key]

    def _activation(self, name: str) -> Iterator[Holding]:
        flow, space, node = self.built.flow, self.built.kept[name], ("kept", name)
        if name in self.built.fusion.inner:
            return
        maker = flow.makers.get(name)
        start = maker[0] if maker else 0
        end = self.count if name in self.built.model.outputs else flow.last_reader(name) + 1
        amount = self._kept(space)
        if not self.built.options.training:
            held = self.moments if name in self.built.model.outputs else end
            yield Holding(node, "activations", start, held, amount)
            return
        fate = self._fate(name)
        saved = self._in_all_copies(name, amount) if fate in ("saved", "saved, recomputed") else amount
        for begin, finish, times in self.spans(name, fate, self.time):
            yield Holding(node, "activations", begin, finish, times * saved if times > 1 else saved)
        if name in flow.needs_grad and maker is not None:
            last = min(flow.last_reader(name), self.count - 1)
            gradient = self._of_states(space, space.gradient, "gradient")
            yield Holding(node, "temporaries", self.time.backward(last), self.time.backward(start) + 1, gradient)

    def _fate(self, name: str) -> Fate:
        maker, remat = self.built.flow.makers.get(name), self.built.recompute
        if maker is None:
            return "saved, recomputed"
        if name in remat.saved:
            return "saved, recomputed" if maker[0] in remat.until else "saved"
        return remat.until.get(maker[0], "passing")

    def spans(self, name: str, fate: Fate, time: Moments) -> list[tuple[int, int, int]]:
        """When a value is held: (start, end, number of copies), in moments of `time`.

        A saved value is held once for each microbatch and iteration of a loop that waits for its backward.
        """
        flow = self.built.flow
        start = flow.makers[name][0] if name in flow.makers else 0
        end = self.count if name in self.built.model.outputs else flow.last_reader(name) + 1
        if fate == "passing":
            return [(start, end, 1)]
        if fate in ("saved", "saved, recomputed"):
            last = start if fate == "saved" else flow.first_reader(name)
            waiting = self.built.options.in_flight * self.built.model.iterations(flow.lives_in.get(name, ()))
            return [(start, time.backward(last) + 1, waiting)]
        assert isinstance(fate, int)
        if name in self.built.fusion.saved:
            back = time.backward(start) + 1
        else:
            readers = [reader for reader, _ in flow.readers.get(name, ()) if reader <= fate]
            back = time.recomputation_end(max(readers, default=start), fate)
        return [(start, end, 1), (time.recomputation(start, fate), back, 1)]

    def _served(self, name: str) -> Iterator[Holding]:
        flow, space = self.built.flow, self.built.served[name]
        if name in self.built.fusion.inner:
            return
        first, last = flow.first_reader(name), flow.last_reader(name)
        amount = self._of_states(space, space.forward, "served")
        yield Holding(("served", name), "temporaries", first, last + 1, amount)
        if self.built.options.training and name in flow.needs_grad:
            back = self.time.backward(last), self.time.backward(first) + 1
            yield Holding(("served", name), "temporaries", *back, amount)

    def _in_all_copies(self, name: str, amount: Index) -> Index:
        """`Model.in_all_copies`; equal amounts are one shared array."""
        each = self.built.model.depth.get(name)
        if each is None:
            return amount
        key = ("in all copies", amount.tobytes(), each)
        if key not in self._amounts:
            self._amounts[key] = self.built.model.in_all_copies(name, amount)
        return self._amounts[key]

    def kept_bytes(self, name: str) -> Index:
        """Bytes on a device per layout in which a tensor may be kept."""
        return self._kept(self.built.kept[name])

    def _kept(self, space: TensorSpace) -> Index:
        return self._of_states(space, space.forward, "kept")

    def _of_states(self, space: TensorSpace, states: Index, what: str) -> Index:
        key = (id(space), what)
        if key not in self._amounts:
            self._amounts[key] = space.state_bytes[states]
        return self._amounts[key]


def _segments(until: Mapping[int, int]) -> dict[int, list[int]]:
    """The operators that are recomputed right before the backward of each operator."""
    segments: dict[int, list[int]] = {}
    for operator, last in sorted(until.items()):
        segments.setdefault(last, []).append(operator)
    return segments
