"""Pipelines: the search against enumeration of everything, the plan file, and what the verbs say."""

import itertools
import json
import math
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import onnx
import pytest
from jsonschema import Draft202012Validator
from small_models import proto_of

from shardplan import make_plan
from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.constraints.parse import parse_pin
from shardplan.errors import InfeasibleError, ShardplanError
from shardplan.graph.options import PlanOptions
from shardplan.interruption import GivenUpError
from shardplan.layout.layout import Layout
from shardplan.layout.placement import P
from shardplan.layout.text import to_text
from shardplan.model.read import read_model
from shardplan.models import described
from shardplan.pipeline import stage_planner
from shardplan.pipeline.bounds.run_costs import RunCosts
from shardplan.pipeline.cut_choices import Cut
from shardplan.pipeline.cut_points import chain_of, part_of
from shardplan.pipeline.cut_search import balanced
from shardplan.pipeline.plan import plan_stages
from shardplan.pipeline.schedule import parse_schedule
from shardplan.pipeline.solver import PipelineSolver
from shardplan.pipeline.stage_costs import StageCosts
from shardplan.pipeline.tied_weights import least_tied_ns
from shardplan.plan.diff import diff_plans
from shardplan.plan.format.decode import loads
from shardplan.plan.format.encode import dumps
from shardplan.plan.views.timeline import streams_of, timeline
from shardplan.planning import Planner, plan_model
from shardplan.program.machine.verify import verify_plan
from shardplan.reports.schedule import pipeline_chart
from shardplan.rules import model_rules

