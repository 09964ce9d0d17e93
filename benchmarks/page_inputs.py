"""Files that commands of the pages read: `python benchmarks/page_inputs.py KIND FILE [PLAN]`, which `docs.py` calls.

loop FILE               an ONNX file with a Loop whose trip count depends on data
mlp FILE                an ONNX file with two products and a Gelu between them
checkpoint FILE PLAN    a safetensors file with the parameters of a plan, all zero
chain FILE              a problem of the contest's format: a chain of nodes under tight memory
bad FILE                one with a table of a wrong length
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from control_models import DECODE

from shardplan.plan.file import read_plan
from shardplan.plan.orientation import checkpoint_shape

MLP = """<ir_version: 10, opset_import: ["" : 21]>
mlp (float[1024,1024] x, float[1024,4096] w1, float[4096,1024] w2) => (float[1024,1024] y) {
  a = MatMul (x, w1)
  g = Gelu (a)
  y = MatMul (g, w2)
}"""


def save(text: str, names: Sequence[str], path: Path) -> None:
    """An ONNX file of a text, with names for its nodes; the inputs of a known shape but `x` are weights, all zero."""
    model = parser.parse_model(text)
    graph = model.graph
    for value in [value for value in graph.input if value.name != "x"]:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        if shape:
            graph.initializer.append(numpy_helper.from_array(np.zeros(shape, np.float32), value.name))
            graph.input.remove(value)
    for node, name in zip(model.graph.node, names, strict=True):
        node.name = name
    onnx.save(model, path)


def checkpoint(path: Path, plan_file: str) -> None:
    """Every parameter by its name in the checkpoint, as fp32 zeros that take no room on most disks."""
    table, end = {}, 0
    for tensor in read_plan(plan_file).tensors:
        if tensor.role == "parameter" and tensor.checkpoint not in table:
            shape = checkpoint_shape(tensor.shape, tensor.perm)
            begin, end = end, end + 4 * math.prod(shape)
            table[tensor.checkpoint] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    header = json.dumps(table).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + end)


def chain(path: Path) -> None:
    """60 nodes of 6 choices, each with its memory in one of 15 moments, and an edge from each to the next."""
    draw, nodes = random.Random(0), 60
    edges = [[first, first + 1] for first in range(nodes - 1)]
    problem = {
        "name": "chain",
        "nodes": {"intervals": [[at // 4, at // 4 + 1] for at in range(nodes)],
                  "costs": [[draw.randrange(1000) for _ in range(6)] for _ in range(nodes)],
                  "usages": [[draw.randrange(1, 1000) for _ in range(6)] for _ in range(nodes)]},
        "edges": {"nodes": edges, "costs": [[draw.randrange(1000) for _ in range(36)] for _ in edges]},
        "usage_limit": 1500,
    }  # fmt: skip
    path.write_text(json.dumps({"problem": problem}))


def bad(path: Path) -> None:
    nodes = {"intervals": [[0, 1], [0, 1]], "costs": [[1, 2], [3]], "usages": [[1, 1], [1]]}
    problem = {"nodes": nodes, "edges": {"nodes": [[0, 1]], "costs": [[1, 2, 3]]}, "usage_limit": 10}
    path.write_text(json.dumps({"problem": problem}))


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("kind", choices=["loop", "mlp", "checkpoint", "chain", "bad"])
    given.add_argument("file", type=Path)
    given.add_argument("plan", nargs="?")
    asked = given.parse_args()
    if asked.kind == "loop":
        save(DECODE, ("", "decode"), asked.file)
    elif asked.kind == "mlp":
        save(MLP, ("fc1", "gelu", "fc2"), asked.file)
    elif asked.kind == "checkpoint":
        checkpoint(asked.file, asked.plan)
    else:
        {"chain": chain, "bad": bad}[asked.kind](asked.file)


if __name__ == "__main__":
    main()
