"""`solve` says what would be faster than its plan, with the step that was solved for that."""

import json

import pytest

from shardplan.advice.advise import LEAST, advise
from shardplan.graph.options import PlanOptions
from shardplan.planning import Planner
from shardplan.request import Request
from shardplan.study.instance import read

GPT = "transformer:layers=2,hidden=1024,heads=8,style=gpt"
BATCH = f"{GPT},vocab=8192,seq=512,batch=15"
VOCABULARY = f"{GPT},vocab=50257,seq=512,batch=2"
HEADS = "transformer:layers=2,hidden=1024,heads=25,head_size=64,vocab=8192,seq=4096,batch=1"
FEWER = "transformer:layers=2,hidden=1100,heads=4,head_size=275,style=gpt,vocab=4004,seq=516,batch=4"


def planned(model, mesh, **given):
    instance = read(Request(model, mesh, **given))
    return instance, Planner(instance.model, instance.cluster, instance.options).plan()


def advised(model, mesh, **given):
    instance, plan = planned(model, mesh, **given)
    return advise(instance.model, instance.cluster, instance.options, plan), plan


@pytest.mark.parametrize(
    ("model", "mesh", "what", "size", "rounded", "option"),
    [
        (BATCH, "4x4", "batch", 15, 16, "--dim batch=16"),
        (VOCABULARY, "1x8", "vocabulary (dim 0 of transformer.wte.weight)", 50257, 50264, ""),
        (HEADS, "1x8", "heads", 25, 32, ""),
    ],
)
def test_a_size_that_axes_do_not_divide_is_named_with_the_step_that_was_solved(
    model, mesh, what, size, rounded, option
):
    (found, *_), plan = advised(model, mesh)
    assert (found.what, found.size, found.rounded, found.option) == (what, size, rounded, option)
    assert found.saves == pytest.approx(1 - found.step_ns / plan.summary.step_ns)
    assert found.saves > LEAST
    name = {"batch": "batch", "vocabulary": "vocab", "heads": "heads"}[what.split()[0]]
    _, other = planned(model.replace(f"{name}={size}", f"{name}={rounded}"), mesh)
    assert other.summary.step_ns <= found.step_ns * 1.001


def test_sizes_that_all_axes_divide_are_no_advice():
    found, _ = advised(f"{GPT},vocab=8192,seq=512,batch=16", "2x4")
    assert all(one.what == "devices" for one in found)


def test_fewer_devices_are_named_where_they_are_faster():
    (found,), plan = advised(FEWER, "1x8")
    assert (found.what, found.size) == ("devices", 8)
    _, other = planned(FEWER, found.option.removeprefix("--mesh "))
    assert other.summary.step_ns <= found.step_ns * 1.001
    assert other.summary.step_ns < (1 - LEAST) * plan.summary.step_ns


def test_the_same_advice_every_time():
    assert advised(BATCH, "4x4")[0] == advised(BATCH, "4x4")[0]


@pytest.mark.parametrize("given", [{"effort": "quick"}, {"cost_model": "alpa"}, {"time_limit": 60.0}])
def test_when_there_is_none(given):
    instance, plan = planned(BATCH, "4x4", **given)
    assert advise(instance.model, instance.cluster, instance.options, plan, left_s=29.0) == []


def test_under_a_time_limit_of_which_enough_is_left():
    instance, plan = planned(BATCH, "4x4", time_limit=200.0)
    found = advise(instance.model, instance.cluster, instance.options, plan, left_s=190.0)
    assert [one.what for one in found] == ["batch"]
    assert isinstance(instance.options, PlanOptions)


def test_it_is_a_line_of_the_summary_and_in_the_document(shardplan, folder):
    run = shardplan("solve", BATCH, "--mesh", "4x4")
    assert run.out.splitlines()[-1] == (
        "advice    batch 16 instead of 15: step 1.67 ms, 4.7 % shorter   --dim batch=16"
    )
    run = shardplan("solve", BATCH, "--mesh", "4x4", "--json")
    (found,) = json.loads(run.out)["result"]["advice"]
    step_us = found.pop("step_us")
    assert 1600 < step_us < 1750
    assert found == {"what": "batch", "size": 15, "instead": 16, "saves": 0.047, "option": "--dim batch=16"}


def test_who_does_not_want_it_leaves_it_out(shardplan, folder):
    run = shardplan("solve", BATCH, "--mesh", "4x4", "--no-advice")
    assert "advice" not in run.out
    run = shardplan("solve", BATCH, "--mesh", "4x4", "--no-advice", "--json")
    assert "advice" not in json.loads(run.out)["result"]
