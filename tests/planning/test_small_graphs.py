"""Graphs of a few operators under a memory limit: all assignments could be enumerated, so their plans are the best."""

from __future__ import annotations

import onnx
import pytest
from small_models import proto_of

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile, profile_from_text
from shardplan.graph.options import PlanOptions
from shardplan.model.read import read_model
from shardplan.models import described
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


@pytest.mark.parametrize("effort", ["quick", "thorough"])
@pytest.mark.parametrize("mesh", ["2", "2x2"])
def test_devices_that_all_do_everything_are_a_candidate(mesh, effort):
    """Where latencies rule: the sums say that some gradients cost next to nothing."""
    model = described("transformer:layers=1,hidden=64,heads=2,ffn=256,vocab=256,batch=2,seq=128")

    def step_ns(mesh):
        cluster = make_cluster(load_profile("generic"), mesh)
        return plan_model(model, cluster, PlanOptions(effort=effort)).summary.step_ns

    assert step_ns(mesh) <= step_ns("1")


GATED = """m (float[6,4,64] x) => (float[6,4,10] y)
    <float[64,128] u, float[128] a, float[128,64] v, float[64] b, float[64,10] w, float[10] c> {
    t = Tanh(x) h = MatMul(x, u) i = Add(h, a) j = Tanh(i) k = MatMul(j, v) l = Add(k, b) m = Add(x, l) n = Mul(t, m)
    o = MatMul(n, w) y = Add(o, c)}"""
SLOW_LINKS = """{extends: 'builtin:generic', overlap: {kappa: 1.5}, coalesce: {bucket_mb: 0.01},
    device: {peak_tflops: {fp32: 50, tf32: 50, fp16: 50, bf16: 50}, hbm_gbps: 500, launch_us: 0},
    levels: {up: {link_gbps: 1, base_us: 10, ramp_mb: 0}, net: {node_gbit: 8.0, base_us: 20, step_us: 0}}}"""


def test_less_effort_under_a_tighter_limit_leads_to_no_better_plan(tmp_path):
    loose, tight = (
        planned(GATED, tmp_path, SLOW_LINKS, "2x4", mode="inference", memory_limit_bytes=limit, effort=effort).step_ns
        for limit, effort in ((97_725, "thorough"), (76_008, "quick"))
    )
    assert loose <= tight
