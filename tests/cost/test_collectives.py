"""Prices of collectives: by hand on the round profile, and against published measurements on the shipped ones."""

import time
from dataclasses import replace

import numpy as np
import pytest

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.cluster.types import Curve
from shardplan.cost.collectives import CollectiveModel

GIB = 2**30


def model(profile, mesh):
    return CollectiveModel(make_cluster(load_profile(profile), mesh))


def bus_gbps(profile, mesh, kind, axes, payload):
    """Bus bandwidth as nccl-tests reports it."""
    priced = model(profile, mesh)
    ways = priced.cluster.mesh.ways(axes)
    wire = (2 if kind == "all_reduce" else 1) * (ways - 1) / ways
    return wire * payload / priced.seconds(kind, axes, payload) / 1e9


MB = 1e6


@pytest.mark.parametrize(
    ("kind", "axes", "payload", "microseconds"),
    [
        # within a machine 10 us and 100 GB/s, between machines 20 us and 10 GB/s for each device
        ("all_gather", (1,), 100 * MB, 10 + 750),
        ("reduce_scatter", (1,), 100 * MB, 10 + 750),
        ("all_reduce", (1,), 100 * MB, 10 + 1500),
        ("all_to_all", (1,), 100 * MB, 10 + 750),
        ("permute", (1,), 100 * MB, 10 + 1000),
        ("all_gather", (0,), 100 * MB, 20 + 7500),
        ("all_reduce", (0,), 100 * MB, 20 + 15000),
        ("all_to_all", (0,), 100 * MB, 20 + 7500),
        ("permute", (0,), 100 * MB, 20 + 10000),
        # all 16: the four devices of a machine pool their cards
        ("all_gather", (0, 1), 160 * MB, 20 + 150 * MB / 40e9 * 1e6),
        ("all_reduce", (1, 0), 160 * MB, 20 + 300 * MB / 40e9 * 1e6),
        # direct exchange: 12 of 16 parts leave the machine, over one's own card
        ("all_to_all", (0, 1), 160 * MB, 20 + 120 * MB / 10e9 * 1e6),
        ("permute", (0, 1), 100 * MB, 20 + 10000),
        ("slice", (0, 1), 160 * MB, 0),
        ("mask", (0,), 160 * MB, 0),
        ("all_reduce", (1,), 0, 0),
        ("all_reduce", (), 160 * MB, 0),
    ],
)
def test_round_numbers_by_hand(kind, axes, payload, microseconds):
    assert model("generic", "4x4").seconds(kind, axes, payload) * 1e6 == pytest.approx(microseconds, rel=1e-12)


def test_an_axis_of_one_device_costs_nothing_and_changes_nothing():
    thin, flat = model("h100-dgx", "1x4x2"), model("h100-dgx", "4x2")
    assert thin.seconds("all_reduce", (0,), 1e9) == 0
    assert thin.seconds("all_gather", (0, 2), 1e9) == thin.seconds("all_gather", (2,), 1e9)
    assert flat.seconds("all_gather", (1,), 1e9) == pytest.approx(thin.seconds("all_gather", (2,), 1e9))


def test_groups_share_the_cards_of_a_machine():
    """The slow-network example: V100 machines with 25 Gb/s, 64 MB per device, 4x4."""
    payload, eta = 64 * MB, 0.96
    priced = model("v100-p3-16xl", "4x4")
    outer, inner = (inverse_bandwidth(priced, "all_reduce", (axis,)) * payload for axis in (0, 1))
    assert outer == pytest.approx(2 * 0.75 * payload / (eta * 3.125e9 / 4))
    assert inner == pytest.approx(2 * 0.75 * payload / 75e9)
    fused = priced.seconds("all_reduce", (0, 1), payload)
    stages = 2 * priced.seconds("all_gather", (1,), payload) + priced.seconds("all_reduce", (0,), payload / 4)
    assert fused <= stages < outer


@pytest.mark.parametrize(
    ("profile", "mesh", "kind", "axes", "payload", "published", "tolerance"),
    [
        ("h100-dgx", "8x8", "all_gather", (0,), 16e9, 48, 0.10),
        ("h100-dgx", "8x4x2", "all_gather", (0, 2), 16e9, 96, 0.10),
        ("h100-dgx", "8x2x4", "all_gather", (0, 2), 16e9, 192, 0.10),
        ("h100-dgx", "8x8", "all_gather", (0, 1), 16e9, 334, 0.10),
        ("h100-dgx", "4x8", "all_reduce", (0, 1), 8 * GIB, 366, 0.15),
        ("b200-dgx", "4x8", "all_reduce", (0, 1), 4 * GIB, 377, 0.15),
        ("b200-dgx", "4x8", "all_reduce", (0, 1), 16 * GIB, 382, 0.15),
        ("gb200-nvl72", "18x4", "all_reduce", (0, 1), 8 * GIB, 835, 0.15),
        ("gb200-nvl72", "2x18x4", "all_reduce", (0, 1, 2), 8 * GIB, 793, 0.15),
        ("mi300x-8", "2", "all_reduce", (0,), 4 * GIB, 47.7, 0.10),
        ("mi300x-8", "8", "all_reduce", (0,), 4 * GIB, 312.9, 0.10),
        ("a100-p4d", "2x8", "all_reduce", (0, 1), 1 * GIB, 57, 0.20),
        ("a100-dgx", "8", "all_reduce", (0,), 16 * GIB, 235, 0.10),
        ("h200-dgx", "8", "all_reduce", (0,), 16 * GIB, 482, 0.10),
        ("h200-dgx", "8", "all_gather", (0,), 16 * GIB, 361, 0.10),
        ("b200-dgx", "8", "all_reduce", (0,), 16 * GIB, 846, 0.10),
    ],
)
def test_published_bandwidths(profile, mesh, kind, axes, payload, published, tolerance):
    assert bus_gbps(profile, mesh, kind, axes, payload) == pytest.approx(published, rel=tolerance)


