"""A model with one size padded to a size that mesh axes divide: the last shards hold padding.

Entries beyond the original size are padding: zeros in parameters and inputs, the last entry again in constants. Where
an operator would combine padding with real entries, an operator `Where` in front of it puts in the neutral value (see
`neutral`). So the padded model computes what the model computes, and everything that plans, prices, verifies or writes
models takes it without changes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NoReturn

import numpy as np
from onnx import TensorProto, helper

from shardplan.errors import ShardplanError, did_you_mean, error
from shardplan.model.size_names import PAD
from shardplan.model.types import Block, Model, Operator, Padding, Tensor
from shardplan.padding.growth import grown
from shardplan.padding.neutral import AVERAGES, LOOKS_UP, LOSSES, Fill, UnpaddableError, fills, ignored_class
from shardplan.padding.positions import Real, UnclearError, product, real_positions
from shardplan.program.shrink.classes import Classes, Node, Place, alike_in_copies, relate, spread_equation
from shardplan.rules import model_rules
from shardplan.rules.equation import Equation
from shardplan.rules.types import Rule
from shardplan.units import counted

_PLACE: Final = re.compile(r"(?P<tensor>.+)\[(?P<dim>\d{1,9})\]", re.DOTALL)
_OPSET: Final = 17
"""Opset version if a model has no operator of the default domain."""
_MOST: Final = 2
"""A size is padded to less than this many times itself."""


def padded(model: Model, sizes: Mapping[str, int]) -> Model:
    """`model` with the dims that `sizes` names, such as `input_ids[0]`, and all dims of the same class, padded to these
    sizes.

    A parameter is named as in the checkpoint, with its dims in that order. Where `model` is a padded one, it is padded
    anew from the model as it is, in the order of names: the result depends on that model and on all sizes together, and
    not on the order or the steps in which they were found. Raises `ShardplanError`: `unknown-pad`, `bad-pad` (a size
    below that of the dim, or twice as large), `cannot-pad` (its consequences are not clear).
    """
    found, known = model, dict(sizes)
    if model.padding is not None:
        found = model.padding.of
        known = {name.removeprefix(PAD): size for name, size in model.dims.items() if name.startswith(PAD)} | known
    for name, size in sorted(known.items()):
        found = _padded(found, name, size)
    return found


def _padded(model: Model, name: str, size: int) -> Model:
    place = _place(model, name)
    old = model.tensors[place[0]].shape[place[1]]
    if not old < size < _MOST * old:
        summary = (
            f"--pad '{name}={size}': the dim has a size of {old}; it can be held as {old + 1} to {_MOST * old - 1}"
        )
        raise ShardplanError(error("bad-pad", summary))
    rules = model_rules(model)
    classes = alike_in_copies(model, relate(model, rules))
    found = pad_class(model, rules, classes, classes.find(place), size)
    if isinstance(found, str):
        _cannot(name, size, found)
    return replace(found, dims={**found.dims, PAD + name: size})


def pad_class(model: Model, rules: Sequence[Rule], classes: Classes, root: Node, size: int) -> Model | str:
    """The model with class `root` padded to `size`; or why that is impossible."""
    larger = grown(model, rules, classes, root, size)
    if larger is None:
        return "other sizes of the model do not follow from it"
    after = model_rules(larger)
    try:
        real = real_positions(model, rules, larger, after, classes, root)
        made = _Masking(_with_constants(larger, model.constants, real), after, real).model()
    except (UnclearError, UnpaddableError) as problem:
        return str(problem)
    return replace(made, padding=_padding(model, {node: one for node, one in real.items() if isinstance(node[0], str)}))


def _with_constants(larger: Model, constants: Mapping[str, np.ndarray], real: Mapping[Node, Real]) -> Model:
    """The larger model with the entries of constants where they are real; its padding repeats the entry before it, so
    that whatever reads it, and what its gradient passes through, reads what the model may read."""
    placed = dict(larger.constants)
    for name, array in constants.items():
        made = array
        for dim in range(array.ndim):
            if (name, dim) in real:
                made = made.take(np.maximum(np.cumsum(real[name, dim]) - 1, 0), axis=dim)
        placed[name] = made
    return replace(larger, constants=placed)


def _padding(model: Model, real: Mapping[Place, Real]) -> Padding:
    """What is real of the larger model, where `model` may be one that was padded before."""
    before = model.padding
    if before is None:
        return Padding(model, real)
    found = dict(before.real)
    for place, one in real.items():
        inner = found.get(place)
        found[place] = one if inner is None else _nested_positions(inner, one)
    return Padding(before.of, found)


def _nested_positions(inner: Real, outer: Real) -> Real:
    """The real positions within real positions: `inner` counts the entries that `outer` has."""
    made = outer.copy()
    made[outer] = inner
    return made


def _fills(
    operator: Operator,
    rule: Rule,
    equation: Equation | None,
    factors: Sequence[str],
    constants: Mapping[str, np.ndarray],
) -> Iterator[tuple[str, Fill]]:
    """What operands must hold, by padded factor. Raises `UnpaddableError`."""
    if equation is None:
        return
    known = (constants[name] for name in operator.inputs if name in constants)
    if operator.kind in LOOKS_UP and any(array.dtype.kind == "i" and (array < 0).any() for array in known):
        raise UnpaddableError(f"'{operator.name}' ({operator.kind}) counts entries from the end of a dim")
    for factor in factors:
        yield from ((factor, fill) for fill in fills(operator, rule, equation, factor))


def _place(model: Model, name: str) -> Place:
    match = _PLACE.fullmatch(name)
    parameters = {parameter.name: parameter for parameter in model.parameters}
    if match is None or match["tensor"] not in {*model.tensors, *parameters}:
        hint = did_you_mean(match["tensor"] if match else name, [*parameters, *model.inputs])
        summary = f"--pad '{name}': a dim is called by its tensor and number, such as 'input_ids[0]'"
        raise ShardplanError(error("unknown-pad", summary, hint=hint))
    tensor, dim = match["tensor"], int(match["dim"])
    perm: tuple[int, ...] = ()
    if tensor in parameters:
        tensor, perm = parameters[tensor].tensor, parameters[tensor].perm
    rank = len(model.tensors[tensor].shape)
    if dim >= rank:
        summary = f"--pad '{name}': '{match['tensor']}' has {counted(rank, 'dim')}, counted from 0"
        raise ShardplanError(error("unknown-pad", summary))
    return tensor, perm.index(dim) if perm else dim


def called(model: Model, places: Sequence[Place]) -> str:
    """The name for `--pad` of the first of these dims: of an input, else of a parameter, else of any tensor; empty if
    there is none."""
    parameters = {parameter.tensor: parameter for parameter in model.parameters}
    for known in (model.inputs, parameters, model.tensors):
        for tensor, dim in sorted(place for place in places if place[0] in known):
            if tensor not in parameters:
                return f"{tensor}[{dim}]"
            parameter = parameters[tensor]
            return f"{parameter.name}[{parameter.perm[dim] if parameter.perm else dim}]"
    return ""


def _cannot(name: str, size: int, why: str) -> NoReturn:
    summary = f"--pad '{name}={size}': the dim cannot be padded"
    raise ShardplanError(error("cannot-pad", summary, detail=why))


@dataclass
class _Masking:
    """The padded model under construction, with the masks that make padding neutral."""

    larger: Model
    rules: Sequence[Rule]
    real: Mapping[Node, Real]
    tensors: dict[str, Tensor] = field(default_factory=dict)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    operators: list[Operator] = field(default_factory=list)
    masked: dict[tuple[str, int, bytes, float, tuple[str, ...]], str] = field(default_factory=dict)

    def model(self) -> Model:
        """The model with its masks. Raises `UnpaddableError`."""
        self.tensors, self.constants = dict(self.larger.tensors), dict(self.larger.constants)
        changed: dict[int, list[str]] = defaultdict(list)
        for node in self.real:
            if isinstance(node[0], int):
                changed[node[0]].append(str(node[1]))
        ends = []
        for number, (operator, rule) in enumerate(zip(self.larger.operators, self.rules, strict=True)):
            self._operator(number, operator, rule, changed[number])
            ends.append(len(self.operators))
        return replace(
            self.larger,
            operators=tuple(self.operators),
            tensors=self.tensors,
            constants=self.constants,
            blocks=_blocks(self.larger.blocks, ends),
        )

    def _operator(self, number: int, operator: Operator, rule: Rule, factors: Sequence[str]) -> None:
        """Append an operator that has these padded factors, with masks in front of it."""
        equation = spread_equation(self.larger, operator, rule) if factors else None
        inputs, attributes, share = list(operator.inputs), dict(operator.attributes), 1.0
        for factor, fill in _fills(operator, rule, equation, factors, self.constants):
            assert equation is not None
            position, name = fill.position, inputs[fill.position]
            dim, factors_there = next(
                (place, dim.factors)
                for place, dim in enumerate(equation.operands[position].dims)
                if factor in dim.factors
            )
            real = self._along(factors_there, number, rule, factor)
            if fill.value or self.tensors[operator.inputs[position]].role != "parameter":
                inputs[position] = self._filled(operator, name, dim, real, fill.value)
            if operator.kind in LOSSES and position == 1:
                attributes["ignore_index"] = ignored_class(operator)
            if operator.kind in AVERAGES:
                share *= len(real) / np.count_nonzero(real)
        changed = replace(operator, inputs=tuple(inputs), attributes=attributes)
        self.operators += [changed] if share == 1 else self._scaled(changed, share)

    def _along(self, factors: Sequence[str], number: int, rule: Rule, factor: str) -> Real:
        """Along a dim of `factors`, which positions are real as far as `factor` says it."""
        ones = {name: np.ones(rule.sizes.get(name, 1), np.bool_) for name in factors}
        return product([self.real[number, name] if name == factor else ones[name] for name in factors])

    def _filled(self, reader: Operator, name: str, dim: int, real: Real, neutral: float) -> str:
        """The value `name` with `neutral` in its padding along `dim`, for `reader`."""
        key = (name, dim, real.tobytes(), neutral, reader.loops)
        if key not in self.masked:
            tensor = self.tensors[name]
            made = self._new(f"{name}/padding", replace(tensor, role="activation"))
            condition = self._constant(real.reshape(-1, *[1] * (len(tensor.shape) - dim - 1)), "bool", "real")
            value = self._constant(_nearest(neutral, tensor.dtype), tensor.dtype, "neutral")
            self.operators.append(self._added_operator(reader, made, "Where", (condition, name, value), made))
            self.masked[key] = made
        return self.masked[key]

    def _scaled(self, operator: Operator, share: float) -> list[Operator]:
        """A mean over padding too, and what makes it the mean over what is real."""
        result = operator.outputs[0]
        mean = self._new(f"{result}/mean", self.tensors[result])
        factor = self._constant(share, self.tensors[result].dtype, "share")
        return [
            replace(operator, outputs=(mean,)),
            self._added_operator(operator, f"{mean}/scaled", "Mul", (mean, factor), result),
        ]

    def _added_operator(self, other: Operator, name: str, kind: str, inputs: tuple[str, ...], result: str) -> Operator:
        """An operator where another stands, of the opset version that the model has."""
        version = max((one.version for one in self.larger.operators if not one.domain), default=_OPSET)
        return Operator(name, kind, inputs, (result,), {}, "", version, other.module, other.loops)

    def _new(self, name: str, like: Tensor) -> str:
        while name in self.tensors:
            name += "'"
        self.tensors[name] = replace(like, name=name)
        return name

    def _constant(self, value: object, dtype: str, what: str) -> str:
        array = np.asarray(value).astype(helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(dtype.upper())))
        for name, known in self.constants.items():
            same = name.startswith(f"padding/{what}") and known.dtype == array.dtype and known.shape == array.shape
            if same and known.tobytes() == array.tobytes():
                return name
        name = self._new(f"padding/{what}", Tensor("", array.shape, dtype, "constant"))
        self.constants[name] = array
        return name


def _nearest(value: float, dtype: str) -> float | int:
    """The value, or for whole numbers the nearest one there is."""
    if dtype.startswith(("float", "bfloat", "double")):
        return value
    if dtype == "bool":
        return value > 0
    limits = np.iinfo(helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(dtype.upper())))
    return int(min(max(value, limits.min), limits.max))


def _blocks(blocks: Sequence[Block], ends: Sequence[int]) -> tuple[Block, ...]:
    """The blocks with the numbers that operators have now, each with what was put beside it; none that are no longer
    alike."""
    found = []
    for block in blocks:
        copies = []
        for copy in block.copies:
            spans = [range(ends[index - 1] if index else 0, ends[index]) for index in copy]
            copies.append(tuple(number for span in spans for number in span))
        if len({len(copy) for copy in copies}) == 1:
            found.append(replace(block, copies=tuple(copies)))
    return tuple(found)
