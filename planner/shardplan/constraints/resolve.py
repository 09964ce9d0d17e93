"""Resolution of constraints against a model and a mesh: what each tensor and operator is required to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from shardplan.constraints.match import Names, Target
from shardplan.constraints.types import AxisUse, Constraint, Dims, Split
from shardplan.errors import Diagnostic, ShardplanError, did_you_mean, error
from shardplan.layout.collective import CollectiveKind
from shardplan.layout.mesh import Mesh
from shardplan.model.types import Model
from shardplan.units import counted


@dataclass(frozen=True, slots=True)
class TensorConstraint:
    """The required layout of a tensor: `dims[d]`, the mesh axes that shard dim d, major first; `None`: open.
    `segments[d]`: the pieces that they shard separately; `()`: open."""

    constraint: Constraint
    tensor: str
    dims: tuple[tuple[int, ...] | None, ...]
    segments: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class AxisConstraint:
    """Mesh axis `axis` shards dim `dim` of a tensor; `dim` -1: it shards none."""

    constraint: Constraint
    tensor: str
    axis: int
    dim: int


@dataclass(frozen=True, slots=True)
class OperatorConstraint:
    """`splits`: (mesh axis, factor or `""`, whether that is wanted or ruled out) of operator number `operator`."""

    constraint: Constraint
    operator: int
    splits: tuple[tuple[int, str, bool], ...]


@dataclass(frozen=True, slots=True)
class ResolvedConstraints:
    """The requirements on single tensors and operators. `forbidden`: collectives that may not run over a mesh axis."""

    tensors: tuple[TensorConstraint | AxisConstraint, ...] = ()
    operators: tuple[OperatorConstraint, ...] = ()
    forbidden: frozenset[tuple[CollectiveKind, int]] = frozenset()

    def shards(self) -> Mapping[str, frozenset[int]]:
        """Tensor -> dims that a constraint shards: choices that the operators beside it may not need."""
        found: dict[str, set[int]] = {}
        for one in self.tensors:
            wanted = [one.dim] if isinstance(one, AxisConstraint) else [d for d, axes in enumerate(one.dims) if axes]
            found.setdefault(one.tensor, set()).update(dim for dim in wanted if dim >= 0)
        return {name: frozenset(dims) for name, dims in found.items()}

    def ordered(self) -> frozenset[str]:
        """Tensors with a required order of several axes on one dim."""
        return frozenset(
            one.tensor
            for one in self.tensors
            if isinstance(one, TensorConstraint)
            and any(axes is not None and list(axes) != sorted(axes) for axes in one.dims)
        )


def resolve(constraints: Sequence[Constraint], model: Model, mesh: Mesh) -> ResolvedConstraints:
    """The requirements of `constraints` on `model` on `mesh`.

    A constraint that names one tensor exactly overrides matching patterns of its section. Raises `ShardplanError` with
    every constraint that matches nothing, names an unknown axis, or is impossible.
    """
    resolver = _Resolver(model, mesh)
    for constraint in constraints:
        resolver.check_aliases(constraint)
    for constraint, targets in resolver.tensor_targets(constraints):
        for target in targets:
            resolver.want_dims(constraint, target)
    for constraint in constraints:
        if isinstance(constraint.spec, AxisUse):
            resolver.want_use(constraint, constraint.spec)
        elif not isinstance(constraint.spec, Dims):
            resolver.want_splits(constraint, constraint.spec)
    if resolver.problems:
        raise ShardplanError(*resolver.complaints())
    return ResolvedConstraints(tuple(resolver.tensors), tuple(resolver.operators), frozenset(resolver.forbidden))


class _Resolver:
    """Collects requirements and faults."""

    def __init__(self, model: Model, mesh: Mesh) -> None:
        self.model, self.mesh, self.names = model, mesh, Names(model)
        self._weights = {parameter.tensor: parameter.name for parameter in model.parameters}
        self.tensors: list[TensorConstraint | AxisConstraint] = []
        self.operators: list[OperatorConstraint] = []
        self.forbidden: set[tuple[CollectiveKind, int]] = set()
        self.problems: list[Diagnostic] = []
        self._misnamed: set[str] = set()
        self._alike: dict[Diagnostic, set[str]] = {}
        self._first: dict[tuple[int, str], Diagnostic] = {}

    def problem(self, constraint: Constraint, code: str, summary: str, **fields: object) -> None:
        """Records a fault; of equal faults of one constraint on several tensors, the first is kept."""
        key = (id(constraint), code)
        if key not in self._first:
            found = error(code, summary, **fields, **constraint.where)
            self._first[key] = found
            if found not in self.problems:
                self.problems.append(found)
        self._alike.setdefault(self._first[key], set()).add(summary)

    def complaints(self) -> list[Diagnostic]:
        """All faults; each says how many similar ones there are."""
        counts = [len(self._alike.get(problem, ())) - 1 for problem in self.problems]
        return [
            replace(problem, detail="\n".join(filter(None, (problem.detail, f"and {more} more like this"))))
            if more > 0
            else problem
            for problem, more in zip(self.problems, counts, strict=True)
        ]

    def called(self, constraint: Constraint, target: Target) -> str:
        """The name of a tensor in the constraint, or in the checkpoint."""
        if constraint.is_exact and constraint.pattern in self.names.parameters:
            return constraint.pattern
        return self._weights.get(target.tensor, target.tensor)

    def tensor_targets(self, constraints: Sequence[Constraint]) -> list[tuple[Constraint, list[Target]]]:
        """Constraints on tensors with what they are about; a name given exactly comes before patterns."""
        found: list[tuple[Constraint, tuple[Target, ...]]] = []
        for constraint in constraints:
            if isinstance(constraint.spec, Dims):
                try:
                    found.append((constraint, self.names.targets(constraint)))
                except ShardplanError as unmatched:
                    self.problems += unmatched.diagnostics
        exact = {(c.section, target.tensor) for c, targets in found if c.is_exact for target in targets}
        return [
            (c, [target for target in targets if c.is_exact or (c.section, target.tensor) not in exact])
            for c, targets in found
        ]

    def want_dims(self, constraint: Constraint, target: Target) -> None:
        spec, shape = constraint.spec, self.model.tensor(target.tensor).shape
        assert isinstance(spec, Dims)
        if len(spec.entries) > len(shape):
            name = self.called(constraint, target)
            summary = f"{constraint.text} names {counted(len(spec.entries), 'dim')}; '{name}' has {len(shape)}"
            self.problem(constraint, "bad-constraint", summary)
            return
        rest = (None,) if spec.rest_open else ((),)
        names = [*spec.entries, *rest * (len(shape) - len(spec.entries))]
        order = target.perm or tuple(range(len(shape)))
        in_graph = [names[dim] for dim in order]
        pieces = [*spec.segments, *[()] * (len(shape) - len(spec.segments))]
        segments = tuple(pieces[dim] for dim in order)
        used = [axis for entry in names for axis in entry or ()]
        dims = [None if entry is None else self.axes(constraint, entry) for entry in in_graph]
        if len(set(used)) < len(used):
            self.problem(constraint, "bad-constraint", f"{constraint.text} uses a mesh axis twice")
            return
        for dim, axes in enumerate(dims):
            self.check_divides(constraint, target, dim, axes or ())
            self.check_segments(constraint, target, dim, segments[dim])
        real = (None if axes is None else tuple(a for a in axes if self.mesh.shape[a] > 1) for axes in dims)
        self.tensors.append(TensorConstraint(constraint, target.tensor, tuple(real), segments))

    def want_use(self, constraint: Constraint, use: AxisUse) -> None:
        axis = self.axis(constraint, constraint.pattern)
        if axis is None:
            return
        self.forbidden.update((kind, axis) for kind in use.forbidden)
        if self.mesh.shape[axis] == 1:
            return
        if use.inputs_dim >= 0:
            ranks = {name: len(self.model.tensor(name).shape) for name in self.model.inputs}
            if max(ranks.values(), default=0) <= use.inputs_dim:
                shown = ", ".join(f"'{name}' {rank}" for name, rank in ranks.items())
                summary = f"no input has a dim {use.inputs_dim}"
                self.problem(constraint, "bad-constraint", summary, detail=f"dims, counted from 0: {shown}")
            for name in self.model.inputs:
                if len(self.model.tensor(name).shape) > use.inputs_dim:
                    self.check_divides(constraint, Target(name), use.inputs_dim, (axis,))
                    self.tensors.append(AxisConstraint(constraint, name, axis, use.inputs_dim))
        if use.whole_parameters:
            self.tensors += [AxisConstraint(constraint, p.tensor, axis, -1) for p in self.model.parameters]

    def want_splits(self, constraint: Constraint, splits: Sequence[Split]) -> None:
        wanted = [(self.axis(constraint, split.axis), split.factor, split.wanted) for split in splits]
        real = tuple((a, factor, w) for a, factor, w in wanted if a is not None and self.mesh.shape[a] > 1)
        try:
            numbers = self.names.operators(constraint)
        except ShardplanError as unmatched:
            self.problems += unmatched.diagnostics
            return
        self.operators += [OperatorConstraint(constraint, number, real) for number in numbers]

    def axes(self, constraint: Constraint, names: Iterable[str]) -> tuple[int, ...]:
        found = [self.axis(constraint, name) for name in names]
        return tuple(axis for axis in found if axis is not None)

    def axis(self, constraint: Constraint, name: str) -> int | None:
        """Number of the mesh axis called `name`, under its own name or that of the file; None after noting a fault."""
        aliases = constraint.aliases
        if not self.check_aliases(constraint):
            return None
        for names in (aliases, self.mesh.names):
            if name in names:
                return names.index(name)
        known = aliases or self.mesh.names
        hint = did_you_mean(name, known) or f"its axes are {', '.join(known)}"
        self.problem(constraint, "unknown-axis", f"the mesh {self.mesh} has no axis '{name}'", hint=hint)
        return None

    def check_aliases(self, constraint: Constraint) -> bool:
        """Checks that the file of `constraint` names all axes or none; a fault is reported once for all of its
        constraints."""
        aliases, file = constraint.aliases, constraint.mark.file
        if not aliases or len(aliases) == len(self.mesh):
            return True
        if file not in self._misnamed:
            self._misnamed.add(file)
            summary = f"mesh_axis_names has {counted(len(aliases), 'name')}; the mesh is {self.mesh}"
            self.problem(constraint, "unknown-axis", summary)
        return False

    def check_segments(self, constraint: Constraint, target: Target, dim: int, segments: Sequence[int]) -> None:
        size = self.model.tensor(target.tensor).shape[dim]
        if segments and sum(segments) != size:
            own = target.perm[dim] if target.perm else dim
            summary = f"the segments of dim {own} of '{self.called(constraint, target)}' sum to {sum(segments)}"
            self.problem(constraint, "bad-constraint", f"{summary}; it has {size}")

    def check_divides(self, constraint: Constraint, target: Target, dim: int, axes: Sequence[int]) -> None:
        size, ways = self.model.tensor(target.tensor).shape[dim], self.mesh.ways(axes)
        if size % ways:
            by = " x ".join(str(self.mesh.axes[axis].name) for axis in axes)
            shown = target.perm[dim] if target.perm else dim
            name = self.called(constraint, target)
            summary = f"dim {shown} of '{name}' has size {size}, which {by} = {ways} does not divide"
            self.problem(constraint, "indivisible", summary)
