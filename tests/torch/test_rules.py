"""Every function that has a rule gives what plain torch gives, forward and backward, however operands are sharded."""

import pickle

import pytest

pytest.importorskip("torch")

from forced_plans import forced_plan
from tiny_models import Sizes, tiny_gpt
from torch_rules import CASES


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """A file with a model and a plan of it, which a rank reads once: to be sent both took most of a case's time."""
    folder, tiny = tmp_path_factory.mktemp("plan"), tiny_gpt(Sizes(layers=1))
    file = folder / "planned.pickle"
    file.write_bytes(pickle.dumps((tiny, forced_plan(tiny.model(folder), "2x2", recipe="Megatron"))))
    return str(file)


@pytest.mark.parametrize("name", CASES)
def test_function(four, planned, name):
    for wrong in four.run("torch_rules", "compare", planned, [name]):
        assert wrong == {}


LOST = {
    "unread": ("Kept", "it is given what another one has returned, and does not read it"),
    "changed": ("Exp", "its argument is changed in place before its result is read"),
    "reentrant": ("CheckpointFunction", "it brings weights gradients that it is not given"),
}
HINT = "compute it with torch's own functions; torch.utils.checkpoint takes use_reentrant=False"


@pytest.mark.parametrize("what", LOST)
def test_gradients_are_not_lost_in_silence(four, planned, what):
    name, why = LOST[what]
    said = f"error[lost-gradient]: '{name}' is an autograd.Function, whose backward would be lost: {why}\nhint: {HINT}"
    assert four.run("torch_rules", "lost", planned, what) == [said] * 4
