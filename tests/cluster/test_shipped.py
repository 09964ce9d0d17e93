"""The shipped profiles: numbers of the data sheets, provenance, and no complaint of our own lints."""

import itertools
import time

import pytest

from shardplan.cluster.lint import DATASHEET
from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import list_profiles, load_profile

# kind, memory GB, HBM GB/s, 16-bit TFLOP/s, link GB/s per device, network Gb/s per machine (or slice)
SYSTEMS = {
    "a100-dgx": ("A100-SXM4-80GB", 80, 2039, 312, 300, 1600),
    "a100-p4d": ("A100-SXM4-40GB", 40, 1555, 312, 300, 400),
    "a10g-g5-48xl": ("A10G", 24, 600, 70, 31, 100),
    "b200-dgx": ("B200-SXM6-180GB", 180, 8000, 2250, 900, 3200),
    "b300-dgx": ("B300-SXM6-288GB", 288, 8000, 2250, 900, 6400),
    "gb200-nvl72": ("GB200", 186, 8000, 2500, 900, 28800),
    "gb300-nvl72": ("GB300", 288, 8000, 2500, 900, 57600),
    "gh200-4": ("GH200-96GB", 96, 4000, 989, 450, 800),
    "generic": ("generic", 80, 1000, 100, 100, 640),
    "h100-dgx": ("H100-SXM5-80GB", 80, 3350, 989, 450, 3200),
    "h200-dgx": ("H200-SXM5-141GB", 141, 4800, 989, 450, 3200),
    "l4-g6-48xl": ("L4", 24, 300, 121, 31, 100),
    "l40s-g6e-48xl": ("L40S", 48, 864, 362, 31, 400),
    "mi300x-8": ("MI300X", 192, 5300, 1307, 448, 3200),
    "mi325x-8": ("MI325X", 256, 6000, 1307, 448, 3200),
    "mi355x-8": ("MI355X", 288, 8000, 2516, 537.6, 3200),
    "tpu-v4": ("TPU v4", 34.359738368, 1200, 275, 50, 204800),
    "tpu-v5e": ("TPU v5e", 16, 819, 197, 50, 6400),
    "tpu-v5p": ("TPU v5p", 95, 2765, 459, 100, 307200),
    "tpu-v6e": ("TPU v6e", 32, 1640, 918, 100, 6400),
    "trn2-16": ("Trainium2", 96, 2900, 667, 128, 3200),
    "v100-p3-16xl": ("V100-SXM2-16GB", 16, 900, 125, 150, 25),
}
ESTIMATED = {"v100-p3-16xl", "a10g-g5-48xl", "l4-g6-48xl", "l40s-g6e-48xl", "tpu-v4", "tpu-v5e", "tpu-v5p"}
ESTIMATED |= {"tpu-v6e", "trn2-16", "mi355x-8", "gh200-4"}


def test_these_are_shipped():
    assert list_profiles() == tuple(sorted(SYSTEMS))


@pytest.mark.parametrize("name", sorted(SYSTEMS))
def test_numbers_of_the_data_sheet(name):
    profile = load_profile(name)
    device, up, net = profile.device, profile.levels[0], profile.levels[-1]
    half = device.peak_flops.get("bf16", device.peak_flops.get("fp16"))
    found = (device.memory_bytes / 1e9, device.hbm_bytes_per_s / 1e9, half / 1e12, up.link_bytes_per_s / 1e9)
    assert (profile.name, device.kind) == (name, SYSTEMS[name][0])
    assert (*found, net.node_bytes_per_s * 8 / 1e9) == pytest.approx(SYSTEMS[name][1:])
    if name != "generic":
        assert DATASHEET[device.kind] == (device.memory_bytes, half / 1e12)


@pytest.mark.parametrize("name", sorted(SYSTEMS))
def test_provenance_is_told_and_nothing_looks_wrong(name):
    profile = load_profile(name)
    assert profile.provenance["sources"]
    assert profile.provenance["date"]
    assert [warning.code for warning in profile.warnings] == ["estimated-profile"] * (name in ESTIMATED)
    assert profile.provenance["status"] == ("estimated" if name in ESTIMATED else "datasheet")


@pytest.mark.parametrize("name", sorted(SYSTEMS))
def test_levels_get_slower_outwards_and_memory_is_left(name):
    profile = load_profile(name)
    rates = [level.link_bytes_per_s for level in profile.levels]
    assert all(inner >= outer for inner, outer in itertools.pairwise(rates))
    assert 0 < profile.device.usable_bytes <= profile.device.memory_bytes
    assert make_cluster(profile).mesh.size > 1


def test_a_profile_is_read_fast():
    load_profile("gb200-nvl72")
    start = time.process_time()
    load_profile("h200-dgx")
    assert time.process_time() - start < 0.03
