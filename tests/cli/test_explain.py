"""`shardplan explain`: shares of the step, and alternatives that were solved again."""

import io
import json
import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import onnx
import pytest
from jsonschema import Draft202012Validator
from rich.console import Console
from small_models import proto_of

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.model.read import read_model
from shardplan.plan.file import read_plan, write_plan
from shardplan.planning import Planner, PlanOptions, plan_model
from shardplan.planning.recipes import zero_3
from shardplan.render.explain import show_explanation
from shardplan.study.alternatives import Alternative
from shardplan.study.explain import described, explain
from shardplan.study.named_decisions import NamedDecisions
from shardplan.units import duration

SCHEMA = json.loads((files("shardplan.render") / "documents.schema.json").read_text(encoding="utf-8"))
CHOSEN = Alternative("S(1)@gpu", chosen=True, cost_ns=0, memory_bytes=0)
PLAN = "plans/mlp.2x2.plan.json"
SOLVE = ("solve", "mlp.onnx", "--dim", "batch=64", "--mesh", "2x2")


@pytest.fixture
def solved(shardplan, mlp) -> Path:
    shardplan(*SOLVE)
    return Path(PLAN)


@pytest.fixture
def layers(shardplan, folder) -> Path:
    """`layers.json`, a plan of two layers behind a norm, of which each has a module path, on four devices."""
    body = "".join(
        f"[up_{n}] h{n} = MatMul (x{n}, w{n}) [act_{n}] a{n} = Relu (h{n}) [down_{n}] x{n + 1} = MatMul (a{n}, v{n}) "
        for n in (0, 1)
    )
    weights = ", ".join(f"float[64,256] w{n}, float[256,64] v{n}" for n in (0, 1))
    body = f"[norm_first] x0 = RMSNormalization (x, g) {body}"
    model = proto_of(f"m (float[64,64] x) => (float[64,64] x2) <float[64] g, {weights}> {{ {body} }}")
    for node in model.graph.node:
        part, _, number = node.name.partition("_")
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=str(["", f"layers.{number}.{part}", node.name]))
    renamed = {
        f"{short}{n}": f"layers.{n}.{part}.weight" for n in (0, 1) for short, part in (("w", "up"), ("v", "down"))
    }
    for initializer in model.graph.initializer:
        initializer.name = renamed.get(initializer.name, initializer.name)
    for node in model.graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
    onnx.save(model, "layers.onnx")
    assert shardplan("solve", "layers.onnx", "--mesh", "1x4", "-o", "layers.json").code == 0
    return folder


def explained(shardplan, name: str, *options: str) -> dict:
    run = shardplan("explain", PLAN, name, "--model", "mlp.onnx", "--json", *options)
    document = json.loads(run.out)
    Draft202012Validator(SCHEMA).validate(document)
    assert (run.code, run.err) == (0, "")
    return document["result"]


@pytest.mark.parametrize(
    ("asked", "subject", "tied"),
    [
        ("lm_head.weight", "lm_head.weight", "transformer.wte.weight"),
        ("transformer.wte.weight", "transformer.wte.weight", "lm_head.weight"),
        ("lm_head.*", "lm_head.weight", "transformer.wte.weight"),
    ],
)
def test_a_tied_weight_is_called_as_it_was_asked_for(asked, subject, tied):
    plan = read_plan(Path(__file__).parents[2] / "plans" / "gpt2_small.4x4.plan.json")
    weight = next(tensor for tensor in plan.tensors if tensor.aliases)
    found = described(plan, NamedDecisions((weight,)), asked)
    assert (found.subject, found.tied) == (subject, (tied,))
    written = io.StringIO()
    show_explanation(Console(file=written, width=80), plan, replace(found, alternatives=(CHOSEN,)))
    assert written.getvalue().startswith(f"{subject}  [50257, 768] float")
    assert f" per device, tied with {tied}\n" in written.getvalue()
    other = Alternative("R", chosen=False, cost_ns=1000, memory_bytes=0)
    for alternatives, head in (
        ((CHOSEN, other), "memory\n"),
        ((CHOSEN, replace(other, also=("x",))), "else changes\n"),
    ):
        show_explanation(Console(file=written, width=80), plan, replace(found, alternatives=alternatives))
        (line,) = re.findall("alternative .*\n", written.getvalue())[-1:]
        assert line.endswith(head)


