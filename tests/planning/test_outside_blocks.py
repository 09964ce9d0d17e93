"""Plans that differ from the best one only outside of its repeated blocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardplan.planning.answers import Answers
from shardplan.planning.equal_layers import first_copies
from shardplan.planning.instance import instance_of
from shardplan.planning.outside_blocks import outside_blocks
from shardplan.planning.questions import of_phases
from shardplan.planning.search import Search
from shardplan.request import Request
from shardplan.study.instance import read

MODEL = "transformer:style=gpt,layers=3,hidden=128,heads=4,vocab=4000,seq=64,batch=16"


def test_any_plan_becomes_shorter_or_stays_and_its_inner_blocks_are_kept() -> None:
    asked = read(Request(model=MODEL, mesh="2x2"))
    answers = Answers(instance_of(asked.model, asked.cluster, asked.options, pytest.fail), pytest.fail)
    search = Search.of(answers.instance)
    found = answers.to(of_phases(search, None), search)
    assert found.whole is not None
    places = np.array(first_copies(found.whole.built, [cost.size for cost in found.whole.problem.costs]))
    copies = np.bincount(places)
    inner = [v for v, place in enumerate(places) if 0 < (places[:v] == place).sum() < copies[place] - 1]
    assert inner

    gained = []
    for candidate in list(search.known.values()):
        near = answers.to(outside_blocks(search, replace(found, candidate=candidate)), search).candidate
        gained.append(candidate.step_s - near.step_s)
        before, after = (np.array(tuple(one.priced.choice.values())) for one in (candidate, near))
        assert (before[inner] == after[inner]).all()
    assert min(gained) >= 0.0
    assert max(gained) > 0.0
