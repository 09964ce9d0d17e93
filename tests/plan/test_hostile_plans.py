"""Plans that somebody edited or forged: whatever they hold, they are read or refused, and nothing else happens."""

import copy
import json
from pathlib import Path

import pytest
from example_plans import example_plan
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardplan.errors import ShardplanError
from shardplan.plan.diff import diff_plans
from shardplan.plan.file import dumps, loads, read_plan
from shardplan.plan.types import Plan

CORPUS = Path(__file__).with_name("hostile")
REFUSED = {
    "inf": (1, "Infinity is no number that a plan can have"),
    "nan": (1, "NaN is no number that a plan can have"),
    "neg": (None, "summary: 'step_us' is -5.0, expected a number of at least 0"),
    "int5000": (11, "99999999999999999999... (5000 characters) is no number that a plan can have"),
    "share": (None, "moves[0]: 'share' is '1/0', expected a fraction such as 1/4"),
    "dims": (None, "model: 'dims' is 3, expected an object"),
    "opin": (None, "operators[0]: 'reads' is ['R', 'R/P@gpu'], expected 0, one for each of 'inputs'"),
    "blocks": (None, "plan: 'b' has operators [0, 100000000000], and there are 4"),
    "mesh": (None, "mesh: a mesh of 2,000,000,000,000 devices; at most 16,777,216 can be planned for"),
    "dupkey": (None, "the key 'summary' is given twice"),
    "plan_layout": (12, "parameters[2]: 'dims' is [[], ['gpu']], but the rest says [['gpu'], []]"),
    "plan_sums": (None, "summary: 'communication_us' is 0.001, but step_us - compute_us is -25.118"),
    "plan_gap": (None, "summary: 'gap' is 0.5, but (objective - bound_us) / objective is 0"),
    "plan_objective": (None, "plan: summary: objective is 2.0 and step_us 1.0, and a plan minimises its step"),
    "plan_duprow": (None, "plan: two rows are about the tensor 'a.weight'"),
}
READ = {"plan_step", "plan_nomoves"}
"""Sound in themselves: only somebody who has the model can tell."""


def test_every_file_of_the_corpus_has_its_case():
    assert {path.stem for path in CORPUS.glob("*.json")} == {*REFUSED, *READ}


@pytest.mark.parametrize("name", REFUSED)
def test_a_damaged_plan_is_refused_and_the_place_named(name: str):
    with pytest.raises(ShardplanError) as caught:
        read_plan(CORPUS / f"{name}.json")
    line, what = REFUSED[name]
    (found,) = caught.value.diagnostics
    assert (found.code, found.summary, found.line) == ("damaged-plan", what, line)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", sorted(READ))
def test_what_is_sound_in_itself_is_read(name: str):
    assert isinstance(read_plan(CORPUS / f"{name}.json"), Plan)


def test_more_bytes_than_any_plan_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("shardplan.plan.file.MOST_BYTES", 100)
    (tmp_path / "big.json").write_text(dumps(example_plan()))
    with pytest.raises(ShardplanError, match=r"error\[not-a-plan\]: this is larger than any plan"):
        read_plan(tmp_path / "big.json")


def test_nesting_that_the_file_only_carries_is_limited():
    deep: object = 1
    for _ in range(200):
        deep = {"a": deep}
    document = json.loads(dumps(example_plan()))
    document["cluster"]["profile"]["more"] = deep
    with pytest.raises(ShardplanError, match=r"error\[damaged-plan\]: cluster: it is nested too deeply"):
        loads(json.dumps(document))


DOCUMENT = json.loads(dumps(example_plan()))
JUNK = (
    None, True, -1, 0, 7, 2**62, 2**70, 1.5, 1e300, float("nan"), "", "zz", "S(0)@gpu", "1/0", "-", [], [[]], [[0, 5]],
    ["gpu"], {}, {"a": []}, {"0": [1]},
)  # fmt: skip


def _places(value: object, path: tuple = ()):
    yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        yield from _places(entry, (*path, key))


PLACES = [path for path in _places(DOCUMENT) if path]


def mutated(path: tuple, junk: object, how: str) -> str:
    document = copy.deepcopy(DOCUMENT)
    around = document
    for key in path[:-1]:
        around = around[key]
    if how == "replace":
        around[path[-1]] = junk
    elif how == "delete":
        del around[path[-1]]
    elif isinstance(around, list):
        around.append(copy.deepcopy(around[path[-1]]))
    return json.dumps(document)


def read_or_refused(text: str) -> Plan | None:
    try:
        return loads(text)
    except ShardplanError:
        return None


@given(st.sampled_from(PLACES), st.sampled_from(JUNK), st.sampled_from(["replace", "replace", "delete", "repeat"]))
@example(("mesh", "axes", 0, "size"), 0, "replace")
@settings(max_examples=150, deadline=None)
def test_any_one_edit_is_read_or_refused(path: tuple, junk: object, how: str):
    """What is read can be written, compared and read again."""
    plan = read_or_refused(mutated(path, junk, how))
    if plan is None:
        return
    assert loads(dumps(plan)) == plan
    diff_plans(example_plan(), plan)
    diff_plans(plan, example_plan())
