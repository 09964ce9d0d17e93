"""Laws of collective prices, over random clusters: odd efficiencies, measured tables, swapped levels, tori and all."""

import itertools
import math
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shardplan.cluster.types import Cluster, Curve, Device, GemmEfficiency, Level, Overlap
from shardplan.cost.collectives import CollectiveModel
from shardplan.layout.mesh import Axis, Mesh

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute")
PAYLOADS = tuple(2.0**power for power in (4, 10, 15, 20, 25, 30))
RELATIVE = 1 + 1e-9

DEVICE = Device("any", 80 * 10**9, 0.92, 0, 2e12, {"bf16": 1e14}, True, GemmEfficiency(), 0.75, 4e-6)

shares = st.floats(0.05, 1.2)
rates = st.floats(1e8, 1e12)
seconds = st.floats(0, 1e-4)
rank_rates = st.dictionaries(st.integers(1, 8), rates, min_size=1, max_size=3)
rank_shares = st.dictionaries(st.integers(1, 8), shares, min_size=1, max_size=3)


@st.composite
def levels(draw, name, *, inner):
    topology = draw(st.sampled_from(("switch", "full_mesh", "torus", "pcie")))
    cards = not inner and draw(st.booleans())
    return Level(
        name=name,
        devices=8 if inner else 0,
        topology="switch" if cards else topology,
        link_bytes_per_s=draw(rates),
        pair_bytes_per_s=draw(rates),
        node_bytes_per_s=draw(rates) if cards else 0.0,
        eta=draw(st.dictionaries(st.sampled_from((*KINDS, "default", "partial", "nvls")), shares)),
        eta_by_ranks=draw(st.dictionaries(st.sampled_from(KINDS), rank_shares, max_size=1)),
        base_s=draw(seconds),
        step_s=draw(seconds),
        ramp_bytes=draw(st.floats(0, 1e8)),
        nvls=draw(st.booleans()),
        wrap=draw(st.booleans()),
        wrap_multiple=draw(st.sampled_from((0, 2))),
        share=draw(st.none() | st.floats(0.1, 1)),
        busbw=draw(st.dictionaries(st.sampled_from(KINDS), rank_rates, max_size=2)) if not cards else {},
        scale_loss=draw(st.dictionaries(st.integers(1, 8), st.floats(0.1, 1), max_size=2)),
    )  # fmt: skip


curves = st.builds(
    Curve,
    st.sampled_from(KINDS),
    st.sampled_from((1, 2)),
    st.sampled_from((1, 2, 4)),
    st.lists(st.tuples(st.floats(1, 1e9), st.floats(1e-6, 1)), min_size=2, max_size=5, unique_by=lambda point: point[0])
    .map(lambda points: tuple(sorted(points))),
)  # fmt: skip


@st.composite
def clusters(draw, measured=True):
    depth = draw(st.integers(1, 3))
    stack = tuple(draw(levels(f"level{number}", inner=number == 0)) for number in range(depth))
    sizes = draw(st.lists(st.sampled_from((1, 2, 2, 3, 4)), min_size=1, max_size=3))
    at = sorted(draw(st.lists(st.integers(0, depth - 1), min_size=len(sizes), max_size=len(sizes))), reverse=True)
    mesh = Mesh(tuple(Axis(f"axis{number}", size) for number, size in enumerate(sizes)))
    found = tuple(draw(st.lists(curves, max_size=2))) if measured else ()
    return Cluster("random", DEVICE, stack, mesh, tuple(at), Overlap(), {}, {}, found)


def axis_sets(cluster):
    axes = range(len(cluster.mesh))
    return [c for count in range(1, len(axes) + 1) for c in itertools.combinations(axes, count)]


@given(clusters())
@settings(max_examples=50)
def test_price_rises_is_concave_and_is_nothing_for_one_device(cluster):
    """Every curve rises; by how much from payload to payload may be below what a float can add to its price."""
    model = CollectiveModel(cluster)
    for kind, axes in itertools.product(KINDS, axis_sets(cluster)):
        prices = [model.seconds(kind, axes, payload) for payload in PAYLOADS]
        if cluster.mesh.ways(axes) == 1:
            assert set(prices) == {0.0}
            continue
        assert all(per_byte > 0 or ramp > 0 for _, per_byte, ramp in model.prices(kind, axes))
        assert all(0 < low <= high for low, high in itertools.pairwise(prices))
        for payload, price in zip(PAYLOADS, prices, strict=True):
            middle = model.seconds(kind, axes, 2.5 * payload)
            ends = (price + model.seconds(kind, axes, 4 * payload)) / 2
            assert middle * RELATIVE >= ends
            assert model.seconds(kind, axes, 2 * payload) <= 2 * price * RELATIVE


