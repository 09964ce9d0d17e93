"""Recurrent layers and cells, replicated on every device.

Torch's own dispatch would take `lstm` or `lstm_cell` apart into what the device, the dtype and the build of torch offer
(cuDNN's, oneDNN's or MIOpen's layer, fused cells, a loop). Here a layer is one operation, as in a plan: sequences are
independent of one another and may be split, all else is whole. A cell is the products and functions that it stands for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from shardplan.torch.propagation.engine import Engine, Op
from shardplan.torch.propagation.plan_graph import Key
from shardplan.torch.propagation.values import Call, Dims, Site, Value
from shardplan.torch.rules.elementwise import as_value, elementwise
from shardplan.torch.rules.fallback import replicated
from shardplan.torch.rules.products import linear
from shardplan.torch.rules.slicing import split

LAYERS = frozenset(("lstm", "gru", "rnn_tanh", "rnn_relu"))
CELLS = frozenset(("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"))
_INPUT, _STATES, _WEIGHTS, _DROPOUT, _TRAINS, _BATCH_FIRST = 0, 1, 2, 5, 6, 8
"""Arguments by place, of the overloads of sequences of one length."""


def layer(engine: Engine, op: Op) -> Any:
    """A stack of recurrent layers over sequences of one length; the states may be one tensor or two. Packed sequences,
    and dropout between layers, which draws numbers for the whole batch, are computed whole."""
    is_packed = isinstance(op.args[_WEIGHTS + 1], (tuple, list)) or not isinstance(op.args[_WEIGHTS], (tuple, list))
    if is_packed or op.kwargs or (op.args[_DROPOUT] and op.args[_TRAINS]):
        return replicated(engine, op)
    value = as_value(engine, op.args[_INPUT])
    started = [as_value(engine, state) for state in _listed(op.args[_STATES])]
    weights = [as_value(engine, weight) for weight in op.args[_WEIGHTS]]
    return engine.run(_call(engine, op, value, started, weights))


def _call(engine: Engine, op: Op, value: Value, states: Sequence[Value], weights: Sequence[Value]) -> Call:
    batch_first = bool(op.args[_BATCH_FIRST])
    time, batch = (1, 0) if batch_first else (0, 1)
    directions = states[0].shape[0] // int(op.args[_WEIGHTS + 2])
    shape = (*value.shape[:2], states[0].shape[2] * directions)
    sequence: Dims = (("batch",), ("time",)) if batch_first else (("time",), ("batch",))
    state: Dims = (("stack",), ("batch",))
    sizes = {"time": value.shape[time], "batch": value.shape[batch], "stack": states[0].shape[0], "in": value.shape[2],
             "out": shape[2]}  # fmt: skip
    dims: list[Dims] = [(*sequence, ("in",))]
    for number, one in enumerate((*states, *weights)):
        names = tuple(f"w{number}.{dim}" for dim in range(one.rank))
        sizes |= dict(zip(names, one.shape, strict=True))
        kept = tuple((name,) for name in names)
        dims.append((*state, *kept[2:]) if number < len(states) else kept)
    results: list[Dims] = [(*sequence, ("out",)), *dims[1 : 1 + len(states)]]
    made_of = _signature(engine, value, states, weights)
    keys = [Key(made_of, shape, (1, 0, 2) if batch_first else ()), *(Key(made_of, one.shape) for one in states)]

    def run(locals_: list[Any], site: Site) -> Any:
        del site
        begin, end = locals_[1 : 1 + len(states)], locals_[1 + len(states) :]
        given = begin if isinstance(op.args[_STATES], (tuple, list)) else begin[0]
        return op.func(locals_[0], given, end, *op.args[_WEIGHTS + 1 :])

    return Call(
        [value, *states, *weights], dims, results, [shape, *(one.shape for one in states)], keys, sizes, run,
        whole=frozenset(sizes) - {"batch"},
    )  # fmt: skip


def _signature(engine: Engine, value: Value, states: Sequence[Value], weights: Sequence[Value]) -> int:
    """Of what a layer makes: exporters cut its weights into gates, which the plan has as pieces."""
    terms, hidden = engine.graph.signatures, states[0].shape[2]
    parts = [
        terms.part(weight.key.signature, (hidden, *weight.shape[1:]), (0, start), "program")
        if weight.shape[0] > hidden
        else weight.key.signature
        for weight in weights
        for start in range(0, weight.shape[0], hidden)
    ]
    return terms.nonlinear([value.key.signature, *(state.key.signature for state in states), *parts])


def cell(engine: Engine, op: Op) -> Any:
    """One turn of a recurrent layer; formulas: the pages of `torch.nn.LSTMCell`, `GRUCell`, `RNNCell`."""
    given = {**dict(zip(_OF_CELLS, op.args, strict=False)), **op.kwargs}
    states = [as_value(engine, each) for each in _listed(given["hx"])]
    of_input, of_state = (
        linear(
            engine, Op("linear", torch.nn.functional.linear, [as_value(engine, value), given[weight], given.get(bias)])
        )
        for value, weight, bias in ((given["input"], "w_ih", "b_ih"), (states[0], "w_hh", "b_hh"))
    )
    if op.name == "gru_cell":
        return _gru_cell(engine, of_input, of_state, states[0])
    together = _apply(engine, torch.add, of_input, of_state)
    if op.name != "lstm_cell":
        return _apply(engine, torch.tanh if op.name == "rnn_tanh_cell" else torch.relu, together)
    taken, kept, new, shown = _gates(engine, together, 4)
    new, taken, kept, shown = (
        _apply(engine, torch.tanh, new), *(_apply(engine, torch.sigmoid, each) for each in (taken, kept, shown))
    )  # fmt: skip
    memory = _apply(
        engine, torch.add, _apply(engine, torch.mul, kept, states[1]), _apply(engine, torch.mul, taken, new)
    )
    return _apply(engine, torch.mul, shown, _apply(engine, torch.tanh, memory)), memory


_OF_CELLS = ("input", "hx", "w_ih", "w_hh", "b_ih", "b_hh")


def _gru_cell(engine: Engine, of_input: Value, of_state: Value, state: Value) -> Any:
    pairs = list(zip(_gates(engine, of_input, 3), _gates(engine, of_state, 3), strict=True))
    reset, update = (_apply(engine, torch.sigmoid, _apply(engine, torch.add, *pair)) for pair in pairs[:2])
    recalled = _apply(engine, torch.mul, pairs[2][1], reset)
    new = _apply(engine, torch.tanh, _apply(engine, torch.add, pairs[2][0], recalled))
    apart = _apply(engine, torch.sub, state, new)
    return _apply(engine, torch.add, _apply(engine, torch.mul, apart, update), new)


def _gates(engine: Engine, value: Value, number: int) -> Sequence[Value]:
    gates: Sequence[Value] = split(engine, Op("chunk", torch.chunk, [value, number, 1]))
    return gates


def _apply(engine: Engine, func: Any, *values: Value) -> Value:
    return elementwise(engine, Op(func.__name__, func, values))


def _listed(states: Any) -> Sequence[Any]:
    return states if isinstance(states, (tuple, list)) else [states]
