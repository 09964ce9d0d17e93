"""Runs a plan on simulated devices, with its stages one after the other."""

from __future__ import annotations

from collections.abc import Mapping

from shardplan.model.types import Model
from shardplan.plan.types import Plan
from shardplan.program.machine.pipeline import verify_pipeline
from shardplan.program.machine.run import Machine, Mismatch, Ran, Report, runnable_program, usual_rtol
from shardplan.program.machine.values import random_values
from shardplan.program.machine.whole import padded_differs
from shardplan.program.types import Array
from shardplan.rules import model_rules


def verify_plan(
    model: Model,
    plan: Plan,
    given: Mapping[str, Array] | None = None,
    *,
    rtol: float | None = None,
    seed: int = 0,
    ran: Ran = lambda *_: None,
) -> Report:
    """Run `plan` for `model` on all devices of its mesh. `given`: known values of parameters; others are drawn from
    `seed`. `rtol`: by default 1e-5, or 1e-4 where some operator can only be run in single precision. `ran`: is told how
    far the run is, as often as there are instructions.

    Raises `ShardplanError`: as `lower_program`, `too-many-devices` beyond 64, `too-large` where the simulation would
    not fit in a few GiB, `too-long` where its loops would take more than some minutes.
    """
    if plan.pipeline is not None:
        return verify_pipeline(model, plan, given, rtol=rtol, seed=seed, ran=ran)
    rules = model_rules(model)
    program = runnable_program(model, plan, rules)
    microbatches = plan.model.get("microbatches", 1)
    assert isinstance(microbatches, int)
    values = random_values(model, seed, rules, given)
    report = Machine(program, values, rtol or usual_rtol(model), microbatches).run(ran)
    if model.padding is not None and report.mismatch is None:
        _compare_with_unpadded(model, seed, report)
    return report


def _compare_with_unpadded(model: Model, seed: int, report: Report) -> None:
    """Note in `report` where the padded model makes another result than the model as it is."""
    assert model.padding is not None
    name, error = padded_differs(model, random_values(model.padding.of, seed))
    report.values += len(model.outputs)
    report.worst = max(report.worst, error)
    if error > report.rtol:
        report.mismatch = Mismatch(
            name, "", "padding", "made", (), "the model without padding makes another value", error
        )
