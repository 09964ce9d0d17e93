"""A parallel configuration in the terms of Megatron and FSDP: the degree of each kind of parallelism, and what it
leaves open.

    Parallelism(tensor=8, pipeline=4, data=16, zero=1, sequence=True)

Each kind has its own mesh axes, laid over the links from the inside out as trainers order their ranks: tensor, context,
expert, data, pipeline. `restriction` says what the configuration fixes; the solver decides the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from shardplan.cluster.build import Profile
from shardplan.cost.moves import Index
from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.graph.build import CostGraph, Node
from shardplan.graph.experts import experts_of
from shardplan.graph.hidden_state import HiddenState, hidden_state
from shardplan.graph.layer_parts import heads_of
from shardplan.graph.tensors import TensorSpace
from shardplan.layout.placement import S
from shardplan.model.types import Model
from shardplan.planning.reduction import Allowed, Mask, Restrict
from shardplan.rules.batch import batch_dims_of

TENSOR, CONTEXT, EXPERT, DATA, PIPELINE = "tensor", "context", "expert", "data", "pipeline"
_INSIDE_OUT = (TENSOR, CONTEXT, EXPERT, DATA)
OPTION = {TENSOR: "--tp", PIPELINE: "--pp", DATA: "--dp", CONTEXT: "--cp", EXPERT: "--ep", "virtual": "--vp"}
"""The option of `shardplan price` that gives each degree."""


@dataclass(frozen=True, slots=True)
class Parallelism:
    """The degree of each kind of parallelism. `expert`: so many of the data-parallel ranks hold different experts;
    `virtual`: model chunks per pipeline stage; `zero`: 0 (nothing sharded), 1 (optimizer state), 3 (parameters too);
    `sequence`: the hidden state between tensor-parallel regions is sharded by sequence; `expert_tensor`:
    tensor-parallel degree of an expert, 0 for that of the rest; with 1 experts are whole, and the tensor-parallel ranks
    of one data-parallel rank hold different experts.

    Raises `ShardplanError` (`bad-parallelism`) with everything that is wrong with the numbers.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    context: int = 1
    expert: int = 1
    virtual: int = 1
    zero: int = 0
    sequence: bool = False
    expert_tensor: int = 0

    def __post_init__(self) -> None:
        if faults := list(self._faults()):
            raise ShardplanError(*faults)

    def _faults(self) -> Iterator[Diagnostic]:
        for name, option in OPTION.items():
            if getattr(self, name) < 1:
                summary = f"the {_degree(name)} is {getattr(self, name)}"
                yield bad(summary, f"{option} is a whole number of at least 1")
        if self.zero not in (0, 1, 3):
            levels = "0 shards nothing, 1 optimizer state (gradients are reduce-scattered to it), 3 parameters as well"
            yield bad(f"--zero {self.zero} cannot be priced", f"--zero {levels}")
        if self.expert_tensor not in (0, 1, self.tensor):
            hint = "experts are sharded as everything else is (leave out --etp), or are whole (--etp 1)"
            summary = f"the tensor-parallel degree of experts is {self.expert_tensor}, that of the rest {self.tensor}"
            yield bad(summary, hint)
        elif self.experts_are_whole and self.expert % self.tensor:
            hint = "with --etp 1 the ranks of --tp hold different experts: --ep is a multiple of it"
            summary = f"the expert-parallel degree {self.expert} is no multiple of the tensor-parallel degree"
            yield bad(f"{summary} {self.tensor}", hint)
        elif self.expert >= 1 and self.data % self.ways(EXPERT):
            hint = "experts are spread over data-parallel ranks: their number is a divisor of --dp"
            if self.tensor > 1 and not self.experts_are_whole:
                hint += ", or with --etp 1 of --dp times --tp"
            yield bad(f"{self.ways(EXPERT)} expert-parallel ranks do not divide {self.data} data-parallel ranks", hint)
        if self.virtual > 1 and self.pipeline == 1:
            yield bad(f"{self.virtual} virtual stages need a pipeline", "give --pp as well")
        if self.sequence and self.tensor == 1:
            yield bad("sequence parallelism needs tensor parallelism", "give --tp as well, or --cp to cut the sequence")

    @property
    def shards_parameters(self) -> bool:
        """Whether parameters are sharded (FSDP)."""
        return self.zero == 3

    @property
    def within_a_step(self) -> Parallelism:
        """The configuration between the first and the last microbatch of a step: under a pipeline, FSDP gathers weights
        once per step and keeps them, and whole gradients, until the end of the step (torchtitan's
        `reshard_after_forward`); the optimizer state stays sharded."""
        return replace(self, zero=1) if self.shards_parameters and self.pipeline > 1 else self

    @property
    def experts_are_whole(self) -> bool:
        """Whether tensor-parallel ranks hold different experts instead of shards of the same ones."""
        return self.tensor > 1 and self.expert_tensor == 1

    @property
    def devices(self) -> int:
        """The number of devices."""
        return self.devices_per_stage * self.pipeline

    @property
    def devices_per_stage(self) -> int:
        """The number of devices of one pipeline stage."""
        return self.tensor * self.context * self.data

    @property
    def pieces(self) -> int:
        """The number of pieces into which the model is cut."""
        return self.pipeline * self.virtual

    def ways(self, kind: str) -> int:
        """The product of the mesh axes of a kind. Experts and data share the data-parallel ranks; whole experts are
        spread over the tensor-parallel ranks first."""
        over_data = self.expert // self.tensor if self.experts_are_whole else self.expert
        if kind == EXPERT:
            return over_data
        return self.data // over_data if kind == DATA else int(getattr(self, kind))


