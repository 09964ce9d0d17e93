"""Encoder layers of BERT as Slapo traces them: batch 8, sequence 512, hidden 1024, 16 heads, inner size 4096."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper, numpy_helper

BATCH, SEQUENCE, HIDDEN, HEADS, INNER = 8, 512, 1024, 16, 4096
_PER_HEAD = HIDDEN // HEADS
Nodes = list[onnx.NodeProto]
Weights = list[onnx.TensorProto]


def bert(path: Path, layers: int) -> Path:
    """Write so many layers to `path`; weights without their data."""
    nodes: Nodes = []
    weights: Weights = [_ints("heads", (BATCH, SEQUENCE, HEADS, _PER_HEAD)), _ints("rows", (BATCH, SEQUENCE, HIDDEN))]
    weights.append(helper.make_tensor("scale", TensorProto.FLOAT, [], [8.0]))
    x = "x"
    for number in range(layers):
        x = _layer(f"layer.{number}", x, nodes, weights)
    nodes[-1].output[0] = "y"
    shape = [BATCH, SEQUENCE, HIDDEN]
    graph = helper.make_graph(
        nodes,
        "bert",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def _layer(name: str, x: str, nodes: Nodes, weights: Weights) -> str:
    def op(kind: str, *inputs: str, to: str, **attributes: object) -> str:
        nodes.append(helper.make_node(kind, inputs, [f"{name}.{to}"], f"{name}.{to}", **attributes))
        return f"{name}.{to}"

    def linear(x: str, to: str, inside: int, outside: int) -> str:
        return op("MatMul", x, _weight(weights, f"{name}.{to}.weight", (inside, outside)), to=to)

    def norm(x: str, to: str) -> str:
        both = [_weight(weights, f"{name}.{to}.{part}", (HIDDEN,)) for part in ("weight", "bias")]
        return op("LayerNormalization", x, *both, to=to, axis=-1)

    def heads(to: str, perm: list[int]) -> str:
        split = op("Reshape", linear(x, to, HIDDEN, HIDDEN), "heads", to=f"{to}.view")
        return op("Transpose", split, to=f"{to}.permute", perm=perm)

    q, k, v = heads("q", [0, 2, 1, 3]), heads("k", [0, 2, 3, 1]), heads("v", [0, 2, 1, 3])
    scores = op("Div", op("MatMul", q, k, to="scores"), "scale", to="scaled")
    context = op("MatMul", op("Softmax", scores, to="softmax", axis=-1), v, to="context")
    merged = op("Reshape", op("Transpose", context, to="merge", perm=[0, 2, 1, 3]), "rows", to="merged")
    attended = norm(op("Add", linear(merged, "dense", HIDDEN, HIDDEN), x, to="residual1"), "norm1")
    inner = op("Gelu", linear(attended, "fc1", HIDDEN, INNER), to="gelu")
    return norm(op("Add", linear(inner, "fc2", INNER, HIDDEN), attended, to="residual2"), "norm2")


def _weight(weights: Weights, name: str, shape: tuple[int, ...]) -> str:
    tensor = onnx.TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="absent.bin")
    weights.append(tensor)
    return name


def _ints(name: str, values: tuple[int, ...]) -> onnx.TensorProto:
    import numpy as np

    return numpy_helper.from_array(np.array(values, dtype=np.int64), name)
