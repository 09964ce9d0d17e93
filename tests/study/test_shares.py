"""Shares of a step, of plans with stages too."""

from dataclasses import replace

import pytest

from shardplan import make_plan
from shardplan.pipeline.schedule import parse_schedule
from shardplan.study.shares import in_step, longer_ns, shares_of


@pytest.fixture(scope="module", params=["1f1b", "interleaved:2"])
def staged(request):
    model = "transformer:layers=5,hidden=256,heads=4,vocab=512,seq=64,batch=16,style=gpt"
    return make_plan(model, "1x4", stages=2, schedule=request.param, microbatches=4, effort="quick")


def test_what_a_stage_takes_of_the_step_is_what_all_shares_say(staged):
    """`explain PLAN NAME` gave the times of the stage, up to so many times as long as there are microbatches."""
    everything = shares_of(staged)
    for stage in staged.pipeline.stages:
        own = in_step(staged.pipeline, stage, shares_of(stage.plan))
        assert sorted(one.time_ns for one in own if one.time_ns) == sorted(
            one.time_ns for one in everything if one.name.startswith(f"{stage.name}: ")
        )


@pytest.mark.parametrize("more_ns", [-200_000, -1_000, 0, 1_000, 10_000_000])
def test_a_longer_stage_makes_the_step_longer_as_the_schedule_says(staged, more_ns):
    pipeline, schedule = staged.pipeline, parse_schedule(staged.pipeline.schedule)

    def step_ns(pipeline):
        busy = {}
        for stage in pipeline.stages:
            busy[stage.first_device] = busy.get(stage.first_device, 0) + stage.plan.summary.step_ns
        return schedule.step(list(busy.values()), 4)

    for place, stage in enumerate(pipeline.stages):
        summary = replace(stage.plan.summary, step_ns=stage.plan.summary.step_ns + more_ns)
        other = replace(stage, plan=replace(stage.plan, summary=summary))
        stages = (*pipeline.stages[:place], other, *pipeline.stages[place + 1 :])
        longer = step_ns(replace(pipeline, stages=stages)) - step_ns(pipeline)
        assert longer_ns(pipeline, stage, more_ns) == pytest.approx(longer, abs=1)
