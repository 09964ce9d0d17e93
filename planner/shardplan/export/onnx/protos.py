"""Nodes of a program as messages of ONNX."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from shardplan.program.nodes import Body, Described, Node


def node_proto(node: Node, notes: Mapping[str, str] | None = None) -> NodeProto:
    """The node; `notes` become its metadata."""
    given: dict[str, object] = {
        name: numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
        for name, value in node.attributes.items()
    }
    if node.body is not None:
        given["body"] = _body_proto(node.body)
    made: NodeProto = helper.make_node(
        node.op_type, list(node.inputs), list(node.outputs), name=node.name, domain=node.domain
    )
    made.attribute.extend(helper.make_attribute(name, value) for name, value in given.items())
    if notes:
        helper.set_metadata_props(made, {f"shardplan.{key}": text for key, text in notes.items()})
    return made


def _body_proto(body: Body) -> GraphProto:
    described = body.graph.described
    inputs, outputs = ([info_proto(name, described[name]) for name in names] for names in (body.inputs, body.outputs))
    made: GraphProto = helper.make_graph([node_proto(node) for node in body.graph.nodes], "step", inputs, outputs)
    return made


def info_proto(name: str, described: Described) -> ValueInfoProto:
    """Element type and shape of a value."""
    kind = TensorProto.DataType.Value(described.dtype.upper())
    made: ValueInfoProto = helper.make_tensor_value_info(name, kind, list(described.shape))
    return made
