"""What a person reads when the input is wrong: the whole text, exit code 2, and nothing written."""

from pathlib import Path

import pytest
from example_plans import example_plan
from onnx import TensorProto, helper

from shardplan.plan.file import dumps

GPT2 = Path(__file__).resolve().parents[1] / "models" / "gpt2_small.onnx"
PROFILE = "schema: 1\nextends: builtin:h100-dgx\nname: mine\n"


def write_model(path: Path, *nodes) -> None:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 64])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    )


def node(kind: str, name: str, reads: list[str], makes: str):
    return helper.make_node(kind, reads, [makes], name)


@pytest.fixture
def inputs(folder: Path) -> Path:
    write_model(Path("good.onnx"), node("Relu", "relu", ["x"], "y"))
    known = helper.make_node("Constant", [], ["y"], "c", value_floats=[1.0, 2.0])
    write_model(Path("unread.onnx"), known)
    graph = helper.make_graph([known], "g", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])])
    Path("known.onnx").write_bytes(helper.make_model(graph, ir_version=10).SerializeToString())
    Path("notes.onnx").write_text("These are my notes.\n")
    Path("empty.onnx").write_bytes(b"")
    Path("cut.onnx").write_bytes(GPT2.read_bytes()[:100_000])
    write_model(
        Path("cyclic.onnx"),
        node("Add", "first", ["x", "b"], "a"),
        node("Relu", "second", ["a"], "b"),
        node("Relu", "third", ["b"], "y"),
    )
    write_model(Path("missing.onnx"), node("Add", "add", ["x", "nowhere"], "y"))
    write_model(Path("double.onnx"), node("Relu", "first", ["x"], "y"), node("Abs", "second", ["x"], "y"))
    Path("key.yaml").write_text(PROFILE + "device:\n  memory_byte: 80 GB\n")
    Path("twice.yaml").write_text(PROFILE + "name: yours\n")
    Path("unit.yaml").write_text(PROFILE + "device:\n  memory_bytes: 80 GHz\n")
    Path("old.plan.json").write_text(dumps(example_plan()).replace('"1.5"', '"2.0"', 1))
    return folder


