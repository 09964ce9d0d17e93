"""Python's garbage collector during a search, and after it."""

import gc

import pytest

from shardplan.garbage import FEW_COLLECTIONS, few_collections


@pytest.fixture(autouse=True)
def thresholds():
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize(
    ("own", "meanwhile"),
    [((700, 10, 10), FEW_COLLECTIONS), ((0, 10, 10), (0, 10, 10)), ((10**6, 60, 60), (10**6, 60, 60))],
)
def test_the_caller_gets_its_thresholds_back(own, meanwhile):
    """One that is off stays off, and one that runs still less often is left alone."""
    gc.set_threshold(*own)
    with few_collections():
        assert gc.get_threshold() == meanwhile
    assert gc.get_threshold() == own
