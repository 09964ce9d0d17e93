"""The single-node test cases of the onnx package as cases of our own: with dims that divide, and with data drawn anew.

Most dims of those tests are odd or 1. `grown` stretches every dim that belongs to a factor which may be split, and the
shapes, bounds and counts that say so in constants and attributes. `drawn` takes new data from the range of the old.
"""

from __future__ import annotations

import functools
import importlib
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import ModuleType

import numpy as np
from node_reference import PROBLEMS, evaluate
from onnx import NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from shardplan.model.types import DTYPE_BITS, Model, Operator, Tensor
from shardplan.rules import expand, rule_for
from shardplan.rules.equation import Dim, Equation, parse, spread
from shardplan.rules.types import Rule

WINDOWED = frozenset({"Conv", "ConvInteger", "QLinearConv", "MaxPool", "AveragePool", "LpPool"})
SETTINGS: Mapping[str, tuple[int, ...]] = {
    "Reshape": (1,), "Expand": (1,), "Slice": (1, 2, 3, 4), "Split": (1,), "Squeeze": (1,), "Unsqueeze": (1,),
    "Tile": (1,), "Pad": (1, 2, 3), "ConstantOfShape": (0,), "TopK": (1,), "OneHot": (1, 2), "CumSum": (1,),
    "CumProd": (1,), "Resize": (1, 2, 3), "Upsample": (1,), "Range": (0, 1, 2), "CenterCropPad": (1,), "Trilu": (1,),
    "AffineGrid": (1,), "Col2Im": (1, 2), "DFT": (1, 2), "STFT": (1, 3), "Dropout": (1, 2), "Clip": (1, 2),
    "MelWeightMatrix": (0, 1, 2, 3, 4), "HannWindow": (0,), "HammingWindow": (0,), "BlackmanWindow": (0,),
    "ReduceSum": (1,), "ReduceL1": (1,), "ReduceSumSquare": (1,), "ReduceMean": (1,), "ReduceMax": (1,),
    "ReduceMin": (1,), "ReduceProd": (1,), "ReduceL2": (1,), "ReduceLogSum": (1,), "ReduceLogSumExp": (1,),
}  # fmt: skip
"""Operands that say where and how many, by position: known constants, whose values are not drawn."""
COUNTS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "GroupNormalization": {"num_groups": ("g",)},
    **{kind: {"group": ("g",)} for kind in ("Conv", "ConvInteger", "QLinearConv", "ConvTranspose", "DeformConv")},
    **{kind: {"q_num_heads": ("h", "g"), "kv_num_heads": ("h",)} for kind in ("Attention", "LinearAttention")},
    "RotaryEmbedding": {"num_heads": ("h",)},
    **{kind: {"hidden_size": ("h",)} for kind in ("RNN", "GRU", "LSTM")},
}
"""Attributes that count the elements of factors."""
ROUNDED = {"OneHot": 0}
"""Operands that may be floats and are cast to integers, which the evaluator does not do."""
LABELS = {"NegativeLogLikelihoodLoss": 1, "SoftmaxCrossEntropyLoss": 1}
"""Operands among whose integers one may stand for itself: only those that occur are drawn."""
TUPLES = frozenset({"GatherND", "ScatterND"})
"""Operand 1 is a list of coordinates, each with a range of its own."""
Ratios = Mapping[str, int | float]


