"""The schedule of a plan keeps the memory limit too, where weights that are gathered for a recomputation stay for its
backward."""

from __future__ import annotations

from dataclasses import replace

import pytest
from slow_plans import GENERIC

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.errors import InfeasibleError, NoneFitsError
from shardplan.graph.options import PlanOptions
from shardplan.models import transformer
from shardplan.planning import plan_model

MODEL = transformer(layers=2, hidden=64, heads=4, ffn=128, vocab=100, seq=16, batch=8)
_SLOW = {
    "name: generic\n": "name: slow\n", "hbm_gbps: 1000": "hbm_gbps: 2", "fp32: 50,": "fp32: 0.05,",
    "bf16: 100,": "bf16: 0.1,", "base_us: 10": "base_us: 0.1", "base_us: 20": "base_us: 0.1",
}  # fmt: skip
"""Compute takes so long that everything but memory is free."""


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    text = GENERIC.read_text()
    for old, new in _SLOW.items():
        assert old in text
        text = text.replace(old, new)
    path = tmp_path_factory.mktemp("slow") / "slow.yaml"
    path.write_text(text)
    return load_profile(str(path))


@pytest.mark.parametrize(("mesh", "remat", "percent"), [("2x4", "full", 90), ("1x4", "full", 80), ("1x4", "full", 75)])
def test_the_schedule_of_a_plan_keeps_the_limit_or_there_is_no_plan(profile, mesh, remat, percent) -> None:
    """The best assignment fits in the first two cases, its schedule does not."""
    cluster, options = make_cluster(profile, mesh), PlanOptions(remat=remat, effort="quick")
    unlimited = plan_model(MODEL, cluster, options).summary.memory.total
    limited = replace(options, memory_limit_bytes=unlimited * percent // 100)
    if percent == 90:
        assert plan_model(MODEL, cluster, limited).summary.memory.total <= limited.memory_limit_bytes
    elif percent == 80:
        with pytest.raises(NoneFitsError) as none:
            plan_model(MODEL, cluster, limited)
        said = none.value.diagnostics[0]
        assert (
            said.summary
            == f"no plan was found for 'transformer' on 'slow' ({cluster.mesh}) whose schedule fits in memory"
        )
        assert said.detail.endswith(" may be used; whether one fits is not proven")
        assert said.hint.startswith("more --microbatches, --remat auto, ")
    else:
        with pytest.raises(InfeasibleError) as none:
            plan_model(MODEL, cluster, limited)
        assert none.value.exit_code == 3