@dataclass(frozen=True, slots=True)
class KindOfAxis:
    """A mesh axis of `size` on link level `level` (0 innermost), and the `kind` of parallelism along it."""

    kind: str
    size: int
    level: int


def _degree(name: str) -> str:
    return "number of virtual stages" if name == "virtual" else f"{name}-parallel degree"


def bad(summary: str, hint: str) -> Diagnostic:
    """The error about a wrong configuration."""
    return error("bad-parallelism", summary, hint=hint)


def axes_of(parallelism: Parallelism, profile: Profile, *, whole: bool = False) -> tuple[KindOfAxis, ...]:
    """The mesh axes, outermost first, of one pipeline stage or of the `whole` cluster. Ranks fill each link level from
    the inside out, so a kind that crosses a level has an axis on either side of it.

    Raises `ShardplanError` (`bad-parallelism`) if a kind neither fits into what is left of a level nor fills it.
    """
    found: list[KindOfAxis] = []
    level, room = 0, _room(profile, 0)
    for kind in (*_INSIDE_OUT, *((PIPELINE,) if whole else ())):
        left = parallelism.ways(kind)
        while left > 1:
            while room == 1 and level + 1 < len(profile.levels):
                level, room = level + 1, _room(profile, level + 1)
            if left <= room:
                taken = left
            elif room > 1 and left % room == 0:
                taken = room
            else:
                inside = f"one '{profile.levels[level].name}' of '{profile.name}' has room for {room} ranks more"
                less = left // room * room
                fill = f"{f'{less} or ' * (less > 0)}{less + room} ranks fill it, or take a power of two"
                summary = f"{left} {kind}-parallel ranks do not fill a level of links: {inside}"
                raise ShardplanError(bad(summary, fill))
            found.append(KindOfAxis(kind, taken, level))
            left, room = left // taken, room // taken
    return tuple(reversed(found)) or (KindOfAxis(DATA, 1, 0),)


_NO_END = 1 << 40


def _room(profile: Profile, level: int) -> int:
    devices = profile.levels[level].devices
    inner = profile.levels[level - 1].devices if level else 1
    return devices // max(inner, 1) if devices else _NO_END


def mesh_text(axes: Sequence[KindOfAxis], profile: Profile) -> str:
    """The axes in the form of `--mesh`: `net0=2,net1=4,up=8`."""
    names = []
    for place, axis in enumerate(axes):
        name, on_level = profile.levels[axis.level].name, [other.level for other in axes]
        several = on_level.count(axis.level) > 1
        names.append(f"{name}{on_level[:place].count(axis.level)}={axis.size}" if several else f"{name}={axis.size}")
    return ",".join(names)


def check_model(parallelism: Parallelism, model: Model, microbatches: int) -> None:
    """Checks that the sizes of `model` divide by the degrees. Raises `ShardplanError` (`bad-parallelism`) with all that
    do not."""
    if faults := list(_uneven(parallelism, model, microbatches)):
        raise ShardplanError(*faults)


