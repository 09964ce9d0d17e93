"""Ranks that all tests of a run share: started once, when first needed."""

import pytest
from torch_ranks import Ranks


@pytest.fixture(scope="session")
def four(tmp_path_factory):
    ranks = Ranks(4, tmp_path_factory.mktemp("four"))
    yield ranks
    ranks.close()
