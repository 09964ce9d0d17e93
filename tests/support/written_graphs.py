"""Graphs that a module is written as for planning, evaluated."""

import onnx
from onnx.reference import ReferenceEvaluator

from shardplan.torch.planning.onnx_program import onnx_bytes


def evaluated(module, *args):
    """What the exported graph gives."""
    graph = onnx.load_from_string(onnx_bytes(module, args, {}))
    names = [value.name for value in graph.graph.input]
    return ReferenceEvaluator(graph).run(None, dict(zip(names, (arg.numpy() for arg in args), strict=True)))
