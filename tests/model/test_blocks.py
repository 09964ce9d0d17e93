"""Repeated blocks: found where they are, and only there."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shardplan.model.blocks import find_blocks
from shardplan.model.types import Operator, Tensor

UNARY = ["Relu", "Tanh", "Sigmoid", "Exp", "Neg"]


class Builder:
    """A chain of operators on values of one shape."""

    def __init__(self, modules=True):
        self.operators, self.tensors, self.modules = [], {}, modules
        self.add_tensor("x", "input")

    def add_tensor(self, name, role="activation", shape=(4, 4)):
        self.tensors[name] = Tensor(name, shape, "float", role)
        return name

    def op(self, kind, inputs, module="", **attributes):
        name = self.add_tensor(f"v{len(self.operators)}")
        self.operators.append(
            Operator(
                f"op{len(self.operators)}", kind, tuple(inputs), (name,), attributes, "", 21, self.modules * module
            )
        )
        return name

    def weight(self, shape=(4, 4)):
        return self.add_tensor(f"w{len(self.tensors)}", "parameter", shape)

    def layer(self, kinds, value, module=""):
        """MatMul with a weight, then `kinds`, then the residual addition."""
        inside = self.op("MatMul", [value, self.weight()], module)
        for kind in kinds:
            inside = self.op(kind, [inside], module)
        return self.op("Add", [inside, value], module)

    def blocks(self, constants=None):
        return find_blocks(self.operators, self.tensors, constants or {})


kinds = st.lists(st.sampled_from(UNARY), min_size=1, max_size=6)


def distinct(before, layer, after):
    """Whether nothing around the layers continues their pattern."""
    return (not before or before[-1] not in layer) and (not after or after[0] not in layer)


@settings(max_examples=60)
@given(kinds, st.integers(2, 9), st.lists(st.sampled_from(["Cos", "Sin"]), max_size=4), st.booleans())
def test_all_layers_of_a_chain_are_found(layer, copies, rest, modules):
    builder = Builder(modules)
    value = "x"
    for kind in rest:
        value = builder.op(kind, [value], "stem")
    for number in range(copies):
        value = builder.layer(layer, value, f"layers.{number}")
    for kind in rest:
        value = builder.op(kind, [value], "head")
    (block,) = builder.blocks()
    assert len(block.copies) == copies
    assert {len(copy) for copy in block.copies} == {len(layer) + 2}
    assert block.copies[0][0] == len(rest)
    if modules:
        assert block.names == tuple(f"layers.{number}" for number in range(copies))
    else:
        assert block.names == tuple(f"block {number}" for number in range(copies))


@settings(max_examples=60)
@given(st.lists(kinds, min_size=1, max_size=8))
def test_copies_are_isomorphic(layers):
    """Whatever is found: equal operators on equal shapes, in one place only, each fed by the one before."""
    builder = Builder()
    value = "x"
    for number, layer in enumerate(layers):
        value = builder.layer(layer, value, f"layers.{number}")
    blocks = builder.blocks()
    placed = [index for block in blocks for copy in block.copies for index in copy]
    assert len(placed) == len(set(placed))
    for block in blocks:
        assert len(block.names) == len(block.copies) >= 2
        kinds_of = [[builder.operators[index].op_type for index in copy] for copy in block.copies]
        assert all(entry == kinds_of[0] for entry in kinds_of)
        for before, copy in zip(block.copies, block.copies[1:], strict=False):
            made = {name for index in before for name in builder.operators[index].outputs}
            read = {name for index in copy for name in builder.operators[index].inputs}
            assert made & read


def test_what_the_first_layer_computes_for_all_is_no_part_of_it():
    builder = Builder()
    table = builder.add_tensor("table", "input")
    value, shared = "x", None
    for number in range(5):
        module = f"layers.{number}"
        inside = builder.op("MatMul", [value, builder.weight()], module)
        if shared is None:
            shared = builder.op("Cos", [table], module)
        inside = builder.op("Mul", [inside, shared], module)
        inside = builder.op("Relu", [inside], module)
        value = builder.op("Add", [inside, value], module)
    (block,) = builder.blocks()
    assert [len(copy) for copy in block.copies] == [4] * 5
    assert block.copies[0] == (0, 2, 3, 4)


def test_layers_that_differ_in_shape_attribute_or_constant_are_different():
    def build(change):
        builder = Builder()
        constants = {}
        value = "x"
        for number in range(4):
            inside = builder.op("MatMul", [value, builder.weight((4, 4, change == "shape" and number))])
            inside = builder.op("Elu", [inside], alpha=float(number) if change == "attribute" else 1.0)
            factor = builder.add_tensor(f"c{number}", "constant", ())
            if change == "constant":
                builder.tensors[factor] = replace(builder.tensors[factor], dtype="int64")
            constants[factor] = np.array(number if change in ("constant", "angle") else 1)
            inside = builder.op("Mul", [inside, factor])
            value = builder.op("Add", [inside, value])
        return builder.blocks(constants)

    assert [len(block.copies) for block in build("nothing")] == [4]
    assert [len(block.copies) for block in build("angle")] == [4]
    assert build("shape") == build("attribute") == build("constant") == ()


def test_layers_wired_otherwise_are_different():
    """Every other layer adds the graph's input instead of its own: pairs of layers are the block."""
    builder = Builder()
    value = "x"
    for number in range(6):
        inside = builder.op("Relu", [builder.op("MatMul", [value, builder.weight()])])
        value = builder.op("Add", [inside, value if number % 2 else "x"])
    assert all(len(block.copies) <= 3 for block in builder.blocks())


