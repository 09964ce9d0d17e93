"""Identical layers as one row."""

from hypothesis import given
from hypothesis import strategies as st

from shardplan.folding import folded, pattern, ranges


def test_numbers_that_stand_alone_are_layers():
    assert pattern("model.layers.12.mlp.up.weight") == "model.layers.*.mlp.up.weight"
    assert pattern("/model/layers.3/Add_7_output_0") == "/model/layers.*/Add_*_output_*"
    assert pattern("layer1.conv2.weight") == "layer1.conv2.weight"


def test_all_layers_are_a_star():
    names = [f"layers.{i}.up" for i in range(4)]
    assert folded(names, [*names, "layers.0.down"]) == "layers.*.up"


def test_some_layers_are_listed():
    names = [f"layers.{i}.up" for i in range(12)]
    assert folded([names[0], *names[2:5]], names) == "layers.{0,2-4}.up"


def test_one_name_stays_as_it_is():
    names = [f"layers.{i}.up" for i in range(12)]
    assert folded([names[3]], names) == "layers.3.up"


def test_numbers_that_agree_stay():
    names = ["stage.1.layers.0.w", "stage.1.layers.1.w"]
    assert folded(names, [*names, "stage.2.layers.0.w"]) == "stage.1.layers.{0-1}.w"


def test_even_steps_and_long_lists_are_short():
    assert ranges([6, 13, 20, 27, 34, 41]) == "6,13…41"
    assert ranges([0, 1, 5, 9, 12, 20]) == "0-1…20"


@given(st.sets(st.integers(0, 60), min_size=1))
def test_ranges_say_exactly_the_numbers_or_their_ends(numbers):
    text = ranges(sorted(numbers))
    if "…" in text:
        assert (int(text.split("…")[0].split(",")[0].split("-")[0]), int(text.split("…")[1].split("-")[-1])) == (
            min(numbers),
            max(numbers),
        )
        return
    said = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        said |= set(range(int(first), int(last or first) + 1))
    assert said == numbers
