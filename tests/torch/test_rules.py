"""Every function that has a rule gives what plain torch gives, forward and backward, however operands are sharded."""

import pytest

pytest.importorskip("torch")

from forced_plans import forced_plan
from tiny_models import Sizes, tiny_gpt
from torch_rules import CASES


@pytest.fixture(scope="module")
def tiny():
    return tiny_gpt(Sizes(layers=1))


@pytest.fixture(scope="module")
def plan(tiny, tmp_path_factory):
    return forced_plan(tiny.model(tmp_path_factory.mktemp("plan")), "2x2", recipe="Megatron")


@pytest.mark.parametrize("name", CASES)
def test_function(four, tiny, plan, name):
    for wrong in four.run("torch_rules", "compare", tiny, plan, [name]):
        assert wrong == {}


LOST = {
    "unread": ("Kept", "it is given what another one has returned, and does not read it"),
    "changed": ("Exp", "its argument is changed in place before its result is read"),
    "reentrant": ("CheckpointFunction", "it brings weights gradients that it is not given"),
}
HINT = "compute it with torch's own functions; torch.utils.checkpoint takes use_reentrant=False"


@pytest.mark.parametrize("what", LOST)
def test_gradients_are_not_lost_in_silence(four, tiny, plan, what):
    name, why = LOST[what]
    said = f"error[lost-gradient]: '{name}' is an autograd.Function, whose backward would be lost: {why}\nhint: {HINT}"
    assert four.run("torch_rules", "lost", tiny, plan, what) == [said] * 4
