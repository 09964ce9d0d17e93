"""Segmented shards through small models: what is offered where, and that the local programs fit together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardplan.layout.placement import RP, S
from shardplan.model.read import read_model
from shardplan.model.types import Model, Operator, Parameter, Tensor
from shardplan.rules import model_rules, rule_for, segment_variants

GPT2 = Path(__file__).parents[1] / "models" / "gpt2_small.onnx"


class Graph:
    """Builds a model operator by operator; every value is float unless said."""

    def __init__(self, **inputs: tuple[int, ...]) -> None:
        self.tensors = {name: Tensor(name, shape, "float", "input") for name, shape in inputs.items()}
        self.inputs = tuple(inputs)
        self.operators: list[Operator] = []
        self.constants: dict[str, np.ndarray] = {}
        self.parameters: list[Parameter] = []

    def weight(self, name: str, *shape: int) -> str:
        self.tensors[name] = Tensor(name, shape, "float", "parameter")
        self.parameters.append(Parameter(name, name, name))
        return name

    def constant(self, *values: int) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.array(values, np.int64)
        self.tensors[name] = Tensor(name, (len(values),), "int64", "constant")
        return name

    def add(self, kind: str, inputs: list[str], made: dict[str, tuple[int, ...]], **attributes) -> str:
        for name, shape in made.items():
            self.tensors[name] = Tensor(name, shape, "float", "activation")
        name = f"{kind}_{len(self.operators)}"
        self.operators.append(Operator(name, kind, tuple(inputs), tuple(made), attributes, "", 23))
        return next(iter(made))

    def model(self, *outputs: str) -> Model:
        return Model(
            "g", tuple(self.operators), self.tensors, tuple(self.parameters), self.inputs, outputs, self.constants
        )


def segmented(model: Model) -> dict[str, list[str]]:
    """Operator -> its segmented options, as text."""
    found = {}
    for operator, rule in zip(model.operators, model_rules(model), strict=True):
        texts = [
            f"{o.label}: {', '.join(map(str, o.operands))} -> {', '.join(map(str, o.results))}"
            for o in rule.options
            if o.variant
        ]
        if texts:
            found[operator.name] = texts
    return found


def packed() -> Model:
    g = Graph(x=(2, 4, 6))
    h = g.add("MatMul", ["x", g.weight("w", 6, 36)], {"h": (2, 4, 36)})
    h = g.add("Add", [h, g.weight("b", 36)], {"hb": (2, 4, 36)})
    g.add("Split", [h], {"q": (2, 4, 12), "k": (2, 4, 12), "v": (2, 4, 12)}, axis=-1, num_outputs=3)
    g.add("Reshape", ["q", g.constant(2, 4, 4, 3)], {"qh": (2, 4, 4, 3)})
    return g.model("qh", "k", "v")


def test_a_packed_projection_is_cut_inside_each_part():
    assert segmented(packed()) == {
        "MatMul_0": ["n;3x12: R/P, S(1;3x12) -> S(2;3x12)"],
        "Add_1": ["x2;3x12: S(2;3x12), S(0;3x12) -> S(2;3x12)"],
        "Split_2": ["part0|part1|part2;3x12: S(2;3x12) -> S(2), S(2), S(2)"],
    }


def test_parts_of_different_sizes_divide_by_their_common_divisor():
    g = Graph(x=(2, 4, 6))
    h = g.add("MatMul", ["x", g.weight("w", 6, 24)], {"h": (2, 4, 24)})
    g.add("Split", [h, g.constant(16, 4, 4)], {"q": (2, 4, 16), "k": (2, 4, 4), "v": (2, 4, 4)}, axis=2)
    model = g.model("q", "k", "v")
    assert segmented(model)["MatMul_0"] == ["n;16,2x4: R/P, S(1;16,2x4) -> S(2;16,2x4)"]
    assert model_rules(model)[0].options[-1].size == 4


def test_slices_of_one_value_count_together():
    g = Graph(x=(2, 6))
    h = g.add("MatMul", ["x", g.weight("w", 6, 16)], {"h": (2, 16)})
    for name, start in (("gate", 0), ("up", 8)):
        bounds = [g.constant(start), g.constant(start + 8), g.constant(1)]
        g.add("Slice", [h, *bounds], {name: (2, 8)})
    g.add("Mul", ["gate", "up"], {"y": (2, 8)})
    assert segmented(g.model("y")) == {
        "MatMul_0": ["n;2x8: R/P, S(1;2x8) -> S(1;2x8)"],
        "Slice_1": ["x1|afterx1;2x8: S(1;2x8), R/P, R/P, R/P -> S(1)"],
        "Slice_2": ["beforex1|x1;2x8: S(1;2x8), R/P, R/P, R/P -> S(1)"],
    }


def test_rotary_halves_are_left_alone():
    g = Graph(x=(2, 6))
    h = g.add("MatMul", ["x", g.weight("w", 6, 16)], {"h": (2, 16)})
    for name, start in (("left", 0), ("right", 8)):
        g.add("Slice", [h, g.constant(start), g.constant(start + 8), g.constant(1)], {name: (2, 8)})
    g.add("Neg", ["right"], {"minus": (2, 8)})
    g.add("Concat", ["minus", "left"], {"turned": (2, 16)}, axis=-1)
    g.add("Add", [h, "turned"], {"y": (2, 16)})
    assert segmented(g.model("y")) == {}


def test_merged_batch_and_sequence_keep_the_sequence_splittable():
    g = Graph(x=(2, 4, 6))
    x = g.add("Relu", ["x"], {"r": (2, 4, 6)})
    x = g.add("Reshape", [x, g.constant(8, 6)], {"flat": (8, 6)})
    x = g.add("Gemm", [x, g.weight("w", 6, 10), g.weight("b", 10)], {"h": (8, 10)})
    x = g.add("Reshape", [x, g.constant(2, 4, 10)], {"y": (2, 4, 10)})
    assert segmented(g.model("y")) == {
        "Reshape_1": ["b;2x4: S(1), R/P -> S(0;2x4)"],
        "Gemm_2": ["m;2x4: S(0;2x4), R/P, R/P -> S(0;2x4)"],
        "Reshape_3": ["b;2x4: S(0;2x4), R/P -> S(1)"],
    }


def test_joined_channels_are_summed_inside_each_part():
    g = Graph(x=(2, 4, 6, 6))
    for name, channels in (("a", 8), ("b", 4)):
        g.add("Conv", ["x", g.weight(f"w{name}", channels, 4, 1, 1)], {name: (2, channels, 6, 6)})
    g.add("Concat", ["a", "b"], {"c": (2, 12, 6, 6)}, axis=1)
    g.add("Conv", ["c", g.weight("wc", 4, 12, 1, 1)], {"y": (2, 4, 6, 6)})
    assert segmented(g.model("y")) == {
        "Concat_2": ["part0|part1;8,4: S(1), S(1) -> S(1;8,4)"],
        "Conv_3": ["c;8,4: S(1;8,4), S(1;8,4) -> P"],
    }


def test_gates_of_a_recurrent_layer_reach_through_its_weights():
    """Exporters reorder gates by slicing and joining the weight."""
    g = Graph(x=(5, 2, 3))
    weight = g.weight("w", 16, 3)
    for gate in range(4):
        g.add("Slice", [weight, g.constant(4 * gate), g.constant(4 * gate + 4), g.constant(0)], {f"g{gate}": (4, 3)})
    g.add("Concat", ["g0", "g3", "g1", "g2"], {"joined": (16, 3)}, axis=0)
    g.add("Unsqueeze", ["joined", g.constant(0)], {"W": (1, 16, 3)})
    g.add("LSTM", ["x", "W", g.weight("R", 1, 16, 4)], {"y": (5, 1, 2, 4)}, hidden_size=4)
    found = segmented(g.model("y"))
    assert found["Slice_0"] == ["x0|afterx0;4x4: S(0;4x4), R/P, R/P, R/P -> S(0)"]
    assert found["Concat_4"] == ["part0|part1|part2|part3;4x4: S(0), S(0), S(0), S(0) -> S(0;4x4)"]
    assert found["Unsqueeze_5"] == ["a;4x4: S(0;4x4), R/P -> S(1;4x4)"]


def test_what_no_neighbour_follows_is_not_offered():
    """The packed value is made by a maximum over parts of it, which knows no factor there: nothing to follow."""
    g = Graph(x=(2, 12))
    h = g.add("CumSum", ["x", g.constant(1)], {"h": (2, 12)})
    g.add("Split", [h], {"q": (2, 6), "k": (2, 6)}, axis=-1, num_outputs=2)
    model = g.model("q", "k")
    assert segmented(model) == {}
    assert segment_variants(model, [rule_for(operator, model) for operator in model.operators]) == {}


def test_model_inputs_keep_their_order():
    g = Graph(x=(2, 12))
    g.add("Split", ["x"], {"q": (2, 6), "k": (2, 6)}, axis=-1, num_outputs=2)
    assert segmented(g.model("q", "k")) == {}


@pytest.fixture(scope="module")
def gpt2() -> Model:
    return read_model(GPT2)


def test_gpt2_shards_its_packed_projection_and_its_flattened_tokens(gpt2):
    rules = model_rules(gpt2)
    projections = [rule for rule in rules if rule.cost == "gemm" and rule.sizes.get("n") == 2304]
    assert len({id(rule) for rule in projections}) == 1
    options = {option.label: option for option in projections[0].options}
    assert options["n;3x768"].operands == (RP, S(1, (768,) * 3), S(0, (768,) * 3))
    assert options["n;3x768"].results == (S(1, (768,) * 3),)
    assert options["n;3x768"].size == 768
    assert options["m;8x1024"].operands == (S(0, (1024,) * 8), RP, RP)
    assert not any(rule.fallback for rule in rules)


def test_every_segmented_shard_is_made_and_read_somewhere(gpt2):
    made, read = set(), set()
    for operator, rule in zip(gpt2.operators, model_rules(gpt2), strict=True):
        for option in rule.options:
            for names, placements, seen in (
                (operator.inputs, option.operands, read),
                (operator.outputs, option.results, made),
            ):
                seen |= {(n, p) for n, p in zip(names, placements, strict=True) if p.segments}
    assert made
    assert made <= read
    assert {name for name, _ in read - made} <= {parameter.tensor for parameter in gpt2.parameters}


def test_shards_of_all_options_are_even(gpt2):
    """Whatever divides an option's size divides every shard and every segment of it."""
    for operator, rule in zip(gpt2.operators, model_rules(gpt2), strict=True):
        for option in rule.options:
            both = ((operator.inputs, option.operands), (operator.outputs, option.results))
            for name, placement in (pair for names, placements in both for pair in zip(names, placements, strict=True)):
                if placement.is_shard:
                    shape = gpt2.tensors[name].shape
                    assert shape[placement.dim] % option.size == 0
                    assert all(segment % option.size == 0 for segment in placement.segments)
