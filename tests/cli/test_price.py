"""`shardplan price`: what exactly one configuration takes."""

import json
import re
from importlib.resources import files
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

import shardplan
from shardplan.cluster.keys import COALESCE, DEVICE, GEMM, LEVEL, OVERLAP, PEAK, RATE, TRAINING
from shardplan.cluster.yaml import Number
from shardplan.errors import ShardplanError

SCHEMA = json.loads((files("shardplan.render") / "documents.schema.json").read_text(encoding="utf-8"))
TINY = "transformer:layers=4,hidden=256,heads=4,vocab=1024,seq=128"
ALONE = ("price", TINY, "--no-best")


def told(shardplan, *options: str) -> dict:
    run = shardplan("price", TINY, "--no-best", "--json", *options)
    assert run.code in (0, 1), run.err
    document = json.loads(run.out)
    Draft202012Validator(SCHEMA).validate(document)
    return document["result"]


def test_it_is_said_what_runs_what_it_takes_and_whether_it_fits(shardplan, folder):
    run = shardplan("price", TINY, "--tp", "2", "--dp", "4", "--zero", "1", "--sequence-parallel")
    lines = [line.split("  ")[0].strip() for line in run.out.splitlines() if line]
    assert (run.code, run.err) == (0, "")
    assert "tp 2 x dp 4, ZeRO-1, sequence parallel" in run.out
    assert lines[4:10] == ["parameters", "gradients", "optimizer", "activations", "temporaries", "total"]
    assert "It fits: " in run.out
    assert "The best plan without a pipeline (--mesh 8) takes " in run.out


def test_the_best_plan_of_an_fsdp_trainer_is_called_so(shardplan, folder):
    run = shardplan("price", TINY, "--dp", "8", "--zero", "3")
    assert "The best plan without a pipeline for an FSDP trainer (--mesh 8) takes " in run.out


def test_what_does_not_fit_is_a_no(shardplan, folder):
    run = shardplan(*ALONE, "--memory-limit", "1 MiB")
    assert run.code == 1
    assert "It does not fit: " in run.out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--dp", "4"], "Of optimizer, there is less with --zero 1, --tp or --pp."),
        (["--dp", "4", "--zero", "1"], "Of gradients, there is less with --zero 3, --tp or --pp."),
        (
            ["--tp", "2", "--micro-batch", "512"],
            "Of activations, there is less with --recompute, --sequence-parallel, --micro-batch or --cp.",
        ),
    ],
)
def test_what_does_not_fit_says_which_options_help(shardplan, folder, options, said):
    """Those that make the largest category smaller and that are not given."""
    run = shardplan("price", TINY, "--no-best", "--memory-limit", "1 MiB", *options)
    assert said in run.out.replace("\n", " ")


def test_parts_make_up_the_step(shardplan, folder):
    for options in (["--dp", "4"], ["--pp", "2", "--dp", "2", "--global-batch", "8"], ["--tp", "2", "--cp", "2"]):
        found = told(shardplan, *options)
        parts = found["compute_us"] + found["exposed_us"] + found["bubble_us"] + found["host_us"]
        assert parts == pytest.approx(found["step_us"])
        assert (found["bubble_us"] > 0) == ("--pp" in options)
        assert found["memory_bytes"]["total"] == max(found["memory_of_stages_bytes"])


def test_state_is_cut_as_zero_says(shardplan, folder):
    none, one, three = (told(shardplan, "--dp", "8", "--zero", zero)["memory_bytes"] for zero in "013")
    assert one["optimizer"] == pytest.approx(none["optimizer"] / 8, rel=0.01)
    assert one["parameters"] == none["parameters"]
    assert three["parameters"] == pytest.approx(none["parameters"] / 8, rel=0.01)


def test_matrices_are_cut_by_tensor_and_layers_by_pipeline(shardplan, folder):
    whole = told(shardplan, "--global-batch", "8")["memory_bytes"]["parameters"]
    by_tensor = told(shardplan, "--tp", "4", "--global-batch", "8")["memory_bytes"]["parameters"]
    by_stage = told(shardplan, "--pp", "4", "--global-batch", "8")["memory_bytes"]["parameters"]
    assert by_tensor == pytest.approx(whole / 4, rel=0.05)
    assert whole / 4 < by_stage < whole / 2  # with embedding or output matrix


def test_interleaving_shortens_the_bubble(shardplan, folder):
    plain = told(shardplan, "--pp", "2", "--global-batch", "8")
    chunks = told(shardplan, "--pp", "2", "--vp", "2", "--global-batch", "8")
    assert chunks["bubble_us"] < plain["bubble_us"]


def test_dp_is_what_the_others_leave(shardplan, folder):
    assert told(shardplan, "--gpus", "16", "--tp", "2", "--pp", "2", "--global-batch", "8")["parallelism"]["dp"] == 4


