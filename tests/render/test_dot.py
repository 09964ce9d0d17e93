"""Plans for Graphviz: blocks are folded as in the report, and every arrow leads from a box to a box."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from shardplan.api import make_plan
from shardplan.plan.file import read_plan
from shardplan.plan.views.segments import segments
from shardplan.render.dot import dot_text
from shardplan.reports.plan import plan_report

PLANS = Path(__file__).parents[2] / "plans"
BOX = re.compile(r'^ +"(operator|tensor) ([^"]+)" \[label="([^"]*)"', re.MULTILINE)
ARROW = re.compile(r'^ +"((?:operator|tensor) [^"]+)" -> "((?:operator|tensor) [^"]+)" \[(.*)\];$', re.MULTILINE)
CLUSTER = re.compile(r'subgraph "cluster[^"]*" \{\n +label="([^"]*)";')


@pytest.fixture(scope="module", params=["gpt2_small.4x4", "llama3_8b.4x8"])
def plan(request):
    return read_plan(PLANS / f"{request.param}.plan.json")


@pytest.mark.parametrize("unfolded", [False, True])
def test_arrows_join_boxes(plan, unfolded):
    text = dot_text(plan, unfolded=unfolded)
    boxes = [f"{kind} {name}" for kind, name, _ in BOX.findall(text)]
    assert len(set(boxes)) == len(boxes)
    ends = {end for source, target, _ in ARROW.findall(text) for end in (source, target)}
    assert ends <= set(boxes)
    assert text.count("{\n") == text.count("}\n")


def test_blocks_are_folded_as_in_the_report(plan):
    said = [one for one in plan_report(plan)["model"]["segments"] if one["block"]]
    labels = [f"{one['count']} × {one['label']}" if one["count"] > 1 else one["label"] for one in said]
    text = dot_text(plan)
    assert CLUSTER.findall(text) == labels
    first = {plan.operators[index].name for segment in segments(plan) for index in segment.copies[0][1]}
    assert {name for kind, name, _ in BOX.findall(text) if kind == "operator"} == first
    assert 3 * text.count("\n") < 2 * dot_text(plan, unfolded=True).count("\n")


@pytest.mark.parametrize(
    ("first", "second", "labels"),
    [
        ("down.3", "mid", ["down.3", "mid"]),
        ("layer0", "layer1", ["2 × layer0 … layer1"]),
        ("layers.0", "layers.1", ["2 × layers.*"]),
    ],
)
def test_copies_that_are_called_otherwise_are_apart(first, second, labels):
    plan = read_plan(PLANS / "gpt2_small.4x4.plan.json")
    alike = next(segment for segment in segments(plan) if len(segment.copies) > 1)
    pair = [indices for _, indices in alike.copies[:2]]
    plan = replace(plan, blocks=(((first, second), tuple(pair)),))
    assert CLUSTER.findall(dot_text(plan)) == labels
    assert [one for one in plan_report(plan)["model"]["segments"] if one["block"]]


def test_many_operators_outside_of_blocks_stand_by_module():
    plan = replace(read_plan(PLANS / "gpt2_small.4x4.plan.json"), blocks=())
    labels = [one["label"] for one in plan_report(plan)["model"]["segments"]]
    assert [label for label in labels if ".h." in label] == [f"transformer.h.{number}" for number in range(12)]
    assert len(labels) < 20


def test_every_copy_is_there_when_asked_for(plan):
    text = dot_text(plan, unfolded=True)
    boxes = [name for kind, name, _ in BOX.findall(text) if kind == "operator"]
    assert sorted(boxes) == sorted(operator.name for operator in plan.operators)
    assert "next copy" not in text


def test_what_a_copy_hands_on_is_dashed():
    text = dot_text(read_plan(PLANS / "gpt2_small.4x4.plan.json"))
    dashed = [(source, target) for source, target, about in ARROW.findall(text) if "dashed" in about]
    assert sorted(dashed) == [  # of both segments of equal blocks
        ("operator node_add_35", "operator node_add_32"),
        ("operator node_add_35", "operator node_layer_norm_14"),
        ("operator node_add_7", "operator node_add_4"),
        ("operator node_add_7", "operator node_layer_norm"),
    ]


def test_arrows_say_what_is_sent():
    text = dot_text(read_plan(PLANS / "llama3_8b.4x8.plan.json"))
    red = {about for _, _, about in ARROW.findall(text) if "color=red" in about}
    assert any(r"forward: reduce-scatter@gpu, 32 MiB\nbackward: all-gather@gpu, 32 MiB" in about for about in red)


def test_stages_are_clusters():
    model = "transformer:layers=4,hidden=256,heads=4,vocab=512,seq=128,batch=8"
    plan = make_plan(model, "2x2", stages="2", microbatches=4, effort="quick")
    text = dot_text(plan)
    assert {stage.name for stage in plan.pipeline.stages} <= set(CLUSTER.findall(text))
    boxes = [f"{kind} {name}" for kind, name, _ in BOX.findall(text)]
    assert len(set(boxes)) == len(boxes) > 20
    assert {end for source, target, _ in ARROW.findall(text) for end in (source, target)} <= set(boxes)