@dataclass(frozen=True)
class NodeCase:
    """One operator of a test case with its operands, None for absent ones."""

    name: str
    op_type: str
    domain: str
    version: int
    attributes: Mapping[str, object]
    operands: tuple[np.ndarray | None, ...]
    outputs: tuple[str, ...]

    @cached_property
    def operator(self) -> Operator:
        inputs = tuple("" if array is None else f"i{place}" for place, array in enumerate(self.operands))
        return Operator("node", self.op_type, inputs, self.outputs, dict(self.attributes), self.domain, self.version)

    @property
    def kind(self) -> str:
        return self.operator.kind

    @cached_property
    def results(self) -> list[np.ndarray]:
        """What the whole operator makes, in double precision."""
        return self.run(self.operands)

    @property
    def runs(self) -> bool:
        """Whether the reference evaluator can run the operator on these operands."""
        try:
            return bool(self.rule)
        except PROBLEMS:
            return False

    def run(self, operands: tuple[np.ndarray | None, ...]) -> list[np.ndarray]:
        return evaluate(self.kind, self.version, self.attributes, operands, len(self.outputs))

    @cached_property
    def model(self) -> Model:
        """The operator alone; results have the element type of the first float operand, where they hold floats."""
        tensors, constants = {}, {}
        settings = SETTINGS.get(self.op_type, ())
        for place, (name, array) in enumerate(zip(self.operator.inputs, self.operands, strict=True)):
            if array is not None:
                role = "constant" if place in settings else "parameter"
                tensors[name] = Tensor(name, array.shape, dtype_of(array), role)
                if place in settings:
                    constants[name] = array
        for name, array in zip(self.outputs, self.results, strict=True):
            if name:
                tensors[name] = Tensor(name, array.shape, dtype_of(array), "activation")
        return Model("case", (self.operator,), tensors, (), (), (), constants)

    @cached_property
    def rule(self) -> Rule:
        """The rule, with the options that joined dims have where neighbours follow, and those of minor factors."""
        rule = rule_for(self.operator, self.model)
        variants = {}
        for join in rule.joins:
            names = self.operator.outputs if join.whole.is_result else self.operator.inputs
            variants[names[join.whole.position], join.whole.dim] = (join.sizes,)
        rule = expand(rule, self.operator, self.model, variants)
        return replace(rule, options=(*rule.options, *rule.latent), latent=())


def dtype_of(array: np.ndarray) -> str:
    """The model's name of an element type."""
    if array.dtype.kind in "OUST":
        return "string"
    name = TensorProto.DataType.Name(helper.np_dtype_to_tensor_dtype(array.dtype)).lower()
    assert name in DTYPE_BITS, name
    return name