def test_a_pipeline_of_a_model_without_layers(shardplan, mlp):
    """Two stages are as many as embedding and output matrix would be, and there are no such chunks."""
    run = shardplan("price", "mlp.onnx", "--dim", "batch=32", "--pp", "2")
    assert run.code == 2
    assert run.err.splitlines()[0] == "error[bad-parallelism]: the model has 0 layers, too few for 2 stages"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--tp", "3"],
            (
                "the tensor-parallel degree 3 divides no dim of 'model.embed_tokens.weight' [1024, 256], "
                "and 17 other weights"
            ),
        ),
        (["--tp", "16"], "4 attention heads do not divide over 16 ranks"),
        (["--pp", "3", "--global-batch", "4"], None),
        (["--pp", "5", "--global-batch", "5"], "the model has 4 layers, too few for 5 stages"),
        (["--dp", "3", "--global-batch", "8"], "a batch of 8 is not a multiple of 3 ranks x 1 rows"),
        (["--zero", "2"], "--zero 2 cannot be priced"),
        (["--vp", "2"], "2 virtual stages need a pipeline"),
        (
            ["--pp", "2", "--vp", "2", "--global-batch", "3"],
            (
                "2 interleaved stages take a multiple of 2 microbatches, and not 3\n"
                "hint: --global-batch 4, or leave out --vp"
            ),
        ),
        (["--ep", "2", "--dp", "2"], "there are no experts to spread"),
        (["--ep", "3", "--dp", "2"], "3 expert-parallel ranks do not divide 2 data-parallel ranks"),
        (["--tp", "0"], "the tensor-parallel degree is 0\nhint: --tp is a whole number of at least 1\n"),
        (["--vp", "0"], "the number of virtual stages is 0\nhint: --vp is a whole number of at least 1\n"),
        (["--etp", "0"], "--etp is 0\nhint: --etp is a whole number of at least 1\n"),
        (["--sequence-parallel"], "sequence parallelism needs tensor parallelism"),
        (["--gpus", "6", "--tp", "4"], "--gpus 6 is no multiple of 4"),
        (["--cp", "3"], "a sequence of 128 does not divide into 3"),
        (["--micro-batch", "0", "--global-batch", "1"], "a batch has no rows"),
        (["--dp", "2", "--global-batch", "8", "-d", "batch=4"], "--dim batch=4 and --global-batch 8 are two batches"),
    ],
)
def test_sizes_that_cannot_be_are_refused(options, said, shardplan, folder):
    run = shardplan(*ALONE, *options)
    if said is None:  # embedding and output matrix count for a layer each: 1 + 4 - 2 + 1
        assert run.code == 0
        return
    assert run.code == 2
    assert f"error[bad-parallelism]: {said}" in run.err
    assert "hint: " in run.err


def test_perturbed_profiles_give_a_range(shardplan, folder):
    run = shardplan(*ALONE, "--dp", "2", "--robust", "3")
    assert (run.code, run.err) == (0, "")
    (line,) = (line for line in run.out.splitlines() if "perturbed" in line)
    assert re.fullmatch(r"The step takes \S+ \w+ to \S+ \w+ on 3 perturbed profiles \(constants ±15.0 %\)\.", line)
    found = told(shardplan, "--dp", "2", "--robust", "3")
    assert len(found["robust_step_us"]) == 3
    assert found["robust_step_us"][0] < found["robust_step_us"][-1]
    assert "robust_step_us" not in told(shardplan, "--dp", "2")
    refused = shardplan(*ALONE, "--dp", "2", "--robust", "1" + "0" * 30)
    assert refused.code == 2
    assert f"1{'0' * 30} is not in the range 0<=x<=10000" in refused.err


def test_layers_to_recompute_are_told_by_scheme(shardplan, folder):
    none, some, full = (told(shardplan, "--recompute", scheme) for scheme in ("none", "every:2", "full"))
    for key in ("memory_bytes", "compute_us"):
        values = [each[key]["total"] if key == "memory_bytes" else -each[key] for each in (none, some, full)]
        assert values == sorted(values, reverse=True)
        assert len(set(values)) == 3
    run = shardplan(*ALONE, "--recompute", "mlp,half", "--tp", "0")
    assert run.code == 2
    assert (
        "error[bad-parallelism]: the tensor-parallel degree is 0\nhint: --tp is a whole number of at least 1" in run.err
    )
    assert "error[bad-argument]: --recompute 'mlp,half' is no scheme of recomputation that can be priced" in run.err
    assert "hint: none, selective (or core_attn), alternate (or op), full, block:N, every:N, uniform:N, or " in run.err


def test_modules_to_recompute_are_in_the_model(shardplan, folder):
    none, mlp, both = (told(shardplan, "--recompute", scheme) for scheme in ("none", "mlp", "mlp,layernorm"))
    memory = [each["memory_bytes"]["activations"] for each in (none, mlp, both)]
    assert memory[0] > memory[1] > memory[2]
    run = shardplan(*ALONE, "--recompute", "moe")
    assert run.code == 2
    assert "error[bad-argument]: no repeated layer of this model has moe, which is to be recomputed" in run.err


def test_seven_axes_are_too_many(shardplan, folder):
    experts = "transformer:layers=1,hidden=256,heads=32,vocab=256,seq=64,experts=8,top_k=2"
    options = ("--cluster", "tpu-v5p", "--tp", "32", "--dp", "64", "--cp", "4", "--ep", "8", "--no-best")
    run = shardplan("price", experts, *options)
    assert run.code == 2
    assert "error[bad-parallelism]: 7 mesh axes; at most 6 can be priced" in run.err