def _uneven(parallelism: Parallelism, model: Model, microbatches: int) -> Iterator[Diagnostic]:
    batch, rows = rows_of(model), parallelism.data * microbatches
    if batch % rows:
        summary = f"{batch} rows do not divide over {parallelism.data} ranks and {microbatches} microbatches"
        yield bad(summary, f"take a multiple of {rows:,} rows")
    if parallelism.virtual > 1 and microbatches % parallelism.pipeline:
        stages = parallelism.pipeline
        fits = batch // microbatches * -(-microbatches // stages) * stages
        summary = f"{stages} interleaved stages take a multiple of {stages} microbatches, and not {microbatches}"
        yield bad(summary, f"--global-batch {fits}, or leave out --vp")
    ways, shapes = parallelism.tensor, [(p.name, model.tensor(p.tensor).shape) for p in model.parameters]
    matrices = [(name, shape) for name, shape in shapes if len(shape) > 1]
    whole = [(name, shape) for name, shape in matrices if all(size % ways for size in shape)]
    if whole:
        name, shape = whole[0]
        more = f", and {len(whole) - 1} other weights" if len(whole) > 1 else ""
        summary = f"the tensor-parallel degree {ways} divides no dim of '{name}' {list(shape)}{more}"
        yield bad(summary, f"--tp is a divisor of {math.gcd(*shape)}")
    for heads in sorted(heads for heads in heads_of(model) if heads % ways and not whole):
        yield bad(f"{heads} attention heads do not divide over {ways} ranks", "--tp is a divisor of their number")
    lengths = {model.tensor(name).shape[1] for name in model.inputs if len(model.tensor(name).shape) > 1}
    cut = parallelism.context * (parallelism.tensor if parallelism.sequence else 1)
    for length in sorted(lengths):
        if cut > 1 and length > 1 and length % cut:
            yield bad(f"a sequence of {length} does not divide into {cut}", "--cp, times --tp with --sequence-parallel")
    stacked = {model.tensor(name).shape[0] for name in experts_of(model)}
    for experts in sorted(stacked if parallelism.expert > 1 else ()):
        if experts % parallelism.expert:
            yield bad(f"{experts} experts do not divide over {parallelism.expert} ranks", "take a divisor for --ep")
    if parallelism.expert > 1 and not stacked:
        yield bad("there are no experts to spread: no weight has one matrix for each", "leave out --ep")


def rows_of(model: Model) -> int:
    """The batch size of a step: dim 0 of the first input that has one."""
    shapes = [model.tensor(name).shape for name in model.inputs]
    return next((shape[0] for shape in shapes if shape), 1)


def restriction(parallelism: Parallelism, kinds: tuple[str, ...], hidden: int) -> Restrict:
    """The restriction to what `parallelism` fixes on a mesh with axes of these `kinds`; `hidden` is the hidden size."""
    # with the model itself: another one may get the number of one that is gone
    known: dict[int, tuple[Model, Mapping[str, int]]] = {}

    def batches(built: CostGraph) -> Mapping[str, int]:
        """The batch dims of a model, computed once for all of its graphs."""
        if id(built.model) not in known:
            known[id(built.model)] = built.model, batch_dims_of(built.model, built.rules)
        return known[id(built.model)][1]

    latest: list[tuple[CostGraph, Allowed]] = []

    def of(built: CostGraph) -> Allowed:
        """Asked for again with every sum of a graph's terms: the latest is kept."""
        if not latest or latest[0][0] is not built:
            fixed = _Fixed(parallelism, kinds, hidden, built, batches(built) if DATA in kinds else {})
            latest[:] = [(built, fixed.allowed())]
        return latest[0][1]

    return of


