"""Exported ONNX programs run on all ranks, and compared with the model run whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from shardplan.export.onnx.folder import write_folder
from shardplan.export.onnx.reference import read_ranks, run_ranks
from shardplan.model.types import Model
from shardplan.plan.types import Plan
from shardplan.program.collectives import unshard
from shardplan.program.lower import lower_program
from shardplan.program.machine.run import place
from shardplan.program.machine.values import random_values
from shardplan.program.reference.evaluate import evaluate, widen
from shardplan.program.types import Program
from shardplan.rules.types import Rule

RTOL = 2e-4


def run_whole(model: Model, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every value of the unsharded model, in double precision."""
    found = {name: widen(np.asarray(array)) for name, array in values.items()}
    for operator in model.operators:
        operands = [found[name] if name else None for name in operator.inputs]
        results = evaluate(operator, operator.attributes, operands)
        found |= {name: array for name, array in zip(operator.outputs, results, strict=True) if name}
    return found


def feeds_of(written: onnx.ModelProto, program: Program, values: Mapping[str, np.ndarray]) -> list[dict]:
    """The local inputs of every rank."""
    layouts = {value.tensor: value.layout for value in program.loads}
    feeds: list[dict[str, np.ndarray]] = [{} for _ in range(program.mesh.size)]
    for entry in written.graph.input:
        name = entry.name.removesuffix("/loaded") if entry.name not in layouts else entry.name
        array = np.asarray(values[name]).astype(helper.tensor_dtype_to_np_dtype(entry.type.tensor_type.elem_type))
        for feed, local in zip(feeds, place(array, layouts[name], program.mesh), strict=True):
            feed[entry.name] = local
    return feeds


def assert_program_right(
    model: Model,
    plan: Plan,
    folder: Path,
    path: Path | None = None,
    given: Mapping[str, np.ndarray] | None = None,
    rules: Sequence[Rule] | None = None,
    *,
    check: bool = True,
) -> list[onnx.ModelProto]:
    """Export, check, run on all ranks, and compare every output with the model run whole; the programs of the ranks."""
    program = lower_program(model, plan, rules)
    write_folder(program, plan, path, folder)
    if check:
        onnx.checker.check_model(str(folder / "rank-0" / "program.onnx"), full_check=True)
    programs = read_ranks(folder)
    values = random_values(model, given=given)
    expected = run_whole(model, values)
    results = run_ranks(programs, feeds_of(programs[0], program, values))
    kept = {decision.name: decision.layout.forward for decision in plan.tensors}
    for name in model.outputs:
        wide = [widen(result[name]) for result in results]
        scale = np.abs(expected[name]).mean() if expected[name].dtype.kind == "f" else 0.0
        found = unshard(wide, kept[name], plan.mesh, rtol=RTOL, atol=RTOL * scale)
        np.testing.assert_allclose(found, expected[name], rtol=RTOL, atol=RTOL * scale, err_msg=name)
    return programs
