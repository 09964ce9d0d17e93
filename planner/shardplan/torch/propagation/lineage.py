"""Lineage: the operations that computed a value, in a form that is equal in all processes.

Signatures (see `shardplan.torch.propagation.signatures`) know what plan and program share, and nothing of constants. A
lineage tells any two values of a program apart: it is a digest of the operations, their arguments and their operands.
Constants are in it by what they contain, which is compared with a tolerance.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shardplan.torch.collectives.order import digest_of

_PLAIN = (int, float, complex, str, torch.dtype, torch.memory_format, torch.layout, slice, type(None), type(Ellipsis))


_OVERWRITES = frozenset(("setitem", "copy", "fill", "zero"))
"""Operations of which it does not count what their first operand has been."""


class Lineage(NamedTuple):
    """`digest`: of the operations; `constants`: the contents of the constants among their operands (see
    `shardplan.torch.collectives.order.content_of`)."""

    digest: str
    constants: frozenset[float] = frozenset()

    def then(self, *parts: object) -> Lineage:
        """The lineage of something in it."""
        return self._replace(digest=digest_of(self.digest, *parts))


def leaf(*parts: object) -> Lineage:
    """The lineage of a value that no operation has made: a weight, an argument, a gradient."""
    return Lineage(digest_of(*parts))


def lineage_of(name: str, arguments: Any, content: Any) -> Lineage:
    """The lineage of the results of an operation. `arguments`, by place and by name, hold values where tensors were;
    `content`: gives the content of a tensor."""
    constants: set[float] = set()

    def told(argument: Any) -> object:
        if isinstance(argument, (tuple, list)):
            return [told(item) for item in argument]
        if isinstance(argument, dict):
            return [(str(key), told(item)) for key, item in argument.items()]
        if isinstance(argument, Tensor):
            constants.add(content(argument))
            return [*argument.shape], str(argument.dtype)
        if hasattr(argument, "lineage"):
            constants.update(argument.lineage.constants if argument.lineage else ())
            return argument.lineage.digest if argument.lineage else [*argument.shape]
        if isinstance(argument, torch.device):
            return argument.type
        return argument if isinstance(argument, _PLAIN) else type(argument).__name__

    args, kwargs = arguments
    overwritten = name in _OVERWRITES and isinstance(args[0], Tensor)
    digest = digest_of(name, told(args[1:] if overwritten else args), told(kwargs))
    return Lineage(digest, frozenset(constants))


def values_in(made: Any) -> Iterator[Any]:
    """The values among what an operation has returned."""
    if hasattr(made, "lineage"):
        yield made
    elif isinstance(made, (tuple, list)):
        for item in made:
            yield from values_in(item)
