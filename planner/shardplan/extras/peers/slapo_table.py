"""A plan as Slapo's auto-sharding prints one: a table of specs and costs, and the lines of a schedule.

A spec has one letter per dim, `R` or `S`, of the last two dims; of all of them where a leading dim is sharded, which
Slapo cannot express. On several mesh axes the letters are numbered, `S01R`; partial sums end in `P`. Under each
operator stand the operands that have to be moved for it (`|-name`), and `kept`, `served`, where its result is moved
before anybody reads it. Costs are those of the plan, backward included; the rows add up to its step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from shardplan.cost.named import measure_of
from shardplan.layout.layout import Layout
from shardplan.layout.text import matrix_scheme
from shardplan.plan.orientation import checkpoint_layout
from shardplan.plan.types import Move, OperatorDecision, Plan, TensorDecision
from shardplan.render.console import emit, table

_REDUCING = ("all_reduce", "reduce_scatter")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `child`: it belongs to the operator above. Costs in nanoseconds."""

    name: str
    before: str
    after: str
    cost_ns: float
    child: bool = False


def show_slapo(console: Console, plan: Plan) -> None:
    """The table with its total, then the schedule where Slapo could write it."""
    measure, rows = measure_of(plan.model.get("cost_model")), list(table_rows(plan))
    shown = table("Name", "InSpec", "OutSpec", f">Cost [{measure.unit or 'us'}]")
    for row in rows:
        name = f"  |-{row.name}" if row.child else row.name
        shown.add_row(name, row.before, row.after, _number(row.cost_ns))
    shown.add_row(Text("Total", style="bold"), "", "", Text(_number(sum(row.cost_ns for row in rows)), style="bold"))
    emit(console, shown, "")
    for line in schedule_lines(plan):
        emit(console, Text(line, no_wrap=True, overflow="ignore"))


def _number(nanoseconds: float) -> str:
    return f"{nanoseconds / 1000:,.3f}".rstrip("0").rstrip(".")


class _Reader:
    """Looks things up in one plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.tensors: Mapping[str, TensorDecision] = {tensor.name: tensor for tensor in plan.tensors}
        self._moves: dict[tuple[str, str], list[Move]] = {}
        for move in plan.moves:
            self._moves.setdefault((move.tensor, move.reader), []).append(move)

    def spec(self, layout: Layout | None, name: str) -> str:
        return matrix_scheme(layout and layout.forward, self.plan.mesh, len(self.tensors[name].shape))

    def read_cost(self, name: str, reader: str) -> float:
        """What one reader's moves of a tensor take."""
        return sum(move.time_ns for move in self._moves.get((name, reader), ()))

    def stored_costs(self, name: str, made: Layout | None) -> tuple[float, float, float]:
        """What reducing a result, bringing it to where it is kept, and serving it take."""
        tensor = self.tensors[name]
        reducing = keeping = serving = 0.0
        for move in self._moves.get((name, ""), ()):
            ends = {move.source, move.target}
            value = move.phase == "forward" or move.regather
            served = tensor.served.forward if value else tensor.served.gradient
            if made is None or (tensor.served != tensor.layout and served in ends and self._kept(move, tensor)):
                serving += move.time_ns
                continue
            whole = move.time_ns or 1
            share = move.count * sum(s.time_ns for s in move.steps if s.collective.kind in _REDUCING) / whole
            reducing += share * move.time_ns
            keeping += (1 - share) * move.time_ns
        return reducing, keeping, serving

    def scatters(self, name: str) -> bool:
        """Whether the partial sums of a result are reduced into pieces at once."""
        forward = (move for move in self._moves.get((name, ""), ()) if move.phase == "forward")
        return any(step.collective.kind == "reduce_scatter" for move in forward for step in move.steps)

    @staticmethod
    def _kept(move: Move, tensor: TensorDecision) -> bool:
        value = move.phase == "forward" or move.regather
        kept = tensor.layout.forward if value else tensor.layout.gradient
        return kept in {move.source, move.target}


def table_rows(plan: Plan) -> Iterator[Row]:
    """The rows in graph order; they add up to all that a step computes and sends, overlapped or not."""
    reader, total = _Reader(plan), 0.0
    for tensor in plan.tensors:
        if tensor.role in ("input", "parameter", "constant"):
            for row in _of_source(reader, tensor):
                total += row.cost_ns
                yield row
    for operator in plan.operators:
        for row in _of_operator(reader, operator):
            total += row.cost_ns
            yield row
    summary = plan.summary
    rest = summary.compute_ns + summary.communication_ns + summary.hidden_ns - total
    if plan.model.get("mode") == "training" and rest > len(plan.operators) + len(plan.moves):
        yield Row("optimizer step", "", "", rest)


