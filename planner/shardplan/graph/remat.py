"""Rematerialisation as a flag: which operators run again in backward, and which values are then not saved.

`selective` recomputes the inside of decomposed attention (the scores between two matrix products around a softmax);
a fused attention operator does that by itself. `full` recomputes every repeated block from its inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shardplan.graph.flow import Flow, needed_operands
from shardplan.graph.fusion import Fusion
from shardplan.graph.options import PlanOptions
from shardplan.model.types import Model
from shardplan.rules.types import Rule

_TRANSPARENT = frozenset({"pointwise", "view", "memory"})


@dataclass(frozen=True)
class Recompute:
    """`again`: operators that run a second time; `saved`: values saved for backward; `window[i]`: for an operator that
    runs again, (first, last) operator of the piece it is recomputed with."""

    again: frozenset[int]
    saved: frozenset[str]
    window: dict[int, tuple[int, int]] = field(default_factory=dict)
    needed: frozenset[tuple[int, int]] = frozenset()
    served: frozenset[str] = frozenset()

    def forwards(self, operator: int) -> int:
        """How often an operator computes its result per microbatch."""
        return 2 if operator in self.again else 1

    def reads(self, operator: int, position: int) -> int:
        """How often an operand is brought to its reader: again when it is recomputed or its backward reads it."""
        return 2 if operator in self.again or (operator, position) in self.needed else 1

    def serves(self, name: str) -> int:
        """How often a tensor is gathered for its readers."""
        return 2 if name in self.served else 1


def recompute(model: Model, rules: Sequence[Rule], flow: Flow, fusion: Fusion, options: PlanOptions) -> Recompute:
    """What runs again under `options.remat`, and what is left to save."""
    again: set[int] = set()
    window: dict[int, tuple[int, int]] = {}
    if options.training and options.remat != "none":
        for piece in _pieces(model, rules, flow, options):
            again.update(piece)
            window.update(dict.fromkeys(piece, (min(piece), max(piece))))
    saved = {name for name in fusion.saved if flow.makers[name][0] not in again}
    for name, (maker, _) in flow.makers.items():
        feeds = [reader for reader, _ in flow.readers.get(name, ()) if reader in again]
        if name in flow.needs_grad and any(window[reader] != window.get(maker) for reader in feeds):
            saved.add(name)
    needed = frozenset(
        (index, position)
        for index, (operator, rule) in enumerate(zip(model.operators, rules, strict=True))
        if any(name in flow.needs_grad for name in operator.outputs)
        for position in needed_operands(operator, rule, flow.needs_grad)
    )
    served = frozenset(
        name
        for name, readers in flow.readers.items()
        if any(index in again or (index, position) in needed for index, position in readers)
    )
    return Recompute(frozenset(again), frozenset(saved), window, needed, served)


def _pieces(model: Model, rules: Sequence[Rule], flow: Flow, options: PlanOptions) -> list[set[int]]:
    if options.remat == "full":
        return [set(copy) for block in model.blocks for copy in block.copies]
    softmaxes = [index for index, operator in enumerate(model.operators) if operator.op_type == "Softmax"]
    return [piece for index in softmaxes if (piece := _attention_core(index, model, rules, flow))]


def _attention_core(softmax: int, model: Model, rules: Sequence[Rule], flow: Flow) -> set[int]:
    """Operators from the scores' matrix product to just before the product with the values; empty if there is none."""
    piece, front = {softmax}, [softmax]
    found_product = False
    while front:
        for name in model.operators[front.pop()].inputs:
            maker = flow.makers.get(name, (None, 0))[0]
            if maker is None or maker in piece or name not in flow.needs_grad:
                continue
            if rules[maker].cost == "gemm":
                found_product = True
                piece.add(maker)
            elif rules[maker].cost in _TRANSPARENT:
                piece.add(maker)
                front.append(maker)
    front = [softmax]
    while front:
        for name in model.operators[front.pop()].outputs:
            for reader, _ in flow.readers.get(name, ()):
                if reader not in piece and rules[reader].cost in _TRANSPARENT:
                    piece.add(reader)
                    front.append(reader)
    return piece if found_product else set()
