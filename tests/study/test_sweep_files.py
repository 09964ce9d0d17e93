"""Files of sweeps: of which question they hold the answers, and what in them is refused."""

import json
import math
from pathlib import Path

import pytest
from small_models import proto_of, small_model

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.errors import ShardplanError
from shardplan.graph.options import PlanOptions
from shardplan.model.read import read_model_bytes
from shardplan.plan.file import write_plan
from shardplan.planning import plan_model
from shardplan.request import FIELDS, Request
from shardplan.study.engines import LocalEngine
from shardplan.study.sweep import COMPARED_ELSEWHERE, Point, all_combinations, sweep

REQUESTS = all_combinations(["generic"], ["2"], [1], ["none"])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small_model("mlp", tmp_path_factory.mktemp("models"))


class Refusing:
    """Plans nothing, at once."""

    def points(self, request, combinations):
        return (Point(one, "refused", "not planned") for one in combinations)


ASKED_OTHERWISE = {
    "mode": {"mode": "inference"},
    "optimizer": {"optimizer": "sgd"},
    "memory_limit": {"memory_limit": "1 GiB"},
    "constraints": {"pins": ["x=replicate"]},
    "uneven": {"uneven": True},
    "shard_optimizer": {"shard_optimizer": True},
    "equal_layers": {"equal_layers": True},
    "target": {"target": "tp-plan"},
    "kv_cache_tokens": {"kv_cache_tokens": 64, "mode": "inference"},
    "devices": {"devices": "2x2", "mesh": "auto"},
    "stages": {"stages": 2},
    "schedule": {"schedule": "gpipe", "stages": 2},
    "cost_model": {"cost_model": "alpa"},
    "time_limit": {"time_limit": 9.0},
    "effort": {"effort": "quick"},
    "gap": {"gap": 0.1},
    "start": {"start": None},
    "seed": {"seed": 7},
    "presolve": {"presolve": False},
    "strict": {"strict": True},
}
"""By field, what asks for something else; `start` is a plan."""


def test_every_field_of_a_request_is_recorded_or_compared_elsewhere():
    assert FIELDS.keys() == ASKED_OTHERWISE.keys() | COMPARED_ELSEWHERE.keys()


@pytest.mark.parametrize("name", ASKED_OTHERWISE)
def test_a_file_of_another_question_is_refused(model, tmp_path, name):
    """Whichever of the two comes first."""
    asked = ASKED_OTHERWISE[name]
    if name == "start":
        plan = plan_model(model, make_cluster(load_profile("generic"), "2"), PlanOptions(effort="quick"))
        asked = {"start": plan, "mesh": "2", "cluster": "generic"}
    other = Request(model, **asked)
    plain = Request(
        model, **{key: value for key, value in asked.items() if key in COMPARED_ELSEWHERE and key != "pins"}
    )
    recorded = "memory_limit_bytes" if name == "memory_limit" else name
    for number, (first, second) in enumerate([(plain, other), (other, plain)]):
        path = str(tmp_path / f"{number}.json")
        sweep(first, REQUESTS, Refusing(), path)
        sweep(first, REQUESTS, Refusing(), path)
        with pytest.raises(ShardplanError, match="this file holds a sweep of another model, or one asked") as raised:
            sweep(second, REQUESTS, Refusing(), path)
        assert f"\n  {recorded}: " in str(raised.value)


def test_what_differs_is_said(model, tmp_path):
    path = str(tmp_path / "sweep.json")
    sweep(Request(model, effort="quick", seed=7), REQUESTS, Refusing(), path)
    with pytest.raises(ShardplanError) as raised:
        sweep(Request(model, effort="exhaustive", optimizer="sgd"), REQUESTS, Refusing(), path)
    assert str(raised.value) == (
        f"{path}: error[other-sweep]: this file holds a sweep of another model, or one asked otherwise\n"
        '  optimizer: "adam-mixed" in the file, "sgd" asked for\n'
        '  effort: "quick" in the file, "exhaustive" asked for\n'
        "  seed: 7 in the file, 0 asked for\n"
        "hint: write elsewhere with --output, or remove the file"
    )


def test_a_padded_model_is_another(tmp_path):
    """Though it has the same operators and shapes as one of that size: it computes fewer samples."""
    text = "m (float[{},3] x) => (float[{},4] y) <float[3,4] w> {{ y = MatMul (x, w) }}"
    seven, eight = (read_model_bytes(proto_of(text.format(rows, rows)).SerializeToString(), "m") for rows in (7, 8))
    path = str(tmp_path / "sweep.json")
    sweep(Request(eight), REQUESTS, Refusing(), path)
    with pytest.raises(ShardplanError, match="padded_from: null in the file, "):
        sweep(Request(seven, pads={"x[0]": 8}), REQUESTS, Refusing(), path)


class Counting:
    """Plans, and says how many."""

    def __init__(self):
        self.planned = 0

    def points(self, request, combinations):
        self.planned += len(combinations)
        return LocalEngine().points(request, combinations)