def _of_source(reader: _Reader, tensor: TensorDecision) -> Iterator[Row]:
    """Inputs, and weights that are gathered for all their readers at once."""
    _, _, serving = reader.stored_costs(tensor.name, None)
    kept = reader.spec(tensor.layout, tensor.name)
    if tensor.role == "input" or serving:
        yield Row(tensor.checkpoint or tensor.name, kept, kept, 0.0)
    if serving or tensor.served != tensor.layout:
        yield Row("served", kept, reader.spec(tensor.served, tensor.name), serving, child=True)


def _of_operator(reader: _Reader, operator: OperatorDecision) -> Iterator[Row]:
    tensors = reader.tensors
    reads = [(name, layout) for name, layout in zip(operator.inputs, operator.reads, strict=True) if name in tensors]
    results = [(name, made) for name, made in zip(operator.outputs, operator.makes, strict=True) if name in tensors]
    stored = [reader.stored_costs(name, made) for name, made in results]
    own = operator.compute_ns + operator.inner_ns + sum(reducing for reducing, _, _ in stored)
    inputs = "x".join(reader.spec(layout, name) for name, layout in reads)
    made_specs = [_reduced(reader, name, made) for name, made in results]
    yield Row(_name(operator), inputs, ",".join(made_specs), own)
    told: set[str] = set()
    for name, layout in reads:
        before, after = reader.spec(tensors[name].served, name), reader.spec(layout, name)
        cost = 0.0 if name in told else reader.read_cost(name, operator.name)
        told.add(name)
        if cost or (before != after and tensors[name].role != "parameter"):
            yield Row(tensors[name].checkpoint or name, before, after, cost, child=True)
    for (name, _), made, (_, keeping, serving) in zip(results, made_specs, stored, strict=True):
        kept, served = (
            reader.spec(tensors[name].layout, name),
            reader.spec(tensors[name].served, name),
        )
        if kept != made or keeping:
            title = f"output {name}" if tensors[name].role == "output" else "kept"
            yield Row(title, made, kept, keeping, child=True)
        if served != kept or serving:
            yield Row("served", kept, served, serving, child=True)


def _reduced(reader: _Reader, name: str, made: Layout | None) -> str:
    """Spec of a result once its partial sums are reduced, as it is kept if that is what reduces them."""
    tensor = reader.tensors[name]
    partial = made is not None and any(placement.kind == "P" for placement in made.placements)
    keeps_partial = any(placement.kind == "P" for placement in tensor.layout.placements)
    if partial and not keeps_partial:
        if reader.scatters(name):
            return reader.spec(tensor.layout, name)
        return reader.spec(made, name).removesuffix("P")
    return reader.spec(made, name)


def _name(operator: OperatorDecision) -> str:
    return operator.module or operator.name


def schedule_lines(plan: Plan) -> Iterator[str]:
    """The lines of a Slapo schedule: which weights are sharded, on which dim of the checkpoint, and what is
    synchronised where. Slapo's schedules know one mesh axis."""
    if sum(size > 1 for size in plan.mesh.shape) > 1:
        yield "# no schedule: Slapo's schedules know one mesh axis"
        return
    reader = _Reader(plan)
    makers = {name: operator for operator in plan.operators for name in operator.outputs}
    first_readers = {name: operator for operator in reversed(plan.operators) for name in operator.inputs}
    for tensor in plan.tensors:
        stored = checkpoint_layout(tensor.layout, tensor.perm)
        for dim, _ in stored.dims() if tensor.role == "parameter" else ():
            module, _, leaf = tensor.checkpoint.rpartition(".")
            module = module or _name(first_readers[tensor.name])
            yield f'sch["{module}"].shard("{leaf}", axis={dim})'
    for operator in plan.operators:
        yield from _syncs(reader, operator, makers)


def _syncs(reader: _Reader, operator: OperatorDecision, makers: Mapping[str, OperatorDecision]) -> Iterator[str]:
    tensors, told = reader.tensors, set[str]()
    for name, layout in zip(operator.inputs, operator.reads, strict=True):
        if name in tensors and tensors[name].role != "parameter" and name not in told:
            told.add(name)
            before, after = reader.spec(tensors[name].layout, name), reader.spec(layout, name)
            inside = name in makers and operator.module and makers[name].module == operator.module
            if before != after:
                yield _sync(operator.name if inside else _name(operator), "fwd_pre", f'"{before}->{after}"')
    for name, made in zip(operator.outputs, operator.makes, strict=True):
        if name not in tensors:
            continue
        reduced, kept = _reduced(reader, name, made), reader.spec(tensors[name].layout, name)
        if reader.spec(made, name).endswith("P") and not kept.endswith("P"):
            dims = [dim for dim, _ in tensors[name].layout.dims()]
            how = f'"reduce_scatter", axis={dims[0]}' if reader.scatters(name) and dims else '"all_reduce"'
            yield _sync(_name(operator), "fwd_post", how)
        if reduced != kept:
            yield _sync(_name(operator), "fwd_post", f'"{reduced}->{kept}"')


def _sync(name: str, mode: str, how: str) -> str:
    return f'sch["{name}"].sync(mode="{mode}", sync_op_or_fn={how})'
