"""Ranks that all tests of this folder share: started once, when first needed."""

import functools
import importlib.util
from pathlib import Path

import pytest
from torch_ranks import Pool, Ranks

MODULES = (
    "torch_cases",
    "torch.export._trace",
    "torch._dynamo.backends.common",
    "torch._inductor.compile_fx",
    "networkx",
)
"""What ranks have imported when they are forked: what they run, and what torch imports when a model is first exported
or compiled."""

FOLDER = Path(__file__).parent
POOLS = pytest.StashKey[Pool]()


@pytest.fixture(scope="session")
def four(request, tmp_path_factory):
    pool = Pool(lambda: Ranks(4, tmp_path_factory.mktemp("four"), MODULES))
    request.config.stash[POOLS] = pool
    yield pool
    pool.close()


@pytest.fixture(scope="session", autouse=True)
def torchlib():
    """Torch's ONNX forms of its operators, read once: torch does so at every export, which takes it longer than to
    write a small module."""
    if not all(map(importlib.util.find_spec, ("torch", "onnxscript"))):
        yield
        return
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    read = functools.cache(ONNXRegistry.from_torchlib)

    @staticmethod
    def copied(*args, **options):
        first, own = read(*args, **options), ONNXRegistry()
        own._opset_version = first.opset_version
        own.functions = {target: list(forms) for target, forms in first.functions.items()}
        return own

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", copied)
        yield


def pytest_runtest_teardown(item, nextitem):
    """Behind the last of these tests the ranks end. Each group of a rank that waits looks a hundred times a second
    whether there is something to do: all of them took a sixth of a core for as long as other tests ran."""
    if (nextitem is None or FOLDER not in nextitem.path.parents) and POOLS in item.config.stash:
        item.config.stash[POOLS].close()