CASES = {
    "no file": (
        "models/quux --mesh 4x4",
        "models/quux: error[no-such-file]: there is no such file\nhint: there is no directory 'models' either\n",
    ),
    "a described model without its prefix": (
        "llama3-70b --mesh 4x4",
        (
            "error[no-such-file]: there is no file 'llama3-70b'\n"
            "hint: transformer:llama3-70b is the described model of that name\n"
        ),
    ),
    "not an ONNX file": (
        "notes.onnx --mesh 4x4",
        "notes.onnx: error[not-onnx]: this is not an ONNX model: its bytes are no ONNX protobuf message\n",
    ),
    "an empty file": (
        "empty.onnx --mesh 4x4",
        "empty.onnx: error[not-onnx]: this is not an ONNX model: the file is empty\n",
    ),
    "a truncated file": (
        "cut.onnx --mesh 4x4",
        (
            "cut.onnx: error[truncated-file]: the file is truncated: it has 100,000 bytes and its contents go on to "
            "byte 282,339\nhint: copy or download the file again\n"
        ),
    ),
    "a cyclic graph": (
        "cyclic.onnx --mesh 4x4 --dim batch=4",
        (
            "cyclic.onnx: error[cyclic-graph]: the graph has a cycle of 2 nodes\n  first -> second -> first\n"
            "hint: an ONNX graph must be acyclic\n"
        ),
    ),
    "a missing input": (
        "missing.onnx --mesh 4x4 --dim batch=4",
        (
            "missing.onnx: error[missing-value]: node 'add' (Add) reads 'nowhere', which no node, graph input or "
            "initializer makes\n"
        ),
    ),
    "a duplicate name": (
        "double.onnx --mesh 4x4 --dim batch=4",
        (
            "double.onnx: error[duplicate-value]: value 'y' is made twice: by node 'first' (Relu) and by node 'second' "
            "(Abs)\n"
        ),
    ),
    "an unbound dim": (
        "good.onnx --mesh 4x4",
        (
            "good.onnx: error[unbound-dim]: 1 symbolic dim has no size: batch\n  batch: in input 'x'\n"
            "hint: give --dim batch=N\n"
        ),
    ),
    "a misspelt dim": (
        "good.onnx --mesh 4x4 --dim bacth=8",
        (
            "good.onnx: error[unknown-dim]: --dim bacth=8: no dim is called 'bacth'\n"
            "  symbolic dims of the model: batch\nhint: did you mean 'batch'?\n"
        ),
    ),
    "a dim without size": (
        "good.onnx --mesh 4x4 --dim batch",
        "error[bad-dim]: --dim 'batch' is not NAME=N\nhint: write a name and a positive size, such as --dim batch=8\n",
    ),
    "a dim with two sizes": (
        "good.onnx --mesh 4x4 --dim batch=8 --dim batch=9",
        "error[bad-dim]: --dim gives 'batch' two sizes, 8 and 9\n",
    ),
    "an unreadable mesh": (
        "good.onnx --mesh 4x --dim batch=8",
        (
            "error[bad-mesh]: mesh '4x' cannot be read\n"
            "hint: a mesh is sizes such as 4x4, outermost first, or names such as machine=4,gpu=4\n"
        ),
    ),
    "too many devices per machine": (
        "good.onnx --mesh 2x16 --dim batch=8",
        (
            "error[mesh-too-large]: 16 devices on axis 'gpu', but one machine of profile 'h100-dgx' has 8\n"
            "hint: the same number of devices: --mesh machine=4,gpu=8\n"
        ),
    ),
    "a YAML file with an unknown key": (
        "good.onnx --dim batch=8 --cluster key.yaml",
        (
            "key.yaml:5:3: error[unknown-key]: unknown key 'memory_byte' in 'device'\n"
            "  allowed: kind, memory_bytes, usable_fraction, reserved_bytes, hbm_gbps, peak_tflops, allow_tf32, gemm, "
            "mem_efficiency, launch_us, attention, attention_keys\nhint: did you mean 'memory_bytes'?\n"
        ),
    ),
    "a YAML file with a key given twice": (
        "good.onnx --dim batch=8 --cluster twice.yaml",
        "twice.yaml:4:1: error[duplicate-key]: key 'name' is given twice\n  first on line 3\n",
    ),
    "a YAML file with a wrong unit": (
        "good.onnx --dim batch=8 --cluster unit.yaml",
        (
            "unit.yaml:5:17: error[bad-value]: device.memory_bytes: expected the unit of a size such as 80 GB, found "
            "'GHz' in '80 GHz'\n"
        ),
    ),
    "an output below a file": (
        "good.onnx --mesh 4x4 --dim batch=8 --output good.onnx/plan.json",
        "good.onnx/plan.json: error[unwritable-output]: cannot write the plan: 'good.onnx' is not a folder\n",
    ),
    "an output that is something else": (
        "good.onnx --mesh 4x4 --dim batch=8 --output good.onnx",
        (
            "good.onnx: error[output-not-a-plan]: this file exists and is not a plan; it is left as it is\n"
            "hint: write elsewhere with --output, or remove the file\n"
        ),
    ),
    "a plan of another format version": (
        "good.onnx --mesh 4x4 --dim batch=8 --output old.plan.json",
        (
            "old.plan.json: error[unsupported-format]: the plan here has format version 2.0; this shardplan writes 1.x "
            "and does not overwrite it\nhint: write elsewhere with --output, or remove the file\n"
        ),
    ),
    "a memory limit with a wrong unit": (
        "good.onnx --mesh 4x4 --dim batch=8 --memory-limit 40GHz",
        "error[bad-quantity]: --memory-limit: expected the unit of a size such as 80 GB, found 'GHz' in '40GHz'\n",
    ),
    "several faults at once": (
        "none.onnx --mesh 4x --dim batch",
        (
            "error[bad-dim]: --dim 'batch' is not NAME=N\n"
            "hint: write a name and a positive size, such as --dim batch=8\n"
            "error[bad-mesh]: mesh '4x' cannot be read\n"
            "hint: a mesh is sizes such as 4x4, outermost first, or names such as machine=4,gpu=4\n"
        ),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_solve_says_what_is_wrong_and_writes_nothing(case: str, shardplan, inputs: Path):
    arguments, text = CASES[case]
    before = {path.name: path.read_bytes() for path in inputs.iterdir()}
    run = shardplan("solve", *arguments.split())
    assert (run.code, run.err, run.out) == (2, text, "")
    assert {path.name: path.read_bytes() for path in inputs.iterdir()} == before


def test_a_model_of_constants_is_nothing_to_plan(shardplan, inputs: Path):
    run = shardplan("solve", "known.onnx", "--mesh", "2x2", "--mode", "inference")
    assert run.err == "error[nothing-to-plan]: 'known' has neither operators nor inputs: it gives constants\n"
    assert run.code == 2
    assert not [*inputs.glob("**/known*.json")]
    assert shardplan("solve", "unread.onnx", "--mesh", "2x2", "--mode", "inference", "--dim", "batch=4").code == 0


def test_unknown_profile_names_the_nearest(shardplan, inputs: Path):
    run = shardplan("solve", "good.onnx", "--mesh", "4x4", "--dim", "batch=8", "--cluster", "h100-dxg")
    lines = run.err.splitlines()
    assert run.code == 2
    assert lines[0] == "error[unknown-profile]: unknown profile 'h100-dxg'"
    assert lines[1].startswith("  shipped profiles: ")
    assert lines[2] == "hint: did you mean 'h100-dgx'?"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("none.json",), "none.json: error[unreadable-plan]: cannot read the plan: no such file or directory\n"),
        (
            ("good.onnx",),
            "good.onnx: error[not-a-plan]: this is a model, not a plan\nhint: shardplan solve makes a plan of it\n",
        ),
        (
            ("old.plan.json",),
            (
                "old.plan.json: error[unsupported-format]: this plan has format version 2.0; this shardplan reads 1.x\n"
                "hint: solve again with this version, or install the version that wrote the plan\n"
            ),
        ),
    ],
)
def test_show_says_what_is_wrong(arguments, text, shardplan, inputs: Path):
    run = shardplan("show", *arguments)
    assert (run.code, run.err, run.out) == (2, text, "")