PLAN_SCHEMA = json.loads((files("shardplan.plan") / "schema.json").read_text(encoding="utf-8"))
DOCUMENTS = Draft202012Validator(
    json.loads((files("shardplan.render") / "documents.schema.json").read_text(encoding="utf-8"))
)
SCHEDULE = parse_schedule("1f1b")
CHAIN = """
chain (float[16,256] x) => (float[16,256] y)
<float[256,1024] u0, float[1024,256] d0, float[256,1024] u1, float[1024,256] d1, float[256,1024] u2,
 float[1024,256] d2> {
  a0 = MatMul (x, u0)
  b0 = Relu (a0)
  x1 = MatMul (b0, d0)
  a1 = MatMul (x1, u1)
  b1 = Relu (a1)
  x2 = MatMul (b1, d1)
  a2 = MatMul (x2, u2)
  b2 = Relu (a2)
  y = MatMul (b2, d2)
}"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "chain.onnx"
    onnx.save(proto_of(CHAIN), path)
    return read_model(path)


@pytest.fixture(scope="module")
def cluster():
    return make_cluster(load_profile("generic"), "2x2")


def all_cuts(stager: PipelineSolver):
    units, parts = len(stager.chain), stager.parts
    for count in range(1, units + 1):
        for inner in itertools.combinations(range(1, units), count - 1):
            edges = (0, *inner, units)
            for meshes in itertools.product(range(len(parts)), repeat=count):
                if sum(parts[mesh].size for mesh in meshes) != stager.cluster.mesh.size:
                    continue
                walls = [
                    range(len(stager.stage_costs.runs_on(meshes[side]).layouts[cut - 1]))
                    for place, cut in enumerate(inner)
                    for side in (place, place + 1)
                ]
                for ends in itertools.product(*walls):
                    at = (0, *ends, 0)
                    yield tuple(
                        Cut(edges[i], edges[i + 1], mesh, at[2 * i], at[2 * i + 1]) for i, mesh in enumerate(meshes)
                    )


@pytest.mark.parametrize(("microbatches", "limit"), [(2, None), (8, None), (8, 7 << 20), (8, 1 << 20)])
def test_the_best_pipeline_is_that_of_enumeration(model, cluster, microbatches, limit):
    options = PlanOptions(effort="quick", microbatches=microbatches, memory_limit_bytes=limit, gap=0.0)
    stager = PipelineSolver(model, cluster, options, SCHEDULE)
    best = math.inf
    fresh = PipelineSolver(model, cluster, options, SCHEDULE)
    for cuts in all_cuts(fresh):
        plans = [fresh.planner.plan(cut, fresh.planner.in_flight(i, len(cuts)), i) for i, cut in enumerate(cuts)]
        if None not in plans:
            best = min(best, fresh._staged(cuts, tuple(plans)).step_ns)
    if best == math.inf:
        with pytest.raises(InfeasibleError):
            stager.solve()
        return
    found = stager.solve()
    assert found.step_ns == pytest.approx(best, rel=1e-6)
    assert found.bound_ns <= best * (1 + 1e-6)


def test_runs_cost_what_their_parts_cost_when_solved(model, cluster):
    chain = chain_of(model, model_rules(model))
    unlimited = PlanOptions(effort="quick", microbatches=2, memory_limit_bytes=1 << 50)
    runs = RunCosts(Planner(model, cluster, unlimited).built_at()[0], chain)
    for first, last in itertools.combinations(range(len(chain) + 1), 2):
        part = part_of(chain, first, last, "part")
        solved = Planner(part, cluster, unlimited).solve_at(()).solution
        rounded = runs.built.graph.number_of_nodes() + runs.built.graph.number_of_edges()
        assert runs.least(first, last) == pytest.approx(solved.cost, rel=1e-9, abs=rounded)


def test_one_stage_is_the_plan_of_the_whole(model, cluster):
    options = PlanOptions(effort="quick", microbatches=2)
    plan = plan_stages(model, cluster, options, SCHEDULE, stages=1)
    whole = plan_model(model, cluster, options)
    assert plan.summary.step_ns == whole.summary.step_ns
    (stage,) = plan.pipeline.stages
    assert (stage.plan.operators, stage.plan.moves) == (whole.operators, whole.moves)


@pytest.fixture(scope="module")
def staged(model, cluster):
    return plan_stages(model, cluster, PlanOptions(effort="quick", microbatches=4), SCHEDULE, stages=2)


def test_the_plan_of_a_pipeline(staged):
    first, second = staged.pipeline.stages
    assert (first.in_flight, second.in_flight) == (2, 1)
    assert first.plan.mesh.size + second.plan.mesh.size == staged.mesh.size
    assert {first.first_device, second.first_device} == {0, 2}
    (handed,) = staged.pipeline.transfers
    assert handed.tensor in {name for operator in first.plan.operators for name in operator.outputs}
    assert (handed.sender, handed.receiver, handed.count) == (0, 1, 4)
    assert handed.backward
    summary, parts = staged.summary, [stage.plan.summary.step_ns for stage in (first, second)]
    exposed = (1 - handed.hidden) * handed.time_ns
    assert summary.step_ns == pytest.approx((sum(parts) + 3 * max(parts)) / 4 + exposed, abs=2)
    assert summary.step_bound_ns <= summary.step_ns
    assert staged.pipeline.bubble == pytest.approx(1 - max(parts) / summary.step_ns, abs=1e-5)


def test_the_file_of_a_pipeline(staged):
    text = dumps(staged)
    assert dumps(loads(text)) == text
    assert json.loads(text)["format_version"] == "1.5"
    Draft202012Validator(PLAN_SCHEMA).validate(json.loads(text))
    broken = text.replace('"receiver": 1', '"receiver": 7')
    with pytest.raises(ShardplanError) as problem:
        loads(broken, "p.json")
    assert "pipeline: a transfer from stage 0 to 7, and there are 2 stages" in str(problem.value)


def test_more_stages_than_units(model, cluster):
    with pytest.raises(ShardplanError) as problem:
        plan_stages(model, cluster, PlanOptions(effort="quick"), SCHEDULE, stages=99)
    units = len(chain_of(model, model_rules(model)))
    assert str(problem.value) == (
        f"error[too-many-stages]: 'chain' has {units} units and cannot be cut into 99 stages\n"
        f"hint: at most --stages {units}"
    )


@pytest.mark.parametrize(
    ("mesh", "stages", "code", "hint"),
    [
        ("1x2", 3, "too-many-stages", "at most --stages 2"),
        ("3x1", 2, "bad-stages", "--stages 1 or 3"),
        ("3x2", 3, None, None),
    ],
)
def test_stages_that_devices_cannot_be_shared_out_among(model, mesh, stages, code, hint):
    """Parts of 3x1 have one or three devices, those of 3x2 one, two or six."""
    cluster = make_cluster(load_profile("generic"), mesh)
    if code is None:
        assert len(plan_stages(model, cluster, PlanOptions(effort="quick"), SCHEDULE, stages).pipeline.stages) == stages
        return
    with pytest.raises(ShardplanError) as problem:
        plan_stages(model, cluster, PlanOptions(effort="quick"), SCHEDULE, stages)
    devices = cluster.mesh.size
    summary = f"{cluster.mesh} has {devices} devices, which cannot be shared out among {stages} stages"
    assert str(problem.value) == f"error[{code}]: {summary}\nhint: {hint}"


def test_the_verbs(model, shardplan, folder: Path):
    onnx.save(proto_of(CHAIN), "chain.onnx")
    given = ("chain.onnx", "-c", "generic", "--mesh", "2x2", "--microbatches", "4", "--stages", "2")
    run = shardplan("solve", *given)
    assert run.code == 0
    assert "wrote     plans/chain.2x2.stages.plan.json" in run.out
    shown = shardplan("show", "plans/chain.2x2.stages.plan.json")
    assert shown.code == 0
    assert shown.out.count("1f1b, 4 microbatches; the slowest stage waits") == 1
    assert [line.split()[0] for line in shown.out.splitlines() if line.startswith("stage ")] == ["stage"] * 3
    again = shardplan("solve", *given)
    assert "same as   plans/chain.2x2.stages.plan.json" in again.out


def test_wrong_words(shardplan, mlp: Path):
    run = shardplan("solve", "mlp.onnx", "--dim", "batch=64", "--stages", "many", "--schedule", "gpipe")
    assert run.code == 2
    assert "error[bad-stages]: --stages 'many' is no number of stages\n" in run.err
    assert "hint: a positive number, auto, or the file of a plan (.json)" in run.err
    run = shardplan("solve", "mlp.onnx", "--dim", "batch=64", "--stages", "auto", "--mesh", "auto")
    assert run.code == 2
    assert "stages choose their meshes among the parts of one --mesh" in run.err


def test_verify_runs_stage_after_stage(model, staged):
    report = verify_plan(model, staged)
    assert report.verified
    assert report.devices == 4
    parts = [len(stage.plan.operators) for stage in staged.pipeline.stages]
    assert report.operators == sum(parts)


def test_a_wrong_stage_is_found(model, staged):
    first, second = staged.pipeline.stages
    wrong = second.plan.operators[-1]
    layout = Layout.of(*[P()] * len(wrong.makes[0]))
    broken = replace(second.plan, operators=(*second.plan.operators[:-1], replace(wrong, makes=(layout,))))
    pipeline = replace(staged.pipeline, stages=(first, replace(second, plan=broken)))
    with pytest.raises(ShardplanError, match="the plan contradicts itself at operator 'MatMul_8'"):
        verify_plan(model, replace(staged, pipeline=pipeline))


def test_the_timeline_of_a_pipeline(staged):
    chart = timeline(staged)
    assert streams_of(staged) == ("stage 0", "stage 1", "stage 0 to 1")
    stages = [stage.plan.summary.step_ns for stage in staged.pipeline.stages]
    for stream, step_ns in enumerate(stages):
        assert chart.busy(stream) == pytest.approx(step_ns / 1e9, rel=1e-6)
    handed = 2 * sum(transfer.time_ns for transfer in staged.pipeline.transfers) / 1e9
    formula = SCHEDULE.step(stages, 4) / 1e9
    assert formula * (1 - 1e-6) <= chart.seconds <= formula + handed


def test_what_differs_between_pipelines(model, cluster, staged):
    assert diff_plans(staged, staged).is_empty
    other = diff_plans(
        staged, plan_stages(model, cluster, PlanOptions(effort="quick", microbatches=4), SCHEDULE, stages=3)
    )
    assert {change.kind for change in other.changes} >= {"stage", "transfer"}
    assert "stages 2 → 3" in other.causes


def test_the_other_verbs(model, shardplan, folder: Path):
    onnx.save(proto_of(CHAIN), "chain.onnx")
    plan = "plans/chain.2x2.stages.plan.json"
    shardplan(
        "solve", "chain.onnx", "-c", "generic", "--mesh", "2x2", "--microbatches", "4", "--stages", "2",
        "--schedule", "gpipe",
    )  # fmt: skip
    assert shardplan("check", plan, "--model", "chain.onnx", "--resolve").code == 0
    explained = shardplan("explain", plan, "u2", "--model", "chain.onnx")
    assert explained.code == 0
    stage, _, rest = explained.out.partition(": ")
    assert rest.startswith("u2  [256, 1024] float")
    assert shardplan("explain", plan, f"{stage}: u2", "--model", "chain.onnx").out == explained.out
    instead = shardplan("explain", plan, "u2", "--model", "chain.onnx", "--instead", "replicate")
    assert instead.out.startswith(f"{stage}: u2  [256, 1024] float  → replicate\n")
    priced = shardplan("evaluate", "chain.onnx", "--fix", plan)
    assert (priced.code, priced.out) == (2, "")
    assert priced.err == (
        f"{plan}: error[pipeline-plan]: the plan is a pipeline of 2 stages, which cannot be priced anew\n"
        f"hint: shardplan explain {plan} says what it takes\n"
    )
    assert "stage 1: " in shardplan("explain", plan).out
    verified = shardplan("verify", "chain.onnx", plan)
    assert verified.code == 0
    assert verified.out.startswith("verified: 9 operators of 'chain' on 4 devices")
    for verb in (("show", plan), ("explain", plan), ("timeline", plan), ("check", plan), ("diff", plan, plan)):
        run = shardplan(*verb, "--json")
        DOCUMENTS.validate(json.loads(run.out))
        assert run.code == 0


def test_check_says_how_to_solve_a_pipeline_again(model, shardplan, folder: Path):
    onnx.save(proto_of(CHAIN), "chain.onnx")
    shardplan("solve", "chain.onnx", "-c", "generic", "--mesh", "2x2", "--stages", "2", "-o", "p.json")
    text = Path("p.json").read_text()
    digest = json.loads(text)["model"]["digest"]
    Path("p.json").write_text(text.replace(digest, "sha256:" + "0" * 64))
    run = shardplan("check", "p.json", "--model", "chain.onnx")
    assert run.code == 1
    assert "--stages 2" in run.err + run.out


TIED = """
tied (float[16,256] x) => (float[16,256] y)
<float[256,256] shared, float[256,256] w> {
  a = MatMul (x, shared)
  b = Relu (a)
  c = MatMul (b, w)
  d = Relu (c)
  y = MatMul (d, shared)
}"""


def tied_model(folder):
    onnx.save(proto_of(TIED), folder / "tied.onnx")
    return read_model(folder / "tied.onnx")


@pytest.fixture(scope="module")
def tied(tmp_path_factory, cluster):
    """A model whose first and last operator share a weight, and its two stages."""
    model = tied_model(tmp_path_factory.mktemp("models"))
    return model, plan_stages(model, cluster, PlanOptions(effort="quick", microbatches=4), SCHEDULE, stages=2)


def test_weights_that_two_stages_hold_are_kept_equal(tied, cluster):
    model, plan = tied
    handed, shared = plan.pipeline.transfers
    assert plan.pipeline.handed == (handed,)
    assert (shared.tensor, shared.sender, shared.receiver, shared.count, shared.hidden) == ("shared", 0, 1, 1, 0.0)
    stages = [stage.plan.summary.step_ns for stage in plan.pipeline.stages]
    waited = (1 - handed.hidden) * handed.time_ns + shared.time_ns
    assert plan.summary.step_ns == pytest.approx(SCHEDULE.step(stages, 4) + waited, abs=2)
    assert verify_plan(model, plan).verified
    served = plan_stages(
        model, cluster, PlanOptions(effort="quick", mode="inference", microbatches=4), SCHEDULE, stages=2
    )
    assert len(served.pipeline.transfers) == 1
    assert served.pipeline.transfers[0].backward == ()


def test_the_timeline_ends_with_tied_weights(tied):
    _, plan = tied
    shared = plan.pipeline.transfers[-1]
    chart = timeline(plan)
    assert streams_of(plan)[-1] == "stage 0 to 1: shared"
    assert [task.name for task in chart.tasks[-2:]] == ["gradient", "weight"]
    assert chart.starts[-2] == pytest.approx(max(chart.ends[:-2]))
    assert chart.ends[-1] - chart.starts[-2] == pytest.approx(shared.time_ns * 1e-9)


def with_all_tied_layouts(stager, cuts):
    weight, graphs = "shared", [stager.stage_costs.runs_on(part).built for part in range(len(stager.parts))]
    if len(cuts) == 1:
        return [cuts]
    first, last = (range(len(graphs[cut.submesh].kept[weight])) for cut in (cuts[0], cuts[-1]))
    return [
        (replace(cuts[0], tied=one), *cuts[1:-1], replace(cuts[-1], tied=other))
        for one, other in itertools.product(first, last)
    ]


def test_how_tied_weights_are_kept_is_chosen_with_the_cut(tmp_path):
    """In both stages, and as enumeration of all their layouts has it; so the plan is known to be the best."""
    short = TIED.replace("  c = MatMul (b, w)\n  d = Relu (c)\n", "").replace("(d, shared)", "(b, shared)")
    onnx.save(proto_of(short.replace(", float[256,256] w", "")), tmp_path / "short.onnx")
    model = read_model(tmp_path / "short.onnx")
    pair, options = make_cluster(load_profile("generic"), "1x4"), PlanOptions(effort="quick", microbatches=4, gap=0.0)
    fresh = PipelineSolver(model, pair, options, SCHEDULE, stages=2)
    best = math.inf
    for cuts in itertools.chain.from_iterable(
        with_all_tied_layouts(fresh, cuts) for cuts in all_cuts(fresh) if len(cuts) == 2
    ):
        plans = [fresh.planner.plan(cut, fresh.planner.in_flight(i, 2), i) for i, cut in enumerate(cuts)]
        best = min(best, fresh._staged(cuts, tuple(plans)).step_ns)
    found = plan_stages(model, pair, options, SCHEDULE, stages=2).summary
    assert found.step_ns == pytest.approx(best, abs=1)
    assert found.step_ns - found.step_bound_ns <= 1  # times of stages are rounded to nanoseconds


def test_what_is_least_for_tied_weights_is_no_more_than_they_cost(tied, cluster):
    model, plan = tied
    stage_costs = PipelineSolver(
        model, cluster, PlanOptions(effort="quick", microbatches=4), SCHEDULE, stages=2
    ).stage_costs
    least_ns = least_tied_ns(
        stage_costs.transfers,
        stage_costs.chain,
        stage_costs.parts,
        [stage_costs.runs_on(part).built for part in range(len(stage_costs.parts))],
    )
    assert 0 < least_ns <= plan.pipeline.transfers[-1].time_ns


def test_a_stage_may_have_no_weights(tied, cluster):
    """It hands gradients on."""
    model, _ = tied
    plan = plan_stages(model, cluster, PlanOptions(effort="quick", microbatches=4), SCHEDULE, stages=4)
    assert any(all("Relu" in one.name for one in stage.plan.operators) for stage in plan.pipeline.stages)
    assert verify_plan(model, plan).verified


def test_one_stage_is_taken_where_tied_weights_make_two_dearer(tmp_path):
    onnx.save(proto_of(TIED), tmp_path / "tied.onnx")
    model, slow = read_model(tmp_path / "tied.onnx"), make_cluster(load_profile("v100-p3-16xl"), "2x1")
    options = PlanOptions(effort="quick", microbatches=2)
    found = plan_stages(model, slow, options, SCHEDULE)
    each = [plan_stages(model, slow, options, SCHEDULE, stages=count).summary.step_ns for count in (1, 2)]
    assert found.summary.step_ns == min(each)


def test_a_pipeline_is_verified_in_a_scaled_down_form(shardplan, folder: Path):
    onnx.save(proto_of(CHAIN), "chain.onnx")
    shardplan("solve", "chain.onnx", "-c", "generic", "--mesh", "2x2", "--stages", "2", "-o", "p.json")
    run = shardplan("verify", "chain.onnx", "p.json", "--shrink")
    assert run.code == 0
    assert "verified: 9 operators of scaled-down 'chain' on 4 devices" in run.out


def test_interleaved_stages_need_units_enough(model, cluster):
    with pytest.raises(ShardplanError) as problem:
        plan_stages(
            model, cluster, PlanOptions(effort="quick", microbatches=4), parse_schedule("interleaved:2"), stages=2
        )
    assert str(problem.value) == (
        "error[too-many-stages]: 'chain' has 3 units: too few for 'interleaved:2' on machine=2 x gpu=2\n"
        "hint: fewer model chunks, or fewer --stages, all alike"
    )


def deep_model(folder, count=5):
    layers = "\n".join(
        f"  a{i} = MatMul (x{i}, u{i})\n  b{i} = Relu (a{i})\n  x{i + 1} = MatMul (b{i}, d{i})" for i in range(count)
    )
    weights = ", ".join(f"float[256,1024] u{i}, float[1024,256] d{i}" for i in range(count))
    text = f"deep (float[16,256] x0) => (float[16,256] x{count}) <{weights}> {{\n{layers}\n}}"
    onnx.save(proto_of(text), folder / "deep.onnx")
    return read_model(folder / "deep.onnx")


def test_an_interleaved_search_that_is_given_up_keeps_its_best_pipeline(tmp_path, cluster, monkeypatch):
    """Of several numbers of stages, the first is planned when time is up."""
    bound, asked = PipelineSolver._interleaved_bound, []

    def late(self, part, stages):
        asked.append(stages)
        if len(asked) > 1:
            raise GivenUpError
        return bound(self, part, stages)

    monkeypatch.setattr(PipelineSolver, "_interleaved_bound", late)
    options, schedule = PlanOptions(effort="quick", microbatches=4), parse_schedule("interleaved:2")
    plan = plan_stages(deep_model(tmp_path, 9), cluster, options, schedule)
    assert len(asked) == 2
    assert len(plan.pipeline.stages) == 2 * asked[0]
    assert not plan.summary.reproducible
    assert 0 < plan.summary.step_bound_ns <= plan.summary.step_ns


def test_interleaved_stages_take_a_multiple_of_microbatches(tmp_path, cluster):
    """One microbatch on four stages was priced as two and a half times as fast with 8 chunks on each."""
    model, schedule = deep_model(tmp_path, 9), parse_schedule("interleaved:2")
    for stages in (4, None):
        with pytest.raises(ShardplanError) as problem:
            plan_stages(model, cluster, PlanOptions(effort="quick", microbatches=1), schedule, stages=stages)
        count, fits = (4, 4) if stages else (2, 2)
        assert str(problem.value) == (
            f"error[uneven-microbatches]: 'interleaved:2' on {count} stages takes a multiple of {count} microbatches, "
            f"and not 1\nhint: --microbatches {fits}, or --schedule 1f1b"
        )
    plan = plan_stages(model, cluster, PlanOptions(effort="quick", microbatches=2), schedule)
    assert len(plan.pipeline.stages) == 4  # two stages, as four take no two microbatches


def test_interleaved_stages_run_several_pieces(tmp_path, cluster):
    model = deep_model(tmp_path)
    schedule = parse_schedule("interleaved:2")
    plan = plan_stages(model, cluster, PlanOptions(effort="quick", microbatches=4), schedule, stages=2)
    stages = plan.pipeline.stages
    assert [stage.name for stage in stages] == [
        "stage 0 piece 0",
        "stage 1 piece 0",
        "stage 0 piece 1",
        "stage 1 piece 1",
    ]
    assert [stage.first_device for stage in stages] == [0, 2, 0, 2]
    each = [stage.plan.summary.step_ns for stage in stages]
    handed = sum((1 - transfer.hidden) * transfer.time_ns for transfer in plan.pipeline.transfers)
    assert len(plan.pipeline.transfers) == 3
    assert plan.summary.step_ns == pytest.approx(
        schedule.step([each[0] + each[2], each[1] + each[3]], 4) + handed, abs=2
    )
    assert plan.summary.memory.total >= max(stage.plan.summary.memory.total for stage in stages)
    assert plan.summary.step_bound_ns <= plan.summary.step_ns
    assert verify_plan(model, plan).verified
    assert loads(dumps(plan)).pipeline.schedule == "interleaved:2"
    between = ("0 piece 0 to 1 piece 0", "1 piece 0 to 0 piece 1", "0 piece 1 to 1 piece 1")
    assert streams_of(plan) == ("stage 0", "stage 1", *(f"stage {ends}" for ends in between))
    assert "forward 0 of piece 1" in {task.name for task in timeline(plan).tasks}
    assert pipeline_chart(plan)["computing"] == 2
    assert timeline(plan).seconds >= max(each[0] + each[2], each[1] + each[3]) / 1e9 * (1 - 1e-6)


def test_pieces_arebalanced():
    edges = balanced([1.0, 1.0, 1.0, 5.0, 1.0, 1.0], 3)
    assert edges == [0, 3, 4, 6]


def test_constraints_hold_in_the_stage_that_has_what_they_name(model, cluster):
    options = PlanOptions(effort="quick", microbatches=4, constraints=(parse_pin("u2=[null, gpu]"),))
    plan = plan_stages(model, cluster, options, SCHEDULE, stages=2)
    _, second = plan.pipeline.stages
    (kept,) = [tensor for tensor in second.plan.tensors if tensor.name == "u2"]
    assert to_text(kept.layout, second.plan.mesh) == "S(1)@gpu"
    with pytest.raises(ShardplanError, match=r"error\[no-match\]"):
        plan_stages(model, cluster, replace(options, constraints=(parse_pin("nothing=replicate"),)), SCHEDULE)


@pytest.mark.parametrize("stages", [None, 2])
def test_under_a_time_limit_equal_stages_are_the_answer_where_costs_of_runs_come_too_late(stages):
    model = "transformer:layers=4,hidden=64,heads=2,vocab=128,seq=32,batch=8,style=gpt"
    given = {"stages": stages or "auto", "microbatches": 4, "cluster": "generic"}
    found = make_plan(model, "1x4", time_limit=0.02, **given)
    best = make_plan(model, "1x4", **given)
    assert found.summary.outcome == "feasible"
    assert [stage.plan.mesh.size for stage in found.pipeline.stages] == [4 // (stages or 1)] * (stages or 1)
    assert 0 < found.summary.bound_ns <= best.summary.step_ns <= found.summary.step_ns


@pytest.mark.parametrize("stages", [1, None])
def test_one_stage_is_planned_with_the_effort_that_is_asked_for(monkeypatch, stages):
    """It is the plan without a pipeline, which is no longer; stages of a search are planned with little effort."""
    model = described("transformer:layers=1,hidden=64,heads=2,ffn=256,vocab=256,batch=4,seq=128")
    cluster, efforts = make_cluster(load_profile("h100-dgx"), "2x2"), []

    def recorded(model, cluster, options, **given):
        efforts.append((len(model.operators), options.effort))
        return Planner(model, cluster, options, **given)

    monkeypatch.setattr(stage_planner, "Planner", recorded)
    monkeypatch.setattr(StageCosts, "least_ns", lambda *_: 0.0)  # as if there were hope
    staged = plan_stages(model, cluster, PlanOptions(microbatches=2), SCHEDULE, stages)
    assert (len(model.operators), "thorough") in efforts
    assert staged.summary.step_ns <= plan_model(model, cluster, PlanOptions(microbatches=2)).summary.step_ns
    efforts.clear()
    plan_stages(model, cluster, PlanOptions(microbatches=2, effort="quick"), SCHEDULE, stages)
    assert {effort for _, effort in efforts} == {"quick"}
