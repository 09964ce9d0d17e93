"""Values for everything a program loads: the model's own where its file has them, else seeded random ones; zeros where
dims are padded.

Random values are drawn so that nothing degenerates: weights of products are scaled by what they sum over, so that depth
does not blow up; vectors (scales, biases, variances) lie around 1; indices lie within what they index; masks are mostly
true.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import external_data_helper, numpy_helper

from shardplan.errors import ShardplanError, error
from shardplan.model.attributes import has_data, integer
from shardplan.model.types import Model, Operator, Tensor
from shardplan.program.padding import padded_inputs, padded_values
from shardplan.program.reference.evaluate import Array
from shardplan.rules import model_rules
from shardplan.rules.types import Rule

_KEEPS_VALUES = frozenset(
    (
        "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Split", "Concat", "Expand", "Tile",
        "Identity", "Gather", "GatherND", "GatherElements",
    )
)  # fmt: skip
"""Kinds whose results are values of their first operand (`Concat`: of all)."""
_INDEXED_AT: Mapping[str, tuple[int, int]] = {"Gather": (0, 1), "GatherElements": (0, 1)}
"""Kind -> (operand that is indexed along the attribute `axis`, operand that holds the indices)."""
_TRUE_SHARE = 0.8


def random_values(
    model: Model, seed: int = 0, rules: Sequence[Rule] | None = None, given: Mapping[str, Array] | None = None
) -> dict[str, Array]:
    """Whole values of all inputs, parameters and constants of `model`; those in `given` are taken as they are.

    Known constants keep their values. Every tensor is drawn from its own name and `seed`, so what else a model holds
    does not matter.
    """
    if model.padding is not None:
        return padded_inputs(model, random_values(model.padding.of, seed)) | dict(given or {})
    rules = model_rules(model) if rules is None else rules
    given = given or {}
    made = {name for operator in model.operators for name in operator.outputs}
    spread, limits, lengths = _spreads(model, rules), index_limits(model), _lengths(model)
    values: dict[str, Array] = {}
    for name, tensor in model.tensors.items():
        if name in made:
            continue
        if name in given:
            values[name] = given[name]
        elif name in model.constants:
            values[name] = np.asarray(model.constants[name])
        elif name in lengths:
            values[name] = np.full(tensor.shape, lengths[name], _INTEGERS[tensor.dtype])
        else:
            key = hashlib.sha256(f"{seed}:{name}".encode()).digest()
            generator = np.random.default_rng(int.from_bytes(key[:8], "little"))
            values[name] = _draw(tensor, generator, spread.get(name), limits.get(name))
    return values


def stored_values(path: str | Path, model: Model) -> dict[str, Array]:
    """Values of parameters and large constants of `model` that the file at `path`, or a file beside it, holds."""
    return dict(iterate_stored(path, model))


def telling_weights(model: Model, values: Mapping[str, Array]) -> tuple[dict[str, Array], tuple[str, ...]]:
    """`values` without weights that hide what is computed from them, and the names of these: what is not a number or 0
    remains so whatever it is multiplied by. Buffers may be zeros or infinite, as masks are."""
    trained = {parameter.tensor: parameter.trainable for parameter in model.parameters}
    hiding = tuple(
        name
        for name, array in values.items()
        if name in trained and model.tensors[name].is_float and _hides(array, is_buffer=not trained[name])
    )
    return {name: array for name, array in values.items() if name not in hiding}, hiding


def _hides(array: Array, *, is_buffer: bool) -> bool:
    if is_buffer:
        return bool(np.isnan(array).any())
    return not (np.isfinite(array).all() and array.any())


def iterate_stored(path: str | Path, model: Model) -> Iterator[tuple[str, Array]]:
    """`stored_values` one after the other, by name, so that external data is in memory once at most; none of a
    `config.json`."""
    path, padding = Path(path), model.padding
    if path.suffix == ".json":
        return
    graph = onnx.load(path, load_external_data=False).graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    constants = (node for node in graph.node if node.op_type == "Constant")
    stored |= {node.output[0]: a.t for node in constants for a in node.attribute if a.name == "value"}
    wanted = {parameter.tensor: (parameter.onnx, parameter.onnx_perm) for parameter in model.parameters}
    large = (
        name for name, tensor in model.tensors.items() if tensor.role == "constant" and name not in model.constants
    )
    wanted |= {name: (name, ()) for name in large}
    for name, (initializer, perm) in sorted(wanted.items()):
        array = _stored(stored.get(initializer), path.parent)
        if array is not None:
            whole = array.transpose(perm) if perm else array
            yield name, whole if padding is None else padded_values(whole, name, model.tensors[name].shape, padding)


def _stored(tensor: onnx.TensorProto | None, folder: Path) -> Array | None:
    """The data of an initializer; None when it is absent, here or in its external file.

    Raises `ShardplanError` (`unreadable-weight`) for a file outside of `folder`, and for one that is too short.
    """
    if tensor is None:
        return None
    place = ""
    try:
        if external_data_helper.uses_external_data(tensor):
            place = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
            if not place or not (folder / place).is_file():
                return None
            loaded = onnx.TensorProto()
            loaded.CopyFrom(tensor)
            external_data_helper.load_external_data_for_tensor(loaded, str(folder))
            loaded.data_location = onnx.TensorProto.DEFAULT
            tensor = loaded
        return np.asarray(numpy_helper.to_array(tensor)) if has_data(tensor) else None
    except (onnx.checker.ValidationError, ValueError, OSError) as problem:
        where = f" in '{place}'" if place else ""
        summary = f"the data of weight '{tensor.name}'{where} cannot be read"
        raise ShardplanError(error("unreadable-weight", summary, detail=str(problem))) from None


def _draw(tensor: Tensor, generator: np.random.Generator, spread: float | None, limit: int | None) -> Array:
    shape = tensor.shape
    if tensor.dtype == "bool":
        return _first_true(generator.random(shape) < _TRUE_SHARE)
    if tensor.is_float:
        if spread is None and len(shape) < 2 and tensor.role != "input":
            return generator.uniform(0.5, 1.5, shape)
        return generator.standard_normal(shape) * (spread or 1.0)
    kind = np.dtype(_INTEGERS.get(tensor.dtype, "int64"))
    if limit is None and tensor.role == "input":
        return _first_true(generator.random(shape) < _TRUE_SHARE).astype(kind)
    if limit is None:
        limit = 16 if kind.itemsize == 1 else 2
    return generator.integers(0, max(1, limit), shape).astype(kind)


_INTEGERS = {name: name for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")}


def _first_true(mask: Array) -> Array:
    """No row of a mask is empty: a softmax over nothing is not a number."""
    if mask.ndim:
        mask[..., 0] = True
    return mask


def _spreads(model: Model, rules: Sequence[Rule]) -> dict[str, float]:
    """Parameters that are multiplied and summed: 1 / sqrt(number of summands)."""
    found: dict[str, float] = {}
    for operator, rule in zip(model.operators, rules, strict=True):
        if rule.gemm is None:
            continue
        summed = math.prod(rule.sizes.get(factor, 1) for factor in rule.gemm.k)
        if operator.kind in {"Conv", "ConvTranspose"}:
            summed = math.prod(model.tensors[operator.inputs[1]].shape[1:])
        for name in operator.inputs[1:]:
            if name and model.tensors[name].role == "parameter" and len(model.tensors[name].shape) > 1:
                found[name] = 1.0 / math.sqrt(max(1, summed))
    return found


def _lengths(model: Model) -> dict[str, int]:
    """Integers that say how long sequences are: as long as there is room, cache and all."""
    found: dict[str, int] = {}
    for operator in model.operators:
        if operator.kind == "com.microsoft.GroupQueryAttention":
            data, past, last, total = (operator.inputs[position] for position in (0, 3, 5, 6))
            room = model.tensors[data].shape[1] + (model.tensors[past].shape[2] if past else 0)
            found |= {last: room - 1, total: room}  # the first counts from 0
    return found


def index_limits(model: Model) -> dict[str, int]:
    """Integers that become indices: into how many entries, followed backwards through what only rearranges them."""
    limits: dict[str, int] = {}
    for operator in reversed(model.operators):
        for name, limit in _limits_at(model, operator, limits):
            if name and not model.tensors[name].is_float:
                limits[name] = min(limit, limits.get(name, limit))
    return limits


def _limits_at(model: Model, operator: Operator, limits: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """(value, limit) for what an operator indexes with, and for what it hands on to one that does."""
    inputs, kind = operator.inputs, operator.kind
    rank = len(model.tensors[inputs[0]].shape) if inputs and inputs[0] else 0
    axis = operator.attributes.get("axis", 0)
    if kind in _INDEXED_AT and isinstance(axis, int):
        data, index = _INDEXED_AT[kind]
        yield inputs[index], model.tensors[inputs[data]].shape[axis % rank]
    if kind == "OneHot" and inputs[1] in model.constants:
        yield inputs[0], int(model.constants[inputs[1]].reshape(-1)[0])
    if kind in {"NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"}:
        yield inputs[1], model.tensors[inputs[0]].shape[1]
    if kind in {"ScatterElements", "Scatter"} and isinstance(axis, int):
        yield inputs[1], model.tensors[inputs[0]].shape[axis % rank]
    if kind in {"GatherND", "ScatterND"}:
        batch = integer(operator.attributes, "batch_dims", 0)
        picked = model.tensors[inputs[1]].shape[-1]
        yield inputs[1], min(model.tensors[inputs[0]].shape[batch : batch + picked], default=1)
    if kind == "TensorScatter" and len(inputs) > 2:
        cached, update = (model.tensors[name].shape for name in inputs[:2])
        place = integer(operator.attributes, "axis", -2)
        yield inputs[2], cached[place] - update[place] + 1
    if kind == "RotaryEmbedding" and len(inputs) > 3:
        yield inputs[3], model.tensors[inputs[1]].shape[0]
    if kind in _KEEPS_VALUES:
        known = [limits[name] for name in operator.outputs if name in limits]
        sources = inputs if kind == "Concat" else inputs[:1]
        for name in sources if known else ():
            yield name, min(known)