def test_what_a_step_is_made_of(shardplan, solved):
    run = shardplan("explain", PLAN)
    assert run.code == 0
    assert run.out.startswith("step ")
    document = json.loads(shardplan("explain", PLAN, "--json").out)
    Draft202012Validator(SCHEMA).validate(document)
    times = [share["time_us"] for share in document["result"]["shares"]]
    assert times == sorted(times, reverse=True)
    # The optimizer's own time is no operator's.
    assert 0 < sum(times) <= document["result"]["step_us"] * 1.001


def test_no_alternative_costs_less_than_the_choice(shardplan, solved):
    result = explained(shardplan, "up.weight")
    chosen, *others = result["alternatives"]
    assert chosen["chosen"]
    assert chosen["cost_us_delta"] == 0
    assert others
    costs = [one["cost_us_delta"] for one in others if one["possible"]]
    assert 0 <= min(costs) < max(costs)
    assert len({one["choice"] for one in result["alternatives"]}) == len(result["alternatives"])


def test_a_better_alternative_has_a_minus(mlp):
    """In the layouts of a recipe that is not the best."""
    model, cluster = read_model(mlp, {"batch": 64}), make_cluster(load_profile("generic"), "2x2")
    plan = Planner(model, cluster, PlanOptions(effort="quick")).plan(zero_3)
    found = explain(plan, "p.json", model, "up.weight")
    best, step_ns = found.alternatives[1], plan_model(model, cluster, PlanOptions()).summary.step_ns
    assert step_ns <= plan.summary.step_ns + best.cost_ns < plan.summary.step_ns
    written = io.StringIO()
    show_explanation(Console(file=written, width=80), plan, found)
    assert f"{best.choice}                       −{duration(-best.cost_ns)}" in written.getvalue()


def test_solving_with_the_choice_pinned_costs_no_more(shardplan, solved):
    """What an alternative costs is the difference of two scheduled steps, the second found in a shorter search."""
    before = json.loads(Path(PLAN).read_text())["summary"]["step_us"]
    one = next(one for one in explained(shardplan, "down.weight")["alternatives"][1:] if one["possible"])
    (dims,) = [f"[{'gpu' if '0' in one['choice'] else 'null'}, {'gpu' if '1' in one['choice'] else 'null'}]"]
    spec = "replicate" if one["choice"] == "R" else dims if one["choice"][-4:] == "@gpu" else one["choice"]
    shardplan(*SOLVE, "--pin", f"down.weight={spec}", "--output", "pinned.plan.json")
    pinned = json.loads(Path("pinned.plan.json").read_text())["summary"]
    assert pinned["step_us"] - before <= one["cost_us_delta"] + 0.01
    assert pinned["bound_us"] <= before + one["cost_us_delta"] + 0.01


def test_an_operator(shardplan, solved):
    result = explained(shardplan, "up")
    assert result["subject"] == "up"
    assert any("n@gpu" in one["choice"] for one in result["alternatives"])


def test_text(shardplan, solved):
    lines = shardplan("explain", PLAN, "up.weight", "--model", "mlp.onnx").out.splitlines()
    assert lines[0].startswith("up.weight  [64, 256] float  ")
    assert lines[1].endswith(" % of the step, 64 KiB per device")
    assert any(line.split() == ["alternative", "step", "memory", "what", "else", "changes"] for line in lines)