def test_points_of_a_profile_that_changed_are_planned_again(model, tmp_path):
    text = "schema: 1\nextends: builtin:generic\nname: mine\nprovenance: {device_hour_usd: HOUR}\n"
    profile, path = tmp_path / "mine.yaml", str(tmp_path / "sweep.json")
    combinations = all_combinations([str(profile), "generic"], ["2"], [1], ["none"])

    def planned(hour, engine):
        profile.write_text(text.replace("HOUR", str(hour)))
        return sweep(Request(model), combinations, engine, path).points

    engine = Counting()
    first = planned(1.0, engine)
    assert planned(1.0, engine) == first
    assert engine.planned == 2
    second = planned(2.0, engine)
    assert engine.planned == 3
    assert second[0].cost_usd == pytest.approx(2 * first[0].cost_usd)
    assert second[1] == first[1]
    content = json.loads(Path(path).read_text())
    assert [row["inputs_digest"] for row in content["points"]] == [point.inputs_digest for point in second]
    for row in content["points"]:
        del row["inputs_digest"]  # as files of earlier versions have none
    Path(path).write_text(json.dumps(content))
    assert planned(2.0, engine) == second
    assert engine.planned == 5


def test_points_of_stages_as_in_a_plan_that_changed_are_planned_again(model, tmp_path):
    plan, path, engine = tmp_path / "cut.json", str(tmp_path / "sweep.json"), Counting()
    combinations = all_combinations(["generic"], ["2"], [1], ["none"], [str(plan)])
    for count, mesh in ((1, "2"), (1, "2"), (2, "2x2"), (2, "2x2")):
        made = plan_model(model, make_cluster(load_profile("generic"), mesh), PlanOptions(effort="quick"))
        write_plan(made, plan)
        (point,) = sweep(Request(model), combinations, engine, path).points
        assert (point.outcome, engine.planned) == ("refused", count)  # it has no stages


def test_points_whose_profile_cannot_be_read_are_planned_again(model, tmp_path):
    engine, path = Counting(), str(tmp_path / "sweep.json")
    combinations = all_combinations([str(tmp_path / "none.yaml")], ["2"], [1], ["none"])
    for count in (1, 2):
        (point,) = sweep(Request(model), combinations, engine, path).points
        assert (point.outcome, point.inputs_digest, engine.planned) == ("refused", "", count)


PLANNED_POINT = {
    "request": {"cluster": "generic", "mesh": "2", "microbatches": 1, "remat": "none", "stages": ""},
    "outcome": "optimal", "reason": "", "mesh": "gpu=2", "devices": 2, "step_us": 5.0, "bound_us": 5.0,
    "memory_bytes": 100, "tokens_per_s": 1e6, "cost_usd": None, "inputs_digest": "",
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"step_us": "fast"}, 'step_us is "fast"'),
        ({"step_us": math.nan}, "step_us is NaN"),
        ({"step_us": math.inf}, "step_us is Infinity"),
        ({"bound_us": -1}, "bound_us is -1"),
        ({"memory_bytes": 10**400}, "memory_bytes is 1" + "0" * 79 + "…"),
        ({"memory_bytes": 1.5}, "memory_bytes is 1.5"),
        ({"devices": True}, "devices is true"),
        ({"devices": None}, 'outcome is "optimal", and it has step_us, bound_us, memory_bytes'),
        ({"outcome": "refused"}, 'outcome is "refused", and it has devices, step_us, bound_us, memory_bytes'),
        ({"outcome": ["x"]}, 'outcome is ["x"]'),
        ({"outcome": "x"}, 'outcome is "x", none of optimal, feasible, interrupted, infeasible, limit, refused'),
        ({"reason": None}, "reason is null"),
        ({"inputs_digest": 3}, "inputs_digest is 3"),
        ({"request": "2x2"}, "it has no request"),
        ({"request": {"cluster": "generic", "mesh": ["2"], "microbatches": 1, "remat": "none"}}, 'mesh is ["2"]'),
        ({"request": {"cluster": "generic", "mesh": "2", "microbatches": "1", "remat": "none"}}, 'microbatches is "1"'),
        ({"request": {"cluster": "generic", "mesh": "2", "remat": "none"}}, "it has no microbatches"),
        ({"request": {**PLANNED_POINT["request"], "gpu": 1}}, "its request has an unknown key, 'gpu'"),
    ],
)
def test_points_that_are_none_are_refused(model, tmp_path, change, said):
    path = tmp_path / "sweep.json"
    sweep(Request(model), REQUESTS, Refusing(), str(path))
    content = json.loads(path.read_text())
    content["points"].append(PLANNED_POINT | {"added later": 1})
    path.write_text(json.dumps(content))
    sweep(Request(model), REQUESTS, Refusing(), str(path))
    content["points"].append(PLANNED_POINT | change)
    path.write_text(json.dumps(content))
    with pytest.raises(ShardplanError) as raised:
        sweep(Request(model), REQUESTS, Refusing(), str(path))
    assert str(raised.value) == (
        f"{path}: error[not-a-sweep]: this file is no sweep\n"
        f"  point 3: {said}\n"
        "hint: write elsewhere with --output, or remove the file"
    )


@pytest.mark.parametrize("text", ["[]", "{}", '{"sweep": [], "points": []}', '{"sweep": {}, "points": {}}', "[" * 9999])
def test_what_is_no_sweep_is_refused(model, tmp_path, text):
    path = tmp_path / "sweep.json"
    path.write_text(text)
    with pytest.raises(ShardplanError, match=r"error\[not-a-sweep\]: this file is no sweep"):
        sweep(Request(model), REQUESTS, Refusing(), str(path))
