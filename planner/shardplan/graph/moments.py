"""The moments of a step: forward of every operator in order, then backward in reverse, with recomputation in between.

Operator t of T runs forward at moment t. Its backward comes T-1-t operators after the turn from forward to backward.
The operators that are recomputed for it run right before it, in their order, each at its own moment.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence


class Moments:
    """`segments[e]`: operators that are, or may be, recomputed right before the backward of operator e."""

    def __init__(
        self, operators: int, *, training: bool, segments: Mapping[int, Collection[int]] | None = None
    ) -> None:
        self._operators = operators
        self._segments: dict[int, Sequence[int]] = {last: sorted(piece) for last, piece in (segments or {}).items()}
        self._lasts = sorted(self._segments)
        sizes = [len(self._segments[last]) for last in self._lasts]
        self._after = [sum(sizes[number:]) for number in range(len(sizes) + 1)]
        passes = 2 if training else 1
        self.count = max(passes * operators + sum(sizes), 1)

    def backward(self, operator: int) -> int:
        """The moment of an operator's backward."""
        return 2 * self._operators - 1 - operator + self._after[bisect_left(self._lasts, operator)]

    def recomputation(self, operator: int, last: int) -> int:
        """The moment at which an operator is recomputed, right before the backward of operator `last`."""
        piece = self._segments[last]
        return self.backward(last) - len(piece) + bisect_left(piece, operator)

    def recomputation_end(self, operator: int, last: int) -> int:
        """The end of the moment at which an operator is recomputed; if it is not, the end of the one before."""
        piece = self._segments[last]
        return self.backward(last) - len(piece) + bisect_right(piece, operator)
