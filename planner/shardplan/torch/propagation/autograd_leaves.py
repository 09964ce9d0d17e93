"""The leaves of autograd that a tensor is a function of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor


def leaves_in(tensor: Tensor, names: Mapping[int, str]) -> Iterator[str]:
    """The names of those tensors among `names`, by identity, that get a gradient through `tensor`, or are it."""
    if id(tensor) in names:
        yield names[id(tensor)]
    seen, ahead = set(), [tensor.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None and id(variable) in names:
            yield names[id(variable)]
        ahead += [source for source, _ in node.next_functions]
