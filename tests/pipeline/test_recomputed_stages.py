"""Stages of a pipeline choose what to recompute, each for itself."""

import json

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.errors import InfeasibleError
from shardplan.graph.options import UNLIMITED_BYTES, PlanOptions
from shardplan.models import transformer
from shardplan.pipeline.plan import plan_stages
from shardplan.pipeline.schedule import parse_schedule
from shardplan.plan.format.decode import loads
from shardplan.plan.format.encode import dumps

GPT = {"style": "gpt", "layers": 2, "hidden": 256, "heads": 8, "vocab": 512, "seq": 256, "batch": 16}


def planned(mesh, remat, limit=UNLIMITED_BYTES, layers=2, on_warning=None):
    model = transformer(**{**GPT, "layers": layers}, attention="decomposed")
    cluster = make_cluster(load_profile("h100-dgx"), mesh)
    options = PlanOptions(effort="quick", microbatches=4, remat=remat, memory_limit_bytes=limit)
    return plan_stages(model, cluster, options, parse_schedule("1f1b"), 2, on_warning)


def test_stages_recompute_what_they_need_to():
    """On one device each, where recomputation is all that makes room."""
    limit = int(0.9 * planned("1x2", "none").summary.memory.total)
    auto = planned("1x2", "auto", limit)
    again = [
        operator for stage in auto.pipeline.stages for operator in stage.plan.operators if operator.recomputed_before
    ]
    assert again
    assert auto.summary.memory.total <= limit
    for flag in ("none", "full"):
        try:
            assert auto.summary.step_ns <= planned("1x2", flag, limit).summary.step_ns
        except InfeasibleError:
            continue
    text = dumps(auto)
    assert dumps(loads(text)) == text


def test_stages_whose_gradients_are_reduced_beside_compute_say_so():
    text = dumps(planned("1x4", "auto"))
    stages = [stage["plan"]["format_version"] for stage in json.loads(text)["pipeline"]["stages"]]
    assert "1.4" in stages
    assert dumps(loads(text)) == text


def test_stages_without_blocks_are_said_to_recompute_nothing():
    """Of two layers each stage has one, which still is a block; of one layer there is none anywhere."""
    heard = []
    planned("1x2", "full", on_warning=heard.append)
    assert heard == []
    planned("1x2", "full", layers=1, on_warning=heard.append)
    assert [one.summary for one in heard] == [
        "nothing is recomputed: 'full' is of repeated blocks, and the model has none"
    ]
