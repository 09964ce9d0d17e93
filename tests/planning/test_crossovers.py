"""Plans between those of the best multipliers, and sums that the best plan shows to be missing."""

from itertools import pairwise

import onnx
import pytest
from small_models import proto_of

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.model.read import read_model
from shardplan.models import described
from shardplan.planning import PlanOptions, branch_and_bound, candidates, crossovers, plan_model, recombinations

WIDTHS = (2048, 2048, 2048, 2048, 8192, 8192, 8192)


def test_stretches_of_other_assignments_shorten_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    model = described("transformer:style=bert,layers=4,hidden=1024,heads=16,vocab=30522,seq=128,batch=64")
    cluster = make_cluster(load_profile("h100-dgx"), "2x4")
    monkeypatch.setitem(branch_and_bound.BRANCHES, "thorough", 0)
    monkeypatch.setattr(recombinations, "RECOMBINED_GAP", 1.0)
    found = plan_model(model, cluster, PlanOptions()).summary
    monkeypatch.setattr(crossovers, "STRETCHES_GAP", 1.0)
    without = plan_model(model, cluster, PlanOptions()).summary
    assert found.step_ns < 0.995 * without.step_ns


def test_sums_that_the_best_plan_lacks_raise_the_bound(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large weights at the end: their gradients come first in backward and hide, but the first assignment, with equal
    layers, does not show that those of the small ones do not."""
    monkeypatch.setitem(branch_and_bound.BRANCHES, "thorough", 0)
    weights = ", ".join(f"float[{a},{b}] w{i}" for i, (a, b) in enumerate(pairwise(WIDTHS)))
    layers = " ".join(f"h{i} = MatMul(r{i}, w{i}) r{i + 1} = Relu(h{i})" for i in range(len(WIDTHS) - 1))
    text = f"m (float[1024,2048] r0) => (float[1024,8192] y) <{weights}> {{ {layers} y = Relu(r{len(WIDTHS) - 1}) }}"
    onnx.save(proto_of(text), tmp_path / "mlp.onnx")
    model, cluster = read_model(tmp_path / "mlp.onnx"), make_cluster(load_profile("h100-dgx"), "2x4")
    found = plan_model(model, cluster, PlanOptions()).summary
    monkeypatch.setattr(candidates, "MISSING_ROUNDS", 0)
    without = plan_model(model, cluster, PlanOptions()).summary
    assert found.step_ns <= without.step_ns
    assert without.step_bound_ns * 1.01 < found.step_bound_ns <= found.step_ns
