"""Graphs of a few operators under a memory limit: all assignments could be enumerated, so their plans are the best."""

from __future__ import annotations

import onnx
import pytest
from small_models import proto_of

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import profile_from_text
from shardplan.graph.options import PlanOptions
from shardplan.model.read import read_model
from shardplan.planning import plan_model

TWO_RELUS = "m (float[8,512] x) => (float[8,64] y) <float[512,64] w> {a = Relu(x) b = Relu(a) y = MatMul(b, w)}"
GELU = "m (float[8,8] x) => (float[8,8] y) <float[8,8] w> {a = Gelu(x) b = Relu(a) y = MatMul(b, w)}"
MLP = """m (float[32,64] x) => (float[32,64] y) <float[64,256] u, float[256] c, float[256,64] v, float[64] d> {
    h = Gemm(x, u, c) r = Relu(h) y = Gemm(r, v, d)}"""
SMALL_BUCKETS = "{extends: 'builtin:generic', overlap: {kappa: 1.5}, coalesce: {bucket_mb: 0.001}}"
V100 = "{extends: 'builtin:v100-p3-16xl', overlap: {kappa: 1.0}, coalesce: {bucket_mb: 0}}"


def planned(text, folder, profile, mesh, **options):
    path = folder / "model.onnx"
    onnx.save(proto_of(text), path)
    cluster = make_cluster(profile_from_text(profile, "small"), mesh)
    return plan_model(read_model(path), cluster, PlanOptions(**options)).summary


@pytest.mark.parametrize("gap", [0.005, 0.0])
@pytest.mark.parametrize(
    ("text", "profile", "mesh", "limit", "remat", "step_ns"),
    [(TWO_RELUS, SMALL_BUCKETS, "2x1", 452_608, "none", 20_832), (GELU, V100, "1x4", 1_446, "selective", 23_676)],
)
def test_three_operators_have_the_shortest_step_of_all_assignments(
    tmp_path, text, profile, mesh, limit, remat, step_ns, gap
):
    """The steps are the least of all assignments that fit, scheduled one by one."""
    found = planned(text, tmp_path, profile, mesh, memory_limit_bytes=limit, remat=remat, gap=gap)
    assert (found.step_ns, found.memory.total <= limit) == (step_ns, True)
    assert found.outcome == "optimal"


def test_a_tighter_limit_leads_to_no_better_plan(tmp_path):
    """Under the looser limit the sums of other layouts are less, and their schedules are longer."""
    profile = "{extends: 'builtin:generic'}"
    free = planned(MLP, tmp_path, profile, "2x2")
    limits = (free.memory.total * percent // 100 for percent in (90, 75))
    loose, tight = (planned(MLP, tmp_path, profile, "2x2", memory_limit_bytes=limit) for limit in limits)
    assert free.step_ns <= loose.step_ns <= tight.step_ns
