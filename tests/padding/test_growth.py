"""A model with one size rounded up is the model that is built with that size."""

import numpy as np
import pytest

from shardplan.advice.sizes import rounded_up
from shardplan.layout.mesh import Axis, Mesh
from shardplan.padding.growth import grown
from shardplan.program.shrink.classes import alike_in_copies, relate
from shardplan.rules import model_rules
from shardplan.study.instance import load_model

GPT = "transformer:layers=3,hidden=96,heads=6,head_size=16,style=gpt,vocab=509,seq=24,batch=3"
LLAMA = "transformer:layers=2,hidden=128,heads=8,kv_heads=2,head_size=16,vocab=509,seq=24,batch=3"


def shapes(model):
    """Of all but the targets of reshapes."""
    return {name: tensor.shape for name, tensor in model.tensors.items() if tensor.role != "constant"}


def attributes(model):
    given = {operator.name: {**operator.attributes} for operator in model.operators}
    return {name: {key: value for key, value in its.items() if key != "allowzero"} for name, its in given.items()}


def class_of(model, classes, *sizes):
    """The class of the first dim of these sizes, of an input, a weight or any other tensor."""
    names = [*model.inputs, *(parameter.tensor for parameter in model.parameters), *model.tensors]
    nodes = ((name, dim) for name in names for dim, size in enumerate(model.tensors[name].shape) if size in sizes)
    return classes.find(next(nodes))


@pytest.mark.parametrize("description", [GPT, LLAMA, f"{GPT},attention=decomposed", f"{LLAMA},attention=decomposed"])
@pytest.mark.parametrize(("name", "old", "new"), [("batch", 3, 4), ("batch", 3, 5), ("vocab", 509, 512)])
def test_it_is_the_model_of_that_size(description, name, old, new):
    made = load_model(description, {})
    wanted = load_model(description.replace(f"{name}={old}", f"{name}={new}"), {})
    while any(old in shape for shape in shapes(made).values()):  # embedding and head, where they are two weights
        rules = model_rules(made)
        classes = relate(made, rules)
        made = grown(made, rules, classes, class_of(made, classes, old), new)
        assert made is not None
    assert shapes(made) == shapes(wanted)
    assert attributes(made) == attributes(wanted)


@pytest.mark.parametrize("attention", ["fused", "decomposed"])
@pytest.mark.parametrize("style", ["gpt", "llama"])
def test_the_heads_of_all_layers_are_one_size(style, attention):
    text = f"transformer:layers=3,hidden=96,heads=5,head_size=16,style={style},vocab=512,seq=64,batch=1"
    model, wanted = (
        load_model(f"{one},attention={attention}", {}) for one in (text, text.replace("heads=5", "heads=8"))
    )
    rules = model_rules(model)
    classes = alike_in_copies(model, relate(model, rules))
    made = grown(model, rules, classes, class_of(model, classes, 5), 8)
    assert made is not None
    assert shapes(made) == shapes(wanted)
    assert attributes(made) == attributes(wanted)


def test_constants_of_a_size_grow_with_it_by_their_last_entries():
    model = load_model(f"{GPT},attention=decomposed", {})
    rules = model_rules(model)
    classes = relate(model, rules)
    known = [(name, dim) for name, array in model.constants.items() for dim, size in enumerate(array.shape) if size > 1]
    assert known
    held = 0
    for name, dim in known:
        made = grown(model, rules, classes, classes.find((name, dim)), 32)
        if made is not None:
            array, longer = model.constants[name], made.constants[name]
            size, held = array.shape[dim], held + 1
            assert longer.shape[dim] == 32
            assert np.array_equal(longer[tuple(map(slice, array.shape))], array)
            assert np.array_equal(longer.take(range(size, 32), dim), longer.take([size - 1] * (32 - size), dim))
    assert held


@pytest.mark.parametrize(
    ("size", "mesh", "new"),
    [
        (16, (4, 4), None),
        (15, (4, 4), 16),
        (50257, (4, 4), 50272),
        (25, (1, 8), 32),
        (3, (4, 4), 4),
        (4, (8, 8), None),
        (5, (1, 1), None),
        (12, (4, 4), 16),
    ],
)
def test_a_size_is_rounded_up_so_that_more_axes_divide_it(size, mesh, new):
    assert rounded_up(size, Mesh(tuple(Axis(f"a{i}", n) for i, n in enumerate(mesh)))) == new
