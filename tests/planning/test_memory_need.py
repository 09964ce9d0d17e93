"""What fills the memory of a device: `shardplan.planning.memory_need`."""

import numpy as np
import pytest

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.graph.build import build_cost_graph
from shardplan.graph.memory import MemoryRows
from shardplan.graph.options import PlanOptions
from shardplan.planning import memory_need
from shardplan.planning.memory_need import need_of
from shardplan.rules import model_rules
from shardplan.study.instance import load_model


@pytest.mark.parametrize("seed", range(4))
def test_all_holders_together_take_the_peak(seed, monkeypatch):
    monkeypatch.setattr(memory_need, "_SHOWN", 10**6)
    model = load_model(
        "transformer:llama3-8b,layers=2,batch=4,seq=32,vocab=256,hidden=64,heads=4,kv_heads=4,ffn=128", {}
    )
    cluster = make_cluster(load_profile("generic"), "2x2")
    built = build_cost_graph(model, model_rules(model), cluster, PlanOptions(mode="training"))
    draw = np.random.default_rng(seed)
    choice = {node: int(draw.integers(len(data["space"]))) for node, data in built.node_data}
    need = need_of(MemoryRows(built), choice)
    assert sum(holder.size_bytes for holder in need.largest) == need.memory.total
