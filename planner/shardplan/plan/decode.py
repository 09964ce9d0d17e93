"""The text of a plan file back to a `Plan`, refusing what this version does not understand and saying where.

Reading is the inverse of `encode.dumps`; tensors come back section by section (parameters, inputs, outputs, others).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Literal, NoReturn, TypeVar, get_args

from shardplan.errors import ShardplanError, error
from shardplan.layout.collective import Collective, CollectiveKind
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Axis, Mesh
from shardplan.layout.text import from_text
from shardplan.plan.encode import MAJOR
from shardplan.plan.orientation import graph_layout, graph_shape
from shardplan.plan.record import Record, RecordError, as_text
from shardplan.plan.types import (
    CollectiveStep,
    Memory,
    Move,
    OperatorDecision,
    Phase,
    Pipeline,
    Plan,
    Role,
    Stage,
    Summary,
    TensorDecision,
    Transfer,
)

T = TypeVar("T")
_KINDS: dict[str, CollectiveKind] = {kind: kind for kind in get_args(CollectiveKind)}
_PHASES: dict[str, Phase] = {phase: phase for phase in get_args(Phase)}
_TENSOR_ROLES: dict[str, Role] = {"activation": "activation", "constant": "constant"}
_OUTCOMES: dict[str, Literal["optimal", "feasible", "interrupted"]] = {
    "optimal": "optimal",
    "feasible": "feasible",
    "interrupted": "interrupted",
}


def loads(text: str, path: str = "plan") -> Plan:
    """The plan in `text`; `path` is named in errors.

    Raises `ShardplanError`: `not-a-plan` (no JSON object with a format version), `unsupported-format` (another major
    version), `damaged-plan` (syntax, missing or wrong entries), each with the line where it can be known.
    """
    document = _document(text, path)
    _check_version(document, path)
    return _Decoder(document, text, path).plan()


def _document(text: str, path: str) -> dict[str, object]:
    try:
        document = json.loads(text)
    except RecursionError:
        summary = "this is not a plan of shardplan: it is nested too deeply"
        raise ShardplanError(error("not-a-plan", summary, file=path)) from None
    except json.JSONDecodeError as problem:
        _refuse_syntax(text, path, problem)
    if not isinstance(document, dict) or not isinstance(document.get("format_version"), str) or "model" not in document:
        raise ShardplanError(error("not-a-plan", "this is JSON, but not a plan of shardplan", file=path))
    return document


def _refuse_syntax(text: str, path: str, problem: json.JSONDecodeError) -> NoReturn:
    conflict = re.search(r"^<{7} ", text, re.MULTILINE)
    if conflict:
        line = text.count("\n", 0, conflict.start()) + 1
        summary, hint = "the plan contains git's conflict markers", "solve again instead of merging by hand"
        raise ShardplanError(error("damaged-plan", summary, file=path, line=line, hint=hint)) from None
    if '"format_version"' not in text[:200]:
        raise ShardplanError(
            error("not-a-plan", "this is not a plan of shardplan: it is not JSON", file=path)
        ) from None
    summary = f"the plan is not valid JSON: {problem.msg}"
    hint = "was it cut off or edited? solve again"
    raise ShardplanError(
        error("damaged-plan", summary, file=path, line=problem.lineno, column=problem.colno, hint=hint)
    ) from None


def _check_version(document: dict[str, object], path: str) -> None:
    version = str(document["format_version"])
    if version.partition(".")[0] != str(MAJOR):
        summary = f"this plan has format version {version}; this shardplan reads {MAJOR}.x"
        hint = "solve again with this version, or install the version that wrote the plan"
        raise ShardplanError(error("unsupported-format", summary, file=path, hint=hint))


class _Decoder:
    """Walks the sections, remembering where it is for the one error it may have to raise."""

    def __init__(self, document: dict[str, object], text: str, path: str) -> None:
        self._document, self._source, self._path = Record(document), text, path
        self._section = ""
        self._row: int | None = None

    def plan(self) -> Plan:
        try:
            return self._plan()
        except ShardplanError as problem:  # a layout's text
            self._refuse(problem.diagnostics[0].summary)
        except (RecordError, ValueError) as problem:
            self._refuse(str(problem))

    def _refuse(self, what: str) -> NoReturn:
        where = self._section if self._row is None else f"{self._section}[{self._row}]"
        raise ShardplanError(
            error("damaged-plan", f"{where}: {what}", file=self._path, line=self._line(), hint="solve again")
        ) from None

    def _plan(self) -> Plan:
        mesh, links = self._read("mesh", self._mesh_axes)
        self.lay(mesh)
        summary = self._read("summary", lambda record: self._summary(record, self._document.record("details")))
        return Plan(
            model=self._document.mapping("model"),
            cluster=self._document.mapping("cluster"),
            mesh=self._mesh,
            axis_links=links,
            summary=summary,
            tensors=(
                *self._rows("parameters", self._parameter),
                *self._rows("inputs", lambda row: self._plain(row, "input")),
                *self._rows("outputs", lambda row: self._plain(row, "output")),
                *self._rows("tensors", self._tensor),
            ),
            operators=self._rows("operators", self._operator),
            moves=self._rows("moves", self._move),
            warnings=self._document.record("details").texts("warnings"),
            blocks=self._blocks(),
            pipeline=self._pipeline() if self._document.has("pipeline") else None,
        )

    def _pipeline(self) -> Pipeline:
        self._section, self._row = "pipeline", None
        record = self._document.record("pipeline")
        stages = record.items("stages", lambda row: self._stage(Record(row)))
        readers = [_Decoder({"format_version": "", "model": {}}, "", self._path) for _ in stages]
        for reader, stage in zip(readers, stages, strict=True):
            reader.lay(stage.plan.mesh)
        return Pipeline(
            schedule=record.text("schedule"),
            stages=stages,
            transfers=record.items("transfers", lambda row: _transfer(Record(row), readers)),
            bubble=record.number("bubble"),
        )

    def _stage(self, row: Record) -> Stage:
        name = row.text("name")
        try:
            plan = _Decoder(dict(row.mapping("plan")), "", self._path).plan()
        except ShardplanError as problem:
            raise RecordError(f"stage '{name}': {problem.diagnostics[0].summary}") from None
        return Stage(name, row.integer("first_device"), row.texts("units"), row.integer("in_flight"), plan)

    def lay(self, mesh: Mesh) -> None:
        """Read layouts and steps on `mesh` from here on."""
        self._mesh = mesh
        self._layout = lru_cache(maxsize=None)(lambda text: from_text(text, mesh))

    def layout(self, text: str) -> Layout:
        """The layout of a text on the mesh."""
        found: Layout = self._layout(text)
        return found

    def _read(self, section: str, convert: Callable[[Record], T]) -> T:
        self._section, self._row = section, None
        return convert(self._document.record(section))

    def _rows(self, section: str, convert: Callable[[Record], T]) -> tuple[T, ...]:
        self._section, self._row = section, None
        rows = self._document.items(section, Record)
        converted = []
        for self._row, row in enumerate(rows):
            converted.append(convert(row))
        return tuple(converted)

    def _mesh_axes(self, record: Record) -> tuple[Mesh, tuple[str, ...]]:
        axes = record.items("axes", Record)
        mesh = Mesh(tuple(Axis(axis.text("name"), axis.integer("size")) for axis in axes))
        return mesh, tuple(axis.text("link") for axis in axes)

    @staticmethod
    def _summary(record: Record, details: Record) -> Summary:
        memory = record.record("memory")
        return Summary(
            outcome=record.one_of("outcome", _OUTCOMES),
            objective_ns=record.nanoseconds("objective"),
            bound_ns=record.nanoseconds("bound_us"),
            gap=record.number("gap"),
            step_ns=record.nanoseconds("step_us"),
            compute_ns=record.nanoseconds("compute_us"),
            communication_ns=record.nanoseconds("communication_us"),
            hidden_ns=details.nanoseconds("hidden_us"),
            memory=Memory(
                parameters=memory.integer("parameters"),
                gradients=memory.integer("gradients"),
                optimizer=memory.integer("optimizer"),
                activations=memory.integer("activations"),
                temporaries=memory.integer("temporaries"),
            ),
            memory_limit_bytes=record.integer("memory_limit_bytes"),
            reproducible=details.flag("reproducible"),
            overlap_weight=details.number("overlap_weight"),
            step_bound_ns=details.nanoseconds("step_bound_us"),
            scheduled_ns=details.nanoseconds("scheduled_us") if details.has("scheduled_us") else 0,
        )

    def _parameter(self, row: Record) -> TensorDecision:
        perm = row.integers("perm")
        shape = row.integers("shape")
        if perm and sorted(perm) != list(range(len(shape))):
            raise RecordError(f"'perm' is {list(perm)}, expected a permutation of the {len(shape)} dims")
        layout = self._sharding(row, "layout", len(shape))
        return TensorDecision(
            name=row.text("tensor"),
            role="parameter",
            shape=graph_shape(shape, perm),
            dtype=row.text("dtype"),
            layout=graph_layout(layout, perm),
            served=graph_layout(self._served(row, len(shape), layout), perm),
            bytes_per_device=row.integer("bytes_per_device"),
            saved=row.flag("saved", default=False),
            checkpoint=row.text("name"),
            onnx=row.text("onnx"),
            perm=perm,
            aliases=row.texts("aliases"),
            trainable=row.flag("trainable"),
            optimizer=graph_layout(self._sharding(row, "optimizer", len(shape)), perm)
            if row.has("optimizer")
            else None,
        )

    def _tensor(self, row: Record) -> TensorDecision:
        return self._plain(row, row.one_of("role", _TENSOR_ROLES, default="activation"))

    def _plain(self, row: Record, role: Role) -> TensorDecision:
        shape = row.integers("shape")
        layout = self._sharding(row, "layout", len(shape))
        return TensorDecision(
            name=row.text("name"),
            role=role,
            shape=shape,
            dtype=row.text("dtype"),
            layout=layout,
            served=self._served(row, len(shape), layout),
            bytes_per_device=row.integer("bytes_per_device"),
            saved=row.flag("saved", default=False),
            recomputed=row.flag("recomputed", default=False),
        )

    def _served(self, row: Record, rank: int, layout: Layout) -> Layout:
        return self._sharding(row, "served", rank) if row.has("served") else layout

    def _sharding(self, row: Record, key: str, rank: int) -> Layout:
        text = row.text(key)
        layout: Layout = self._layout(text)
        beyond = [str(p) for p in layout.placements if p.is_shard and p.dim >= rank]
        if beyond:
            raise RecordError(f"'{key}' is '{text}', but {beyond[0]} is not a dim of a tensor of rank {rank}")
        return layout

    def _operator(self, row: Record) -> OperatorDecision:
        split = row.record("split")
        return OperatorDecision(
            name=row.text("name"),
            op_type=row.text("op"),
            module=row.text("module"),
            equation=row.text("equation"),
            split=tuple(split.text(name) for name in self._mesh.names),
            reads=row.items("reads", self._optional_layout),
            makes=row.items("makes", self._optional_layout),
            compute_ns=row.integer("compute_ns"),
            backward_ns=row.integer("backward_ns", default=0),
            inner_ns=row.integer("inner_ns", default=0),
            again=row.text("again", default=""),
            inputs=row.texts("inputs"),
            outputs=row.texts("outputs"),
        )

    def _optional_layout(self, value: object) -> Layout | None:
        return None if value is None else self._layout(as_text(value))

    def _move(self, row: Record) -> Move:
        return Move(
            tensor=row.text("tensor"),
            source=self._layout(row.text("from")),
            target=self._layout(row.text("to")),
            reader=row.text("reader"),
            phase=row.one_of("phase", _PHASES),
            steps=row.items("collectives", lambda step: self.step(Record(step))),
            regather=row.flag("regather", default=False),
            count=row.integer("count"),
            hidden=row.number("hidden"),
            bucket=row.integer("bucket") if row.has("bucket") else None,
        )

    def step(self, row: Record) -> CollectiveStep:
        """One collective."""
        axes = tuple(self._mesh.index(name) for name in row.texts("axes"))
        collective = Collective(row.one_of("kind", _KINDS), axes, Fraction(row.text("share")))
        return CollectiveStep(collective, row.integer("bytes"), row.integer("time_ns"))

    def _blocks(self) -> tuple[tuple[tuple[str, ...], tuple[tuple[int, ...], ...]], ...]:
        copies: dict[int, list[tuple[str, tuple[int, ...]]]] = {}
        for number, name, operators in self._rows("blocks", self._block_copy):
            copies.setdefault(number, []).append((name, operators))
        return tuple(
            (tuple(name for name, _ in block), tuple(operators for _, operators in block)) for block in copies.values()
        )

    @staticmethod
    def _block_copy(row: Record) -> tuple[int, str, tuple[int, ...]]:
        runs = row.items("operators", lambda run: Record({"run": run}).integers("run"))
        return row.integer("block"), row.text("name"), tuple(i for start, stop in runs for i in range(start, stop))

    def _line(self) -> int | None:
        """Line of the section, or of the row in it where the file has one row per line as `dumps` writes it."""
        lines = self._source.splitlines()
        starts = [number for number, line in enumerate(lines, 1) if line.startswith(f'  "{self._section}": ')]
        if not starts:
            return None
        row_line = starts[0] + 1 + (self._row or 0)
        one_per_line = self._row is not None and row_line <= len(lines) and lines[row_line - 1].startswith("    {")
        return row_line if one_per_line else starts[0]


def _transfer(row: Record, readers: Sequence[_Decoder]) -> Transfer:
    """A row of the pipeline's transfers; reader i knows the mesh of stage i."""
    sender, receiver = row.integer("sender"), row.integer("receiver")
    if not (0 <= sender < len(readers) and 0 <= receiver < len(readers)):
        raise RecordError(f"a transfer from stage {sender} to {receiver}, and there are {len(readers)} stages")
    mine, theirs = readers[sender], readers[receiver]
    return Transfer(
        tensor=row.text("tensor"),
        sender=sender,
        receiver=receiver,
        source=mine.layout(row.text("from")),
        target=theirs.layout(row.text("to")),
        forward=row.items("forward", lambda step: theirs.step(Record(step))),
        backward=row.items("backward", lambda step: mine.step(Record(step))),
        count=row.integer("count"),
        hidden=row.number("hidden"),
    )
