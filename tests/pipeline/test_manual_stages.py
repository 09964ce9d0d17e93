"""Stages fixed by hand behave as Alpa's tests of manual sharding ask (alpa-projects/alpa, PR 816)."""

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from small_models import FOUR_GEMMS, proto_of

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.errors import ShardplanError
from shardplan.graph.options import PlanOptions
from shardplan.layout.layout import Layout
from shardplan.layout.legal import local_shape
from shardplan.layout.placement import R
from shardplan.layout.text import to_text
from shardplan.model.read import read_model
from shardplan.models.named import described
from shardplan.pipeline.manual.stages import ManualStage, ManualStages, read_stages, stages_of
from shardplan.pipeline.p2p import Transfers
from shardplan.pipeline.plan import plan_stages
from shardplan.pipeline.schedule import parse_schedule
from shardplan.pipeline.submeshes import Submesh
from shardplan.plan.file import read_plan, write_plan
from shardplan.plan.format.encode import dumps
from shardplan.program.machine.verify import verify_plan
from shardplan.yaml_source import Mark

MICROBATCHES = 2
STAGES = """
stages:
  - runs: [Gemm_0, Relu_1, Gemm_2]
    mesh: 1x2
    mesh_axis_names: [dummy, model]
    inputs: {x: replicate}
    parameters: {w1: [null, model], b1: [model], w2: [model, null], b2: replicate}
  - runs: ["*"]
    mesh: 1x2
    mesh_axis_names: [dummy, data]
    parameters: {"*": replicate}
    outputs: {y: [data, null]}
"""
BARE = """
stages:
  - {runs: [Gemm_0, Relu_1, Gemm_2], mesh: 1x2}
  - {runs: ["*"], mesh: 1x2}
"""
SCHEDULE = parse_schedule("1f1b")


def mlp(folder: Path, batch: int):
    path = folder / f"mlp{batch}.onnx"
    onnx.save(proto_of(FOUR_GEMMS.replace("BATCH", str(batch))), path)
    return read_model(path)


@pytest.fixture
def cluster():
    return make_cluster(load_profile("h100-dgx"), "1x4")


def planned(folder: Path, cluster, text: str = STAGES, batch: int = 64):
    file = folder / "fixed.yaml"
    file.write_text(text)
    manual = read_stages([str(file)])
    return plan_stages(mlp(folder, batch), cluster, PlanOptions(microbatches=MICROBATCHES), SCHEDULE, manual)


