"""Deep models: the plan of a model with fewer copies of its blocks is a plan of the whole model."""

from dataclasses import replace

import numpy as np
import pytest

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.constraints.parse import parse_pin
from shardplan.model.digest import structure_digest
from shardplan.model.shallow import shallow
from shardplan.models import described
from shardplan.planning import Planner, PlanOptions, plan_model, planner, shallower
from shardplan.planning.decided import Decided

MODEL = "transformer:hidden=64,layers=12,heads=2,ffn=128,vocab=128,batch=8,seq=32"
COPIES = 4
PROFILE = load_profile("generic")
CACHED = {"mode": "inference", "kv_cache_tokens": 4096}
CATEGORIES = ("parameters", "gradients", "optimizer", "activations")


@pytest.fixture(scope="module")
def model():
    return described(MODEL)


@pytest.fixture
def many(monkeypatch):
    """Models of the size of the tests count as deep."""
    monkeypatch.setattr(shallower, "MANY_OPERATORS", 100)
    monkeypatch.setattr(shallower, "SHALLOW_COPIES", COPIES)


def held(model, **options):
    """Bytes by category and moment if everything is replicated."""
    _, memory = Planner(model, make_cluster(PROFILE, "1x1"), PlanOptions(**options)).built_at()
    found = {}
    for one in memory.holdings:
        moments = found.setdefault(one.category, np.zeros(memory.moments, dtype=np.int64))
        moments[one.start : one.end] += int(one.amount[0])
    return {category: moments.max() for category, moments in found.items()}


def test_a_shallow_model_has_few_copies_of_each_block_and_everything_else(model):
    thin = shallow(model, COPIES)
    (block,), (whole,) = thin.blocks, model.blocks
    assert (len(block.copies), len(block.copies[0])) == (COPIES, len(whole.copies[0]))
    assert len(model.operators) - len(thin.operators) == (len(whole.copies) - COPIES) * len(whole.copies[0])
    made = {name for operator in thin.operators for name in operator.outputs} | set(thin.inputs)
    weights = {parameter.tensor for parameter in thin.parameters} | set(thin.constants)
    read = {name for operator in thin.operators for name in operator.inputs if name}
    assert read <= made | weights | {name for name, one in thin.tensors.items() if one.role == "constant"}
    assert thin.outputs == model.outputs


def test_a_model_with_few_copies_stays_as_it_is(model):
    assert structure_digest(shallow(model, 12)) == structure_digest(model)
    assert set(shallow(model, 12).depth.values()) <= {1.0}


@pytest.mark.parametrize("options", [{}, {"microbatches": 2}, {"remat": "full"}, {"mode": "inference"}, CACHED])
def test_a_shallow_model_holds_as_much_as_the_whole_one(model, options):
    thin, whole = held(shallow(model, COPIES), **options), held(model, **options)
    for category in CATEGORIES:
        # the first and the last copy, which count for several, may hold less than the others
        assert thin.get(category, 0) == pytest.approx(whole.get(category, 0), rel=0.1)


LARGER = "transformer:hidden=1024,layers=8,heads=16,ffn=4096,vocab=8192,batch=64,seq=512"


FOUR_AXES = "machine0=2,machine1=2,gpu0=2,gpu1=2"


@pytest.mark.parametrize("share", [1.0, 0.95])
@pytest.mark.parametrize("mesh", ["2x2", FOUR_AXES])
def test_its_plan_is_about_as_short_as_that_of_a_search_of_the_whole_model(many, monkeypatch, mesh, share):
    model, cluster = described(LARGER), make_cluster(PROFILE, mesh)
    options = PlanOptions(effort="quick")
    from_shallow = plan_model(model, cluster, options).summary
    if share < 1.0:
        options = replace(options, memory_limit_bytes=int(share * from_shallow.memory.total))
        from_shallow = plan_model(model, cluster, options).summary
    monkeypatch.setattr(shallower, "MANY_OPERATORS", 10**9)
    whole = plan_model(model, cluster, options).summary
    assert from_shallow.step_ns <= 1.05 * whole.step_ns
    assert from_shallow.step_bound_ns <= whole.step_ns
    assert options.memory_limit_bytes is None or from_shallow.memory.total <= options.memory_limit_bytes


@pytest.mark.parametrize("options", [{"remat": "auto"}, {"constraints": (parse_pin("*layers.11.*=R"),)}])
def test_what_names_single_copies_is_searched_on_the_whole_model(model, many, options):
    planner = Planner(model, make_cluster(PROFILE, "2x2"), PlanOptions(**options))
    assert shallower.shallower(planner.instance) is None
    plain = Planner(model, make_cluster(PROFILE, "2x2"), PlanOptions())
    assert shallower.shallower(plain.instance) is not None


def test_progress_tells_no_step_and_no_bound_of_fewer_layers(model, many):
    """They would be a third of those of the model."""
    told = []
    plan = plan_model(model, make_cluster(PROFILE, "2x2"), PlanOptions(effort="quick"), on_progress=told.append)
    assert any(standing.doing.endswith("of fewer layers") for standing in told)
    assert min(standing.best for standing in told) >= plan.summary.step_ns * 1000 - 1000


def test_each_copy_is_as_the_one_at_its_share_of_the_depth(model):
    thin = shallow(model, COPIES)
    made = make_cluster(PROFILE, "2x2")
    decided = Decided.of_plan(plan_model(thin, made, PlanOptions(effort="quick")))
    (block,), (whole,) = thin.blocks, model.blocks
    marked = dict(decided.operators)
    for number, copy in enumerate(block.copies):
        for index in copy:
            name = thin.operators[index].name
            marked[name] = replace(marked[name], split=(str(number),))
    every = Decided(marked, decided.layouts).with_layers_of(model, Decided(marked, decided.layouts), thin, ())
    found = [{every.operators[model.operators[index].name].split for index in copy} for copy in whole.copies]
    assert found == [{(str(place * COPIES // len(whole.copies)),)} for place in range(len(whole.copies))]


def test_where_the_plan_for_all_copies_leaves_a_large_gap_the_whole_model_is_searched(many, monkeypatch):
    model, cluster, options = described(LARGER), make_cluster(PROFILE, "2x2"), PlanOptions(effort="quick")
    deeper = planner.deeper

    def without_bound(*given):
        found = yield from deeper(*given)
        return replace(found, bound_s=0.0)

    monkeypatch.setattr(planner, "deeper", without_bound)
    both = plan_model(model, cluster, options).summary
    monkeypatch.setattr(shallower, "MANY_OPERATORS", 10**9)
    whole = plan_model(model, cluster, options).summary
    assert both.step_ns <= whole.step_ns
    assert both.step_bound_ns == whole.step_bound_ns > 0
