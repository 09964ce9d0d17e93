"""Sweeps: every combination once, resumed from a file, by processes, by Dask workers that die, and the front."""

import json
import multiprocessing
import os
import signal
import threading
import time
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from small_models import proto_of, small_model

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.errors import ShardplanError
from shardplan.graph.options import PlanOptions
from shardplan.model.read import read_model_bytes
from shardplan.models import transformer
from shardplan.planning import plan_model
from shardplan.request import Request
from shardplan.study.engines import DaskEngine, LocalEngine, engine_of
from shardplan.study.sweep import Combination, Point, all_combinations, items_of, pareto, plan_point, sweep

SCHEMA = json.loads((files("shardplan.render") / "documents.schema.json").read_text(encoding="utf-8"))
REQUESTS = all_combinations(["generic"], ["2", "2x2", "2x"], [1, 2], ["none", "selective"])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small_model("mlp", tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def found(model):
    return sweep(Request(model), REQUESTS, LocalEngine())


def test_every_combination_once():
    assert len(REQUESTS) == len(set(REQUESTS)) == 12
    assert all_combinations(["a", "a"], ["2"], [1], ["none"]) == (Combination("a", "2", 1, "none"),)


def test_points_are_what_solve_gives(model, found):
    for point in found.points:
        request = point.request
        if request.mesh == "2x":
            assert (point.outcome, point.step_us) == ("refused", None)
            assert point.reason == "mesh '2x' cannot be read"
            continue
        options = PlanOptions(effort="quick", microbatches=request.microbatches, remat=request.remat)
        plan = plan_model(model, make_cluster(load_profile("generic"), request.mesh), options)
        assert point.step_us == plan.summary.step_ns / 1000
        assert point.memory_bytes == plan.summary.memory.total
        assert point.tokens_per_s == pytest.approx(8 / point.step_us * 1e6, abs=1e-3)


def test_a_step_counts_tokens_of_sequences_and_samples_of_the_rest(found):
    assert found.items == "samples"
    assert items_of(transformer(layers=1, hidden=64, heads=2, vocab=128, seq=32, batch=4)) == ("tokens", 128)
    images = "m (float[8,3] x, int64[8] labels) => (float[8,4] y) <float[3,4] w> { y = MatMul (x, w) }"
    assert items_of(read_model_bytes(proto_of(images).SerializeToString(), "m")) == ("samples", 8)


def test_what_is_recomputed_is_chosen_point_by_point():
    sizes = {"layers": 2, "hidden": 256, "heads": 8, "vocab": 512, "seq": 256, "batch": 16}
    model = transformer(style="gpt", **sizes, attention="decomposed")
    cluster = make_cluster(load_profile("h100-dgx"), "1x4")
    free = plan_model(model, cluster, PlanOptions(effort="quick"))
    options = PlanOptions(effort="quick", memory_limit_bytes=int(0.65 * free.summary.memory.total))
    requests = all_combinations(["h100-dgx"], ["1x4"], [1], ["auto", "none"])
    asked = Request(model, memory_limit=options.memory_limit_bytes)
    auto, none = sweep(asked, requests, LocalEngine()).points
    plan = plan_model(model, cluster, replace(options, remat="auto"))
    assert any(operator.recomputed_before for operator in plan.operators)
    assert (auto.request.remat, auto.step_us, auto.outcome) == (
        "auto",
        plan.summary.step_ns / 1000,
        plan.summary.outcome,
    )
    assert auto.memory_bytes is not None
    assert auto.memory_bytes <= (options.memory_limit_bytes or 0)
    assert none.step_us is None or auto.step_us <= none.step_us


def test_a_stage_count_and_an_automatic_mesh(model):
    staged = plan_point(Request(model), Combination("generic", "2", 2, "none", "2"))
    assert staged.outcome in ("optimal", "feasible")
    auto = plan_point(Request(model), Combination("generic", "auto", 1, "none"))
    assert auto.devices == 16


def test_what_a_step_costs(model, tmp_path):
    profile = tmp_path / "priced.yaml"
    profile.write_text("schema: 1\nextends: builtin:generic\nname: priced\nprovenance: {device_hour_usd: 3.6}\n")
    point = plan_point(Request(model), Combination(str(profile), "2x2", 1, "none"))
    assert point.cost_usd == pytest.approx(4 * 3.6 / 3600 * point.step_us / 1e6)


def test_processes_find_the_same(model, found):
    few = REQUESTS[:4]
    assert sweep(Request(model), few, LocalEngine(2)).points == found.points[:4]


def test_nothing_runs_on_when_nobody_asks_for_more(model):
    before = set(multiprocessing.active_children())
    points = LocalEngine(2).points(Request(model), REQUESTS)
    assert next(points).request in REQUESTS
    points.close()
    assert set(multiprocessing.active_children()) == before


def test_a_sweep_goes_on_where_it_was(model, found, tmp_path):
    path = str(tmp_path / "sweep.json")
    half = REQUESTS[:5]
    sweep(Request(model), half, LocalEngine(), path)

    class Once:
        asked: tuple[Combination, ...] = ()

        def points(self, request, combinations):
            self.asked = tuple(combinations)
            return LocalEngine().points(request, combinations)

    engine, heard = Once(), []
    again = sweep(Request(model), REQUESTS, engine, path, heard.append)
    assert engine.asked == REQUESTS[5:]
    assert again.points == found.points
    assert len(heard) == len(REQUESTS)
    before = Path(path).read_bytes()
    assert sweep(Request(model), REQUESTS, engine, path).points == found.points
    assert Path(path).read_bytes() == before


def test_files_of_something_else_are_left_alone(model, tmp_path):
    path = tmp_path / "other.json"
    path.write_text("{}")
    with pytest.raises(ShardplanError, match=r"error\[not-a-sweep\]: this file is no sweep"):
        sweep(Request(model), REQUESTS[:1], LocalEngine(), str(path))
    path.unlink()
    sweep(Request(model), REQUESTS[:1], LocalEngine(), str(path))
    with pytest.raises(ShardplanError, match=r"error\[other-sweep\]"):
        sweep(Request(model, mode="inference"), REQUESTS[:1], LocalEngine(), str(path))


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3)), max_size=12))
def test_the_front(numbers):
    points = [
        Point(Combination("c", str(place), 1, "none"), "optimal", devices=d, step_us=float(s), memory_bytes=m)
        for place, (s, m, d) in enumerate(numbers)
    ]
    best = pareto(points)
    keys = {(p.step_us, p.memory_bytes, p.devices) for p in best}
    for point in points:
        key = (point.step_us, point.memory_bytes, point.devices)
        beaten = any(all(a <= b for a, b in zip(other, key, strict=True)) and other != key for other in numbers)
        assert (key in keys) == (not beaten)