@dataclass(frozen=True)
class _Fixed:
    parallelism: Parallelism
    kinds: tuple[str, ...]
    hidden: int
    built: CostGraph
    batches: Mapping[str, int]

    def allowed(self) -> Allowed:
        """The choices left of every node that the configuration says something of."""
        built = self.built
        weights = {parameter.tensor for parameter in built.model.parameters if parameter.tensor in built.kept}
        experts = experts_of(built.model) & weights
        inputs = [name for name in built.model.inputs if name in built.kept and name not in weights]
        found: dict[Node, Mask] = {("kept", name): self._activation(built.kept[name]) for name in inputs}
        for name in sorted(weights):
            is_whole = name in self._hidden_state.weights
            found["kept", name] = self._weight(built.kept[name], is_expert=name in experts, is_whole=is_whole)
            if name in built.updated:
                found["updated", name] = self._state(built.updated[name], is_expert=name in experts, is_whole=is_whole)
        found |= self._reads(weights, experts)
        found |= {("kept", name): self._activation(built.kept[name]) for name in sorted(self._hidden_state.names)}
        found = self._by_batch(weights, self._as_trained(found, weights))
        return {node: mask for node, mask in found.items() if mask.any() and not mask.all()}

    def _by_batch(self, weights: set[str], found: Mapping[Node, Mask]) -> dict[Node, Mask]:
        """The batch is sharded over the data-parallel ranks at every operator that has it; no other split is tried
        there."""
        built, more = self.built, dict(found)
        axes = [axis for axis, kind in enumerate(self.kinds) if kind == DATA]
        dims = {name: dim for name, dim in sorted(self.batches.items()) if name in built.kept and name not in weights}
        for name, dim in dims.items():
            kept = built.kept[name]
            own = _cut_by(kept.codes, axes, kept.code(S(dim)))
            more["kept", name] = _if_any(more.get(("kept", name), np.ones(len(kept), dtype=np.bool_)), own)
        for operator, space in zip(built.model.operators, built.operators, strict=True):
            mask = more["operator", operator.name]
            for side, names in (("operands", operator.inputs), ("results", operator.outputs)):
                for position, name in enumerate(names):
                    if name in dims:
                        codes = space.strategies.layout_codes(side, position)
                        mask = _if_any(mask, _cut_by(codes, axes, built.kept[name].code(S(dims[name]))))
            more["operator", operator.name] = mask
        return more

    def _as_trained(self, found: Mapping[Node, Mask], weights: set[str]) -> dict[Node, Mask]:
        """Over tensor axes, operators make the hidden state as it is kept, its products with weights cut their columns,
        and those that make it again cut their rows."""
        built, more, residual = self.built, dict(found), self._hidden_state
        axes = [axis for axis, kind in enumerate(self.kinds) if kind == TENSOR]
        for operator, space in zip(built.model.operators, built.operators, strict=True):
            mask = more["operator", operator.name]
            for position, name in enumerate(operator.outputs):
                if name in residual.names:
                    codes = space.strategies.layout_codes("results", position)
                    mask = self._over_tensor_axes(mask, codes, built.kept[name])
            dim = residual.cut_of(operator)
            if dim is not None and operator.inputs[1] in weights:
                shards = built.kept[operator.inputs[1]].kind.shards
                codes = space.strategies.layout_codes("operands", 1)[:, axes]
                wanted = [code for code, shard in enumerate(shards) if shard.dim == dim]
                mask = _if_any(mask, np.asarray(np.isin(codes, wanted).all(axis=1)))
            more["operator", operator.name] = mask
        return more

    def _reads(self, weights: set[str], experts: frozenset[str]) -> dict[Node, Mask]:
        """The strategies that read weights in the layouts that the configuration prescribes."""
        found: dict[Node, Mask] = {}
        for operator, space in zip(self.built.model.operators, self.built.operators, strict=True):
            mask = np.ones(len(space), dtype=np.bool_)
            for position, name in enumerate(operator.inputs):
                if name in weights:
                    codes = space.strategies.layout_codes("operands", position)
                    mask &= self._read(codes, self.built.kept[name], is_expert=name in experts)
            found["operator", operator.name] = mask
        return found

    @cached_property
    def _hidden_state(self) -> HiddenState:
        return hidden_state(self.built.model, self.hidden, self.built.kept)

    def _over_tensor_axes(self, mask: Mask, codes: Index, space: TensorSpace) -> Mask:
        """Whole over tensor axes, or sharded by sequence if `sequence` is set."""
        code = space.code(S(1)) if self.parallelism.sequence and len(space.kind.shape) > 2 else None
        for axis, kind in enumerate(self.kinds):
            if kind == TENSOR:
                at = codes[:, axis]
                mask = _if_any(mask, at >= len(space.kind.shards) if code is None else at == code)
        return mask

    def _activation(self, space: TensorSpace) -> Mask:
        """The batch sharded over data (and expert) axes, the sequence over context axes, and over tensor axes if
        `sequence` is set."""
        rank, mask = len(space.kind.shape), np.ones(len(space), dtype=np.bool_)
        for axis, kind in enumerate(self.kinds):
            dim = {DATA: 0, EXPERT: 0, CONTEXT: 1, TENSOR: 1 if self.parallelism.sequence and rank > 2 else None}[kind]
            codes = space.codes[:, axis]
            if dim is None or dim >= rank:
                mask = _if_any(mask, codes >= len(space.kind.shards))
            elif (code := space.code(S(dim))) is not None:
                mask = _if_any(mask, codes == code)
        return mask

    def _weight(self, space: TensorSpace, *, is_expert: bool, is_whole: bool) -> Mask:
        """Matrices sharded over tensor axes, experts over expert axes; the rest whole, or under ZeRO-3 in as many
        pieces as possible. `is_whole`: it scales or shifts the hidden state, and is whole over tensor axes."""
        sharded = space.codes < len(space.kind.shards)
        mask = np.ones(len(space), dtype=np.bool_)
        for axis, kind in enumerate(self.kinds):
            if is_expert and self._spreads_experts(kind):
                mask = _if_any(mask, space.codes[:, axis] == space.code(S(0)))
            elif kind == TENSOR:
                if len(space.kind.shape) > 1 or is_whole:
                    mask = _if_any(mask, sharded[:, axis] != is_whole)
            elif self.parallelism.zero < 3:
                mask = _if_any(mask, ~sharded[:, axis])
        return mask & _most(space, mask) if self.parallelism.shards_parameters else mask

    def _state(self, space: TensorSpace, *, is_expert: bool, is_whole: bool) -> Mask:
        """Optimizer state sharded as its weight, or further over data and context axes."""
        if self.parallelism.zero == 0:
            return self._weight(space, is_expert=is_expert, is_whole=is_whole)
        mask = np.ones(len(space), dtype=np.bool_)
        sharded = space.codes < len(space.kind.shards)
        for axis, kind in enumerate(self.kinds):
            if kind == TENSOR and is_expert and self._spreads_experts(kind):
                mask = _if_any(mask, space.codes[:, axis] == space.code(S(0)))
            elif kind == TENSOR and len(space.kind.shape) > 1:
                mask = _if_any(mask, sharded[:, axis])
        return mask & _most(space, mask)

    def _read(self, codes: Index, space: TensorSpace, *, is_expert: bool) -> Mask:
        """Operators read matrices in tensor-parallel shards, experts in expert shards, and other weights whole."""
        sharded = codes < len(space.kind.shards)
        mask = np.ones(len(codes), dtype=np.bool_)
        for axis, kind in enumerate(self.kinds):
            is_cut = (kind == TENSOR and len(space.kind.shape) > 1) or (kind == EXPERT and is_expert)
            if is_expert and self._spreads_experts(kind):
                mask = _if_any(mask, codes[:, axis] == space.code(S(0)))
            elif is_cut:
                mask = _if_any(mask, sharded[:, axis])
            elif kind != TENSOR:
                mask = _if_any(mask, ~sharded[:, axis])
        return mask

    def _spreads_experts(self, kind: str) -> bool:
        """Whether ranks along an axis of this kind hold different experts."""
        return kind == EXPERT or (kind == TENSOR and self.parallelism.experts_are_whole)


