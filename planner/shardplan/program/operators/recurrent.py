"""Recurrent layers whose hidden units are split: every step gathers the state that the step before made in parts."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

import numpy as np

from shardplan.program.localise import refuse
from shardplan.program.machine.talk import Ask, Coordinates, Operands, Running, all_gather
from shardplan.program.reference.evaluate import evaluate
from shardplan.program.types import Array, Local, Site

_STATES = {"LSTM": 2, "RNN": 1, "GRU": 1}
_USUAL_OF_GRU = ("Sigmoid", "Tanh")
_Stepping = Generator[Ask, Array | None, tuple[Array, list[Array]]]


def recurrent(site: Site, local: Local, operands: Operands, coordinates: Coordinates) -> Running:
    """`LSTM`, `RNN`, `GRU`, one direction after the other; operands and results are ONNX's, hidden units local."""
    del coordinates
    data, weights = operands[0], operands[1]
    assert data is not None
    assert weights is not None
    batch_first = bool(local.attributes.get("layout", 0))
    if batch_first:
        data = data.swapaxes(0, 1)
    runs = []
    for direction in range(weights.shape[0]):
        backwards = local.attributes.get("direction") == "reverse" or direction == 1
        parts = [_of_direction(operand, direction, place, batch_first) for place, operand in enumerate(operands)]
        steps = data[::-1] if backwards else data
        one = _gated_direction if site.kind == "GRU" else _direction
        made, states = yield from one(site, local, steps, parts)
        runs.append((made[::-1] if backwards else made, states))
    results = [np.stack([made for made, _ in runs], axis=1)]
    results += [np.stack([states[i] for _, states in runs]) for i in range(_STATES[site.kind])]
    if batch_first:
        results = [results[0].transpose(2, 0, 1, 3), *(state.swapaxes(0, 1) for state in results[1:])]
    return results[: len(site.operator.outputs)]


def _of_direction(operand: Array | None, direction: int, place: int, batch_first: bool) -> Array | None:
    """Weights, biases and states of one direction, which stays as a dim of 1; the data as it is."""
    if operand is None or place in {0, 4}:
        return None
    if batch_first and place in {5, 6}:
        operand = operand.swapaxes(0, 1)
    return operand[direction : direction + 1]


def _direction(site: Site, local: Local, data: Array, parts: Operands) -> _Stepping:
    """One direction: (results of all steps, last states).

    The gathered state enters through the input: the operator runs one step on [x, h] with weights [W, R] and no
    recurrence, so its own activations, clipping and peepholes are used.
    """
    padded: Operands = [*parts, *[None] * (8 - len(parts))]
    weights, recurrence, bias, rest = padded[1], padded[2], padded[3], padded[5:]
    assert weights is not None
    assert recurrence is not None
    hidden = recurrence.shape[1] // (4 if site.kind == "LSTM" else 1)
    nothing = np.zeros((1, data.shape[1], hidden), data.dtype)
    states = [state if state is not None else nothing for state in rest[: _STATES[site.kind]]]
    joined = np.concatenate([weights, recurrence], axis=2)
    unused = np.zeros((1, recurrence.shape[1], hidden), data.dtype)
    step = replace(site.operator, outputs=tuple("yhc"[: 1 + _STATES[site.kind]]))
    attributes = {**local.attributes, "direction": "forward"}
    attributes.pop("layout", None)
    made = []
    for entry in data:
        gathered = yield from all_gather(states[0], site.axes("h"), dim=2)
        inputs = np.concatenate([entry, gathered[0]], axis=1)[None]
        given = [inputs, joined, unused, bias, None, nothing, *states[1:]]
        if site.kind == "LSTM":
            given.append(rest[2])
        _, *states = evaluate(step, attributes, given)
        made.append(states[0][0])
    return np.stack(made), [state[0] for state in states]


def _gated_direction(site: Site, local: Local, data: Array, parts: Operands) -> _Stepping:
    """One direction of a `GRU`: (results of all steps, last states).

    Where the reset gate comes before the product with the state, the gated state is gathered as well in every step.
    """
    usual = local.attributes.get("activations", _USUAL_OF_GRU)
    if tuple(usual)[:2] != _USUAL_OF_GRU or "clip" in local.attributes:  # type: ignore[arg-type]
        raise refuse(site, "its activations are not those of every GRU")
    padded: Operands = [*parts, *[None] * (6 - len(parts))]
    weights, recurrence, bias, state = padded[1], padded[2], padded[3], padded[5]
    assert weights is not None
    assert recurrence is not None
    hidden = recurrence.shape[1] // 3
    bias = np.zeros((1, 6 * hidden), data.dtype) if bias is None else bias
    held = np.zeros((data.shape[1], hidden), data.dtype) if state is None else state[0]
    for_input, for_state = (array[0].reshape(3, hidden, -1) for array in (weights, recurrence))
    moved, moved_state = bias[0].reshape(2, 3, hidden)
    made = []
    for entry in data:
        gathered = yield from all_gather(held, site.axes("h"), dim=1)
        given = [entry @ for_input[gate].T + moved[gate] for gate in range(3)]
        update, reset = (_sigmoid(given[g] + gathered @ for_state[g].T + moved_state[g]) for g in range(2))
        if local.attributes.get("linear_before_reset", 0):
            inside = reset * (gathered @ for_state[2].T + moved_state[2])
        else:
            gated = yield from all_gather(reset * held, site.axes("h"), dim=1)
            inside = gated @ for_state[2].T + moved_state[2]
        held = (1 - update) * np.tanh(given[2] + inside) + update * held
        made.append(held)
    return np.stack(made), [held]


def _sigmoid(array: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-array)))
