"""Slapo's auto-sharding, with its prices on our graph and our solver.

Source: awslabs/slapo pull request 96 (branch autoshard): an MLP x [8, 1024, 1024] -> 4096 -> 1024 whose costs drop the
leading dim, on p devices; the input and the result are whole everywhere. Slapo's solver visits five of the nine ways to
split the two products; all are priced here, and the optimum is proven.
"""

import functools

import pytest
from peer_mlp import Solved, mlp

from shardplan.graph.pricing import Pricing
from shardplan.layout.placement import R

COLUMN, CONTRACT, ROW = "n", "k", "m"
"""The three ways to split a product, which Slapo writes RRxRS, RSxSR and SRxRR."""


def slapo(devices: int, *pins: str, split_penalty: float = 0.0, **options) -> Solved:
    pricing = functools.partial(Pricing.slapo, split_penalty=split_penalty)
    return Solved(devices, pricing, "x=replicate", "y=replicate", *pins, **options)


def test_the_optimum_splits_the_rows():
    """RR -> SR before fc1 is free, SR -> RR after fc2 gathers the result."""
    found = slapo(8)
    assert found.cost == 131072
    assert found.splits() == {"fc1": ROW, "gelu": found.splits()["gelu"], "fc2": ROW}
    assert found.built.kept["x"].layout(found.choice["kept", "x"]).placements == (R, R)


@pytest.mark.parametrize(
    ("first", "second", "published"),
    [
        (COLUMN, COLUMN, 655360),
        (COLUMN, CONTRACT, 1048576),
        (COLUMN, ROW, 589824),
        (CONTRACT, COLUMN, 4325376),
        (CONTRACT, CONTRACT, 5242880),
        (CONTRACT, ROW, 4325376),
        (ROW, COLUMN, 655360),
        (ROW, CONTRACT, 1507328),
        (ROW, ROW, 131072),
    ],
)
def test_the_nine_assignments(first, second, published):
    """Five of them are the iterations that Slapo printed; the others follow from its tables."""
    assert slapo(8, f"fc1={{machine: {first}}}", f"fc2={{machine: {second}}}").cost == published


@pytest.mark.parametrize(("devices", "published"), [(2, 524288), (4, 262144), (8, 131072), (16, 65536)])
def test_more_devices(devices, published):
    assert slapo(devices).cost == published


@pytest.mark.parametrize(("sequence", "published"), [(512, 524289), (1024, 1048577)])
def test_the_final_version_counts_every_element_and_one_for_the_split(sequence, published):
    """Batch 8, hidden 1024 on 8 devices; rows of all sequences together, as only whole sequences' rows are split."""
    assert slapo(8, model=mlp(rows=8 * sequence), split_penalty=1.0).cost == published