def test_profiles_check_reports_every_file(shardplan, inputs: Path):
    run = shardplan("profiles", "check", "twice.yaml", "unit.yaml")
    assert run.code == 2
    assert [line.partition(":")[0] for line in run.err.splitlines() if "error[" in line] == ["twice.yaml", "unit.yaml"]


def test_json_and_a_plan_cannot_share_standard_output(shardplan, inputs: Path):
    run = shardplan("solve", "good.onnx", "--dim", "batch=8", "--json", "--output", "-")
    assert run.code == 2
    assert "--json and --output - both want standard output" in run.err


def test_a_plan_is_no_model_nor_a_model_a_plan(shardplan, inputs):
    assert shardplan("solve", "old.plan.json", "--mesh", "2x2").err == (
        "old.plan.json: error[not-onnx]: this is not an ONNX model: its bytes are no ONNX protobuf message\n"
        "hint: this looks like a plan: shardplan show reads it\n"
    )
    assert shardplan("show", "good.onnx").err == (
        "good.onnx: error[not-a-plan]: this is a model, not a plan\nhint: shardplan solve makes a plan of it\n"
    )


def test_the_plan_that_was_meant(shardplan, inputs):
    assert shardplan("show", "odl.plan.json").err == (
        "odl.plan.json: error[unreadable-plan]: cannot read the plan: no such file or directory\n"
        "hint: did you mean 'old.plan.json'?\n"
    )


