"""Cost models by name: how they are written, what is refused, and how their costs are read."""

import pytest

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.cost.named import OURS, cost_model_names, measure_of, parse_cost_model
from shardplan.errors import ShardplanError
from shardplan.graph.pricing import Pricing
from shardplan.units import Measure

NAMES = cost_model_names()


@pytest.mark.parametrize(
    "text",
    [*NAMES, "alpa:alpha=1x2,beta=1x0.1,gather=1e8", "slapo:element=2,split=1", "trtllm:cluster_key=L40"],
)
def test_what_is_written_is_read_back(text):
    assert str(parse_cost_model(text)) == text
    assert parse_cost_model(str(parse_cost_model(text))) == parse_cost_model(text)


def test_order_and_blanks_do_not_matter():
    assert parse_cost_model(" slapo : split = 1 , element=2 ") == parse_cost_model("slapo:element=2,split=1")
    assert parse_cost_model("shardplan") == OURS
    assert OURS.is_ours


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("slap", "there is no cost model 'slap'\nhint: did you mean 'slapo'?"),
        ("", "there is no cost model ''\nhint: cost models: shardplan, alpa, slapo, hidet, trtllm"),
        ("alpa:bata=1", "the cost model 'alpa' has no setting 'bata'\nhint: did you mean 'beta'?"),
        ("hidet:x=1", "the cost model 'hidet' has no setting 'x'\nhint: it has none"),
        ("slapo:split=1,split=2", "'split' is given twice"),
        ("alpa:beta=-1", "beta='-1' is not a number"),
        ("alpa:beta=nan", "beta='nan' is not a number"),
        ("alpa:beta=", "beta='' is not a number"),
        ("slapo:", "the cost model 'slapo' has no setting ''\nhint: its settings: element, split"),
    ],
)
def test_refusals(text, said):
    with pytest.raises(ShardplanError) as caught:
        parse_cost_model(text)
    assert str(caught.value).startswith(f"error[bad-cost-model]: {said}")


@pytest.mark.parametrize(
    ("text", "mesh", "said"),
    [
        (
            "slapo",
            "2x4",
            (
                "the cost model 'slapo' knows one mesh axis, and the mesh is machine=2 x gpu=4\n"
                "hint: plan on one axis: --mesh 8"
            ),
        ),
        (
            "alpa:beta=1x2x3",
            "2x4",
            (
                "beta=1x2x3 has 3 numbers; the mesh machine=2 x gpu=4 has 2 axes\n"
                "hint: give one number, or one for every axis"
            ),
        ),
    ],
)
def test_settings_must_suit_the_mesh(text, mesh, said):
    with pytest.raises(ShardplanError) as caught:
        Pricing.named(parse_cost_model(text), make_cluster(load_profile("h100-dgx"), mesh), 4)
    assert str(caught.value) == f"error[bad-cost-model]: {said}"


def test_axes_of_size_one_are_no_axes():
    for mesh in ("8", "1x8", "4x1"):
        Pricing.named(parse_cost_model("slapo"), make_cluster(load_profile("h100-dgx"), mesh), 4)


def test_only_our_own_prices_know_an_optimizer_step():
    cluster = make_cluster(load_profile("h100-dgx"), "8")
    assert [Pricing.named(parse_cost_model(name), cluster, 4).optimizer for name in NAMES] == [True] + 4 * [False]


@pytest.mark.parametrize(
    ("written", "nanoseconds", "read"),
    [
        (None, 38_200_000, "38.2 ms"),
        ("trtllm:cluster_key=L40", 38_200_000, "38.2 ms"),
        ("slapo:split=1", 524_289_000, "524,289 elements"),
        ("alpa", 196_614_020, "196,614.02 units"),
        ("hidet", 0, "0 bytes"),
        ("of another version", 1_000, "1 us"),
    ],
)
def test_costs_are_read_in_their_unit(written, nanoseconds, read):
    assert measure_of(written).text(nanoseconds) == read


def test_several_costs_in_one_unit():
    assert Measure("elements").texts([1_000, 2_500_000], 2_500_000) == (["1", "2,500"], "elements")
    assert Measure().texts([1_000_000, 2_500_000], 2_500_000) == (["1", "2.50"], "ms")
    assert Measure("bytes").of_picoseconds(5e6) == "5 bytes"
