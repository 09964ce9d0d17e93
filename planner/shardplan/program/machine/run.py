"""Runs a program on all devices of a mesh in one process, and compares every value with the model run whole.

Devices run in lockstep: each instruction is carried out by all of them before the next. Collectives move data as
`shardplan.program.collectives` does, where a device gets only what its group holds. What is compared is what a user
would compare: the value put together from all devices, against the same value of the unsharded model.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from shardplan.errors import ShardplanError, error
from shardplan.layout.layout import Layout
from shardplan.layout.legal import local_shape
from shardplan.layout.lower import Step, wire_share
from shardplan.layout.mesh import Mesh
from shardplan.layout.text import to_text
from shardplan.model.types import DTYPE_BITS, Model, Operator
from shardplan.plan.types import Plan
from shardplan.program import collectives
from shardplan.program.lower import lower_program
from shardplan.program.machine.compare import difference, has_numbers, scale_of
from shardplan.program.machine.interpreter import run_operator
from shardplan.program.machine.loops import LoopState, is_border
from shardplan.program.reference.evaluate import reference, widen
from shardplan.program.reference.onnx_runtime import DOMAINS
from shardplan.program.types import (
    Array,
    Compute,
    Instruction,
    Program,
    Site,
    Transfer,
    Value,
    executed,
    flat,
    values_read,
)
from shardplan.rules import family_of
from shardplan.rules.types import Rule

MOST_DEVICES = 64
MOST_BYTES = 4 << 30
MOST_INSTRUCTIONS = 1 << 21
"""Number of instructions of a run, those of loops once per iteration: some minutes."""
RTOL, SINGLE_RTOL = 1e-5, 1e-4
Ran = Callable[[int, int], None]
"""Called with how many instructions of a program were carried out, and how many it has."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first value that differs from the whole model's.

    `error`: largest difference, in units of the tolerance's scale; `nan` if shapes differ or devices disagree.
    """

    tensor: str
    operator: str
    kind: str
    form: str
    layouts: tuple[str, ...]
    why: str
    error: float


@dataclass
class Report:
    """The result of a run. `moved_bytes`: received by all devices together per kind of collective, at the element sizes
    of the model; `priced_bytes`: the same by the plan's payloads. `values`: number of compared values; `worst`: the
    largest relative error among them."""

    devices: int
    rtol: float
    operators: int = 0
    values: int = 0
    worst: float = 0.0
    moved_bytes: Counter[str] = field(default_factory=Counter)
    priced_bytes: Counter[str] = field(default_factory=Counter)
    inner_bytes: Counter[str] = field(default_factory=Counter)
    mispriced: list[str] = field(default_factory=list)
    mismatch: Mismatch | None = None
    misdeclared: tuple[str, ...] = ()
    """Differences between the plan's description of the model and the model; if there are any, nothing was run."""

    @property
    def verified(self) -> bool:
        """Whether the plan is about this model, every value is right and every collective moved what the plan says."""
        return self.mismatch is None and not self.mispriced and not self.misdeclared


def place(array: Array, layout: Layout, mesh: Mesh) -> list[Array]:
    """What every device holds of `array` in a plain layout; of partial axes the first device has it, others zeros."""
    partial = [axis for axis, placement in enumerate(layout.placements) if placement.kind == "P"]
    held = []
    for coordinates in mesh.coordinates():
        local = collectives.part(array, layout, mesh, coordinates)
        held.append(np.zeros_like(local) if any(coordinates[axis] for axis in partial) else local)
    return held


def runnable_program(model: Model, plan: Plan, rules: Sequence[Rule]) -> Program:
    """The program of a plan without stages that is small enough to run. Raises `ShardplanError` as `verify_plan`."""
    if plan.mesh.size > MOST_DEVICES:
        summary = f"the plan is for {plan.mesh.size} devices; at most {MOST_DEVICES} are simulated"
        raise ShardplanError(error("too-many-devices", summary, hint="solve for a smaller mesh of the same axes"))
    program = lower_program(model, plan, rules)
    needed = needed_bytes(program)
    if needed > MOST_BYTES:
        summary = f"'{model.name}' on {plan.mesh.size} simulated devices needs about {needed / 2**30:.0f} GiB"
        raise ShardplanError(error("too-large", summary, hint="verify a scaled-down form of it: --shrink"))
    if (count := executed(program.instructions)) > MOST_INSTRUCTIONS:
        summary = (
            f"'{model.name}' runs {count:,} instructions, those of its loops once per iteration; at most "
            f"{MOST_INSTRUCTIONS:,} are simulated"
        )
        raise ShardplanError(error("too-long", summary, hint="verify a form of the model with fewer iterations"))
    return program


def usual_rtol(model: Model) -> float:
    """The default tolerance."""
    return SINGLE_RTOL if any(map(_in_single, model.operators)) else RTOL


