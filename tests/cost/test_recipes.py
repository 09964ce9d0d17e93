import numpy as np
import pytest
from memory_closed_forms import kv_cache_bytes, training_state_bytes

from shardplan.cluster.profile import load_profile
from shardplan.cost.recipes import RECIPES, gradient_dtype, optimizer_seconds, recipe, state_bytes
from shardplan.errors import ShardplanError


@pytest.mark.parametrize(
    ("optimizer", "dtype", "parameter", "gradient", "state", "traffic"),
    [
        ("adam-mixed", "bfloat16", 2, 2, 12, 28),
        ("adam-mixed", "float16", 2, 2, 12, 28),
        ("adam-mixed", "float", 4, 4, 8, 28),
        ("adam-fp32", "bfloat16", 2, 4, 8, 24),
        ("adam-fp32", "float", 4, 4, 8, 28),
        ("sgd", "bfloat16", 2, 2, 2, 10),
        ("sgd", "float", 4, 4, 4, 20),
        ("none", "bfloat16", 2, 2, 0, 0),
        ("none", "float", 4, 4, 0, 0),
    ],
)
def test_bytes_per_parameter(optimizer, dtype, parameter, gradient, state, traffic):
    found = state_bytes(optimizer, dtype)
    assert (found.parameter, found.gradient, found.state, found.step_traffic) == (parameter, gradient, state, traffic)
    assert found.total == parameter + gradient + state


def test_gradients_travel_as_they_are_kept():
    assert [gradient_dtype(name, "bfloat16") for name in RECIPES] == ["bfloat16", "float", "bfloat16", "bfloat16"]


def test_the_step_is_memory_traffic():
    device = load_profile("generic").device
    seconds = optimizer_seconds("adam-mixed", np.array([1e9, 2e9]), device, "bfloat16")
    assert seconds.tolist() == pytest.approx([0.028, 0.056])
    assert optimizer_seconds("sgd", np.array([1e9]), device, "float").tolist() == pytest.approx([0.020])


def test_an_unknown_optimizer_offers_the_nearest():
    with pytest.raises(ShardplanError) as caught:
        recipe("adam-mixd")
    assert (
        str(caught.value) == "error[unknown-optimizer]: unknown optimizer 'adam-mixd'\nhint: did you mean 'adam-mixed'?"
    )
    with pytest.raises(ShardplanError) as caught:
        recipe("zzz")
    assert caught.value.diagnostics[0].hint == "recipes: adam-mixed, adam-fp32, sgd, none"


ZERO_GB = {  # a model of 7.5 billion parameters: base, stage 1, 2, 3
    4: (120, 52.5, 41.3, 30),
    16: (120, 35.6, 21.6, 7.5),
    64: (120, 31.4, 16.6, 1.9),
    256: (120, 30.4, 15.4, 0.47),
    1024: (120, 30.1, 15.1, 0.12),
}


@pytest.mark.parametrize("devices", sorted(ZERO_GB))
def test_the_table_of_the_zero_paper(devices):
    ways = ({}, {"state_ways": devices}, {"state_ways": devices, "gradient_ways": devices})
    ways = (*ways, {**ways[2], "parameter_ways": devices})
    found = [training_state_bytes("adam-mixed", "bfloat16", 7_500_000_000, **cut) / 1e9 for cut in ways]
    assert found == pytest.approx(ZERO_GB[devices], rel=0.005, abs=0.05)


def test_the_key_value_cache_of_llama_3():
    sizes = [kv_cache_bytes(layers, 8, 128, 1, "bfloat16") for layers in (32, 80, 126)]
    assert sizes == [131072, 327680, 516096]
    assert [kv_cache_bytes(32, 8, 128, 10, "bfloat16", ways=ways) for ways in (2, 8, 16)] == [655360, 163840, 163840]
