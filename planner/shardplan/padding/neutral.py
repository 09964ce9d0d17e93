"""Neutral padding values, by operator: the value that changes nothing when an operator combines the entries of
a dim."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from shardplan.model.types import Operator
from shardplan.rules.equation import Equation
from shardplan.rules.types import Rule

REARRANGES: Final = frozenset(
    (
        "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Tile", "Split", "Concat", "Slice",
        "DepthToSpace", "SpaceToDepth", "Identity", "Cast",
    )
)  # fmt: skip
"""Kinds that hand entries on as they are, whole dims too."""
LOOKS_UP: Final = frozenset(("Gather", "GatherElements", "NegativeLogLikelihoodLoss"))
"""Kinds that read only the entries that indices name; from the front, these never name padding."""
NEUTRAL: Final[Mapping[str, float]] = {
    "MatMul": 0.0, "Gemm": 0.0, "Einsum": 0.0, "Conv": 0.0,
    "ReduceSum": 0.0, "ReduceL1": 0.0, "ReduceL2": 0.0, "ReduceSumSquare": 0.0, "ReduceLogSum": 0.0,
    "ReduceMean": 0.0, "GlobalAveragePool": 0.0, "ReduceProd": 1.0,
    "ReduceMax": -math.inf, "GlobalMaxPool": -math.inf, "ArgMax": -math.inf, "ReduceLogSumExp": -math.inf,
    "Softmax": -math.inf, "LogSoftmax": -math.inf, "ReduceMin": math.inf, "ArgMin": math.inf,
}  # fmt: skip
"""Kind -> what padding of its operands must hold."""
AVERAGES: Final = frozenset(("ReduceMean", "GlobalAveragePool"))
"""Kinds whose result is divided by the size of the dim, padding too."""
LOSSES: Final = frozenset(("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"))
IGNORED: Final = -100
"""The class of samples that a loss leaves out, where its model names none: what torch takes."""
_COMBINES: Final = frozenset("~^!@")


@dataclass(frozen=True, slots=True)
class Fill:
    """Padding along `factor` of the operand at `position` must hold `value`."""

    position: int
    factor: str
    value: float


class UnpaddableError(ValueError):
    """An operator that combines the entries of a dim in a way for which no neutral value is known."""


def fills(operator: Operator, rule: Rule, equation: Equation, factor: str) -> Iterator[Fill]:
    """The padding values that the operands of `operator` need if `factor` is padded. Raises `UnpaddableError`."""
    mark = equation.marks.get(factor, "")
    is_reduced = any(
        pattern.prefix != "=" and not any(factor in dim.factors for dim in pattern.dims)
        for pattern, name in zip(equation.results, operator.outputs, strict=True)
        if name
    )
    kind = operator.kind
    if kind in REARRANGES or (not is_reduced and mark not in _COMBINES) or (mark == "@" and kind in LOOKS_UP):
        return
    positions = [
        position
        for position, (pattern, name) in enumerate(zip(equation.operands, operator.inputs, strict=True))
        if name and any(factor in dim.factors for dim in pattern.dims)
    ]
    if kind in LOSSES:
        is_class = not any(factor in dim.factors for dim in equation.operands[1].dims)
        yield Fill(0, factor, -math.inf) if is_class else Fill(1, factor, ignored_class(operator))
        return
    if kind not in NEUTRAL or mark == "^":
        raise UnpaddableError(f"'{operator.name}' ({kind}) combines the entries of the dim ({rule.equation})")
    yield from (Fill(position, factor, NEUTRAL[kind]) for position in positions)


def ignored_class(operator: Operator) -> int:
    """The class whose samples a loss leaves out."""
    given = operator.attributes.get("ignore_index", IGNORED)
    return given if isinstance(given, int) else IGNORED
