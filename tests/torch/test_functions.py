"""Every function that has a rule gives what plain torch gives, forward and backward, however operands are sharded."""

import pytest

pytest.importorskip("torch")

from forced_plans import forced_plan
from tiny_models import tiny_gpt
from torch_functions import CASES


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return forced_plan(tiny_gpt().model(tmp_path_factory.mktemp("plan")), "2x2", recipe="Megatron")


@pytest.mark.parametrize("name", CASES)
def test_function(four, plan, name):
    for wrong in four.run("torch_functions", "compare", tiny_gpt(), plan, [name]):
        assert wrong == {}
