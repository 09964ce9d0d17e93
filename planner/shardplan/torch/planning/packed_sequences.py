"""Recurrent layers in a graph of fixed shapes: packed sequences are planned as if every one had the length of the
longest, and projections of an LSTM's states, which ONNX's operator has not, as products."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_PACK, _PAD = "_pack_padded_sequence", "_pad_packed_sequence"
_LAYERS = frozenset(("lstm", "gru", "rnn_tanh", "rnn_relu"))


class PackedSequences:
    """What torch does with packed sequences, on all entries: rows of a batch, one time after the other."""

    def __init__(self) -> None:
        self._sizes: dict[int, tuple[Tensor, int]] = {}
        """Tensors of how many sequences last until each time, by identity, and how many these are."""

    def form(self, func: Any, args: Any) -> Any:
        """The result of a call; `NotImplemented` where it has to do with no packed sequence."""
        name = getattr(func, "__name__", "")
        if name == _PACK:
            return self._packed(*args)
        sizes = self._of(args[0] if name == "__getitem__" else args[1]) if len(args) > 1 else None
        if sizes is None:
            return NotImplemented
        if name == "__getitem__" and isinstance(args[1], int):
            return sizes
        if name == _PAD:
            return _padded(args[0].unflatten(0, (-1, sizes)), *args[2:])
        return _run(func, args, sizes) if name in _LAYERS else NotImplemented

    def _of(self, tensor: Any) -> int | None:
        held, sizes = self._sizes.get(id(tensor), (None, None))
        return sizes if held is tensor else None

    def _packed(self, padded: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
        del lengths
        by_time = padded.transpose(0, 1) if batch_first else padded
        times, batch = by_time.shape[:2]
        sizes = torch.full((times,), batch)
        self._sizes[id(sizes)] = sizes, batch
        return by_time.reshape(times * batch, *by_time.shape[2:]), sizes


def _padded(by_time: Tensor, batch_first: bool, filler: float, times: int) -> tuple[Tensor, Tensor]:
    more = times - by_time.shape[0]
    if more > 0:
        after = by_time.new_full((more, *by_time.shape[1:]), filler)
        by_time = torch.cat([by_time, after])
    lengths = torch.full((by_time.shape[1],), by_time.shape[0] - more)
    return by_time.transpose(0, 1) if batch_first else by_time, lengths


def _run(layer: Any, args: Any, sizes: int) -> tuple[Tensor, ...]:
    """A recurrent layer: of packed sequences its result is packed, too."""
    given = args[0].unflatten(0, (-1, sizes)), *args[2:], False
    made, *states = projected(layer, *given) if is_projected(layer, given) else layer(*given)
    return made.flatten(0, 1), *states


def is_projected(func: Any, args: Any) -> bool:
    """Whether a call, not of packed sequences, is of an LSTM whose states are projected."""
    states = args[1] if getattr(func, "__name__", "") == "lstm" and len(args) == _ARGUMENTS else ()
    return isinstance(states, (tuple, list)) and len(states) > 1 and states[0].shape[-1] != states[1].shape[-1]


_ARGUMENTS = 9
"""Of a recurrent layer: input, states, weights, whether it has biases, how many layers, dropout, whether it trains,
whether it goes both ways, whether the batch comes first."""


def projected(layer: Any, *args: Any) -> tuple[Tensor, ...]:
    """An LSTM with projections: state h' = W h goes into the gates as U h' = (U W) h, so it is one without, with the
    weights U W, whose result is projected. A state to begin with is planned as if W led back from it."""
    value, (begun, memories), weights, biased, layers, _, trains, both, batch_first = args
    ways, time, each = 2 if both else 1, 1 if batch_first else 0, 5 if biased else 3
    states, cells = [], []
    for number in range(layers):
        results = []
        for place in range(number * ways, (number + 1) * ways):
            of_input, of_state, *biases, out = weights[place * each : (place + 1) * each]
            start = begun[place : place + 1] @ out, memories[place : place + 1]
            given = value.flip(time) if place % ways else value
            own = [of_input, of_state @ out, *biases]
            made, state, cell = layer(given, start, own, biased, 1, 0.0, trains, False, batch_first)
            made = made @ out.t()
            results.append(made.flip(time) if place % ways else made)
            states.append(state @ out.t())
            cells.append(cell)
        value = torch.cat(results, -1)
    return value, torch.cat(states), torch.cat(cells)