def test_a_model_is_given_once(shardplan, folder):
    assert "no MODEL is given" in shardplan("price", "--tp", "2").err
    assert "MODEL is given twice" in shardplan("price", TINY, "--model", TINY).err


def test_a_file_has_its_own_batch(shardplan, mlp):
    run = shardplan("price", "mlp.onnx", "-d", "batch=64", "--dp", "4", "--global-batch", "32", "--no-best")
    assert run.code == 2
    assert "has a batch of 64, and --global-batch says 32" in run.err
    assert shardplan("price", "--model", "mlp.onnx", "-d", "batch=64", "--dp", "4", "--no-best").code == 0


def test_from_python():
    priced = shardplan.price(TINY, tp=2, dp=2, zero=1, global_batch=4)
    assert priced.fits
    spent = priced.spent
    assert spent.compute_ns + spent.exposed_ns + spent.host_ns == priced.plan.summary.step_ns
    with pytest.raises(ShardplanError, match="--zero 2 cannot be priced"):
        shardplan.price(TINY, zero=2)


@pytest.mark.parametrize("which", ["minimum", "maximum"])
def test_a_profile_with_the_least_or_the_most_of_all_numbers(which, shardplan, mlp):
    """No sum, power or quotient of them is beyond all numbers."""
    given = {
        section: {
            key.key: getattr(key.kind, which)
            for key in keys.keys
            if isinstance(key.kind, Number) and not key.retired and key.key not in {"memory_bytes", "reserved_bytes"}
        }
        for section, keys in (("device", DEVICE), ("overlap", OVERLAP), ("coalesce", COALESCE), ("training", TRAINING))
    }
    gemm = {key.key: getattr(key.kind, which) for key in GEMM.keys}
    given["device"] |= {"gemm": gemm, "usable_fraction": 0.5, "peak_tflops": {"fp32": getattr(PEAK, which)}}
    names = ("base_us", "step_us", "ramp_mb")
    times = {key.key: getattr(key.kind, which) for key in LEVEL.keys if key.key in names}
    given["levels"] = {"up": {**times, "link_gbps": getattr(RATE, which)}, "net": times}
    Path("extreme.yaml").write_text(json.dumps({"extends": "builtin:h100-dgx", **given}))
    run = shardplan("price", TINY, "--tp", "2", "--dp", "2", "--cluster", "extreme.yaml", "--robust", "2")
    assert run.code == 0, run.err
    asked = ("mlp.onnx", "--dim", "batch=64", "--mesh", "2x2", "--cluster", "extreme.yaml", "--no-advice")
    assert shardplan("solve", *asked, "-o", "extreme.plan.json").code == 0
    assert shardplan("show", "extreme.plan.json").code == 0


@pytest.mark.parametrize(("ranks", "told"), [(24, True), (16, False)])
def test_weights_that_ranks_do_not_divide_are_told(shardplan, folder, ranks, told):
    run = shardplan("price", TINY, "--no-best", "--dp", str(ranks), "--zero", "3", "--global-batch", str(ranks))
    warned = (
        "warning[undivided-weights]: 40 % of the weights do not divide into 24 shards, "
        "one for each data-parallel rank\n"
        "  they are priced in at most 8; trainers pad: weights take less memory and longer to gather\n"
        "hint: price another number of ranks beside it, one that divides the sizes of weights\n"
    )
    assert run.err == (warned if told else "")


@pytest.mark.parametrize(("scheme", "told"), [("every:40", True), ("every:2", False), ("block:40", False)])
def test_a_scheme_that_recomputes_no_layer_is_said_to(shardplan, folder, scheme, told):
    run = shardplan("price", TINY, "--no-best", "--dp", "2", "--recompute", scheme, "--json")
    warned = (
        "warning[nothing-recomputed]: nothing is recomputed: 'every:40' takes every 40th layer, and the model has 4\n"
        "hint: shardplan solve --remat auto chooses value by value; shardplan inspect lists the repeated blocks\n"
    )
    assert run.err == (warned if told else "")
    assert json.loads(run.out)["command"] == "price"


@pytest.mark.parametrize(("options", "rows"), [([], 64), (["-d", "batch=16"], 16), (["--global-batch", "64"], 64)])
def test_the_batch_of_a_description_counts(options, rows, shardplan):
    run = shardplan("price", "transformer:layers=2,hidden=256,heads=4,batch=64", "--dp", "2", "--no-best", *options)
    assert f"batch     {rows} rows: {rows // 2} microbatches of 1 row per rank" in run.out


def test_two_batches_are_refused(shardplan):
    model = "transformer:layers=2,hidden=256,heads=4,batch=64"
    run = shardplan("price", model, "--dp", "2", "--global-batch", "8")
    assert run.code == 2
    assert (
        f"error[bad-parallelism]: '{model}': batch=64 and --global-batch 8 are two batches\nhint: give one" in run.err
    )
