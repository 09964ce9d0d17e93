"""Plans that say for single operators that they run again: written, read, priced, compared and shown."""

import io
import json
from dataclasses import replace
from importlib.resources import files

import pytest
from jsonschema import Draft202012Validator
from rich.console import Console
from small_models import small_model

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.errors import InfeasibleError, ShardplanError
from shardplan.graph.options import Layers, PlanOptions
from shardplan.graph.remat import nothing_recomputed
from shardplan.models import transformer
from shardplan.plan.diff import diff_plans
from shardplan.plan.format.decode import loads
from shardplan.plan.format.encode import dumps
from shardplan.plan.recorded_request import options_of
from shardplan.planning import Planner, plan_model
from shardplan.planning.rematerialisation import flags
from shardplan.planning.start_plan import StartPlan
from shardplan.program.machine.verify import verify_plan
from shardplan.program.shrink.shrink import shrink
from shardplan.render.show import show_document, show_plan
from shardplan.rules import model_rules
from shardplan.study.check import check_plan
from shardplan.study.evaluate import evaluate_plan
from shardplan.study.explain import explain
from shardplan.study.shares import shares_of

GPT = {"style": "gpt", "layers": 3, "hidden": 256, "heads": 8, "vocab": 512, "seq": 256, "batch": 16}
FLAGS = ("none", "selective", "alternate", "full")
TIGHT = 0.5
"""Share of the memory that the fastest plan takes without recomputing anything."""
SCHEMA = json.loads((files("shardplan.plan") / "schema.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def model():
    return transformer(**GPT, attention="decomposed")


@pytest.fixture(scope="module")
def cluster():
    return make_cluster(load_profile("h100-dgx"), "1x4")


@pytest.fixture(scope="module")
def free(model, cluster):
    return plan_model(model, cluster, PlanOptions())


@pytest.fixture(scope="module")
def tight(model, cluster, free):
    return plan_model(model, cluster, options(TIGHT, free))


def options(share, free, remat="auto"):
    return PlanOptions(remat=remat, memory_limit_bytes=int(share * free.summary.memory.total))


def test_with_room_nothing_runs_again_and_the_plan_is_that_of_none(model, cluster, free):
    plan = plan_model(model, cluster, PlanOptions(remat="auto"))
    assert plan.model["remat"] == "auto"
    assert dumps(replace(plan, model=free.model)) == dumps(free)


@pytest.mark.parametrize("share", [0.8, TIGHT])
def test_no_flag_is_faster(model, cluster, free, tight, share):
    auto = tight if share == TIGHT else plan_model(model, cluster, options(share, free))
    assert auto.summary.memory.total <= auto.summary.memory_limit_bytes
    for flag in FLAGS:
        try:
            other = plan_model(model, cluster, options(share, free, flag))
        except InfeasibleError:
            continue
        assert auto.summary.step_ns <= other.summary.step_ns
        assert auto.summary.step_bound_ns <= other.summary.step_ns


def test_every_flag_is_among_what_is_tried(model, cluster):
    """Between what `none` and what `full` needs, a BERT of four layers was 4.8 % slower than with `alternate`."""
    built, _ = Planner(model, cluster, PlanOptions()).built_at()
    tried = [frozenset(one.until) for one in flags(built)]
    for flag in FLAGS:
        again, _ = Planner(model, cluster, PlanOptions(remat=flag)).built_at()
        assert frozenset(again.recompute.until) in tried


OF_BLOCKS = "is of repeated blocks, and the model has none"
OF_ATTENTION = "is of decomposed attention, and the model has none"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"remat": "full"}, f"'full' {OF_BLOCKS}"),
        ({"remat": "alternate"}, f"'alternate' {OF_BLOCKS}"),
        ({"remat": "full", "full_layers": Layers("every", 4)}, f"'full' {OF_BLOCKS}"),
        ({"remat": "selective"}, f"'selective' {OF_ATTENTION}"),
    ],
)
def test_a_flag_that_finds_nothing_to_recompute_is_said_to(cluster, given, said, tmp_path):
    heard, straight = [], small_model("mlp", tmp_path)
    plan_model(straight, cluster, PlanOptions(**given, effort="quick"), on_warning=heard.append)
    (warned,) = heard
    assert str(warned) == (
        f"warning[nothing-recomputed]: nothing is recomputed: {said}\n"
        "hint: shardplan solve --remat auto chooses value by value; shardplan inspect lists the repeated blocks"
    )


def test_a_scheme_of_more_layers_than_there_are_is_said_to_recompute_nothing(model):
    options = PlanOptions(remat="full", full_layers=Layers("every", 4))
    (said,) = nothing_recomputed(model, model_rules(model), options)
    assert said.summary == "nothing is recomputed: 'every:4' takes every 4th layer, and the model has 3"


@pytest.mark.parametrize("attention", ["fused", "decomposed"])
def test_a_flag_that_means_what_is_there_is_not_warned_of(attention, tmp_path):
    """A fused attention recomputes its scores by itself: `selective` is what it does."""
    deep = transformer(**GPT, attention=attention)
    for remat in (*FLAGS, "auto"):
        assert not list(nothing_recomputed(deep, model_rules(deep), PlanOptions(remat=remat)))
    straight, options = small_model("mlp", tmp_path), PlanOptions(remat="full", mode="inference")
    assert not list(nothing_recomputed(straight, model_rules(straight), options))


