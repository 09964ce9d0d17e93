"""Re-gathering: a moved tensor that autograd does not save, but moves again in backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from shardplan.torch.collectives.executor import Flight


@dataclass
class Regathered:
    """Replaces a moved tensor among autograd's saved tensors: its source, and the function that moves it again.

    `uses`: how often it is saved; it is gathered once for consecutive uses. `before`: called before each use, and may
    issue the gather.
    """

    source: Tensor
    gather: Callable[[Tensor], Tensor]
    start: Callable[[Tensor], Flight]
    uses: int = 0
    before: Callable[[], None] | None = field(default=None, repr=False)
    _flight: Flight | None = field(default=None, repr=False)
    _value: Tensor | None = field(default=None, repr=False)
    _asked: int = 0

    @property
    def is_issued(self) -> bool:
        """Whether it is gathered, or on its way."""
        return self._flight is not None or self._value is not None

    def issue(self) -> None:
        """Let it be gathered beside compute."""
        if not self.is_issued:
            self._flight = self.start(self.source)

    def value(self) -> Tensor:
        """The moved tensor; freed with its last use."""
        if not self.is_issued and self.before is not None:
            self.before()
        flight, self._flight = self._flight, None
        if flight is not None:
            (self._value,) = flight.wait()
        if self._value is None:
            self._value = self.gather(self.source)
        found = self._value
        self._asked += 1
        if self._asked >= self.uses:
            self._value, self._asked = None, 0
        return found
