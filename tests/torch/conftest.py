"""Ranks that all tests of a run share: started once, when first needed."""

import pytest
from torch_ranks import Ranks

MODULES = (
    "torch_cases",
    "torch.export._trace",
    "torch._dynamo.backends.common",
    "torch._inductor.compile_fx",
    "networkx",
)
"""What ranks have imported when they are forked: what they run, and what torch imports when a model is first exported
or compiled."""


@pytest.fixture(scope="session")
def four(tmp_path_factory):
    ranks = Ranks(4, tmp_path_factory.mktemp("four"), MODULES)
    yield ranks
    ranks.close()