def held(stage) -> dict[str, tuple[int, ...]]:
    """What a device holds of every value in one microbatch, weights whole."""
    found = {}
    for tensor in stage.plan.tensors:
        shape = local_shape(tensor.layout, stage.plan.mesh, tensor.shape)
        cut = 1 if tensor.role == "parameter" else MICROBATCHES
        found[tensor.name] = (shape[0] // cut, *shape[1:])
    return found


def test_inputs_and_outputs_of_every_stage(tmp_path, cluster):
    plan = planned(tmp_path, cluster)
    first, second = (held(stage) for stage in plan.pipeline.stages)
    assert [first[name] for name in ("w1", "b1", "w2", "b2", "x")] == [(6, 4), (4,), (4, 10), (10,), (32, 6)]
    assert [second[name] for name in ("w3", "b3", "w4", "b4")] == [(10, 12), (12,), (12, 14), (14,)]
    assert second["y"] == (16, 14)
    assert verify_plan(mlp(tmp_path, 64), plan).verified


def test_what_stages_hand_on(tmp_path, cluster):
    plan = planned(tmp_path, cluster, STAGES + "pipeline_intermediate_axes: {data: 0}\n")
    first, second = (held(stage) for stage in plan.pipeline.stages)
    assert (first["h2"], second["h2"]) == ((32, 10), (16, 10))
    (handed,) = plan.pipeline.transfers
    assert handed.tensor == "h2"
    assert [step.collective.kind for step in handed.backward] == ["permute"]
    back = handed.backward[0].payload_bytes
    assert back >= 16 * 10 * 4  # the gradient of the half batch that each device of stage 1 has


def test_the_layouts_of_one_batch_for_another(tmp_path, cluster):
    one = planned(tmp_path, cluster, batch=8)
    reused = plan_stages(
        mlp(tmp_path, 64), cluster, PlanOptions(microbatches=MICROBATCHES), SCHEDULE, stages_of(one, "one.json")
    )
    for before, after in zip(one.pipeline.stages, reused.pipeline.stages, strict=True):
        kept = {t.name: t.layout for t in before.plan.tensors if t.role in ("input", "parameter")}
        assert {t.name: t.layout for t in after.plan.tensors if t.role in ("input", "parameter")} == kept


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stages: 2\n", "fixed.yaml:1:9: error[bad-stages]: stages: a list is expected, one entry for each stage"),
        ("stages: [{mesh: 1x2}]\n", "a stage needs 'runs': a list of patterns of modules, blocks or operators"),
        ("stages: [{runs: ['*']}]\n", "a stage needs 'mesh': its part of the devices, such as 1x2"),
        (STAGES.replace("mesh: 1x2", "mesh: 1x4"), "the stages take 8 devices, and the cluster has 4"),
        (
            STAGES.replace('["*"]', '["*", Gem_5]'),
            (
                "fixed.yaml:8:17: error[no-match]: stage 1: no module, block or operator matches 'Gem_5'\n"
                "hint: did you mean 'Gemm_5'?"
            ),
        ),
        (
            STAGES.replace('["*"]', '["Gemm_[23]", "*"]'),
            (
                "fixed.yaml:8:12: error[bad-stages]: stage 1: 'Gemm_[23]' names 'Gemm_2', which stage 0 runs\n"
                "hint: every operator is in one stage; '*' means what no stage before has"
            ),
        ),
        (
            STAGES.replace("[Gemm_0, Relu_1, Gemm_2]", "[Gemm_0, Gemm_5]"),
            "stage 1 runs nothing: no module, block or operator is left that matches",
        ),
        (
            STAGES.replace("[Gemm_0, Relu_1, Gemm_2]", "[Gemm_0, Gemm_3]").replace('["*"]', '["Relu_1", "Gemm_5"]'),
            (
                "fixed.yaml:8:5: error[bad-stages]: stage 1 names 'Relu_1', which comes before 'Gemm_3' of stage 0\n"
                "hint: stages run one after the other"
            ),
        ),
        (
            STAGES.replace("    mesh: 1x2\n", "    mehs: 1x2\n", 1),
            (
                "fixed.yaml:4:5: error[unknown-key]: unknown key 'mehs' in a stage\n"
                "  allowed: runs, mesh, mesh_axis_names, inputs, outputs, parameters, tensors, operators, axes\n"
                "hint: did you mean 'mesh'?"
            ),
        ),
        (
            STAGES + "pipeline_intermediate_axes: {dta: 0}\n",
            (
                "error[bad-stages]: pipeline_intermediate_axes: no stage has an axis 'dta'\n"
                "  there are data, dummy, model\n"
                "hint: did you mean 'data'?"
            ),
        ),
        (
            STAGES + "pipeline_intermediate_axes: {data: 7}\n",
            (
                "error[bad-stages]: pipeline_intermediate_axes: data: no value between stages has a dim 7\n"
                "  they have at most 2 dims, counted from 0"
            ),
        ),
        (STAGES + "pipeline_intermediate_axes: {data: " + "7" * 5000 + "}\n", "'data' needs the number of a dim"),
        (STAGES + "pipeline_intermediate_axes: {data: a}\n", "'data' needs the number of a dim"),
        (STAGES.replace("[null, model]", "[null, modell]"), "the mesh machine=1 x gpu=2 has no axis 'modell'"),
    ],
)
def test_faults(text, message, tmp_path, cluster, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ShardplanError) as problem:
        planned(Path(), cluster, text)
    assert message in str(problem.value)


def test_stages_by_hand_are_not_interleaved(tmp_path, cluster):
    file = tmp_path / "fixed.yaml"
    file.write_text(BARE)
    with pytest.raises(ShardplanError) as problem:
        plan_stages(
            mlp(tmp_path, 64), cluster, PlanOptions(microbatches=2), parse_schedule("interleaved:2"),
            read_stages([str(file)]),
        )  # fmt: skip
    assert str(problem.value) == (
        "error[bad-schedule]: 'interleaved:2' needs 2 model chunks per stage, and a stage by hand is one\n"
        "hint: --schedule 1f1b or gpipe; or --stages with a number, which cuts the model into chunks"
    )


def test_parts_of_one_shape_on_other_links_have_prices_of_their_own():
    """Values are gathered inside of the receiving stage: over the network between machines, or inside of one."""
    whole = make_cluster(load_profile("h100-dgx"), "2x8")
    inside, across = (Submesh(make_cluster(load_profile("h100-dgx"), mesh)) for mesh in ("gpu=2", "machine=2"))
    everywhere, size = Layout.of(R), 1 << 24
    alone = [Transfers(whole).send_receive(inside, part, everywhere, size).time_ns for part in (inside, across)]
    together = Transfers(whole)
    assert [together.send_receive(inside, part, everywhere, size).time_ns for part in (inside, across)] == alone
    assert alone[0] < alone[1]