def test_a_section_that_plans_have_not(shardplan, inputs):
    run = shardplan(
        "solve", "good.onnx", "--mesh", "2x2", "--dim", "batch=8", "--constraints", "old.plan.json:parametrs"
    )
    assert run.code == 2
    assert run.err == (
        "old.plan.json: error[unknown-section]: constraints come from the inputs, parameters, outputs of a plan; "
        "it has no 'parametrs'\nhint: did you mean 'parameters'?\n"
    )


@pytest.mark.parametrize(
    "given",
    [
        *(f"--mesh {mesh}" for mesh in ("N", "gpu=N", "gpuN=2", "x".join(["9" * 300] * 40))),
        *(f"--mesh 2 --pin #N={spec}" for spec in ("replicate", "[N]")),
        *(f"--mesh 2 --pin {pin}" for pin in ("x=S(N)@gpu", "*={gpu:{inputs:N}}", "x{0-N}=replicate")),
        *(f"--mesh 2 --{option}" for option in ("stages=N", "microbatches=N", "schedule=interleaved:N", "pad=x[N]=3")),
    ],
)
def test_a_number_of_thousands_of_digits(given: str, shardplan, inputs: Path):
    words = f"--mode inference --dim batch=64 -o out.json {given}".replace("N", "7" * 5000).split()
    run = shardplan("solve", "good.onnx", *words)
    assert run.code == 2
    assert "error[" in run.err
    assert not Path("out.json").exists()


@pytest.mark.parametrize("section", ["inputs", "outputs"])
def test_an_entry_of_a_list_beyond_all(section: str, shardplan, inputs: Path):
    Path("one.yaml").write_text(f"{section}: [replicate, replicate]\n")
    run = shardplan(
        "solve", "good.onnx", "--mode", "inference", "--dim", "batch=64", "--mesh", "2", "--constraints", "one.yaml"
    )
    assert run.code == 2
    assert f"there is no {section[:-1]} number 2; the model has 1" in run.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("solve", ""), "MODEL: the name of the file is empty"),
        (("solve", "good.onnx", "-o", ""), "--output: the name of the file is empty"),
        (("solve", "good.onnx", "--html", ""), "--html: the name of the file is empty"),
        (("solve", "good.onnx", "--cluster", ""), "--cluster: the name of the file is empty"),
        (("check", "a.json", ""), "PLAN...: the name of the file is empty"),
        (("check", "a.json", "--sarif", ""), "--sarif: the name of the file is empty"),
        (("export", "a.json", "--to", "jax", "-o", ""), "--output: the name of the file is empty"),
        (("solve", "good.onnx", "--html", "-"), "--html -: this is written to a file, not to standard output"),
        (("check", "a.json", "--junit", "-"), "--junit -: this is written to a file, not to standard output"),
        (("sweep", "good.onnx", "-o", "-"), "--output -: points are read again and cannot be in standard output"),
    ],
)
def test_files_have_names(arguments: tuple[str, ...], said: str, shardplan, inputs: Path):
    before = sorted(inputs.iterdir())
    run = shardplan(*arguments)
    assert (run.code, run.out) == (2, "")
    assert f"error[usage]: {said}" in run.err
    assert sorted(inputs.iterdir()) == before


def test_a_dash_is_standard_output(shardplan, mlp: Path):
    graph = ("inspect", "mlp.onnx", "--dim", "batch=64", "--format", "graphml")
    assert shardplan(*graph, "-o", "-").out == shardplan(*graph).out != ""
    assert shardplan("solve", "mlp.onnx", "--dim", "batch=64", "--mesh", "2x2", "-q", "-o", "a.json").code == 0
    launch = ("launch-env", "a.json", "--for", "torchrun")
    assert shardplan(*launch, "-o", "-").out == shardplan(*launch).out != ""
    assert not Path("-").exists()