def test_first_layer_fed_from_two_places_is_no_copy():
    """Later layers read one value twice, the first reads two values."""
    builder = Builder()
    builder.add_tensor("z", "input")
    value, skip = "x", "z"
    for number in range(5):
        module = f"layers.{number}"
        inside = builder.op("Relu", [builder.op("MatMul", [value, builder.weight()], module)], module)
        value = skip = builder.op("Add", [inside, skip], module)
    (block,) = builder.blocks()
    assert block.names == tuple(f"layers.{number}" for number in range(1, 5))


def test_layers_that_share_different_values_are_different():
    builder = Builder()
    value = "x"
    for number in range(6):
        module = f"layers.{number}"
        table = "local" if number < 3 else "global"
        if table not in builder.tensors:
            builder.add_tensor(table, "input")
        inside = builder.op("Mul", [builder.op("MatMul", [value, builder.weight()], module), table], module)
        value = builder.op("Add", [inside, value], module)
    assert [block.names for block in builder.blocks()] == [
        ("layers.0", "layers.1", "layers.2"),
        ("layers.3", "layers.4", "layers.5"),
    ]


def test_shared_weights_may_be_shared_by_all_layers():
    builder = Builder()
    weight, value = builder.weight(), "x"
    for number in range(4):
        module = f"layers.{number}"
        value = builder.op(
            "Add", [builder.op("Relu", [builder.op("MatMul", [value, weight], module)], module), value], module
        )
    (block,) = builder.blocks()
    assert len(block.copies) == 4


def test_parallel_branches_and_chains_without_weights_are_no_blocks():
    builder = Builder()
    ends = [builder.op("Exp", [builder.op("Relu", [builder.op("MatMul", ["x", builder.weight()])])]) for _ in range(4)]
    builder.op("Sum", ends)
    value = "x"
    for _ in range(4):
        value = builder.op("Neg", [builder.op("Exp", [builder.op("Relu", [value])])])
    assert builder.blocks() == ()


def test_empty_graph():
    assert find_blocks((), {}, {}) == ()


def test_layers_that_read_different_masks_are_alike():
    """Local and global attention take turns in Gemma 2: its layers were no blocks, and nothing was recomputed."""
    builder = Builder()
    value = "x"
    masks = [builder.op("Neg", [builder.op("Exp", [builder.add_tensor(f"m{each}", "input")])]) for each in range(2)]
    for number in range(6):
        inside = builder.op("MatMul", [value, builder.weight()])
        inside = builder.op("Mul", [inside, masks[number % 2]])
        value = builder.op("Add", [inside, value])
    assert [len(block.copies) for block in builder.blocks()] == [6]


@settings(max_examples=30)
@given(st.lists(st.lists(st.sampled_from(UNARY), min_size=1, max_size=3), min_size=2, max_size=4), st.integers(2, 4))
def test_layers_of_several_kinds_that_take_turns_are_one_block(layers, turns):
    builder = Builder()
    value = "x"
    for _ in range(turns):
        for layer in layers:
            value = builder.layer(layer, value)
    covered = sum(len(block.copies) * len(block.copies[0]) for block in builder.blocks())
    assert covered == len(builder.operators)
