"""Branch and bound over the layouts of single tensors, from the result of a search."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import onnx
import pytest
from small_models import proto_of

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import profile_from_text
from shardplan.graph.options import PlanOptions
from shardplan.model.read import read_model
from shardplan.planning import branch_and_bound, plan_model
from shardplan.planning.answers import Answers
from shardplan.planning.branch_and_bound import Split, branched
from shardplan.planning.instance import Instance, instance_of
from shardplan.planning.questions import of_phases
from shardplan.planning.reduction import Allowed
from shardplan.planning.search import Found, Search
from shardplan.request import Request
from shardplan.solve import solver
from shardplan.study.instance import read

MODEL = "transformer:style=gpt,layers=3,hidden=512,heads=8,vocab=4000,seq=64,batch=16"
PRODUCTS = """m (float[{rows},{width}] x) => (float[{rows},512] y) <float[{width},512] w, float[512,512] v> {{
    a = MatMul(x, w) y = MatMul(a, v)}}"""
PROFILE = "{extends: 'builtin:v100-p3-16xl', overlap: {kappa: 1.0}, coalesce: {bucket_mb: 0}}"


def searched(instance: Instance) -> tuple[Answers, Search, Found]:
    answers = Answers(instance, pytest.fail)
    search = Search.of(instance)
    return answers, search, answers.to(of_phases(search, None), search)


def test_the_bound_rises_and_no_plan_that_was_met_is_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = read(Request(model=MODEL, mesh="2x4"))
    answers, search, found = searched(instance_of(asked.model, asked.cluster, asked.options, pytest.fail))
    monkeypatch.setitem(branch_and_bound.BRANCHES, "thorough", 4)
    monkeypatch.setitem(branch_and_bound.BRANCH_PAIRS, "thorough", 1e12)
    parts: list[Allowed] = []
    bounded = branch_and_bound._bounded

    def recorded(search, found, part):
        parts.append(part.allowed)
        return bounded(search, found, part)

    monkeypatch.setattr(branch_and_bound, "_bounded", recorded)
    proven = answers.to(branched(search, found), search)
    for one, other in zip(parts[::2], parts[1::2], strict=True):
        node = [*one][-1]
        assert {key: one[key] for key in one if key != node} == {key: other[key] for key in other if key != node}
        assert not (one[node] & other[node]).any()
    assert all(
        parts[0][node][choice] or parts[1][node][choice] for node in parts[0] for choice in range(parts[0][node].size)
    )
    assert found.bound_s * 1.01 < proven.bound_s <= proven.candidate.step_s <= found.candidate.step_s
    plan = plan_model(asked.model, asked.cluster, replace(asked.options, effort="quick")).summary
    assert proven.bound_s <= plan.step_ns / 1e9
    assert all(proven.bound_s <= one.step_s for one in search.known.values())


@pytest.mark.parametrize(("rows", "width", "mesh"), [(64, 512, "1x4"), (128, 64, "1x4"), (128, 64, "2")])
def test_the_bound_is_at_most_the_least_sums_of_all_assignments(
    tmp_path, monkeypatch: pytest.MonkeyPatch, rows: int, width: int, mesh: str
) -> None:
    monkeypatch.setattr(solver, "CLOSED_PAIRS", 0)
    monkeypatch.setattr(branch_and_bound, "BRANCH_GAP", -1.0)
    monkeypatch.setitem(branch_and_bound.BRANCHES, "thorough", 50)
    onnx.save(proto_of(PRODUCTS.format(rows=rows, width=width)), tmp_path / "model.onnx")
    cluster = make_cluster(profile_from_text(PROFILE, "small"), mesh)
    answers, search, found = searched(
        instance_of(read_model(tmp_path / "model.onnx"), cluster, PlanOptions(), pytest.fail)
    )
    assert found.whole is not None
    assert len(found.mixture) > 1
    proven = answers.to(branched(search, found), search)
    finite = [np.flatnonzero(np.isfinite(cost)).tolist() for cost in found.whole.problem.costs]
    least = min(found.whole.functions.costs(np.array(some)).min() for some in chunks(product(*finite)))
    assert found.bound_s < proven.bound_s <= least / 1e12 * (1 + 1e-9)


def chunks(assignments):
    held = []
    for one in assignments:
        held.append(one)
        if len(held) == 10_000:
            yield held
            held = []
    if held:
        yield held


def test_halves_share_no_choice_and_leave_none_out() -> None:
    before = np.array([True, True, False, True])
    split = Split(("kept", "x"), np.array([True, False, True, False]))
    first, second = (half["kept", "x"] for half in split.of({("kept", "x"): before}))
    assert ((first | second) == before).all()
    assert not (first & second).any()
    assert len(list(split.of({("kept", "x"): split.mask}))) == 1
