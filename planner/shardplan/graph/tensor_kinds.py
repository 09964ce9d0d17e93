"""The kind of every planned tensor: how it may be sharded, how many bytes its moves have, where it may be stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shardplan.constraints.resolve import ResolvedConstraints
from shardplan.cost.recipes import gradient_dtype
from shardplan.graph.flow import Flow
from shardplan.graph.options import PlanOptions
from shardplan.graph.tensors import TensorKind
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import Placement, S
from shardplan.model.types import DTYPE_BITS, Model, Tensor
from shardplan.rules.batch import batch_dims_of, in_microbatch
from shardplan.rules.types import Rule


@dataclass(frozen=True)
class TensorKinds:
    """`kept`: kind of every planned tensor; `served`: kind under which tensors with several readers are served;
    `updated`: kind under which the optimizer updates a weight, if its layout may differ from the weight's."""

    kept: Mapping[str, TensorKind]
    served: Mapping[str, TensorKind]
    updated: Mapping[str, TensorKind]
    trainable: frozenset[str]

    @property
    def coalesced_bytes(self) -> int:
        """Bytes of all weights or of all their gradients, whichever are more for each: no bucket holds more."""
        weights = [kind for kind in self.kept.values() if kind.coalesces]
        return sum(max(kind.size_bytes, kind.gradient_bytes) for kind in weights)


def tensor_kinds(
    model: Model, rules: Sequence[Rule], flow: Flow, mesh: Mesh, options: PlanOptions, constraints: ResolvedConstraints
) -> TensorKinds:
    """The kinds of all planned tensors of `model` on `mesh`; `constraints` may ask for further shards."""
    shards = _shards_in_use(model, rules)
    for wanted, dims in constraints.shards().items():
        shards[wanted] = shards.get(wanted, set()) | {S(dim) for dim in dims}
    reordered = constraints.ordered()
    trainable = frozenset(p.tensor for p in model.parameters if p.tensor in flow.needs_grad)
    rests = {p.tensor for p in model.parameters} | set(model.inputs) | set(model.outputs)
    rests |= {name for name in flow.planned if model.tensor(name).role == "constant"}
    micro = options.microbatches
    batches = batch_dims_of(model, rules) if micro > 1 else {}
    kept: dict[str, TensorKind] = {}
    served: dict[str, TensorKind] = {}
    updated: dict[str, TensorKind] = {}
    for name in flow.planned:
        tensor = model.tensor(name)
        weight = name in flow.weightlike
        parameter = tensor.role == "parameter"
        used = shards.get(name, set()) | ({S(dim) for dim in range(len(tensor.shape))} if parameter else set())
        shape = in_microbatch(tensor.shape, batches.get(name), micro)
        kept[name] = TensorKind(
            shape=shape,
            size_bytes=_payload(tensor.size_bytes, micro, weight=weight),
            gradient_bytes=_payload(_gradient_bytes(tensor, options), micro, weight=weight),
            shards=_possible(used, shape, mesh),
            has_gradient=name in flow.needs_grad,
            traffic="weight" if weight else "activation",
            stored=name in rests,
            ordered=parameter or name in reordered,
            microbatches=micro,
            coalesces=name in trainable,
            is_input=tensor.role == "input",
        )
        if len(flow.readers.get(name, ())) > 1 or name in flow.kept_until:
            served[name] = replace(kept[name], stored=False, ordered=False, coalesces=False, is_input=False)
        if options.shard_optimizer and name in trainable:
            updated[name] = kept[name]
            kept[name] = replace(kept[name], accumulates=True)
    return TensorKinds(kept, served, updated, trainable)


def _shards_in_use(model: Model, rules: Sequence[Rule]) -> dict[str, set[Placement]]:
    """The shards that some operator of a tensor can make or read; others would only be storage."""
    used: dict[str, set[Placement]] = {}
    for operator, rule in zip(model.operators, rules, strict=True):
        for option in rule.options:
            for names, placements in ((operator.inputs, option.operands), (operator.outputs, option.results)):
                for name, placement in zip(names, placements, strict=False):
                    if name and placement.is_shard:
                        used.setdefault(name, set()).add(placement)
    return used


def _possible(used: set[Placement], shape: Sequence[int], mesh: Mesh) -> tuple[Placement, ...]:
    """Those of `used` that at least one mesh axis can cut evenly, in a fixed order."""
    sizes = [size for size in mesh.shape if size > 1]
    units = {shard: shard.segments or (shape[shard.dim],) for shard in used}
    fitting = [shard for shard, unit in units.items() if any(all(u % size == 0 for u in unit) for size in sizes)]
    return tuple(sorted(fitting, key=lambda shard: (shard.dim, len(shard.segments), shard.segments)))


def _payload(size_bytes: int, microbatches: int, *, weight: bool) -> int:
    return size_bytes if weight else -(-size_bytes // microbatches)


def _gradient_bytes(tensor: Tensor, options: PlanOptions) -> int:
    return -(-tensor.elements * DTYPE_BITS[gradient_dtype(options.optimizer, tensor.dtype)] // 8)
