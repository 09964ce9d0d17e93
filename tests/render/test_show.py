"""`show`, drawn at fixed widths."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from example_plans import example_plan, example_summary

from shardplan.plan.types import Memory, Plan
from shardplan.render.console import PIPE_WIDTH, make_console
from shardplan.render.show import show_document, show_plan
from shardplan.render.solve import memory_line, proof_line

GOLDEN = Path(__file__).with_name("golden")


@pytest.mark.parametrize(("name", "width"), [("show_piped", PIPE_WIDTH), ("show_90_columns", 90)])
def test_golden(drawn, name, width):
    assert drawn(show_plan, example_plan(), width=width) == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


def test_on_a_narrow_terminal_nothing_is_cut(drawn):
    text = drawn(show_plan, example_plan(), width=100)
    assert max(map(len, text.splitlines())) <= 100
    assert "…" not in text


def test_the_largest_are_shown_and_the_rest_counted(drawn, monkeypatch):
    monkeypatch.setattr("shardplan.render.show.DEAREST", 2)
    text = drawn(show_plan, example_plan())
    assert "(4 more groups of parameters, 5.00 MiB; --all shows them)" in text
    assert "(4 more kinds of moves, 626 us exposed, 616 us overlapped; --all shows them)" in text
    assert "more groups" not in drawn(show_plan, example_plan(), everything=True)


@pytest.mark.parametrize(
    ("changes", "proof"),
    [
        ({}, "optimal: no plan of this model on this mesh is predicted to be faster"),
        ({"step_bound_ns": 40_000_000}, "optimality gap 3.0 % (lower bound 40 ms)"),
        (
            {"outcome": "feasible", "bound_ns": 40_000_000, "gap": 0.0299},
            "optimality gap 3.0 % (lower bound 40 ms)",
        ),
        (
            {"outcome": "interrupted", "bound_ns": 40_000_000, "gap": 0.0299},
            "the search was interrupted; optimality gap 3.0 % (lower bound 40 ms)",
        ),
        (  # what was minimised is near its bound, and the step is not: it is the step that people read
            {"outcome": "interrupted", "bound_ns": 40_000_000, "gap": 0.0299, "step_bound_ns": 20_000_000},
            "the search was interrupted; optimality gap 51.5 % (lower bound 20 ms)",
        ),
    ],
)
def test_proof(drawn, changes, proof):
    text = drawn(show_plan, example_plan(summary=example_summary(**changes)))
    assert text.splitlines()[-1] == f"proof     {proof}"


def test_a_pipeline_is_the_best_of_those_that_were_asked_for():
    """`--stages 2` may well be slower than one stage."""
    summary = example_summary()
    assert proof_line(summary, staged=True) == "optimal: no pipeline as was asked for is predicted to be faster"


def test_a_plan_without_parameters_or_moves(drawn):
    bare = example_plan(tensors=(), moves=(), operators=(), blocks=())
    assert "no tensor is moved between devices" in drawn(show_plan, bare)


def test_colour_only_where_it_is_wanted(monkeypatch: pytest.MonkeyPatch):
    def coloured(color: str, plan: Plan) -> bool:
        file = io.StringIO()
        show_plan(make_console(color, file), plan)  # type: ignore[arg-type]
        return "\x1b[" in file.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    plan = example_plan()
    assert [coloured(color, plan) for color in ("auto", "always", "never")] == [False, True, False]
    monkeypatch.setenv("NO_COLOR", "1")
    assert not coloured("auto", plan)


def test_no_more_is_hidden_than_the_plan_says(drawn):
    """Of 616 us that could hide, 308 do: the rest is charged."""
    summary = example_summary(hidden_ns=307_800)
    moves = show_document(example_plan(summary=summary))["moves"]
    reduce = next(move for move in moves if move["collectives"] == "all-reduce@machine")
    assert (reduce["time_us"], reduce["charged_us"]) == (684.0, pytest.approx(684.0 - 307.8))


def test_document_is_plain_data_and_complete():
    document = json.loads(json.dumps(show_document(example_plan())))
    assert document["mesh"] == {"machine": 4, "gpu": 4}
    assert document["summary"]["step_us"] == 41234.567
    qkv = next(group for group in document["parameters"] if group["name"] == "layers.*.attention.qkv.weight")
    assert qkv == {
        "name": "layers.*.attention.qkv.weight",
        "count": 2,
        "shape": [3072, 1024],
        "dtype": "bfloat16",
        "layout": "S(0;3x1024)@gpu",
        "recipe": {"machine": "data parallel", "gpu": "Megatron column"},
        "bytes_per_device": 3_145_728,
    }
    assert document["moves"][-1] == {
        "tensor": "layers.*.attention.qkv.weight",
        "module": "",
        "count": 4,
        "from": "S(0;3x1024)@gpu",
        "to": "R/P@machine, S(0;3x1024)@gpu",
        "phase": "backward",
        "kind": "blocking",
        "collectives": "all-reduce@machine",
        "payload_bytes": 2_097_152,
        "time_us": 684.0,
        "charged_us": 68.4,
    }


@pytest.mark.parametrize(
    ("amounts", "limit", "text"),
    [
        ((2, 2, 12, 8, 1), 64 * 2**30, "25 of 64 GiB per device: parameters 2 + gradients 2 + optimizer 12 + "),
        (
            (2 / 1024, 0, 0, 0.5 / 1024, 0),
            64 * 2**30,
            "2.50 MiB of 64 GiB per device: parameters 2 + activations 0.500",
        ),
        ((1, 0, 0, 0, 0), 2**30, "1 of 1 GiB per device: parameters 1"),
        ((0, 0, 0, 0, 0), 2**30, "0 B of 1 GiB per device"),
    ],
)
def test_memory_has_a_unit_that_shows_it(amounts, limit, text):
    memory = Memory(*(round(amount * 2**30) for amount in amounts))
    assert memory_line(memory, limit).startswith(text)


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120])
def test_names_are_never_broken(drawn, width):
    plan = example_plan()
    words = drawn(show_plan, plan, width=width, everything=True).split()
    for row in show_document(plan)["parameters"]:
        assert row["name"] in words
    for row in show_document(plan)["moves"]:
        assert {row["tensor"], *row["collectives"].split()} <= {*words}


def test_the_summary_is_last(drawn):
    lines = drawn(show_plan, example_plan()).splitlines()
    assert [line.split()[0] for line in lines[-3:]] == ["plan", "step", "proof"]


def test_a_parameter_stands_above_its_row_only_where_its_name_has_no_room(drawn):
    """Columns are the same for all rows."""
    plan = example_plan()
    long = replace(plan, tensors=tuple(
        replace(one, checkpoint=f"{'a_long_name.' * 4}{one.checkpoint}") if number % 2 and one.checkpoint else one
        for number, one in enumerate(plan.tensors)
    ))  # fmt: skip
    parameters, _, _ = drawn(show_plan, long, width=80).partition("\nof step")
    lines = [line for line in parameters.splitlines() if line.startswith("  ")]
    above = [at for at, line in enumerate(lines) if line.lstrip().startswith("a_long_name.")]
    assert 0 < len(above) < len(lines) - len(above)
    assert all("[" in lines[at + 1] and "[" not in lines[at] for at in above)
    assert len({line.index("[") for line in lines if "[" in line}) == 1