def test_the_scores_of_attention_are_among_what_runs_again(model, tight):
    again = {operator.name for operator in tight.operators if operator.recomputed_before}
    softmaxes = {operator.name for operator in tight.operators if operator.op_type == "Softmax"}
    assert softmaxes & again


def test_a_search_that_starts_from_it_recomputes_the_same(model, cluster, free, tight):
    start = StartPlan(tight, "a.plan.json")
    found = Planner(model, cluster, options(TIGHT, free), start=start).started()
    assert found.summary.step_ns == tight.summary.step_ns
    assert found.operators == tight.operators


def test_it_is_written_and_read_back(tight):
    text = dumps(tight)
    document = json.loads(text)
    assert document["format_version"] == "1.5"
    assert {row["name"] for row in document["operators"] if row.get("again")} == {
        operator.name for operator in tight.operators if operator.recomputed_before
    }
    Draft202012Validator(SCHEMA).validate(document)
    assert loads(text).operators == tight.operators
    assert dumps(loads(text)) == text


def test_what_is_recomputed_is_not_saved_and_has_a_maker_that_runs_again(tight):
    makers = {name: operator for operator in tight.operators for name in operator.outputs if name}
    recomputed = [tensor for tensor in tight.tensors if tensor.recomputed]
    assert recomputed
    for tensor in recomputed:
        assert not tensor.saved
        assert makers[tensor.name].recomputed_before
        assert makers[tensor.name].recompute_ns == makers[tensor.name].compute_ns - makers[tensor.name].backward_ns


def test_its_decisions_are_priced_alike(model, cluster, tight):
    found = evaluate_plan(model, cluster, options_of(tight, "a.json"), loads(dumps(tight)), "a.json")
    was, now = tight.summary, found.plan.summary
    assert found.fits
    assert (now.step_ns, now.compute_ns, now.memory) == (was.step_ns, was.compute_ns, was.memory)
    assert [o.recomputed_before for o in found.plan.operators] == [o.recomputed_before for o in tight.operators]


def test_check_wants_operators_to_run_again_for_a_later_one(model, tight):
    assert check_plan(tight, "a.json", model).status == "fresh"
    last = tight.operators[-1]
    wrong = replace(tight, operators=(*tight.operators[:-1], replace(last, recomputed_before=tight.operators[0].name)))
    verdict = check_plan(wrong, "a.json")
    assert verdict.status == "invalid"
    assert verdict.findings == (
        f"'{last.name}' is recomputed before '{tight.operators[0].name}', which is no operator after it",
    )


def test_an_unknown_operator_is_refused(model, cluster, tight):
    index = next(number for number, operator in enumerate(tight.operators) if operator.recomputed_before)
    operators = list(tight.operators)
    operators[index] = replace(operators[index], recomputed_before="nowhere")
    with pytest.raises(ShardplanError) as caught:
        evaluate_plan(model, cluster, options_of(tight, "a.json"), replace(tight, operators=tuple(operators)), "a.json")
    assert caught.value.diagnostics[0].summary == (
        f"'nowhere' is to be recomputed, or another one before its backward, and is no operator of '{model.name}'"
    )


def test_diff_names_what_runs_again(free, tight):
    texts = {change.after for change in diff_plans(free, tight).changes}
    assert any(text.endswith(", recomputed") for text in texts)
    assert any(text.endswith(", recomputed") for text in texts)
    assert "remat none → auto" in diff_plans(free, tight).causes


def test_alternatives_recompute_what_the_plan_does(model, tight):
    weight = next(p.name for p in model.parameters if p.name.endswith("h.1.mlp.c_fc.weight"))
    chosen, *others = explain(tight, "a.json", model, weight).alternatives
    assert chosen.chosen
    possible, summary = [other for other in others if other.cost_ns is not None], tight.summary
    assert possible
    assert all(summary.step_ns + other.cost_ns >= summary.step_bound_ns for other in possible)
    # Only recomputation keeps the limit.
    assert all(summary.memory.total + other.memory_bytes <= summary.memory_limit_bytes for other in possible)


def test_shares_tell_the_second_runs_apart(tight):
    again = [share for share in shares_of(tight) if share.what == "recomputed"]
    assert sum(share.time_ns for share in again) == sum(operator.recompute_ns for operator in tight.operators)
    assert again


def test_show_lists_what_runs_again(tight):
    written = io.StringIO()
    show_plan(Console(width=120, file=written), tight)
    text = written.getvalue()
    many = sum(bool(operator.recomputed_before) for operator in tight.operators)
    assert f"{many} of {len(tight.operators)} operators are rematerialised in backward" in text
    groups = show_document(tight)["again"]
    assert sum(group["count"] for group in groups) == many


def test_forward_of_a_plan_that_recomputes_is_proved_by_its_twin(model, tight):
    small, twin = shrink(model, tight)
    again = {operator.name: operator.recomputed_before for operator in twin.operators if operator.recomputed_before}
    assert again
    assert again.items() <= {operator.name: operator.recomputed_before for operator in tight.operators}.items()
    assert set(again.values()) <= {operator.name for operator in small.operators}
    assert verify_plan(small, twin).verified