def test_engines_by_name():
    assert isinstance(engine_of("local"), LocalEngine)
    with pytest.raises(ShardplanError) as problem:
        engine_of("slurm")
    assert str(problem.value) == (
        "error[bad-engine]: there is no engine 'slurm'\nhint: local, or dask://HOST:PORT of a Dask scheduler"
    )


def test_a_dask_worker_that_is_killed_loses_nothing(model, found):
    distributed = pytest.importorskip("distributed")
    settings = {"distributed.scheduler.allowed-failures": 10, "distributed.comm.retry.count": 2}
    import dask

    with (
        dask.config.set(settings),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
        ) as cluster,
    ):
        victim = next(iter(cluster.workers.values())).pid
        killed = threading.Event()

        def kill(_: Point) -> None:
            if not killed.is_set():
                os.kill(victim, signal.SIGKILL)
                killed.set()
                time.sleep(0.2)

        engine = DaskEngine(cluster.scheduler_address)
        assert sweep(Request(model), REQUESTS, engine, on_point=kill).points == found.points
        assert killed.is_set()


SWEEP = ("sweep", "mlp.onnx", "--dim", "batch=64", "-c", "generic", "--mesh", "2,2x2", "--microbatches", "1,2")


def test_the_verb(shardplan, mlp):
    pytest.importorskip("matplotlib")
    run = shardplan(*SWEEP, "--engine", "local", "-o", "sweep.json", "--plot", "sweep.png")
    assert (run.code, run.err) == (0, "")
    assert run.out.splitlines()[0].split() == [
        "cluster", "mesh", "micro", "devices", "step", "memory", "samples/s"
    ]  # fmt: skip
    assert "of 4 plans are Pareto-optimal in step, memory, devices" in run.out
    assert Path("sweep.png").read_bytes().startswith(b"\x89PNG")
    again = shardplan(*SWEEP, "-o", "sweep.json", "--json")
    document = json.loads(again.out)
    Draft202012Validator(SCHEMA).validate(document)
    assert len(document["result"]["points"]) == 4
    assert document["result"]["pareto"]


