"""A plan as torchtitan's `ShardingConfig`s: for every module with parameters, how these are stored, how its inputs
arrive and are read, and how its result is made and passed on.

Source: pytorch/torchtitan 0.3.0, `protocols/sharding.py` and `distributed/parallel_dims.py`: a `SpmdLayout` has a type
of spmd_types for every axis. These are pairs of value and gradient, as the plan's placements are: `R` is the plan's
`R/P` (the gradient is partial), `I` the plan's `R`. The format has no place for moves between two operators outside of
modules with parameters; a plan with such moves is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from shardplan.errors import Diagnostic, warning
from shardplan.export.specs import cannot_say, solve_for
from shardplan.export.titan_axes import titan_axes
from shardplan.export.titan_text import Sides, module_text
from shardplan.export.types import Exported
from shardplan.layout.layout import Layout
from shardplan.layout.placement import Placement, R
from shardplan.plan.orientation import checkpoint_layout
from shardplan.plan.types import OperatorDecision, Plan, TensorDecision


def export_titan(plan: Plan) -> Exported:
    """A Python module with one entry per module of the model, copies in different layers under one pattern, and the
    function that gives the modules of a model their `ShardingConfig`s."""
    walk = _Boundaries(plan)
    configs = {name: walk.sides(name) for name in walk.modules}
    reasons = [*walk.axes.disordered(), *walk.inexpressible(), *walk.refused]
    refused = cannot_say("a ShardingConfig", "what this plan does", dict.fromkeys(reasons), solve_for("torchtitan"))
    refused += _warnings(walk, configs)
    return Exported(module_text(plan, walk.axes, _folded(configs), sharded_weights=walk.sharded), tuple(refused))


def _warnings(walk: _Boundaries, configs: Mapping[str, Sides]) -> Iterator[Diagnostic]:
    """What is said, but not quite as the plan has it."""
    if walk.repeated:
        summary = (
            f"{_first_names(walk.repeated)}: moved once for all readers by the plan, once for each by ShardingConfigs"
        )
        yield warning("not-said", summary)
    several = [name for name, sides in configs.items() if len(sides.get("in_src_shardings", ())) > 1]
    if several:
        summary = f"{_first_names(several)}: several inputs, in the order of their use: let forward take them so"
        yield warning("not-said", summary)
    if walk.sharded and walk.unsharded:
        summary = (
            f"{_first_names(walk.unsharded)}: whole on every replica in the plan; torchtitan's FSDP cuts all weights"
        )
        yield warning("not-said", summary)


class _Boundaries:
    """Modules with parameters, what enters and what leaves them. `sharded`, `unsharded`: weights that the plan keeps in
    pieces over the axis `dp` and gathers for use (ZeRO-3), and that it does not."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.axes = titan_axes(plan)
        self.tensors = {tensor.name: tensor for tensor in plan.tensors}
        self.modules: dict[str, list[OperatorDecision]] = {}
        self.module_of: dict[str, str] = {}
        self.maker: dict[str, OperatorDecision] = {}
        self.live = _live(plan)
        self.refused: list[str] = []
        self.repeated: set[str] = set()
        self._group()
        self.readers: dict[str, list[OperatorDecision]] = {}
        for operator in plan.operators:
            for name in dict.fromkeys(operator.inputs):
                self.readers.setdefault(name, []).append(operator)
        parameters = [tensor for tensor in plan.tensors if tensor.role == "parameter"]
        self.sharded = {tensor.checkpoint for tensor in parameters if self._gathered(tensor)}
        self.unsharded = {tensor.checkpoint for tensor in parameters} - self.sharded

    def _group(self) -> None:
        """Operators by the module whose parameter they read, or whose path they have beside such operators."""
        owners = set()
        for tensor in self.plan.tensors:
            for name in (tensor.checkpoint, *tensor.aliases) if tensor.role == "parameter" else ():
                owners.add(name.rpartition(".")[0] or name)
        for operator in self.plan.operators:  # a tied weight is read in a module that it is not named after
            owner = self._owner(operator)
            if owner and not f"{owner}.".startswith(f"{operator.module}." if operator.module else ""):
                owners.add(operator.module)
        for operator in self.plan.operators:
            self.maker |= dict.fromkeys(operator.outputs, operator)
            module = operator.module if operator.module in owners else self._owner(operator)
            if module:
                self.modules.setdefault(module, []).append(operator)
                self.module_of[operator.name] = module

    def _owner(self, operator: OperatorDecision) -> str:
        for name in operator.inputs:
            tensor = self.tensors.get(name)
            if tensor is not None and tensor.role == "parameter":
                return tensor.checkpoint.rpartition(".")[0] or tensor.checkpoint
        return ""

    def sides(self, module: str) -> Sides:
        """The fields of one module's config."""
        operators = self.modules[module]
        inside = {operator.name for operator in operators}
        state = {self._short(t, module): self._layout_text(t, self._state(t)) for t in self._parameters(operators)}
        entering = list(self._entering(operators, inside))
        leaving = list(self._leaving(operators, inside))
        sides: Sides = {"state_shardings": state}
        if entering:
            sides["in_src_shardings"] = tuple(self._layout_text(value, source) for value, source, _ in entering)
            sides["in_dst_shardings"] = tuple(self._layout_text(value, target) for value, _, target in entering)
        made = [self._layout_text(value, source) for value, source, _ in leaving]
        handed = [self._layout_text(value, target) for value, _, target in leaving]
        if len(made) == 1:
            sides["out_src_shardings"], sides["out_dst_shardings"] = made[0], handed[0]
            if any(_looks_up_in_part(operator) for operator in operators):
                sides["local_map"] = "LocalMapConfig(in_grad_placements=None)"  # as torchtitan's Embedding wants it
        elif made:
            sides["out_src_shardings"] = tuple(made)
            moved = [
                value.name for (value, _, _), one, other in zip(leaving, made, handed, strict=True) if one != other
            ]
            self.refused += [f"'{name}' is moved, and is one of {len(made)} results of '{module}'" for name in moved]
        return sides

    def inexpressible(self) -> Iterator[str]:
        """Moves that no module's boundary can carry out, and weights that are gathered where FSDP does not."""
        for operator in self.plan.operators:
            for name, read in zip(operator.inputs, operator.reads, strict=True):
                tensor = self.tensors.get(name)
                if read is not None and tensor is not None and tensor.role != "constant":
                    yield from self._operand_faults(operator, tensor, read)
            for name, made in zip(operator.outputs, operator.makes, strict=True):
                tensor = self.tensors.get(name)
                if made is None or tensor is None or operator.name in self.module_of:
                    continue
                if made.forward != tensor.layout.forward:
                    yield f"'{name}' is moved between operators that are in no module with parameters"

    def _operand_faults(self, operator: OperatorDecision, tensor: TensorDecision, read: Layout) -> Iterator[str]:
        """Why an operand cannot be taken as the plan takes it."""
        if tensor.role == "parameter":
            whole = self._unsharded(tensor)
            if whole != read.forward and not _only_slices(whole, read):
                yield f"'{tensor.checkpoint}' is gathered for use over an axis on which the batch is not split"
        elif operator.name not in self.module_of:
            if not self._is_own_part(tensor, self._passed_layout(tensor), read):
                yield f"'{tensor.name}' is moved between operators that are in no module with parameters"
        elif self._moved_inside(operator, tensor.name, read):
            yield f"'{tensor.name}' is moved inside of '{self.module_of[operator.name]}'"

    def _is_own_part(self, tensor: TensorDecision, handed: Layout, read: Layout) -> bool:
        """Whether a value is read as it is handed on; what is made of inputs alone, or of weights alone, every device
        makes for its own part of the batch."""
        pairs = enumerate(zip(handed.forward.placements, read.forward.placements, strict=True))
        moved = {axis for axis, (before, after) in pairs if before != after}
        if tensor.name in self.live:
            return not moved
        cut = all(handed.forward.placements[axis] == R and read.placements[axis].is_shard for axis in moved)
        return cut and moved <= set(self.axes.members["dp"])

    def _parameters(self, operators: Sequence[OperatorDecision]) -> Iterator[TensorDecision]:
        names = dict.fromkeys(name for operator in operators for name in operator.inputs)
        return (t for name in names if (t := self.tensors.get(name)) is not None and t.role == "parameter")

    @staticmethod
    def _short(tensor: TensorDecision, module: str) -> str:
        own = next(
            (n for n in (tensor.checkpoint, *tensor.aliases) if n.rpartition(".")[0] == module), tensor.checkpoint
        )
        return own.rpartition(".")[2]

    def _gathered(self, tensor: TensorDecision) -> bool:
        return self._unsharded(tensor) != tensor.layout.forward

    def _unsharded(self, tensor: TensorDecision) -> Layout:
        """A parameter as it is kept, but whole on the axis `dp` where it is read so: there FSDP cuts it."""
        reads = [read.forward for read in self._reads(tensor.name)]
        placements = list(tensor.layout.forward.placements)
        for axis in self.axes.members["dp"]:
            if placements[axis].is_shard and reads and all(read.placements[axis] == R for read in reads):
                placements[axis] = R
        return Layout.of(*placements, order=tensor.layout.order)

    def _state(self, tensor: TensorDecision) -> Layout:
        """A parameter with what its gradient is when backward has made it: partial where it is read so, and on the axes
        that split the batch, over which FSDP or data parallelism sums."""
        placements = list(self._unsharded(tensor).placements)
        batch = (*self.axes.members["dp"], *self.axes.members["cp"])
        reads = list(self._reads(tensor.name))
        for axis, placement in enumerate(placements):
            partial = axis in batch or any(read.placements[axis].kind == "R/P" for read in reads)
            placements[axis] = Placement("R/P") if partial and placement == R else placement
        return checkpoint_layout(Layout.of(*placements, order=tensor.layout.order), tensor.perm)

    def _reads(self, name: str) -> Iterator[Layout]:
        """How a parameter is read, behind a transposition where there is one."""
        for operator in self.readers.get(name, ()):
            if operator.op_type == "Transpose":
                yield from self._reads(operator.outputs[0])
            elif (read := operator.reads[operator.inputs.index(name)]) is not None:
                yield read

    def _passed_layout(self, tensor: TensorDecision) -> Layout:
        """How a value travels: as it is kept, or, where a module makes it, as it is served, or as all readers outside
        of modules take it, for whom nothing else can move it."""
        maker = self.maker.get(tensor.name)
        if maker is None or maker.name not in self.module_of:
            return tensor.layout
        outside = {
            read
            for operator in self.readers.get(tensor.name, ())
            for name, read in zip(operator.inputs, operator.reads, strict=True)
            if name == tensor.name and read is not None and operator.name not in self.module_of
        }
        moved = {read.forward for read in outside} != {tensor.served.forward}
        return min(outside, key=str) if len(outside) == 1 and moved else tensor.served

    def _entering(
        self, operators: Sequence[OperatorDecision], inside: set[str]
    ) -> Iterator[tuple[TensorDecision, Layout, Layout]]:
        """(value, as it arrives, as it is read), once for each value that others make."""
        seen = set()
        for operator in operators:
            for name, read in zip(operator.inputs, operator.reads, strict=True):
                tensor = self.tensors.get(name)
                maker = self.maker.get(name)
                if tensor is None or read is None or tensor.role in {"parameter", "constant"} or name in seen:
                    continue
                if maker is None or maker.name not in inside:
                    seen.add(name)
                    handed = self._passed_layout(tensor)
                    if handed.forward != tensor.served.forward and len(self.readers[name]) > 1:
                        self.repeated.add(name)
                    yield tensor, handed, read

    def _leaving(
        self, operators: Sequence[OperatorDecision], inside: set[str]
    ) -> Iterator[tuple[TensorDecision, Layout, Layout]]:
        """(value, as it is made, as it is handed on), for values that others read or that the model returns."""
        for operator in operators:
            for name, made in zip(operator.outputs, operator.makes, strict=True):
                tensor = self.tensors.get(name)
                outside = [reader for reader in self.readers.get(name, ()) if reader.name not in inside]
                if tensor is not None and made is not None and (outside or tensor.role == "output"):
                    yield tensor, self._before_bias(operator, inside) or made, self._passed_layout(tensor)

    def _made_inside(self, operator: OperatorDecision, name: str, inside: set[str]) -> Layout | None:
        """How an operand is made, if by an operator of the same module."""
        maker = self.maker.get(name)
        if maker is None or maker is operator or maker.name not in inside:
            return None
        return maker.makes[maker.outputs.index(name)]

    def _before_bias(self, operator: OperatorDecision, inside: set[str]) -> Layout | None:
        """The sums to which a row adds its bias once they are reduced. In a ShardingConfig the module hands on the
        sums, bias included, and reduces them then."""
        for name, read in zip(operator.inputs, operator.reads, strict=True):
            made = self._made_inside(operator, name, inside)
            if operator.op_type == "Add" and made is not None and read is not None and _partial(made):
                return None if _partial(read) else made
        return None

    def _moved_inside(self, operator: OperatorDecision, name: str, read: Layout) -> bool:
        """Whether a value is moved between two operators of one module: but for weights that FSDP gathers, and sums
        before a bias."""
        inside = {other.name for other in self.modules[self.module_of[operator.name]]}
        made = self._made_inside(operator, name, inside)
        if made is None or made.forward == read.forward:
            return False
        source = self.tensors.get(self.maker[name].inputs[0]) if self.maker[name].op_type == "Transpose" else None
        if source is not None and source.role == "parameter":
            pairs = enumerate(zip(made.forward.placements, read.forward.placements, strict=True))
            elsewhere = [pair for axis, pair in pairs if axis not in self.axes.members["dp"]]
            return any(before not in (R, after) for before, after in elsewhere)
        return self._before_bias(operator, inside) is None

    def _layout_text(self, tensor: TensorDecision, layout: Layout) -> str:
        """The text of a layout; what it cannot express is kept in `refused`."""
        self.refused += self.axes.unlike(tensor.checkpoint or tensor.name, layout)
        return self.axes.text(layout, len(tensor.shape), gradients=self.plan.model.get("mode") == "training")