def needed_bytes(program: Program) -> int:
    """Rough memory of a run: all that is loaded, whole and by device, and the largest operator with its copies."""
    model, mesh = program.model, program.mesh

    def size(value: Value) -> int:
        shape = model.tensors[value.tensor].shape
        return math.prod(local_shape(value.layout, mesh, shape)) * mesh.size + math.prod(shape)

    def inside(site: Site) -> int:
        """Temporary elements of an operator: the scores of a fused attention."""
        gemm = site.rule.gemm
        if site.rule.cost != "attention" or gemm is None:
            return 0
        factors = (*gemm.batch, *gemm.m, *gemm.n)
        return 4 * math.prod(site.rule.sizes.get(factor, 1) for factor in factors)

    computes = [i for i in flat(program.instructions) if isinstance(i, Compute)]
    around = (sum(size(v) for v in (*c.reads, *c.makes) if v is not None) + inside(c.site) for c in computes)
    return 8 * (sum(map(size, program.loads)) + 2 * max(around, default=0))


def _in_single(operator: Operator) -> bool:
    """Whether an operator may only run in single precision: by ONNX Runtime, or as a function with constants of that
    type."""
    return operator.domain in DOMAINS or (family_of(operator.kind) == "unknown" and not is_border(operator))


class Machine:
    """One run of a program. `values`: whole values of everything that the program loads and the model does not make."""

    def __init__(
        self, program: Program, values: Mapping[str, Array], rtol: float = RTOL, microbatches: int = 1
    ) -> None:
        self.program, self.mesh, self.rtol, self.microbatches = program, program.mesh, rtol, microbatches
        self.whole = {name: widen(np.asarray(array)) for name, array in values.items()}
        self.held: dict[Value, list[Array]] = {}
        self.report = Report(program.mesh.size, rtol)
        computes = [entry for entry in flat(program.instructions) if isinstance(entry, Compute)]
        self.loops = LoopState([compute.site.operator for compute in computes])
        self.made = {compute.site.operator.name: compute.makes[0] for compute in computes if compute.makes}
        self.last_use = _last_uses(program.instructions)
        self.last_read = _last_reads(program)

    def run(self, ran: Ran = lambda *_: None) -> Report:
        """Run to the end, or to the first value that differs."""
        for value in self.program.loads:
            self.held[value] = place(self.whole[value.tensor], value.layout, self.mesh)
        for number, instruction in enumerate(self.program.instructions):
            ran(number, len(self.program.instructions))
            self._do(instruction)
            if self.report.mismatch is not None:
                break
            self._forget(number, instruction)
        return self.report

    def _do(self, instruction: Instruction) -> None:
        """Carry out an instruction, a loop iteration by iteration up to the first value that differs."""
        if isinstance(instruction, Transfer):
            self._transfer(instruction)
        elif isinstance(instruction, Compute):
            self._compute(instruction)
        else:
            for iteration in range(instruction.iterations):
                self.loops.now[instruction.loop] = iteration
                for inside in instruction.instructions:
                    if self.report.mismatch is None:
                        self._do(inside)

    def _transfer(self, transfer: Transfer) -> None:
        value, layout = self.held[transfer.source], transfer.source.layout
        if transfer.problem:
            self._differs(transfer, transfer.problem, math.nan)
            return
        for step, payload in zip(transfer.steps, transfer.payload_bytes, strict=True):
            received = [0] * self.mesh.size
            value = collectives.run(value, layout, step.collective, step.target, self.mesh, received=received)
            self._count(transfer, layout, step, payload, received, value[0].itemsize)
            layout = step.target
        self.held[transfer.target] = value
        if transfer.steps:
            self._check(transfer, transfer.target, value)

    def _count(
        self, transfer: Transfer, layout: Layout, step: Step, payload: int, received: Sequence[int], item_bytes: int
    ) -> None:
        """Bytes at the model's element size, against the plan's payload."""
        if step.collective.is_free:
            return
        kind, share = step.collective.kind, step.collective.share
        scale = Fraction(DTYPE_BITS[self.program.tensor(transfer.target).dtype], 8 * item_bytes)
        priced_share = wire_share(step.collective, self.mesh) / share if share else Fraction(0)
        whole = share * transfer.size_bytes
        runs = self.microbatches if payload < math.ceil(whole) else 1
        moved = [amount * scale for amount in received]
        self.report.moved_bytes[kind] += round(sum(moved))
        self.report.priced_bytes[kind] += round(self.mesh.size * priced_share * payload * runs)
        most = max(moved)
        fits = payload == math.ceil(share * -(-transfer.size_bytes // runs))
        uneven = kind == "all_to_all" and _changes_segments(layout, step.target)
        if not fits or (most > whole if uneven else abs(most - priced_share * whole) >= 1):
            name, found = transfer.source.tensor, f"{float(most):.0f} bytes per device"
            self.report.mispriced.append(f"{kind} of '{name}' moved {found}, the payload in the plan is {payload}")

    def _compute(self, compute: Compute) -> None:
        operator = self.loops.of_iteration(compute.site.operator)
        if operator is not compute.site.operator:
            compute = replace(compute, site=replace(compute.site, operator=operator))
        before = self.loops.before(operator)
        self._whole_results(operator, before)
        operands = [
            [None if value is None else self.held[value][rank] for value in compute.reads]
            for rank in range(self.mesh.size)
        ]
        try:
            results = self._on_all_devices(compute, operands, before)
        except ShardplanError:
            raise
        except Exception as problem:  # noqa: BLE001 - anything that the evaluator raises on shards
            self._differs(compute, f"a device cannot run it: {type(problem).__name__}: {problem}", math.nan)
            return
        self.report.operators += 1
        for position, value in enumerate(compute.makes):
            if value is not None and self.report.mismatch is None:
                self.held[value] = [made[position] for made in results]
                if self.loops.is_complete(operator):
                    self._check(compute, value, self.held[value])

    def _whole_results(self, operator: Operator, before: Operator | None) -> None:
        """Run the operator on whole values."""
        whole = [self.whole[name] if name else None for name in operator.inputs]
        if is_border(operator):
            last = self.whole[before.outputs[0]] if before else None
            expected = [self.loops.result(operator, whole, last)]
        else:
            expected = reference(operator, operator.attributes, whole)
        self.whole |= {name: array for name, array in zip(operator.outputs, expected, strict=True) if name}

    def _on_all_devices(
        self, compute: Compute, operands: Sequence[list[Array | None]], before: Operator | None
    ) -> list[list[Array]]:
        """The local results by rank; in lockstep from one collective to the next."""
        operator = compute.site.operator
        if is_border(operator):
            made = self.made[before.name] if before else None
            last = [None] * len(operands) if made is None else self.held[made]
            return [[self.loops.result(operator, held, one)] for held, one in zip(operands, last, strict=True)]
        return run_operator(compute.site, compute.local, operands, self.report.inner_bytes)

    def _check(self, instruction: Transfer | Compute, value: Value, locals_: list[Array]) -> None:
        expected = self.whole[value.tensor]
        if value.tensor in self.program.model.outputs and not has_numbers(expected):
            summary = (
                f"no element of the result '{value.tensor}' is a finite number, so that comparing it proves nothing"
            )
            hint = "--seed draws other inputs, and the weights that the model lacks"
            raise ShardplanError(error("nothing-to-compare", summary, hint=hint))
        scale = scale_of(expected)
        try:
            found = collectives.unshard(locals_, value.layout, self.mesh, rtol=self.rtol, atol=self.rtol * scale)
        except ValueError as problem:
            self._differs(instruction, str(problem), math.nan, value)
            return
        self.report.values += 1
        if found.shape != expected.shape:
            self._differs(instruction, f"its shape is {found.shape}, not {expected.shape}", math.nan, value)
            return
        worst = difference(found, expected, scale)
        self.report.worst = max(self.report.worst, worst)
        if not worst <= self.rtol:
            self._differs(instruction, "its elements differ", worst, value)

    def _differs(self, instruction: Transfer | Compute, why: str, amount: float, value: Value | None = None) -> None:
        if isinstance(instruction, Transfer):
            layouts = [instruction.source.layout, instruction.target.layout]
            reader, kind = instruction.target.reader.rpartition(":")[0], "move"
            tensor, form = instruction.target.tensor, instruction.target.form
        else:
            operator: Operator = instruction.site.operator
            layouts = [value.layout for value in (*instruction.reads, *instruction.makes) if value is not None]
            reader, kind = operator.name, operator.kind
            tensor, form = (value.tensor if value else operator.outputs[0]), "made"
        texts = tuple(to_text(layout, self.mesh) for layout in layouts)
        self.report.mismatch = Mismatch(tensor, reader, kind, form, texts, why, amount)

    def _forget(self, number: int, instruction: Instruction) -> None:
        """Drops values that no later instruction reads."""
        for value in values_read(instruction):
            if self.last_use[value] == number:
                self.held.pop(value, None)
        if isinstance(instruction, Transfer) and instruction.target not in self.last_use:
            self.held.pop(instruction.target, None)
        for name in self.last_read.get(number, ()):
            self.whole.pop(name, None)


def _last_uses(instructions: Sequence[Instruction]) -> dict[Value, int]:
    return {value: number for number, instruction in enumerate(instructions) for value in values_read(instruction)}


def _last_reads(program: Program) -> dict[int, list[str]]:
    """Instruction -> the tensors of which the whole value is compared or read there for the last time."""
    last: dict[str, int] = {}
    for number, instruction in enumerate(program.instructions):
        for entry in flat([instruction]):
            if isinstance(entry, Transfer):
                last[entry.source.tensor] = number
            else:
                operator = entry.site.operator
                last.update({name: number for name in (*operator.inputs, *operator.outputs) if name})
    found: dict[int, list[str]] = {}
    for name, number in last.items():
        found.setdefault(number, []).append(name)
    return found


def _changes_segments(source: Layout, target: Layout) -> bool:
    """Whether some dim is cut into other segments: then the kept part differs from device to device, and in an
    all-to-all devices send different amounts, none more than the payload."""
    before, after = source.dims(), target.dims()
    shared = {dim for dim, _ in before} & {dim for dim, _ in after}
    return any(dim in shared for dim, _ in before.keys() ^ after.keys())