def collect(*modules: str) -> Iterator[tuple[str, str, NodeCase | str]]:
    """(name, kind, case) of test cases of the onnx package that are not expanded bodies of functions: of these
    `modules` of `onnx.backend.test.case.node`, or all of them.

    Where the reference evaluator itself fails, or something else than tensors goes in and out, the reason in place of
    the case."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case import node as package

        found = [test for module in modules for test in _of_module(package, module)]
        found = found if modules else package.collect_testcases()
    for test in sorted(found, key=lambda test: test.name):
        if "_expanded" in test.name:
            continue
        node = test.model.graph.node[0]
        kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        yield test.name, kind, _case(test, node)


@functools.cache
def _of_module(package: ModuleType, module: str) -> list:
    """The test cases that one module adds to the list of the package when it is imported, which is once."""
    before = len(package._NodeTestCases)
    importlib.import_module(f"{package.__name__}.{module}")
    return package._NodeTestCases[before:]


def _case(test, node: NodeProto) -> NodeCase | str:
    given, expected = test.data_sets[0]
    if not _passes(test.model, given, expected, test.rtol, test.atol):
        return "the reference evaluator does not pass it"
    if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
        return "a nested graph"
    feed = dict(zip([value.name for value in test.model.graph.input], map(_array, given), strict=False))
    arrays = tuple(feed[name] if name else None for name in node.input)
    if not all(array is None or isinstance(array, np.ndarray) for array in arrays):
        return "sequences or optional values"
    if not all(isinstance(_array(value), np.ndarray) for value in expected):
        return "sequences or optional values"
    version = next(entry.version for entry in test.model.opset_import if entry.domain == node.domain)
    attributes = {attribute.name: _value(helper.get_attribute_value(attribute)) for attribute in node.attribute}
    outputs = tuple(name and f"o{place}" for place, name in enumerate(node.output))
    return NodeCase(test.name, node.op_type, node.domain, version, attributes, arrays, outputs)


def _array(value: object) -> object:
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def _value(value: object) -> object:
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list):
        return tuple(entry.decode() if isinstance(entry, bytes) else entry for entry in value)
    return value


def _passes(model, given, expected, rtol: float, atol: float) -> bool:
    names = [value.name for value in model.graph.input]
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = ReferenceEvaluator(model).run(None, dict(zip(names, map(_array, given), strict=False)))
    except Exception:  # noqa: BLE001 - whatever the evaluator cannot do is not our test
        return False
    return all(_equal(_array(one), _array(other), rtol, atol) for one, other in zip(made, expected, strict=True))


def _equal(found: object, expected: object, rtol: float, atol: float) -> bool:
    if isinstance(expected, list):
        return len(found) == len(expected) and all(
            _equal(f, e, rtol, atol) for f, e in zip(found, expected, strict=True)
        )
    if found is None or expected is None:
        return found is expected
    found, expected = np.asarray(found), np.asarray(expected)
    if found.shape != expected.shape:
        return False
    if expected.dtype.kind in "OUSTb":
        return bool((found == expected).all())
    if expected.dtype.kind == "V" or expected.dtype.name not in np.sctypeDict:
        found, expected = found.astype(np.float32), expected.astype(np.float32)
    return bool(np.allclose(found, expected, rtol=rtol, atol=atol, equal_nan=True))


def drawn(case: NodeCase, seed: int) -> NodeCase:
    """The case with other data: floats between pairs of the old values, integers between the least and the greatest."""
    larger = replace(case, operands=_data(case, [None if a is None else a.shape for a in case.operands], seed))
    return larger if larger.runs else case


def _data(case: NodeCase, shapes: list, seed: int) -> tuple[np.ndarray | None, ...]:
    """New operands of these shapes."""
    generator = np.random.default_rng(seed)
    settings, kept = SETTINGS.get(case.op_type, ()), LABELS.get(case.op_type)
    operands: list[np.ndarray | None] = []
    for place, (array, shape) in enumerate(zip(case.operands, shapes, strict=True)):
        if array is None or place in settings:
            operands.append(array)
        elif place == 1 and case.op_type in TUPLES:
            columns = [array[..., column] for column in range(array.shape[-1])]
            drawn_columns = [_redrawn(column, shape[:-1], generator) for column in columns]
            operands.append(np.stack(drawn_columns, axis=-1))
        else:
            made = _redrawn(array, shape, generator, as_given=place == kept)
            operands.append(np.rint(made) if place == ROUNDED.get(case.op_type) and made.dtype.kind == "f" else made)
    return tuple(operands)


def _redrawn(
    array: np.ndarray, shape: tuple[int, ...], generator: np.random.Generator, *, as_given: bool = False
) -> np.ndarray:
    """Values from the range of `array`, or with `as_given` values that occur in it, in `shape`."""
    flat = array.ravel()
    if not flat.size:
        return np.empty(shape, array.dtype)
    kind = "f" if array.dtype.name.startswith(("float", "bfloat")) else array.dtype.kind
    one = flat[generator.integers(0, flat.size, shape)]
    if kind in "iu" and array.dtype.name in np.sctypeDict and flat.size > 1 and not as_given:
        return generator.integers(flat.min(), flat.max(), shape, dtype=array.dtype, endpoint=True)
    if kind != "f" or array.dtype.itemsize < 2:
        return np.asarray(one, dtype=array.dtype).reshape(shape)
    one = one.astype(np.float64)
    other = flat[generator.integers(0, flat.size, shape)].astype(np.float64)
    part = generator.random(shape)
    with np.errstate(all="ignore"):
        mixed = np.where(np.isfinite(one) & np.isfinite(other), one + (other - one) * part, one)
        if flat.size > 1 and (flat == flat[0]).all():
            mixed = mixed * (1 + 0.25 * part)  # a constant tensor would hide mistakes
    return np.asarray(mixed).astype(array.dtype).reshape(shape)


def grown(case: NodeCase, seed: int, unit: int) -> NodeCase:
    """The case with every dim that may be split stretched to a multiple of `unit`, and new data."""
    rule = case.rule
    if not rule.equation:
        return case
    shapes = [None if array is None else array.shape for array in case.operands]
    made = [array.shape if name else None for name, array in zip(case.outputs, case.results, strict=True)]
    ranks = [None if shape is None else len(shape) for shape in (*shapes, *made)]
    equation = spread(parse(rule.equation), ranks[: len(shapes)], ranks[len(shapes) :])
    ratios = _ratios(case, rule, equation, unit)
    if not ratios and not rule.options:
        return case
    new_shapes, new_made = (
        [_stretched(shape, pattern.dims, rule, ratios) for shape, pattern in zip(sides, patterns, strict=True)]
        for sides, patterns in ((shapes, equation.operands), (made, equation.results))
    )
    if case.op_type in WINDOWED:
        _stretch_space(case, new_shapes, unit)
    if case.op_type == "LRN":
        new_shapes[0] = (
            *new_shapes[0][:1],
            new_shapes[0][0],
            *new_shapes[0][2:],
        )  # the evaluator takes the one for the other
    if case.op_type in {"RNN", "GRU", "LSTM"}:
        new_shapes[2] = (*new_shapes[2][:-1], int(new_shapes[2][-1] * ratios.get("h", 1)))
    return _grown(case, ratios, shapes, new_shapes, made, new_made, seed)


def _grown(case, ratios, shapes, new_shapes, made, new_made, seed) -> NodeCase:
    operands = list(_data(case, new_shapes, seed))
    attributes = dict(case.attributes)
    for name, factors in COUNTS.get(case.op_type, {}).items():
        if name in attributes:
            attributes[name] = round(attributes[name] * math.prod(ratios.get(factor, 1) for factor in factors))
    if case.op_type in FITS:
        FITS[case.op_type](case, operands, attributes, (shapes, new_shapes), (made, new_made))
    larger = replace(case, operands=tuple(operands), attributes=attributes)
    return larger if larger.runs else drawn(case, seed)


def _ratios(case: NodeCase, rule: Rule, equation: Equation, unit: int) -> dict[str, float]:
    """By what each factor that may be split is stretched; parts of one dim alike."""
    ratios: dict[str, float] = {}
    grouped_once = case.op_type == "ConvTranspose" and case.attributes.get("group", 1) > 1
    for factor, size in rule.sizes.items():
        if grouped_once and factor in {"c", "o"}:
            continue  # the evaluator can do no more than one channel per group
        if equation.marks.get(factor) not in {"!", "^"} and size and size % unit:
            ratios[factor] = unit * -(-size // unit) / size
    for pattern in (*equation.operands, *equation.results):
        for dim in pattern.dims:
            if dim.joined:
                sizes = [rule.sizes[part] for part in dim.factors]
                stretch = unit // math.gcd(unit, *sizes)
                ratios.update(dict.fromkeys(dim.factors, stretch))
    return ratios


def _stretched(
    shape: tuple[int, ...] | None, dims: tuple[Dim, ...], rule: Rule, ratios: Ratios
) -> tuple[int, ...] | None:
    """A shape with its factors stretched; what is 1 because it broadcasts stays."""
    if shape is None:
        return None
    new = []
    for size, dim in zip(shape, dims, strict=True):
        broadcasts = size == 1 and any(rule.sizes.get(factor, 1) > 1 for factor in dim.factors)
        if broadcasts or not dim.factors:
            new.append(size)
        elif dim.joined:
            new.append(round(size * ratios.get(dim.factors[0], 1)))
        else:
            new.append(round(size * math.prod(ratios.get(factor, 1) for factor in dim.factors)))
    return tuple(new)


def _stretch_space(case: NodeCase, shapes: list, unit: int) -> None:
    """Space dims as long as `unit` windows, where windows then fall on whole strides; else a few windows long, since
    the evaluator is slow."""
    space = len(shapes[0]) - 2
    count = unit * (1 if space > 2 else 2)
    strides = case.attributes.get("strides", (1,) * space)
    dilations = case.attributes.get("dilations", (1,) * space)
    weight = 3 if case.op_type == "QLinearConv" else 1
    kernel = case.attributes.get("kernel_shape") or case.operands[weight].shape[2:]
    wanted = [count * stride for stride in strides]
    data = case.operands[0]
    trial = np.resize(data, (1, data.shape[1], *wanted))
    made = case.run((trial, *case.operands[1:]))[0].shape[2:]
    for place in range(space):
        if made[place] != count:
            reach = (kernel[place] - 1) * dilations[place] + 1
            wanted[place] = min(data.shape[place + 2], reach + 4 * strides[place])
    shapes[0] = (*shapes[0][:2], *wanted)


def _fit_target(case, operands, attributes, shapes, made) -> None:
    """Targets of `Reshape`, `Expand` ...: new sizes, but -1, 0 and what broadcasts as they were."""
    place = 0 if case.op_type == "ConstantOfShape" else 1
    target, old, new = np.array(operands[place]), made[0][0], made[1][0]
    shift = len(old) - len(target)
    for dim, value in enumerate(target):
        if value == old[dim + shift]:
            target[dim] = new[dim + shift]
    operands[place] = target


def _fit_split(case, operands, attributes, shapes, made) -> None:
    axis = case.attributes.get("axis", 0)
    if len(operands) > 1:
        operands[1] = np.array([shape[axis] for shape in made[1]], operands[1].dtype)


def _fit_slice(case, operands, attributes, shapes, made) -> None:
    """Bounds of a stretched dim."""
    before, after = shapes[0][0], shapes[1][0]
    starts, ends = np.array(operands[1]), np.array(operands[2])
    axes = operands[3] if len(operands) > 3 else range(len(starts))
    for place, axis in enumerate(axes):
        ratio = after[axis] // before[axis] if before[axis] else 1
        step = operands[4][place] if len(operands) > 4 else 1
        if after[axis] == before[axis]:
            continue
        start, stop, _ = slice(int(starts[place]), int(ends[place]), int(step)).indices(before[axis])
        whole = made[0][0][axis] == before[axis] or step > 1
        starts[place], ends[place] = (start, after[axis]) if whole else (start * ratio, stop * ratio)
    operands[1], operands[2] = starts, ends


def _fit_tile(case, operands, attributes, shapes, made) -> None:
    both = zip(made[1][0], shapes[1][0], strict=True)
    operands[1] = np.array([result // size for result, size in both], operands[1].dtype)


def _fit_sizes(case, operands, attributes, shapes, made) -> None:
    """Sizes that a `Resize` or `CenterCropPad` is told, of the dims that are stretched."""
    place = 3 if case.op_type == "Resize" else 1
    if len(operands) > place and operands[place] is not None:
        sizes = np.array(operands[place])
        for entry, axis in enumerate(attributes.get("axes", range(len(made[0][0])))):
            sizes[entry] = sizes[entry] * made[1][0][axis] // made[0][0][axis]
        operands[place] = sizes


def _fit_one_hot(case, operands, attributes, shapes, made) -> None:
    axis = case.attributes.get("axis", -1)
    depth = np.array(operands[1])
    operands[1] = (depth * made[1][0][axis] // made[0][0][axis]).astype(depth.dtype)


def _fit_affine(case, operands, attributes, shapes, made) -> None:
    size = np.array(operands[1])
    size[0] = shapes[1][0][0]
    operands[1] = size


FITS = {
    "Reshape": _fit_target, "Expand": _fit_target, "ConstantOfShape": _fit_target, "Split": _fit_split,
    "Slice": _fit_slice, "Tile": _fit_tile, "Resize": _fit_sizes, "CenterCropPad": _fit_sizes,
    "OneHot": _fit_one_hot, "AffineGrid": _fit_affine,
}  # fmt: skip