def test_what_does_not_fit(shardplan, mlp):
    shardplan(*SOLVE, "--memory-limit", "300 KiB")
    found = explained(shardplan, "up.weight")["alternatives"]
    (whole,) = [one for one in found if one["choice"] == "R"]
    assert (whole["possible"], whole["cost_us_delta"]) == (False, None)
    assert whole["why_not"].startswith("does not fit: ")
    assert all(one["possible"] == (not one["why_not"]) for one in found)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("explain", PLAN, "up.weigh", "--model", "mlp.onnx"), "error[no-match]: no tensor or operator matches 'up.we"),
        (("explain", PLAN, "*", "--model", "mlp.onnx"), "error[too-many]: '*' matches 2 things of 2 kinds; explain"),
        (("explain", "absent.json"), "absent.json: error[unreadable-plan]"),
    ],
)
def test_refusals(arguments, said, shardplan, solved):
    run = shardplan(*arguments)
    assert run.code == 2
    assert said in run.err


def test_the_model_is_the_one_that_the_plan_records(shardplan, solved):
    assert (
        shardplan("explain", PLAN, "up.weight").out
        == shardplan("explain", PLAN, "up.weight", "--model", "mlp.onnx").out
    )
    Path("mlp.onnx").rename("moved.onnx")
    run = shardplan("explain", PLAN, "up.weight")
    absent = f"{PLAN}: error[no-model]: its model 'mlp.onnx' is neither here, nor beside the plan or above it"
    assert (run.code, run.err.splitlines()) == (2, [absent, "hint: give it: --model MODEL"])


def test_a_plan_of_another_model(shardplan, solved):
    plan = read_plan(PLAN)
    write_plan(replace(plan, model={**plan.model, "digest": "sha256:0"}), PLAN)
    run = shardplan("explain", PLAN, "up.weight", "--model", "mlp.onnx")
    assert (run.code, run.err) == (
        2,
        f"{PLAN}: error[stale-plan]: the plan was made for another model\nhint: solve again\n",
    )


@pytest.mark.parametrize(
    ("name", "subject", "count"),
    [
        ("layers.*.up (MatMul)", "layers.*.up (MatMul)", 2),
        ("layers.*.up (MatMul) ×2", "layers.*.up (MatMul)", 2),
        ("operator layers.1.up (MatMul)", "layers.1.up (MatMul)", 1),
        ("MatMul", "layers.*.up (MatMul), layers.*.down (MatMul)", 4),
        ("output of layers.*.up (×2)", "h0, h1", 2),
        ("layers.0.up: h*", "h0", 1),
        ("layers.1.up.weight", "layers.1.up.weight", 1),
    ],
)
def test_what_tables_print_can_be_asked_for(shardplan, layers, name, subject, count):
    run = shardplan("explain", "layers.json", name, "--model", "layers.onnx")
    assert (run.code, run.err) == (0, "")
    head = run.out.splitlines()[0]
    assert head.startswith(f"{subject}  ")
    assert (f" ×{count}  " in head) == (count > 1)


def test_of_several_kinds_each_is_named_as_it_can_be_asked_for(shardplan, layers):
    run = shardplan("explain", "layers.json", "layers.0.*", "--model", "layers.onnx")
    assert run.code == 2
    first, *names, hint = run.err.splitlines()
    assert first == "error[too-many]: 'layers.0.*' matches 2 things of 2 kinds; explain one of them at a time"
    assert hint == f"hint: write it as it stands here: '{names[0].strip()}'"
    for name in names:
        assert shardplan("explain", "layers.json", name.strip(), "--model", "layers.onnx").code == 0


def test_layers_that_are_treated_differently_are_told_apart(shardplan, layers):
    fixed = ("--pin", "layers.0.up.weight=[null, gpu]", "--pin", "layers.1.up.weight=[gpu, null]")
    shardplan("solve", "layers.onnx", "--mesh", "1x4", "-o", "fixed.json", *fixed)
    run = shardplan("explain", "fixed.json", "layers.*.up.weight", "--model", "layers.onnx")
    assert run.out.splitlines()[0].endswith("×2  S(1)@gpu ×1; S(0)@gpu ×1")


