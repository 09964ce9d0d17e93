"""Stages of a pipeline choose what to recompute, each for itself."""

import json

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.errors import InfeasibleError
from shardplan.graph.options import PlanOptions
from shardplan.models import transformer
from shardplan.pipeline.plan import plan_stages
from shardplan.pipeline.schedule import parse_schedule
from shardplan.plan.decode import loads
from shardplan.plan.encode import dumps

GPT = {"style": "gpt", "layers": 2, "hidden": 256, "heads": 8, "vocab": 512, "seq": 256, "batch": 16}


def test_stages_recompute_what_they_need_to():
    model = transformer(**GPT, attention="decomposed")
    cluster = make_cluster(load_profile("h100-dgx"), "1x4")

    def planned(remat, limit=1 << 60):
        options = PlanOptions(microbatches=4, remat=remat, memory_limit_bytes=limit)
        return plan_stages(model, cluster, options, parse_schedule("1f1b"), 2)

    free = planned("none")
    limit = int(0.85 * free.summary.memory.total)
    auto = planned("auto", limit)
    again = [operator for stage in auto.pipeline.stages for operator in stage.plan.operators if operator.again]
    assert again
    assert auto.summary.memory.total <= limit
    for flag in ("none", "full"):
        try:
            assert auto.summary.step_ns <= planned(flag, limit).summary.step_ns
        except InfeasibleError:
            continue
    text = dumps(auto)
    stages = [stage["plan"]["format_version"] for stage in json.loads(text)["pipeline"]["stages"]]
    assert "1.4" in stages  # gradients are reduced beside compute
    assert dumps(loads(text)) == text
