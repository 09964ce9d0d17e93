"""Signatures: identities of values that are equal in the graph of a plan and in a program.

An exporter writes a `Linear` as three nodes and a GELU as eight, drops views and renames everything. What stays is
which weights and inputs flow together where. So a value is known by its *signature*: the products, lookups, softmaxes
and pieces (`leaf`) that it is a linear (`linear`) or another elementwise function (`nonlinear`) of. Views keep the
signature of what they view; constants have none. Two chains of elementwise operators between the same leaves have the
same signature, however they are written.

Signatures are small integers, equal for equal terms of one `Signatures`.
"""

from __future__ import annotations

from collections.abc import Iterable

CONSTANT = 0


class Signatures:
    """Terms and their numbers. A plan and the program it is applied to must use the same one."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[object, ...], int] = {("constant",): CONSTANT}
        self._sums: dict[int, frozenset[int]] = {}
        self._bases: dict[int, frozenset[int]] = {CONSTANT: frozenset()}
        self._pieces: dict[tuple[str, int, tuple[int, ...]], dict[object, int]] = {}

    def leaf(self, kind: str, *parts: object) -> int:
        """What is no elementwise function of others: a weight, an input, a product of two values."""
        number = self._number(("leaf", kind, *parts))
        self._bases.setdefault(number, frozenset({number}))
        return number

    def linear(self, signatures: Iterable[int]) -> int:
        """A sum of values, or a value times constants."""
        terms: frozenset[int] = frozenset()
        for signature in signatures:
            if signature != CONSTANT:
                terms |= self._sums.get(signature, frozenset({signature}))
        if not terms:
            return CONSTANT
        if len(terms) == 1:
            return next(iter(terms))
        number = self._number(("linear", terms))
        self._sums[number] = terms
        return number

    def nonlinear(self, signatures: Iterable[int]) -> int:
        """Another elementwise function of values; what it is made of counts, not how."""
        bases: frozenset[int] = frozenset()
        for signature in signatures:
            bases |= self._bases_of(signature)
        if not bases:
            return CONSTANT
        number = self._number(("nonlinear", bases))
        self._bases.setdefault(number, bases)
        return number

    def part(self, whole: int, shape: tuple[int, ...], offset: object, side: str) -> int:
        """A piece of a value: of several pieces of one shape the first, second ... that `side` has met.

        `offset`: anything that tells pieces of one shape apart. Plans do not say where a slice begins, so the order
        counts; a side that meets the same offset again means the same piece. Dims of size 1 may come and go.
        """
        shape = tuple(size for size in shape if size != 1)
        met = self._pieces.setdefault((side, whole, shape), {})
        return self.leaf("part", whole, shape, met.setdefault(offset, len(met)))

    def _bases_of(self, signature: int) -> frozenset[int]:
        if signature not in self._bases:
            terms = self._sums[signature]
            self._bases[signature] = frozenset().union(*(self._bases_of(term) for term in terms))
        return self._bases[signature]

    def _number(self, term: tuple[object, ...]) -> int:
        return self._numbers.setdefault(term, len(self._numbers))
