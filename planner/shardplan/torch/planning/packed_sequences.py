"""Packed sequences in a graph of fixed shapes: planned as if every sequence had the length of the longest."""

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
    made, *states = layer(args[0].unflatten(0, (-1, sizes)), *args[2:], False)
    return made.flatten(0, 1), *states