class TestInstead:
    ASKED = ("explain", "layers.json", "layers.*.up.weight", "--model", "layers.onnx", "--instead")

    def test_is_the_plan_with_that_pinned(self, shardplan, layers):
        pins = [word for n in (0, 1) for word in ("--pin", f"layers.{n}.up.weight=[null, gpu]")]
        shardplan("solve", "layers.onnx", "--mesh", "1x4", "-o", "pinned.json", *pins)
        document = json.loads(shardplan(*self.ASKED, "[null, gpu]", "--json").out)
        Draft202012Validator(SCHEMA).validate(document)
        found = document["result"]["instead"]
        before, after = (json.loads(Path(name).read_text())["summary"] for name in ("layers.json", "pinned.json"))
        assert found["effects"]["step_us"]["before"] == before["step_us"]
        assert found["effects"]["step_us"]["after"] == after["step_us"]
        assert found["effects"]["memory_bytes"]["after"] == after["memory_bytes"]
        changes = sum(term["time_us_delta"] for term in found["terms"])
        assert changes == pytest.approx(after["step_us"] - before["step_us"], abs=0.02)
        assert any(change["name"] == "layers.*.up.weight" for change in found["changes"])

    def test_text(self, shardplan, layers):
        lines = shardplan(*self.ASKED, "S(1)@gpu").out.splitlines()
        assert lines[0].endswith("×2  → S(1)@gpu")
        assert lines[-4].endswith("unchanged decisions hidden)")
        assert lines[-2].startswith("step ")
        assert lines[-1].startswith("memory ")

    def test_an_operator(self, shardplan, layers):
        run = shardplan(
            "explain", "layers.json", "layers.*.up (MatMul)", "--model", "layers.onnx", "--instead", "{gpu: k}"
        )
        assert (run.code, run.err) == (0, "")

    @pytest.mark.parametrize(
        ("spec", "said"),
        [
            (
                "[gup, null]",
                "--instead '[gup, null]': error[unknown-axis]: the mesh machine=1 x gpu=4 has no axis 'gup'",
            ),
            ("{gpu: n}", "--instead '{gpu: n}':1:1: error[bad-constraint]: '{gpu: n}' is not how a tensor is sharded"),
        ],
    )
    def test_what_is_wrong_is_said_once(self, shardplan, layers, spec, said):
        run = shardplan(*self.ASKED, spec)
        assert (run.code, run.out, run.err.count("error[")) == (2, "", 1)
        assert run.err.startswith(said)

    def test_needs_a_name(self, shardplan, layers):
        run = shardplan("explain", "layers.json", "--instead", "replicate")
        assert (run.code, run.err.splitlines()[0]) == (2, "error[usage]: --instead says how NAME is to be: which one?")


PINS = {"R": "replicate", "S(0)@gpu": "[gpu, null]", "S(1)@gpu": "[null, gpu]"}


@pytest.mark.parametrize("target", ["tp-plan", "torchtitan", "fsdp2", "megatron"])
def test_alternatives_of_a_plan_for_a_format_are_what_it_can_say(shardplan, layers, target):
    """What has a cost can be planned for the format and exported to it; what it cannot express has no plan."""
    asked = ("layers.onnx", "--mesh", "1x4", "--for", target)
    assert shardplan("solve", *asked, "-o", "said.json").code == 0
    before = json.loads(Path("said.json").read_text())["summary"]["step_us"]
    name = "layers.*.up.weight"
    run = shardplan("explain", "said.json", name, "--model", "layers.onnx", "--json")
    others = [one for one in json.loads(run.out)["result"]["alternatives"] if not one["chosen"]]
    tried = [one for one in others if one["choice"] in PINS]
    assert tried
    for number, one in enumerate(tried):
        pin = ("--pin", f"{name}={PINS[one['choice']]}")
        planned = shardplan("solve", *asked, *pin, "-o", "pinned.json")
        assert (planned.code == 0) == one["possible"], (one, planned.err)
        if one["possible"]:
            step = json.loads(Path("pinned.json").read_text())["summary"]["step_us"]
            assert step <= before + one["cost_us_delta"] + 0.01, one
            assert shardplan("export", "pinned.json", "layers.onnx", "--to", target, "-o", f"out{number}").code == 0
        else:
            assert target in one["why_not"]
