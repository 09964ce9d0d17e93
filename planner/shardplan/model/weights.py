"""Which stored tensors are weights. The rule, in order:

1. A value is *live* when it depends on the data of a graph input (its shape alone does not count).
2. Slots of live nodes say what they read: a matrix, a bias, a norm's scale (`STRONG`) say "weight"; running statistics
   and quantised weights say "weight, but not trained"; any other float slot says so only together with a name
   (`Add` reads biases and masks alike); a few slots (`Clip` bounds, `Resize` scales) never read weights.
3. What a slot says passes backwards through nodes that are not live (`Transpose(W)`, gate reordering, weight norms).
4. A root of such a chain - an initializer, a `Constant`, a `ConstantOfShape` of a stored shape - is a weight when its
   slot and its name agree: names made up by exporters (`val_7`, `onnx::Add_12`) count only in a strong slot, values
   folded from other constants (export metadata) only if one of these was a checkpoint tensor, and no known buffer
   (`cos` and `sin` of `inv_freq` are a constant; statistics of a norm remain weights). Integers are weights only
   as quantised ones; float tensors with a checkpoint name that no live node reads are buffers (`inv_freq`).
5. A weight is trainable when it is float, a slot takes a gradient to it, and its name is not that of a known buffer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from shardplan.model.attributes import array_of, has_data
from shardplan.model.draft import Draft, Node
from shardplan.model.nested import nested_graphs

STRONG, TRAINED, WEAK = 1, 2, 4

_T = onnx.TensorProto
_TRAINED_TYPES = frozenset({_T.FLOAT, _T.DOUBLE, _T.FLOAT16, _T.BFLOAT16})
_PLAIN_INTEGERS = frozenset({_T.INT64, _T.UINT64, _T.UINT32, _T.INT16, _T.UINT16, _T.BOOL, _T.STRING})
_NORM = {1: "weight", 2: "bias"}
_LINEAR = {1: "weight", 2: "bias"}

SLOTS: dict[str, dict[int, str]] = {
    "MatMul": {0: "weight", 1: "weight"},
    "Gemm": {0: "weight", 1: "weight", 2: "bias"},
    "Einsum": dict.fromkeys(range(8), "weight"),
    "Conv": _LINEAR,
    "ConvTranspose": _LINEAR,
    "DeformConv": {1: "weight", 3: "bias"},
    "CausalConvWithState": _LINEAR,
    "BatchNormalization": {1: "weight", 2: "bias", 3: "running_mean", 4: "running_var"},
    "InstanceNormalization": _NORM,
    "LayerNormalization": _NORM,
    "GroupNormalization": _NORM,
    "RMSNormalization": {1: "weight"},
    "SimplifiedLayerNormalization": {1: "weight"},
    "PRelu": {1: "weight"},
    "LSTM": {1: "weight_ih", 2: "weight_hh", 3: "bias", 7: "peephole"},
    "GRU": {1: "weight_ih", 2: "weight_hh", 3: "bias"},
    "RNN": {1: "weight_ih", 2: "weight_hh", 3: "bias"},
    "com.microsoft.Attention": _LINEAR,
    "com.microsoft.MultiHeadAttention": {3: "bias"},
    "com.microsoft.FusedMatMul": {0: "weight", 1: "weight"},
    "com.microsoft.FusedGemm": {0: "weight", 1: "weight", 2: "bias"},
    "com.microsoft.FusedConv": _LINEAR,
    "com.microsoft.NhwcConv": _LINEAR,
    "com.microsoft.BiasGelu": {1: "bias"},
    "com.microsoft.FastGelu": {1: "bias"},
    "com.microsoft.BiasSplitGelu": {1: "bias"},
    "com.microsoft.BiasAdd": {1: "bias"},
    "com.microsoft.GroupNorm": _NORM,
    "com.microsoft.SkipGroupNorm": _NORM,
    "com.microsoft.SkipLayerNormalization": {2: "weight", 3: "bias", 4: "bias"},
    "com.microsoft.SkipSimplifiedLayerNormalization": {2: "weight", 3: "bias"},
    "com.microsoft.EmbedLayerNormalization": dict.fromkeys((2, 3, 4, 5), "weight") | {6: "bias"},
    "com.microsoft.MoE": {
        2: "fc1.weight",
        3: "fc1.bias",
        4: "fc2.weight",
        5: "fc2.bias",
        6: "fc3.weight",
        7: "fc3.bias",
    },
}
"""Slots that read weights -> what torch calls the tensor there."""

_QUANTISED: dict[str, frozenset[int]] = {
    "MatMulInteger": frozenset({0, 1, 2, 3}),
    "ConvInteger": frozenset({1, 3}),
    "QLinearMatMul": frozenset({0, 1, 2, 3, 4, 5}),
    "QLinearConv": frozenset({3, 4, 5, 8}),
    "com.microsoft.MatMulNBits": frozenset({1, 2, 3, 5}),
    "com.microsoft.MatMulBnb4": frozenset({1, 2}),
    "com.microsoft.GatherBlockQuantized": frozenset({0, 2, 3}),
    "com.microsoft.QMoE": frozenset(range(2, 14)),
    "com.microsoft.DynamicQuantizeMatMul": frozenset({1, 2, 3, 4}),
    "com.microsoft.MatMulIntegerToFloat": frozenset({1, 3, 5, 6}),
    "com.microsoft.QAttention": frozenset({1, 2, 4, 7}),
}
_STATISTICS = {("BatchNormalization", 3), ("BatchNormalization", 4)}
_NEVER: dict[str, frozenset[int]] = {
    **dict.fromkeys(("Clip", "Dropout", "Pow", "Upsample", "TopK", "Trilu"), frozenset({1, 2})),
    **dict.fromkeys(("QuantizeLinear", "DynamicQuantizeLinear"), frozenset({1, 2})),
    "Resize": frozenset({1, 2, 3}),
    "Pad": frozenset({1, 2, 3}),
    "OneHot": frozenset({1, 2}),
    "NonMaxSuppression": frozenset({2, 3, 4}),
    **dict.fromkeys(("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Mod"), frozenset({0, 1})),
}
_FIRST_ONLY = frozenset(
    (
        "Gather",
        "GatherND",
        "GatherElements",
        "Slice",
        "Reshape",
        "Expand",
        "Unsqueeze",
        "Squeeze",
        "Tile",
        "Pad",
        "Split",
    )
)
"""Where only the first input is data, the rest places and sizes."""

_MADE_UP = re.compile(
    r"^val_\d+$|^onnx::\w+$|_output_\d+$|^\d+$|^Constant_\d+$|(^|[._])(lifted_tensor|tensor_constant)_?\d+$"
    r"|^(new_)?(zeros|ones|full|empty|arange|scalar_tensor)(_like)?(_\d+)?$"
)
_CHECKPOINT = re.compile(r"^[A-Za-z_]\w*(\.\w+)+$")
_BUFFER = re.compile(
    r"(^|[._/])((original_)?inv_freq|running_mean|running_var|num_batches_tracked|position_ids|(cos|sin)(_cached?)?"
    r"|freqs(_cis)?|masked_bias|(causal|attn|attention)_mask|mask|relative_position_index|relative_coords_table"
    r"|(image|pixel)?_?(mean|std))$"
)


@dataclass(frozen=True, slots=True)
class Weights:
    """`trained`: weight values of the graph -> takes a gradient. `made_by`: nodes whose output is itself a weight."""

    trained: Mapping[str, bool]
    made_by: frozenset[str]


def is_made_up(name: str) -> bool:
    """Whether an exporter invented `name`, so that it says nothing about the tensor."""
    return _MADE_UP.search(name) is not None


def find_weights(draft: Draft, known: Mapping[str, bool] | None = None) -> Weights:
    """Decide which initializers and constant nodes of `draft` are weights, by the rule above. `known`: the float
    tensors of the program that wrote the graph, and whether they are trained, if it says so: these alone are weights.
    """
    live = _live(draft, known or ())
    wanted = _evidence(draft, live)
    if known is not None:
        held = {name: known[name] for name in draft.initializers if name in known}
        return Weights({name: said and bool(wanted.get(name, 0) & TRAINED) for name, said in held.items()}, frozenset())
    trained = {}
    for name, tensor in draft.initializers.items():
        if _is_weight(draft, name, tensor, wanted.get(name, 0)):
            trained[name] = _takes_gradient(name, tensor.data_type, wanted.get(name, 0))
    made_by = set()
    for node in draft.nodes:
        root = _constant_root(node, draft)
        if (
            root is not None
            and wanted.get(node.outputs[0], 0)
            and _is_weight(draft, node.outputs[0], root, wanted[node.outputs[0]])
        ):
            made_by.add(node.name)
            trained[node.outputs[0]] = _takes_gradient(node.outputs[0], root.data_type, wanted[node.outputs[0]])
    return Weights(trained, frozenset(made_by))


def _live(draft: Draft, known: Iterable[str]) -> set[str]:
    """Values that depend on the data of a graph input; of a graph without inputs, on weights that are known."""
    sources = set(draft.inputs) or set(known)
    live = set(sources)
    for node in draft.nodes:
        if node.op_type not in ("Shape", "Size") and not live.isdisjoint(node.reads):
            live.update(node.outputs)
    return live - (sources - set(draft.inputs)) - {""}


def _evidence(draft: Draft, live: set[str]) -> dict[str, int]:
    """What the readers of each value that is not live say it is: `STRONG`, `WEAK` and `TRAINED` flags."""
    wanted: dict[str, int] = {}
    for node in reversed(draft.nodes):
        if live.isdisjoint(node.outputs):
            _pass_back(node, wanted)
            continue
        kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        uses = [(kind, slot, name) for slot, name in enumerate(node.inputs)]
        uses += [use for use in _uses_inside(node.proto) if use[2] in node.captured]
        for inner, slot, name in uses:
            if name and name not in live:
                wanted[name] = wanted.get(name, 0) | _evidence_of_slot(inner, slot)
    return wanted


def _evidence_of_slot(kind: str, slot: int) -> int:
    """What one slot of an operator says of the value that it reads."""
    if slot in _NEVER.get(kind, ()):
        return 0
    if slot in _QUANTISED.get(kind, ()) or (kind, slot) in _STATISTICS:
        return STRONG
    return TRAINED | (STRONG if slot in SLOTS.get(kind, {}) else WEAK)


def _uses_inside(proto: onnx.NodeProto) -> Iterator[tuple[str, int, str]]:
    """(kind, slot, value) of everything that is read in the graphs inside a node."""
    for _, graph in nested_graphs(proto):
        for entry in graph.node:
            kind = f"{entry.domain}.{entry.op_type}" if entry.domain not in {"", "ai.onnx"} else entry.op_type
            yield from ((kind, slot, name) for slot, name in enumerate(entry.input))
            yield from _uses_inside(entry)


def _pass_back(node: Node, wanted: dict[str, int]) -> None:
    said = 0
    for name in node.outputs:
        said |= wanted.get(name, 0)
    if node.op_type in ("DequantizeLinear", "QuantizeLinear"):
        said &= ~TRAINED
    if said and node.op_type not in ("Shape", "Size"):
        for name in node.inputs[:1] if node.op_type in _FIRST_ONLY else node.inputs:
            wanted[name] = wanted.get(name, 0) | said


def _constant_root(node: Node, draft: Draft) -> onnx.TensorProto | None:
    """The type and dims of a node that makes a constant by itself, as a tensor without data."""
    if node.domain:
        return None
    if node.op_type == "Constant":
        value = next((entry.t for entry in node.proto.attribute if entry.name == "value"), None)
        return value if value is not None and value.dims else None
    shape = draft.initializers.get(next(iter(node.inputs), ""))
    if node.op_type == "ConstantOfShape" and shape is not None:
        fill = next((entry.t.data_type for entry in node.proto.attribute if entry.name == "value"), _T.FLOAT)
        if has_data(shape):
            return _T(dims=array_of(shape).reshape(-1).tolist(), data_type=fill)
    return None


def _is_weight(draft: Draft, name: str, tensor: onnx.TensorProto, wanted: int) -> bool:
    if tensor.data_type in _PLAIN_INTEGERS:
        return False
    if tensor.data_type == _T.INT32:
        return bool(wanted & STRONG) and not wanted & TRAINED
    checkpoint = _CHECKPOINT.match(name) is not None and not is_made_up(name)
    single = math.prod(tensor.dims) <= 1
    sources = draft.folded_from.get(name)
    if checkpoint and sources is None:
        return True
    if single or not wanted:
        return False
    if sources is not None:
        return _from_checkpoint(sources, wanted)
    return bool(wanted & STRONG) or not (is_made_up(name) or _is_mask(tensor))


def _from_checkpoint(sources: tuple[str, ...], wanted: int) -> bool:
    real = checkpoint_sources(sources)
    if real and all(_BUFFER.search(source) for source in real):
        return not wanted & TRAINED  # statistics of a norm; a table of angles is made anew from its buffer
    return bool(real) and (bool(wanted & STRONG) or any("." in source for source in real))


def checkpoint_sources(sources: tuple[str, ...]) -> tuple[str, ...]:
    """The checkpoint tensors among the values that a constant was folded from."""
    dotted = tuple(source for source in sources if _CHECKPOINT.match(source) and not is_made_up(source))
    if dotted or len(sources) != 1:
        return dotted
    return () if is_made_up(sources[0]) else sources


def _is_mask(tensor: onnx.TensorProto) -> bool:
    """Whether the values are those of a mask: of two dims or more, zeros and ones or very negative."""
    if sum(size > 1 for size in tensor.dims) < 2 or not has_data(tensor):
        return False
    try:
        values = np.unique(array_of(tensor).astype(np.float64))
    except (ValueError, TypeError, RuntimeError):  # what its data are is said where constants are read
        return False
    return bool(np.all((values == 0) | (values == 1) | (values <= -1e4)))


def _takes_gradient(name: str, elem_type: int, wanted: int) -> bool:
    return bool(wanted & TRAINED) and elem_type in _TRAINED_TYPES and _BUFFER.search(name) is None
