"""`show`, `inspect` and `profiles` as a person sees them."""

import json
from pathlib import Path

from example_plans import example_plan

from shardplan.cluster.profile import list_profiles
from shardplan.plan.file import write_plan

GOLDEN = Path(__file__).resolve().parents[1] / "render" / "golden"


def test_show_is_what_the_golden_file_says(shardplan, folder):
    write_plan(example_plan(), "two.plan.json")
    run = shardplan("show", "two.plan.json")
    assert (run.code, run.err) == (0, "")
    assert run.out == (GOLDEN / "show_piped.txt").read_text(encoding="utf-8")


def test_show_in_colour(shardplan, folder):
    write_plan(example_plan(), "two.plan.json")
    assert "\x1b[" in shardplan("show", "two.plan.json", "--color", "always").out


def test_inspect(shardplan, mlp):
    run = shardplan("inspect", "mlp.onnx", "--dim", "batch=64")
    lines = [" ".join(line.split()) for line in run.out.splitlines()]
    assert lines[0] == "model mlp: 3 operators, 32,768 parameters (128 KiB)"
    assert lines[2:4] == ["reads x float[64, 64]", "returns y float[64, 64]"]
    assert lines[6] == "contraction 2 99.6 % 69.2 % MatMul ×2"
    assert lines[-1] == "every operator has a sharding rule"


def test_inspect_says_parameters_as_cards_of_models_do(shardplan):
    """Four digits for people, all of them in a document."""
    name = "transformer:mixtral-8x7b,batch=1,seq=128"
    assert " operators, 46.70 B parameters (87.0 GiB), " in shardplan("inspect", name).out
    result = json.loads(shardplan("inspect", name, "--json").out)["result"]
    assert (result["parameter_elements"], result["parameter_bytes"]) == (46_702_792_704, 2 * 46_702_792_704)


def test_profiles_lists_all_that_are_shipped(shardplan):
    run = shardplan("profiles")
    assert [line.split()[0] for line in run.out.splitlines()] == ["name", *list_profiles()]


def test_profiles_show_writes_out_the_defaults(shardplan, folder):
    run = shardplan("profiles", "show", "h100-dgx")
    assert shardplan("profiles", "h100-dgx").out == run.out
    assert "  usable_fraction: 0.92\n" in run.out
    Path("mine.yaml").write_text(run.out)
    assert shardplan("profiles", "check", "mine.yaml").out == "mine.yaml is valid\n"


def test_profiles_check(shardplan, folder):
    Path("mine.yaml").write_text("schema: 1\nextends: builtin:h100-dgx\nname: mine\n")
    assert shardplan("profiles", "check", "mine.yaml").out == "mine.yaml is valid\n"


def test_profiles_check_refuses_what_other_commands_refuse(shardplan, folder):
    head = "schema: 1\nextends: builtin:h100-dgx\nname: mine\n"
    mesh = "mesh: {axes: [{name: machine, size: 2, level: net}, {name: gpu, size: 3, level: up}]}\n"
    Path("mesh.yaml").write_text(f"{head}{mesh}levels: {{up: {{devices: 2}}}}\n")
    Path("variables.yaml").write_text(f'{head}environment: {{1B: x, A: "x\\ny", NCCL_DEBUG: INFO}}\n')
    run = shardplan("profiles", "check", "mesh.yaml", "variables.yaml", "-q")
    assert (run.code, run.out) == (2, "")
    hint = "hint: names are capitals, digits and '_'; values letters, digits and .,:;=^/+@%~_-\n"
    assert run.err == (
        "mesh.yaml: error[mesh-too-large]: 3 devices on axis 'gpu', but one machine of profile 'mine' has 2\n"
        "hint: at most 2\n"
        f"variables.yaml: error[bad-variable]: the profile sets '1B' to what no launcher should\n{hint}"
        f"variables.yaml: error[bad-variable]: the profile sets 'A' to what no launcher should\n{hint}"
    )
