"""Re-gathering: a moved tensor that autograd does not save, but moves again in backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Regathered:
    """Stands for a moved tensor among autograd's saved tensors: its source, and the function that moves it again.

    `uses`: how often it is saved; it is gathered once for all uses that are asked for one after the other.
    """

    source: Tensor
    gather: Callable[[Tensor], Tensor]
    uses: int = 0
    _value: Tensor | None = field(default=None, repr=False)
    _asked: int = 0

    def value(self) -> Tensor:
        """The moved tensor; freed with its last use."""
        if self._value is None:
            self._value = self.gather(self.source)
        found = self._value
        self._asked += 1
        if self._asked >= self.uses:
            self._value, self._asked = None, 0
        return found