@pytest.fixture
def alone(monkeypatch):
    """On a machine of one core all is planned in this process: what is asked here is not who plans."""
    monkeypatch.setattr("shardplan.study.engines.processors", lambda: 1)


def test_an_option_that_is_given_again_adds_to_the_list(shardplan, mlp, alone):
    commas = shardplan(*SWEEP, "--all", "--json")
    again = ("sweep", "mlp.onnx", "--dim", "batch=64", "-c", "generic", "-m", "2", "-m", "2x2", "--microbatches", "1,2")
    assert shardplan(*again, "--all", "--json").out == commas.out


def test_faults_of_the_verb_are_said_together(shardplan, mlp):
    run = shardplan(*SWEEP[:-2], "--microbatches", "0", "--remat", "some", "--engine", "slurm")
    assert run.code == 2
    assert run.err.count("error[") == 3
    assert "error[bad-argument]: --microbatches is '0'; a whole number of at least 1 is expected" in run.err


def test_a_slip_of_the_pen_is_told_with_what_was_meant(shardplan, mlp):
    asked = ("-c", "generic,genric", "--mesh", "atuo,2", "--remat", "nnoe")
    run = shardplan("sweep", str(mlp), "--dim", "batch=8", *asked)
    assert run.code == 2
    assert run.err.count("error[") == 3
    assert "--remat 'nnoe' is none of none, selective, alternate, full, auto\nhint: did you mean 'none'?\n" in run.err
    assert "hint: did you mean 'generic'?\n" in run.err
    assert "error[bad-mesh]: mesh 'atuo' cannot be read\nhint: did you mean 'auto'?\n" in run.err


def test_flags_that_find_nothing_to_recompute_are_said_once(shardplan, mlp, alone):
    run = shardplan(*SWEEP, "--remat", "none,full,auto", "--json")
    assert run.err == (
        "warning[nothing-recomputed]: nothing is recomputed: 'full' is of repeated blocks, and the model has none\n"
        "hint: shardplan solve --remat auto chooses value by value; shardplan inspect lists the repeated blocks\n"
    )
    assert json.loads(run.out)["command"] == "sweep"


def test_nothing_fits(shardplan, mlp, alone):
    run = shardplan(*SWEEP, "--memory-limit", "1 KiB")
    assert run.code == 3
    assert "4 without a plan:" in run.out
    assert "  generic 2 microbatches=1 remat=none" in run.out


def test_what_every_combination_refuses_is_no_question_of_memory(shardplan, mlp, alone):
    """The exit code of `solve` for the same pin."""
    pin = ("--pin", "nothing=[gpu]")
    run = shardplan(*SWEEP, *pin)
    assert run.code == shardplan("solve", "mlp.onnx", "--dim", "batch=64", "--mesh", "2", *pin).code == 2
    assert "  generic 2 microbatches=1 remat=none and 3 more: no tensor matches 'nothing'\n" in run.out