def _live(plan: Plan) -> frozenset[str]:
    """The values that depend on inputs and on weights."""
    fed = {tensor.name for tensor in plan.tensors if tensor.role == "input"}
    weighted = {tensor.name for tensor in plan.tensors if tensor.role == "parameter"}
    for operator in plan.operators:
        for depending in (fed, weighted):
            if not depending.isdisjoint(operator.inputs):
                depending.update(filter(None, operator.outputs))
    return frozenset(fed & weighted)


def _looks_up_in_part(operator: OperatorDecision) -> bool:
    """Whether an embedding has a part of its rows on each device and gives zeros for the others."""
    return operator.op_type == "Gather" and any(made is not None and _partial(made) for made in operator.makes)


def _partial(layout: Layout) -> bool:
    return any(placement.kind == "P" for placement in layout.placements)


def _only_slices(kept: Layout, read: Layout) -> bool:
    """Whether a parameter is read as it is kept, or cut further where it was whole."""
    pairs = zip(kept.forward.placements, read.forward.placements, strict=True)
    return all(before == after or before.kind == "R" for before, after in pairs)


def _folded(configs: Mapping[str, Sides]) -> dict[str, Sides]:
    """Copies in different layers under one pattern where they are equal."""
    groups: dict[str, list[str]] = {}
    for name in configs:
        groups.setdefault(re.sub(r"(?<=\.)\d+(?=\.)", "*", name), []).append(name)
    found: dict[str, Sides] = {}
    for pattern, names in groups.items():
        if len(names) > 1 and all(configs[name] == configs[names[0]] for name in names):
            found[pattern] = configs[names[0]]
        else:
            found |= {name: configs[name] for name in names}
    return found


def _first_names(names: set[str] | list[str]) -> str:
    return ", ".join(sorted(names)[:4]) + (" ..." if len(names) > 4 else "")
