"""Terms of a step's time: the part of the step that a cost belongs to, and the resource that it keeps busy.

Every cost in the cost graph is a few tables of seconds, one per term, each counted once per microbatch or once per step
as its segment says. An objective is a linear function of terms (`shardplan.schedule.objective`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardplan.schedule.links import Levels

Segment = Literal["forward", "backward", "once", "first", "update"]
"""`forward`, `backward`: of every microbatch; `once`: in the last backward; `first`: in the first forward."""
Resource = Literal["compute", "blocking", "gather", "reduce"]
"""The resource that a cost occupies: the compute stream; compute and links, by communication that is waited for; links
only, by weights gathered ahead of use or by gradients that are reduced."""
NO_LEVELS: Final[Levels] = frozenset()


class Term(NamedTuple):
    segment: Segment
    resource: Resource
    levels: Levels = NO_LEVELS


Table = NDArray[np.float64]
Mask = NDArray[np.bool_]
Terms = Mapping[Term, Table]
"""Tables of equal shape, finite."""


@dataclass(frozen=True, eq=False, slots=True)
class Priced:
    """The costs of a node's choices (a vector) or of an edge's pairs of choices (a matrix): `terms`, in whole
    picoseconds; `closed`: the mask of what is not allowed, or `None` if everything is."""

    terms: Terms
    shape: tuple[int, ...]
    closed: Mask | None = None

    def at(self, coefficients: Sequence[float]) -> Table:
        """The linear function of the terms with these coefficients, in their order, rounded to whole picoseconds; `inf`
        where closed."""
        pairs = zip(coefficients, self.terms.values(), strict=True)
        factors = [(factor, table) for factor, table in pairs if factor]
        if not factors:
            result = np.zeros(self.shape)
        else:
            (factor, table), *others = factors
            result = factor * table
            for factor, table in others:
                result += factor * table
            np.rint(result, out=result)
        if self.closed is not None:
            result[self.closed] = np.inf
        return result


def priced(terms: Terms, closed: Mask | None = None, shape: tuple[int, ...] | None = None) -> Priced:
    """The costs without zero terms; `shape` is needed if there may be no terms and nothing is closed."""
    kept = {term: table for term, table in terms.items() if table.any()}
    known = shape or (closed.shape if closed is not None else next(iter(terms.values())).shape)
    return Priced(kept, known, closed if closed is not None and closed.any() else None)