def test_the_verb(tmp_path, shardplan, folder):
    mlp(Path(), 64)
    Path("fixed.yaml").write_text(STAGES)
    given = ("solve", "mlp64.onnx", "-c", "h100-dgx", "--mesh", "1x4", "--microbatches", "2", "-o", "p.json")
    run = shardplan(*given, "--constraints", "fixed.yaml")
    assert run.code == 0, run.err
    assert shardplan("check", "p.json", "--model", "mlp64.onnx", "--resolve").code == 0
    again = shardplan(*given, "--stages", "p.json")
    assert again.code == 0, again.err
    assert shardplan(*given, "--constraints", "fixed.yaml", "--stages", "2").code == 2


def test_constraints_outside_of_stages_hold_in_every_stage(tmp_path, shardplan, folder):
    mlp(Path(), 64)
    Path("fixed.yaml").write_text('parameters: {"w[14]": replicate, w3: [gpu]}\n' + BARE)
    given = ("solve", "mlp64.onnx", "-c", "h100-dgx", "--mesh", "1x4", "--microbatches", "2", "-o", "p.json")
    run = shardplan(*given, "--constraints", "fixed.yaml")
    assert run.code == 0, run.err
    plan = read_plan("p.json")
    layouts = {
        tensor.name: to_text(tensor.layout, stage.plan.mesh)
        for stage in plan.pipeline.stages
        for tensor in stage.plan.tensors
        if tensor.role == "parameter"
    }
    assert [layouts[name] for name in ("w1", "w4", "w3")] == ["R", "R", "S(0)@gpu"]
    Path("other.yaml").write_text("parameters: {w9: replicate}\n" + BARE)
    run = shardplan(*given, "--constraints", "other.yaml")
    assert run.code == 2
    assert "other.yaml:1:18: error[no-match]: no parameter matches 'w9'" in run.err


def test_stages_by_hand_are_solved_again_as_they_were_asked_for(tmp_path, shardplan, folder):
    mlp(Path(), 64)
    Path("fixed.yaml").write_text(STAGES.replace("{w1: [null, model], b1: [model]", "{w1: replicate, b1: replicate"))
    given = ("solve", "mlp64.onnx", "-c", "h100-dgx", "--mesh", "1x4", "--microbatches", "2", "-o", "p.json")
    assert shardplan(*given, "--constraints", "fixed.yaml").code == 0
    resolve = ("check", "p.json", "--model", "mlp64.onnx", "--resolve")
    assert shardplan(*resolve).code == 0
    plan = read_plan("p.json")
    stages = plan.pipeline.stages
    free = replace(stages[0].plan, model={**stages[0].plan.model, "constraints": []})
    worse = replace(plan.summary, hidden_ns=plan.summary.hidden_ns + 1000)
    changed = replace(plan.pipeline, stages=(replace(stages[0], plan=free), *stages[1:]))
    for wrong, said in (
        (
            replace(plan, pipeline=changed),
            "stale: the constraints of stage 0 changed since\n  + inputs: x: replicate",
        ),
        (replace(plan, summary=worse), "1 field does not follow from its decisions"),
    ):
        write_plan(wrong, "p.json")
        run = shardplan(*resolve)
        assert run.code == 1
        assert said in run.err
        assert "--constraints fixed.yaml --output p.json" in run.err
        assert "--stages" not in run.err


def test_a_stage_is_called_by_the_blocks_that_it_runs():
    model = described("transformer:layers=4,hidden=64,heads=4,vocab=128,seq=8,batch=8")
    stages = tuple(ManualStage(runs, "1x2", (), (), Mark("", 1, 1)) for runs in (("*.layers.[01]",), ("*",)))
    plan = plan_stages(
        model, make_cluster(load_profile("h100-dgx"), "1x4"), PlanOptions(), SCHEDULE, ManualStages(stages, {})
    )
    assert [stage.units for stage in plan.pipeline.stages] == [
        ("model.layers.0 … model.layers.1",),
        ("model.layers.2 … model.layers.3",),
    ]


def test_equal_requests_give_equal_bytes(tmp_path, cluster):
    assert dumps(planned(tmp_path, cluster)) == dumps(planned(tmp_path, cluster))
