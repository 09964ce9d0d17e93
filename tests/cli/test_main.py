"""Exit codes, where output goes, and the one JSON document: for every way a command can end."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import click
import pytest
from command_line import unproven
from example_plans import example_plan, example_summary

import shardplan.study.solve
from shardplan.cli import cli
from shardplan.errors import InfeasibleError, LimitError, error
from shardplan.plan.file import read_plan, write_plan
from shardplan.planning import PlanOptions

ROOT = Path(__file__).resolve().parents[2]
SOLVE = ("solve", "mlp.onnx", "--dim", "batch=64", "--mesh", "2x2")


def _commands(command: click.Command, *path: str):
    """The words that lead to every command."""
    yield path
    for name, each in command.commands.items() if isinstance(command, click.Group) else ():
        yield from _commands(each, *path, name)


@pytest.fixture
def planned(monkeypatch):
    """Let the planner return, or raise, what a test wants."""

    asked = []

    def plan_as(outcome):
        monkeypatch.setattr("shardplan.study.remedies.find_remedies", lambda *_: ())
        monkeypatch.setattr("shardplan.advice.advise.advise", lambda *_, **__: [])  # the plan is of another model

        def plan_model(model, cluster, options, *hooks, **others):
            asked.append(options)
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

        monkeypatch.setattr(shardplan.study.solve, "plan_model", plan_model)
        return asked

    return plan_as


class TestCodes:
    def test_solved(self, shardplan, mlp):
        run = shardplan(*SOLVE)
        assert (run.code, run.err) == (0, unproven("plans/mlp.2x2.plan.json"))
        summary = read_plan("plans/mlp.2x2.plan.json").summary
        assert summary.outcome == ("optimal" if summary.slack < 1e-9 else "feasible")
        assert 0 < summary.bound_ns <= summary.step_ns

    def test_infeasible(self, shardplan, mlp, planned):
        planned(InfeasibleError(error("infeasible", "no plan fits")))
        run = shardplan(*SOLVE)
        assert (run.code, run.err) == (3, "error[infeasible]: no plan fits\n")
        assert not Path("plans").exists()

    def test_limit_without_a_plan(self, shardplan, mlp, planned):
        planned(LimitError(error("limit", "the search was ended")))
        assert shardplan(*SOLVE).code == 4

    @pytest.mark.parametrize(("extra", "code"), [((), 0), (("--require-optimal",), 4)])
    def test_limit_with_a_plan(self, shardplan, mlp, planned, extra, code):
        planned(example_plan(summary=example_summary(outcome="feasible", gap=0.5, step_bound_ns=40_727_382)))
        run = shardplan(*SOLVE, *extra)
        assert run.code == code
        assert run.err == ("warning[not-optimal]: the plan is not proven optimal; its optimality gap is 1.2 %\n")
        assert Path("plans/mlp.2x2.plan.json").exists()

    def test_near_enough_is_no_warning(self, shardplan, mlp, planned):
        planned(example_plan(summary=example_summary(outcome="feasible", step_bound_ns=41_150_000)))
        run = shardplan(*SOLVE)
        assert (run.code, run.err) == (0, "")
        assert "optimality gap 0.2 %" in run.out
        assert shardplan(*SOLVE, "--gap", "0.001").err.startswith("warning[not-optimal]: ")
        assert shardplan(*SOLVE, "--require-optimal").code == 4

    def test_interrupted_with_a_plan(self, shardplan, mlp, planned):
        planned(example_plan(summary=example_summary(outcome="interrupted", gap=0.02)))
        run = shardplan(*SOLVE)
        assert run.code == 130
        assert read_plan("plans/mlp.2x2.plan.json").summary.outcome == "interrupted"

    def test_interrupted_without_one(self, shardplan, mlp, planned):
        planned(KeyboardInterrupt())
        run = shardplan(*SOLVE)
        assert run.code == 130
        assert run.err.endswith("error[interrupted]: interrupted before there was a result\n")

    def test_our_defect(self, shardplan, mlp, planned):
        planned(ZeroDivisionError("division by zero"))
        run = shardplan(*SOLVE)
        assert run.code == 70
        assert run.err == (
            "error[internal]: shardplan failed where it should not: ZeroDivisionError: division by zero\n"
            "hint: this is a defect of shardplan; please report it as CONTRIBUTING.md says, with what -v prints\n"
        )

    def test_our_defect_verbosely(self, shardplan, mlp, planned):
        planned(ZeroDivisionError("division by zero"))
        assert "Traceback (most recent call last):" in shardplan(*SOLVE, "-v").err

    def test_usage(self, shardplan, folder):
        run = shardplan("solve", "--mseh", "4x4", "m.onnx")
        assert run.code == 2
        assert run.err.startswith("error[usage]: No such option '--mseh'. ")
        assert "'--mesh'" in run.err
        assert run.err.endswith("\nhint: shardplan solve --help says what is allowed\n")
        assert run.out == ""

    def test_a_missing_argument_and_option(self, shardplan, folder):
        asked = {"solve": "Missing argument 'MODEL'", "export a.json": "Missing option '--to'"}
        for given, said in asked.items():
            run = shardplan(*given.split())
            assert (run.code, run.err.count("\n")) == (2, 2)
            assert run.err.startswith(f"error[usage]: {said}")

    def test_unknown_verb(self, shardplan, folder):
        run = shardplan("slove")
        assert run.code == 2
        assert "Did you mean 'solve'?" in run.err

    def test_bad_choice(self, shardplan, folder):
        assert shardplan("solve", "m.onnx", "--mode", "serving").code == 2

    def test_no_line_of_help_ends_inside_a_name(self, shardplan):
        for path in _commands(cli):
            for line in shardplan(*path, "--help").out.splitlines():
                assert not re.search(r"\w-$|(?<!\])\.\.\.$", line) or line.startswith("Usage: "), line

    def test_many_options_stand_under_headings_each_once(self, shardplan):
        said = shardplan("solve", "--help").out
        parts = re.split(r"^(\w[\w ,]*):$", said, flags=re.MULTILINE)
        assert parts[1::2] == ["Options", "Pipeline", "Decisions by hand, and prices", "Search", "Output"]
        options = [name for param in cli.commands["solve"].params for name in param.opts if name.startswith("--")]
        listed = re.findall(r"^  (?:-\w, )?(--[\w-]+)", said, re.MULTILINE)
        assert sorted(listed) == sorted([*options, "--help"])
        assert "--effort" in parts[8]
        assert "Pipeline:" not in shardplan("show", "--help").out

    @pytest.mark.parametrize("arguments", [("--help",), ("solve", "--help"), ("--version",), ("profiles", "--help")])
    def test_help(self, shardplan, arguments):
        run = shardplan(*arguments)
        assert (run.code, run.err) == (0, "")

    def test_nothing_asked(self, shardplan):
        assert shardplan().code == 2

    def test_reader_that_stops_reading(self, folder):
        write_plan(example_plan(), "two.plan.json")
        reading, writing = os.pipe()
        os.close(reading)
        command = [sys.executable, str(ROOT / "cli.py"), "show", "two.plan.json"]
        run = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
        os.close(writing)
        assert (run.returncode, run.stderr) == (141, "")


class TestDocuments:
    def document(self, run) -> dict:
        document = json.loads(run.out)
        assert list(document) == ["format_version", "command", "result", "diagnostics"]
        assert document["format_version"] == "1.0"
        return document

    def test_solved(self, shardplan, mlp):
        run = shardplan(*SOLVE, "--json", "--advice")
        document = self.document(run)
        plan = json.loads(Path("plans/mlp.2x2.plan.json").read_text())
        assert document["command"] == "solve"
        assert document["result"] == {"plan": "plans/mlp.2x2.plan.json", "summary": plan["summary"], "advice": []}
        assert [one["summary"] for one in document["diagnostics"]] == [
            line.partition(": ")[2] for line in unproven("plans/mlp.2x2.plan.json").splitlines()
        ]

    def test_infeasible(self, shardplan, mlp, planned):
        planned(InfeasibleError(error("infeasible", "no plan fits", hint="buy more")))
        document = self.document(shardplan(*SOLVE, "--json", "--memory-limit", "1 GiB"))
        assert document["result"]["plan"] is None
        assert document["result"]["summary"]["outcome"] == "infeasible"
        assert document["result"]["summary"]["memory_limit_bytes"] == 2**30
        assert document["diagnostics"] == [
            {"severity": "error", "code": "infeasible", "summary": "no plan fits", "detail": "", "hint": "buy more",
             "file": None, "line": None, "column": None}
        ]  # fmt: skip

    def test_infeasible_summary_has_the_keys_of_any_other(self, shardplan, mlp, planned):
        planned(InfeasibleError(error("infeasible", "no plan fits")))
        infeasible = self.document(shardplan(*SOLVE, "--json"))["result"]["summary"]
        planned(example_plan())
        assert list(infeasible) == list(self.document(shardplan(*SOLVE, "--json"))["result"]["summary"])

    def test_warning_and_plan(self, shardplan, mlp, planned):
        planned(example_plan(summary=example_summary(outcome="feasible", step_bound_ns=40_000_000)))
        document = self.document(shardplan(*SOLVE, "--json"))
        assert document["result"]["summary"]["outcome"] == "feasible"
        assert [d["code"] for d in document["diagnostics"]] == ["not-optimal"]

    def test_usage(self, shardplan, folder):
        document = self.document(shardplan("solve", "m.onnx", "--josn", "--json"))
        assert document["command"] == "solve"
        assert document["result"] is None
        assert [d["code"] for d in document["diagnostics"]] == ["usage"]

    def test_bad_input(self, shardplan, folder):
        document = self.document(shardplan("solve", "none.onnx", "--mesh", "4x", "--json"))
        assert document["result"] is None
        assert [d["code"] for d in document["diagnostics"]] == ["bad-mesh", "no-such-file"]

    def test_defect(self, shardplan, mlp, planned):
        planned(ZeroDivisionError("oh"))
        assert [d["code"] for d in self.document(shardplan(*SOLVE, "--json"))["diagnostics"]] == ["internal"]

    def test_other_verbs(self, shardplan, mlp):
        write_plan(example_plan(), "two.plan.json")
        for arguments in (
            ("show", "two.plan.json"),
            ("inspect", "mlp.onnx", "--dim", "batch=8"),
            ("profiles",),
            ("profiles", "show", "h100-dgx"),
        ):
            document = self.document(shardplan(*arguments, "--json"))
            assert document["command"] == " ".join(w for w in arguments[:2] if w in ("show", "inspect", "profiles"))
            assert document["result"]


class TestSettings:
    def test_options_reach_the_planner(self, shardplan, mlp, planned):
        asked = planned(example_plan())
        given = "--mode training --optimizer sgd --microbatches 4 --remat full --memory-limit 2GiB --time-limit 9"
        shardplan(*SOLVE, *given.split(), "--gap", "0.02", "--seed", "3", "--no-presolve", "--strict")
        shardplan(*SOLVE, "--require-optimal", "--gap", "0.02")
        assert 1.0 < asked[0].time_limit < 9.0  # it counts from the start of the command
        assert [replace(asked[0], time_limit=9.0), asked[1]] == [
            PlanOptions("training", "sgd", 4, "full", 2 * 2**30, 9.0, 0.02, 3, presolve=False, strict=True),
            PlanOptions(gap=0.0),
        ]

    def test_verbose_names_each_value_and_its_source(self, shardplan, mlp, monkeypatch):
        monkeypatch.setenv("SHARDPLAN_MESH", "2x2")
        run = shardplan("solve", "mlp.onnx", "--dim", "batch=64", "-v")
        lines = [" ".join(line.split()) for line in run.err.splitlines()]
        assert "mesh 2x2 (environment)" in lines
        assert "dim batch=64 (command line)" in lines
        assert "mode training (default)" in lines
        assert {"constraints", "pin", "memory-limit", "json"} <= {
            line.split()[0] for line in lines if "(default)" in line
        }

    def test_the_command_line_beats_the_environment(self, shardplan, mlp, monkeypatch):
        monkeypatch.setenv("SHARDPLAN_MESH", "4x")
        assert shardplan(*SOLVE).code == 0

    def test_dims_from_the_environment(self, shardplan, mlp, monkeypatch):
        monkeypatch.setenv("SHARDPLAN_DIM", "batch=64")
        assert shardplan("solve", "mlp.onnx", "--mesh", "2x2").code == 0
