"""Every function that has a rule gives what plain torch gives, forward and backward, however operands are sharded."""

import pickle

import pytest

pytest.importorskip("torch")

from forced_plans import forced_plan
from tiny_models import Sizes, tiny_gpt
from torch_ranks import Pool, Ranks
from torch_rules import CASES


def saved(folder, mesh):
    """A file with a model and a plan of it, which a rank reads once: to be sent both took most of a case's time."""
    file, tiny = folder / "planned.pickle", tiny_gpt(Sizes(layers=1))
    file.write_bytes(pickle.dumps((tiny, forced_plan(tiny.model(folder), mesh, recipe="Megatron"))))
    return str(file)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    pool = Pool(lambda: Ranks(2, tmp_path_factory.mktemp("two"), ["torch_rules"]))
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("plan"), "2")


@pytest.mark.parametrize("name", CASES)
def test_function(two, planned, name):
    """Rules take the axes of a mesh one by one, all alike."""
    check(two, planned, name)


def check(ranks, planned, name):
    """A function in every layout, on all ranks."""
    for wrong in ranks.run("torch_rules", "compare", planned, [name]):
        assert wrong == {}


@pytest.fixture(scope="module")
def planned_on_two(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("plan"), "2x2")


FEW = ("linear", "matmul", "softmax", "layer_norm", "embedding")
"""Functions that are quickly tried on two axes too."""


@pytest.mark.parametrize("name", [name for name in CASES if name in FEW])
def test_common_functions_on_two_axes(four, planned_on_two, name):
    check(four, planned_on_two, name)


@pytest.mark.parametrize("name", [name for name in CASES if name not in FEW])
def test_function_on_two_axes(four, planned_on_two, name):
    check(four, planned_on_two, name)


LOST = {
    "unread": ("Kept", "it is given what another one has returned, and does not read it"),
    "changed": ("Exp", "its argument is changed in place before its result is read"),
    "reentrant": ("CheckpointFunction", "it brings weights gradients that it is not given"),
}
HINT = "compute it with torch's own functions; torch.utils.checkpoint takes use_reentrant=False"


@pytest.mark.parametrize("what", LOST)
def test_gradients_are_not_lost_in_silence(two, planned, what):
    name, why = LOST[what]
    said = f"error[lost-gradient]: '{name}' is an autograd.Function, whose backward would be lost: {why}\nhint: {HINT}"
    assert two.run("torch_rules", "lost", planned, what) == [said] * 2
