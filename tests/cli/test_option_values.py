"""Values of options that say nothing, or no number, are refused with the name of the option."""

from pathlib import Path

import pytest

USAGE = "error[usage]: Invalid value for "


@pytest.fixture
def plan(shardplan, mlp: Path) -> str:
    """The file of a plan for `mlp.onnx`."""
    shardplan("solve", "mlp.onnx", "--dim", "batch=64", "--mesh", "1x2", "-q", "-o", "mlp.plan.json")
    return "mlp.plan.json"


@pytest.mark.parametrize(
    "arguments",
    [
        ("solve", "mlp.onnx", "--for", ""),
        ("compare", "mlp.onnx", "--for", ""),
        ("solve", "mlp.onnx", "--start", ""),
        ("solve", "mlp.onnx", "--memory-limit", ""),
        ("launch-env", "mlp.plan.json", "--for", "torchrun", "--hosts", ""),
    ],
)
def test_empty_text_is_no_value(arguments, shardplan, folder):
    run = shardplan(*arguments)
    assert (run.code, run.out) == (2, "")
    assert run.err.startswith(f"{USAGE}'{arguments[-2]}': the text is empty\n")


@pytest.mark.parametrize("given", ["", ",", " , "])
@pytest.mark.parametrize(
    ("option", "called"),
    [
        ("--mesh", "'-m' / '--mesh'"),
        ("--cluster", "'-c' / '--cluster'"),
        ("--microbatches", "'--microbatches'"),
        ("--remat", "'--remat'"),
        ("--stages", "'--stages'"),
    ],
)
def test_a_sweep_over_an_empty_list(option, called, given, shardplan, folder):
    run = shardplan("sweep", "mlp.onnx", option, given)
    assert (run.code, run.out) == (2, "")
    assert run.err == f"{USAGE}{called}: the list is empty\nhint: shardplan sweep --help says what is allowed\n"


@pytest.mark.parametrize("given", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("verify", "mlp.plan.json", "--rtol"),
        ("calibrate", "step", "mlp.plan.json", "--measured-ms"),
        ("solve-problem", "problem.json", "--time-limit"),
        ("solve-problem", "problem.json", "--work-limit"),
    ],
)
def test_numbers_that_are_not_finite(arguments, given, shardplan, folder):
    run = shardplan(*arguments, given)
    assert (run.code, run.out) == (2, "")
    why = f"{given} is not in the range x>0" if given == "-inf" else f"{given} is not a finite number"
    assert run.err.startswith(f"{USAGE}'{arguments[-1]}': {why}\n")


def test_what_is_no_number_is_called_so(shardplan, folder):
    run = shardplan("verify", "mlp.plan.json", "--seed", "nan")
    assert run.err.startswith(f"{USAGE}'--seed': 'nan' is not a valid whole number\n")
    run = shardplan("verify", "mlp.plan.json", "--rtol", "small")
    assert run.err.startswith(f"{USAGE}'--rtol': 'small' is not a valid number\n")


def test_show_reads_the_model_for_why_alone(shardplan, plan):
    run = shardplan("show", plan, "--model", "nope")
    assert (run.code, run.out) == (2, "")
    assert run.err.startswith("error[usage]: --model goes with --why N: ")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no folder that is writable and takes no files")
def test_a_report_that_cannot_be_written_ends_solve_before_its_search(shardplan, mlp):
    run = shardplan("solve", "mlp.onnx", "--dim", "batch=64", "--mesh", "1x2", "--html", "/proc/x.html")
    assert (run.code, run.out) == (2, "")
    assert run.err.startswith("/proc/x.html: error[unwritable-output]: cannot write the report: ")
    assert not Path("plans").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--dim", f"B={10**20}"), f"error[bad-dim]: --dim 'B={10**20}': a size is a whole number from 1 to 999,"),
        (("--dim", "B=-1"), "error[bad-dim]: --dim 'B=-1': a size is a whole number from 1 to 999,"),
        (("--trip", "decode=0"), "error[bad-trip]: --trip 'decode=0': a trip count is a whole number from 1 to 999,"),
        (("--dim", "B=two"), "error[bad-dim]: --dim 'B=two' is not NAME=N\n"),
    ],
)
def test_a_number_out_of_range_is_said_to_be_so(arguments, said, shardplan, mlp):
    run = shardplan("inspect", "mlp.onnx", *arguments)
    assert run.code == 2
    assert run.err.startswith(said)


@pytest.mark.parametrize("number", ["-1", str(10**20)])
def test_a_size_of_a_description_that_is_out_of_range(number, shardplan, folder):
    run = shardplan("inspect", f"transformer:llama3-8b,batch={number}")
    said = f"transformer: 'batch={number}': batch is a whole number without a sign, of at most 18 digits"
    assert (run.code, run.err) == (2, f"error[bad-description]: {said}\n")
