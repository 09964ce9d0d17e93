"""The digest changes with what a plan depends on, and with nothing else."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from shardplan.model.digest import structure_digest

MODELS = Path(__file__).parent.parent / "models"
TEXT = """g (float[2, 4] x) => (float[2, 3] y) <int64[2] s = {-1, 3}> {
    a = Gemm <alpha = 2.0> (x, w, b)  y = Reshape(a, s) }"""


@pytest.fixture
def digest(read, proto):
    def of(change=None, data=0.0):
        model = proto(TEXT)
        for name, shape in (("w", (4, 3)), ("b", (3,))):
            model.graph.initializer.append(numpy_helper.from_array(np.full(shape, data, np.float32), name))
        if change is not None:
            change(model)
        return structure_digest(read(model))

    return of


def documented(model):
    model.doc_string = "words"
    model.producer_name = "someone"
    model.graph.doc_string = "more words"
    model.graph.name = "another"
    model.metadata_props.add(key="a", value="b")
    model.graph.node[0].doc_string = "and more"
    model.graph.node[0].metadata_props.add(key="stack_trace", value="file.py:3")


def reordered(model):
    for field in (model.graph.initializer, model.graph.node[0].attribute):
        entries = [type(entry).FromString(entry.SerializeToString()) for entry in field]
        del field[:]
        field.extend(entries[::-1])


def test_what_does_not_count(digest):
    plain = digest()
    assert digest(data=1.5) == plain
    assert digest(documented) == plain
    assert digest(reordered) == plain


def attribute(model):
    model.graph.node[0].attribute[0].f = 3.0


def constant(model):
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array([2, -1]), "s"))


def operator(model):
    model.graph.node.append(onnx.helper.make_node("Relu", ["y"], ["z"]))
    model.graph.output[0].name = "z"


def batch(model):
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 6


def opset(model):
    model.opset_import[0].version = 20


def renamed(model):
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = "other"


@pytest.mark.parametrize("change", [attribute, constant, operator, batch, opset, renamed], ids=lambda f: f.__name__)
def test_what_counts(digest, change):
    assert digest(change) != digest()


def test_trainability_and_roles_count(zoo):
    model = zoo("resnet50")
    other = replace(model.parameters[0], trainable=not model.parameters[0].trainable)
    assert structure_digest(replace(model, parameters=(other, *model.parameters[1:]))) != structure_digest(model)
    assert structure_digest(replace(model, name="another", producer="", blocks=())) == structure_digest(model)


def test_the_same_in_every_process(zoo):
    code = (
        "import sys; from shardplan.model.read import read_model, structure_digest;"
        "print(structure_digest(read_model(sys.argv[1])))"
    )
    source = str(Path(__file__).parents[2] / "planner")
    digests = {
        subprocess.run(
            [sys.executable, "-c", code, str(MODELS / "gshard_moe.onnx")],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": source, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert digests == {structure_digest(zoo("gshard_moe"))}