@given(clusters())
@settings(max_examples=50)
def test_a_reduction_is_between_its_halves_and_their_sum(cluster):
    model = CollectiveModel(cluster)
    for axes, payload in itertools.product(axis_sets(cluster), PAYLOADS):
        gather, scatter, reduce = (model.seconds(kind, axes, payload) for kind in KINDS[:3])
        assert max(gather, scatter) <= reduce * RELATIVE
        assert reduce <= (gather + scatter) * RELATIVE


@given(clusters())
@settings(max_examples=50)
def test_exchanges_cost_at_most_a_gather_of_everything(cluster):
    model = CollectiveModel(cluster)
    for axes, payload in itertools.product(axis_sets(cluster), PAYLOADS):
        everything = model.seconds("all_gather", axes, cluster.mesh.ways(axes) * payload)
        assert model.seconds("all_to_all", axes, payload) <= everything * RELATIVE
        assert model.seconds("permute", axes, payload) <= everything * RELATIVE


@given(clusters())
@settings(max_examples=50)
def test_one_collective_over_several_axes_costs_at_most_one_over_each(cluster):
    model = CollectiveModel(cluster)
    for axes in axis_sets(cluster):
        for order, payload in itertools.product(itertools.permutations(axes), PAYLOADS[::2]):
            growing, whole = 0.0, {"all_reduce": 0.0, "all_to_all": 0.0}
            scattering, size = 0.0, payload
            for axis in order:
                growing += model.seconds("all_gather", (axis,), size)
                scattering += model.seconds("reduce_scatter", (axis,), size)
                size /= cluster.mesh.shape[axis]
                for kind in whole:
                    whole[kind] += model.seconds(kind, (axis,), payload)
            assert model.seconds("all_gather", axes, payload) <= growing * RELATIVE
            assert model.seconds("reduce_scatter", axes, payload) <= scattering * RELATIVE
            for kind, total in whole.items():
                assert model.seconds(kind, axes, payload) <= total * RELATIVE


@given(clusters())
@settings(max_examples=50)
def test_groups_of_equal_size_never_gain_by_spanning_more_machines(cluster):
    model = CollectiveModel(cluster)

    def spans(axes):
        sizes = [
            math.prod(cluster.mesh.shape[axis] for axis in axes if cluster.axis_levels[axis] >= level)
            for level in range(1, len(cluster.levels))
        ]
        return cluster.mesh.ways(axes), sizes

    for near, far in itertools.permutations(axis_sets(cluster), 2):
        (near_size, near_spans), (far_size, far_spans) = spans(near), spans(far)
        farther = near_spans != far_spans and all(a <= b for a, b in zip(near_spans, far_spans, strict=True))
        if near_size == far_size and farther:
            for kind, payload in itertools.product(KINDS, PAYLOADS[::2]):
                assert model.seconds(kind, near, payload) <= model.seconds(kind, far, payload) * RELATIVE


@given(clusters(measured=False))
@settings(max_examples=50)
def test_twice_the_bandwidth_is_never_slower(cluster):
    def doubled(level):
        return replace(
            level,
            link_bytes_per_s=2 * level.link_bytes_per_s,
            pair_bytes_per_s=2 * level.pair_bytes_per_s,
            node_bytes_per_s=2 * level.node_bytes_per_s,
            busbw={kind: {ranks: 2 * rate for ranks, rate in table.items()} for kind, table in level.busbw.items()},
        )

    slow, fast = CollectiveModel(cluster), CollectiveModel(replace(cluster, levels=tuple(map(doubled, cluster.levels))))
    for kind, axes, payload in itertools.product(KINDS, axis_sets(cluster), PAYLOADS[::2]):
        assert fast.seconds(kind, axes, payload) <= slow.seconds(kind, axes, payload) * RELATIVE


@given(clusters())
@settings(max_examples=25)
def test_many_payloads_at_once_are_priced_as_one_by_one(cluster):
    model = CollectiveModel(cluster)
    payloads = np.array([[0.0, *PAYLOADS[:3]], [*PAYLOADS[3:], 0.0]])
    for kind, axes in itertools.product((*KINDS, "slice", "mask"), axis_sets(cluster)):
        singly = [[model.seconds(kind, axes, payload) for payload in row] for row in payloads.tolist()]
        np.testing.assert_allclose(model.seconds_array(kind, axes, payloads), singly, rtol=1e-12)


@given(clusters(), st.data())
@settings(max_examples=25)
def test_neither_the_order_of_axes_nor_of_questions_matters(cluster, data):
    questions = list(itertools.product(KINDS, axis_sets(cluster)))
    forwards, shuffled = CollectiveModel(cluster), CollectiveModel(cluster)
    first = {question: forwards.prices(*question) for question in questions}
    for kind, axes in data.draw(st.permutations(questions)):
        assert shuffled.prices(kind, tuple(reversed(axes))) == first[kind, axes]
