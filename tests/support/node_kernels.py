"""What the devices of `rule_mesh` run: operators as the reference evaluator has them, and splits that the simulated
mesh of the package leaves out."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping, Sequence

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from shardplan.errors import ShardplanError
from shardplan.spmd.kernels import kernel_for
from shardplan.spmd.localise import localise
from shardplan.spmd.program import Local, Site
from shardplan.spmd.talk import Kernel, all_gather, all_reduce

AS_STORED = frozenset({"BitCast"})
"""Operators that look at bits; all others are run in double precision, so that only real differences show."""
DOUBLE = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16}
PROBLEMS = (ValueError, IndexError, TypeError, RuntimeError, AttributeError, AssertionError, ShardplanError)
"""What the evaluator raises for operands that do not fit."""


def widen(kind: str, array: np.ndarray) -> np.ndarray:
    """`array` in double precision where it holds numbers of 16 or 32 bits."""
    is_float = array.dtype.name in {"float16", "bfloat16", "float32"} and kind not in AS_STORED
    return array.astype(np.float64) if is_float else array


def evaluate(
    kind: str, version: int, attributes: Mapping[str, object], operands: Sequence[np.ndarray | None], outputs: int
) -> list[np.ndarray]:
    """The results of one operator; functions whose body has constants of single precision are run in that."""
    given = [None if array is None else widen(kind, array) for array in operands]
    try:
        return _run(kind, version, attributes, given, outputs)
    except Exception:
        if all(array is None or array.dtype != np.float64 for array in given):
            raise
        narrow = [a.astype(np.float32) if a is not None and a.dtype == np.float64 else a for a in given]
        return [widen(kind, made) for made in _run(kind, version, attributes, narrow, outputs)]


def _run(kind: str, version: int, attributes, operands, outputs: int) -> list[np.ndarray]:
    dtypes = tuple(None if array is None else array.dtype for array in operands)
    key = repr(sorted((name, _attribute(kind, name, value)) for name, value in attributes.items()))
    runner = _runner(kind, version, dtypes, outputs, _Attributes(kind, attributes, key))
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        feed = {f"i{place}": array for place, array in enumerate(operands) if array is not None}
        return [np.asarray(made) for made in runner.run(None, feed)]


class _Attributes:
    """Attributes of an operator, equal when they read alike."""

    def __init__(self, kind: str, values: Mapping[str, object], key: str) -> None:
        self.values = {name: _attribute(kind, name, value) for name, value in values.items()}
        self.key = key

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Attributes) and self.key == other.key


def _attribute(kind: str, name: str, value: object) -> object:
    if kind == "Cast" and name == "to" and value in DOUBLE:
        return int(TensorProto.DOUBLE)
    return numpy_helper.from_array(widen(kind, value)) if isinstance(value, np.ndarray) else value


@functools.lru_cache(maxsize=4096)
def _runner(kind: str, version: int, dtypes: tuple, outputs: int, attributes: _Attributes) -> ReferenceEvaluator:
    domain, _, op_type = kind.rpartition(".")
    names = ["" if dtype is None else f"i{place}" for place, dtype in enumerate(dtypes)]
    made = [f"o{place}" for place in range(outputs)]
    node = helper.make_node(op_type, names, made, domain=domain, **attributes.values)
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), None)
        for name, dtype in zip(names, dtypes, strict=True)
        if name
    ]
    results = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in made]
    graph = helper.make_graph([node], "operator", inputs, results)
    return ReferenceEvaluator(helper.make_model(graph, opset_imports=[helper.make_opsetid(domain, version)]))


def told(site: Site) -> Local:
    """What every device is told. A `Resize` that keeps proportions is told only of the dims that it resizes."""
    keeps = site.kind == "Resize" and site.operator.attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch"
    if not keeps:
        return localise(site)
    local = Local(dict(site.operator.attributes))
    sizes = np.array(site.known[3])
    axes = local.attributes.get("axes") or range(len(site.operand(0)))
    for place, axis in enumerate(axes):
        sizes[place] = sizes[place] * site.local_operand(0)[axis] // site.operand(0)[axis]
    local.operands[3] = sizes
    return local


def kernel_of(site: Site) -> Kernel:
    """What runs at a site. Raises `ShardplanError` where nothing is known."""
    if site.kind in OWN:
        return OWN[site.kind]
    kernel = kernel_for(site) if site.kind not in AS_STORED else None
    return kernel if kernel is not None and (site.communicates or site.kind in {"Shape", "Size"}) else plain


def plain(site: Site, local: Local, operands, coordinates):
    """The operator on what the device holds; of a mean every device has its share."""
    operator = site.operator
    made = evaluate(operator.kind, operator.version, local.attributes, operands, len(operator.outputs))
    partial = [any(p.kind == "P" for p in layout.placements) if layout else False for layout in site.result_layouts]
    return [part / local.shares if p and local.shares > 1 else part for part, p in zip(made, partial, strict=True)]
    yield  # a generator that asks nothing


def losses(site: Site, local: Local, operands, coordinates):
    """Losses: scores of some samples and some classes; what lies in other classes counts elsewhere."""
    scores, labels, weights = [*operands, None][:3]
    how, ignored = local.attributes.get("reduction", "mean"), local.attributes.get("ignore_index")
    classes = site.axes("c")
    logs = scores
    if site.kind == "SoftmaxCrossEntropyLoss":
        top = yield from _over(classes, scores.max(axis=1, keepdims=True), "max")
        total = yield from _over(classes, np.exp(scores - top).sum(axis=1, keepdims=True))
        logs = scores - top - np.log(total)
    held = labels - site.mesh.number(classes, coordinates) * scores.shape[1]
    inside = (held >= 0) & (held < scores.shape[1]) & (labels != ignored)
    at = np.where(inside, held, 0)
    counts = np.where(inside, 1.0 if weights is None else weights[at], 0.0)
    loss = -np.take_along_axis(logs, at[:, None], 1)[:, 0] * counts
    layout = site.result_layouts[0]
    merged = tuple(a for a, option in enumerate(site.options) if option and layout.placements[a].kind == "R")
    if how == "none":
        loss = yield from _over(merged, loss)
    else:
        loss = yield from _over(merged, loss.sum())
        if how == "mean" and (weights is not None or ignored is not None):
            loss = loss / (yield from _over(merged, counts.sum()))
        elif how == "mean":
            loss = loss / labels.size / local.shares
    return [np.asarray(loss), logs][: len(site.operator.outputs)]


def _over(axes: tuple[int, ...], array, reduction: str = "sum"):
    return (yield from all_reduce(np.asarray(array), axes, reduction)) if axes else np.asarray(array)


def gru(site: Site, local: Local, operands, coordinates):
    """`GRU` whose hidden units are split: the state is gathered at each step, and once more when it is gated."""
    if not site.axes("h"):
        return (yield from plain(site, local, operands, coordinates))
    data, weights, recurrence, bias, _, start = [*operands, *[None] * 6][:6]
    batch_first = local.attributes.get("layout", 0)
    data = data.swapaxes(0, 1) if batch_first else data
    if start is not None and batch_first:
        start = start.swapaxes(0, 1)
    runs, last = [], []
    for direction in range(len(weights)):
        backwards = direction == 1 or local.attributes.get("direction") == "reverse"
        parts = [None if array is None else array[direction] for array in (weights, recurrence, bias, start)]
        made = yield from _gru_direction(site, local, data[::-1] if backwards else data, *parts)
        last.append(made[-1])
        runs.append(made[::-1] if backwards else made)
    results = [np.stack(runs, axis=1), np.stack(last)]
    if batch_first:
        results = [results[0].transpose(2, 0, 1, 3), results[1].swapaxes(0, 1)]
    return results[: len(site.operator.outputs)]


def _gru_direction(site: Site, local: Local, data, weights, recurrence, bias, start):
    """The states after all steps."""
    w, r = np.split(weights, 3), np.split(recurrence, 3)
    size = len(w[0])
    b = np.split(np.zeros(6 * size) if bias is None else bias, 6)
    state = np.zeros((data.shape[1], size)) if start is None else start
    made = []
    for x in data:
        whole = yield from all_gather(state, site.axes("h"), dim=1)
        update, reset = (_sigmoid(x @ w[g].T + whole @ r[g].T + b[g] + b[3 + g]) for g in (0, 1))
        if local.attributes.get("linear_before_reset", 0):
            back = reset * (whole @ r[2].T + b[5])
        else:
            back = (yield from all_gather(reset * state, site.axes("h"), dim=1)) @ r[2].T + b[5]
        state = (1 - update) * np.tanh(x @ w[2].T + b[2] + back) + update * state
        made.append(state)
    return np.stack(made)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def response(site: Site, local: Local, operands, coordinates):
    """`LRN`: the evaluator ends its windows at the number of samples, so there are as many of those as channels."""
    data = operands[0]
    square = np.zeros((data.shape[1], *data.shape[1:]), data.dtype)
    square[: len(data)] = data
    return [(yield from plain(site, local, [square], coordinates))[0][: len(data)]]


OWN: Mapping[str, Kernel] = {
    "LRN": response,
    "NegativeLogLikelihoodLoss": losses,
    "SoftmaxCrossEntropyLoss": losses,
    "GRU": gru,
}
