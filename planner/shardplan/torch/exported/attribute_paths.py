"""Names of modules and tensors in the code of graphs, which may be keywords of Python (`self.in.weight`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from keyword import iskeyword
from typing import Any

from torch.fx import graph

from shardplan.torch.exported.untraceable import having

_FORMAT = graph._format_target  # noqa: SLF001 - torch has no public name for how an attribute is written


class AttributePath(str):
    """The name of an attribute. Torch writes parts of it that are no identifiers as `getattr(self, "in")`, and asks
    each of them."""

    __slots__ = ()

    def split(self, *given: Any) -> list[str]:
        """As text's."""
        return [_Part(each) for each in str(self).split(*given)]


class _Part(str):
    __slots__ = ()

    def isidentifier(self) -> bool:
        """Whether it can be written behind a dot."""
        return str(self).isidentifier() and not iskeyword(self)


@contextlib.contextmanager
def writing_keywords() -> Iterator[None]:
    """Graphs that torch makes within are written so, whatever their names are."""
    with having(graph, "_format_target", lambda base, target: _FORMAT(base, AttributePath(target))):
        yield
