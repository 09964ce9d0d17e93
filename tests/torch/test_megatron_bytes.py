"""The published byte counts of a GPT's forward pass under Megatron's plan; on four processes seen as they are sent.

Those of sixteen processes, which take long to start: `python benchmarks/megatron_bytes.py`.
"""

import pytest

pytest.importorskip("torch")

import pathlib
import tempfile

from forced_plans import cluster_of
from tiny_models import megatron, tiny_gpt

from shardplan.constraints.parse import parse_constraints
from shardplan.planning import PlanOptions, plan_model
from shardplan.program.machine.verify import verify_plan
from shardplan.runtime.predicted import predicted_collectives


@pytest.mark.parametrize(("mesh", "wire_bytes"), [("2x2", 20_480), ("1x4", 61_440), ("4x4", 15_360)])
def test_forward_pass_of_a_gpt(four, mesh, wire_bytes):
    tiny = tiny_gpt()
    with tempfile.TemporaryDirectory() as folder:
        model = tiny.model(pathlib.Path(folder))
    options = PlanOptions(constraints=parse_constraints(megatron(tiny), "megatron.yaml"), effort="quick")
    plan = plan_model(model, cluster_of(mesh), options)
    told = [row for row in predicted_collectives(plan) if row.phase == "forward"]
    assert sum(row.wire_bytes * row.count for row in told) == wire_bytes
    assert sum(verify_plan(model, plan).moved_bytes.values()) == wire_bytes * plan.mesh.size
    if plan.mesh.size > 4:
        return
    for error, sent, differences in four.run("torch_cases", "forward", tiny, plan):
        assert error < 1e-5
        assert sent == wire_bytes
        assert differences == {}