def _cut_by(codes: Index, axes: Sequence[int], code: int | None) -> Mask:
    """The rows of `codes` that have that code on all of the axes; all rows if no layout has it."""
    if code is None:
        return np.ones(len(codes), dtype=np.bool_)
    wanted: Mask = (codes[:, list(axes)] == code).all(axis=1)
    return wanted


def _if_any(mask: Mask, wanted: Mask) -> Mask:
    """Both masks together, if that leaves a choice; otherwise the first: what a size makes impossible is not
    required."""
    both: Mask = mask & wanted
    return both if both.any() else mask


def _most(space: TensorSpace, among: Mask) -> Mask:
    """Among these choices, those that cut into the most pieces."""
    pieces = space.space.tiles.prod(axis=1)[space.forward]
    most: Mask = pieces == pieces[among].max()
    return most


def microbatches_of(parallelism: Parallelism, global_batch: int, micro_batch: int) -> int:
    """The number of microbatches of a step. Raises `ShardplanError` (`bad-parallelism`) if the batch does not divide
    evenly."""
    per_round = parallelism.data * micro_batch
    if micro_batch < 1 or global_batch < 1:
        raise ShardplanError(bad("a batch has no rows", "--micro-batch and --global-batch are at least 1"))
    if global_batch % per_round:
        near = max(1, round(global_batch / per_round)) * per_round
        summary = f"a batch of {global_batch:,} is not a multiple of {parallelism.data} ranks x {micro_batch} rows"
        raise ShardplanError(bad(summary, f"the nearest batch that is: {near:,}"))
    return global_batch // per_round