# bus bandwidth, GB/s, of 512 MiB with 2, 4 and 8 devices: all-reduce, all-gather, reduce-scatter, all-to-all
SINGLE_MACHINE = {
    "a100-dgx": ((193, 217, 222), (150, 192, 205), (167, 203, 213), (164, 195, 203)),
    "h100-dgx": ((318, 350, 445), (259, 318, 335), (249, 310, 336), (280, 288, 315)),
    "h200-dgx": ((315, 348, 461), (258, 317, 337), (248, 311, 337), (298, 319, 311)),
    "b200-dgx": ((534, 634, 704), (438, 567, 617), (412, 553, 613), (331, 488, 563)),
}


@pytest.mark.parametrize("profile", sorted(SINGLE_MACHINE))
def test_measured_bandwidths_within_a_machine(profile):
    kinds = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    for kind, published in zip(kinds, SINGLE_MACHINE[profile], strict=True):
        found = [bus_gbps(profile, str(devices), kind, (0,), GIB // 2) for devices in (2, 4, 8)]
        assert found == pytest.approx(published, rel=0.13)


@pytest.mark.parametrize(
    ("profile", "gather", "reduce"),
    [("a100-dgx", (9.0, 10.8, 15.6), (10, 14.5, 22.6)), ("h100-dgx", (5.3, 7.1, 10.1), (6.2, 9.5, 15.6)),
     ("b200-dgx", (8.8, 11.2, 16.1), (10.3, 15.1, 25.1))],
)  # fmt: skip
def test_measured_latencies(profile, gather, reduce):
    for devices, *published in zip((2, 4, 8), gather, reduce, strict=True):
        priced = model(profile, str(devices))
        found = [priced.prices(kind, (0,))[0][0] * 1e6 for kind in ("all_gather", "all_reduce")]
        assert found == pytest.approx(published, rel=0.08)


def inverse_bandwidth(priced, kind, axes):
    """Seconds per byte of very large payloads."""
    return min(b for _, b, _ in priced.prices(kind, axes))


def test_small_reductions_between_machines_go_over_a_tree():
    priced = model("h100-dgx", "8x8")
    latency = min(a for a, _, _ in priced.prices("all_reduce", (0, 1))) * 1e6
    assert latency == pytest.approx(4.5 + 2 * (7 * 0.8 + 3 * 10))


def test_a_group_with_a_part_of_the_cards_ramps_up_on_that_part():
    for mesh, ramp in (("8x1", 30e6), ("8x8", 30e6 / 8)):
        _, inverse, root = model("h100-dgx", mesh).prices("permute", (0,))[0]
        assert (root / inverse) ** 2 == pytest.approx(ramp)


def test_a_ring_of_a_torus_has_two_ways_round():
    whole, part = model("tpu-v5e", "16x16"), model("tpu-v5e", "16x8")
    assert inverse_bandwidth(whole, "all_gather", (1,)) == pytest.approx(15 / 16 / 90e9)
    assert inverse_bandwidth(part, "all_gather", (1,)) == pytest.approx(7 / 8 / 45e9)
    assert inverse_bandwidth(whole, "all_gather", (0, 1)) == pytest.approx(255 / 256 / 180e9)
    assert inverse_bandwidth(whole, "all_to_all", (1,)) == pytest.approx(16 / 4 / 90e9)
    assert inverse_bandwidth(model("tpu-v4", "4x4x4"), "all_gather", (2,)) == pytest.approx(3 / 4 / 90e9)


def test_interleaved_lines_of_a_torus_share_their_links():
    priced = model("tpu-v5e", "2x2x4x4")
    cluster = priced.cluster
    assert [cluster.levels[level].name for level in cluster.axis_levels] == ["dcn", "ici_y", "ici_x", "ici_x"]
    minor, major = (inverse_bandwidth(priced, "all_gather", (axis,)) for axis in (3, 2))
    assert minor == pytest.approx(3 / 4 / 45e9)
    assert major == pytest.approx(4 * minor)


def test_a_measured_curve_beats_the_formula():
    points = ((1e3, 1e-5), (1e6, 2e-5), (1e9, 3.5e-3))
    cluster = make_cluster(load_profile("h100-dgx"), "8")
    measured = replace(cluster, curves=(Curve("all_reduce", 1, 8, points), Curve("all_gather", 2, 8, points)))
    plain, priced = CollectiveModel(cluster), CollectiveModel(measured)
    for payload, seconds in points:
        assert priced.seconds("all_reduce", (0,), payload) == pytest.approx(seconds)
    assert priced.seconds("all_to_all", (0,), 1e6) == plain.seconds("all_to_all", (0,), 1e6)


def test_many_payloads_are_priced_fast():
    priced = model("h100-dgx", "4x2x4")
    payloads = np.geomspace(1, 1e10, 100_000)
    priced.seconds_array("all_reduce", (0, 1, 2), payloads)
    start = time.process_time()
    priced.seconds_array("all_reduce", (0, 1, 2), payloads)
    assert time.process_time() - start < 0.05
