"""A plan in the four-sided form of torchtitan's `ShardingConfig`: for every module that has parameters, how they are
kept, how its inputs arrive and are wanted, and how its result is made and handed on.

Source: pytorch/torchtitan, `protocols/sharding.py`: placements by mesh axis name, shards in mesh order. What moves
between two operators that are both outside of such modules has no place to be written, and is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from shardplan.errors import warning
from shardplan.export.specs import cannot_say
from shardplan.export.types import Exported
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.plan.orientation import checkpoint_layout
from shardplan.plan.types import OperatorDecision, Plan, TensorDecision

Sides = dict[str, object]
_HEAD = '''"""Shardings of {model} on {mesh}, made by shardplan from a plan: the fields of torchtitan's ShardingConfig.

Inputs are called `input`, `input_1` ... in the order in which the module takes them; rename them to the arguments of
`forward`. Axes have the names of the plan's mesh.
"""

from torch.distributed.tensor import Partial, Replicate, Shard

MESH = {sizes}

MODULES = {{
'''
_TAIL = '''}


def sharding_configs(config, axis=str):
    """Module -> `config(...)`, such as torchtitan's ShardingConfig; `axis`: from names of axes to MeshAxisName."""

    def renamed(value):
        if isinstance(value, tuple):
            return tuple(map(renamed, value))
        if not isinstance(value, dict):
            return value
        return {axis(name) if name in MESH else name: renamed(inner) for name, inner in value.items()}

    return {name: config(**{side: renamed(value) for side, value in sides.items()}) for name, sides in MODULES.items()}
'''


def export_titan(plan: Plan) -> Exported:
    """A Python module with one entry per module of the model, copies in different layers under one pattern."""
    walk = _Boundaries(plan)
    configs = {name: walk.sides(name) for name in walk.modules}
    reasons = [*walk.unsaid(), *walk.refused]
    refused = cannot_say("a ShardingConfig", "what this plan does", reasons)
    if walk.repeated:
        names = ", ".join(sorted(walk.repeated)[:4]) + (" ..." if len(walk.repeated) > 4 else "")
        summary = f"{names}: moved once for all readers by the plan, once for each by ShardingConfigs"
        refused.append(warning("not-said", summary))
    sizes = json.dumps({axis.name: axis.size for axis in plan.mesh.axes})
    head = _HEAD.format(model=plan.model.get("name", "a model"), mesh=plan.mesh, sizes=sizes)
    body = "".join(f"    {json.dumps(name)}: {_written(sides, 4)},\n" for name, sides in _folded(configs).items())
    return Exported(head + body + _TAIL, tuple(refused))


class _Boundaries:
    """Modules with parameters, what enters and what leaves them."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.tensors = {tensor.name: tensor for tensor in plan.tensors}
        self.modules: dict[str, list[OperatorDecision]] = {}
        self.module_of: dict[str, str] = {}
        self.maker: dict[str, OperatorDecision] = {}
        self.refused: list[str] = []
        self.repeated: set[str] = set()
        self._group()
        self.readers: dict[str, list[OperatorDecision]] = {}
        for operator in plan.operators:
            for name in dict.fromkeys(operator.inputs):
                self.readers.setdefault(name, []).append(operator)

    def _group(self) -> None:
        """Operators by the module whose parameter they read, or whose path they have beside such operators."""
        owners = {}
        for tensor in self.plan.tensors:
            for name in (tensor.checkpoint, *tensor.aliases) if tensor.role == "parameter" else ():
                owners[name.rpartition(".")[0] or name] = tensor
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
        state = {
            self._short(tensor, module): self._placements(tensor.checkpoint, self._kept(tensor))
            for tensor in self._parameters(operators)
        }
        entering = list(self._entering(operators, inside))
        leaving = list(self._leaving(operators, inside))
        names = ["input", *(f"input_{place}" for place in range(1, len(entering)))]
        sides: Sides = {"state_shardings": state}
        if entering:
            sides["in_src_shardings"] = {
                n: self._placements(v, src) for n, (v, src, _) in zip(names, entering, strict=True)
            }
            sides["in_dst_shardings"] = {
                n: self._placements(v, dst) for n, (v, _, dst) in zip(names, entering, strict=True)
            }
        made = tuple(self._placements(value, layout) for value, layout, _ in leaving)
        handed = tuple(self._placements(value, layout) for value, _, layout in leaving)
        if leaving:
            sides["out_src_shardings"] = made[0] if len(made) == 1 else made
            sides["out_dst_shardings"] = handed[0] if len(handed) == 1 else handed
        return sides

    def unsaid(self) -> Iterator[str]:
        """Moves that no module's boundary can carry out, and weights that are gathered for use."""
        for operator in self.plan.operators:
            for name, read in zip(operator.inputs, operator.reads, strict=True):
                tensor = self.tensors.get(name)
                if read is None or tensor is None or tensor.role == "constant":
                    continue
                if tensor.role == "parameter":
                    if tensor.layout.forward != read.forward and not _only_slices(tensor.layout, read):
                        yield f"'{tensor.checkpoint}' is kept in shards and gathered for use (ZeRO-3), which is FSDP's"
                elif operator.name not in self.module_of and self._handed(name) != read.forward:
                    yield f"'{name}' is moved between operators that are in no module with parameters"
            for name, made in zip(operator.outputs, operator.makes, strict=True):
                tensor = self.tensors.get(name)
                if made is None or tensor is None or operator.name in self.module_of:
                    continue
                if made.forward != tensor.layout.forward:
                    yield f"'{name}' is moved between operators that are in no module with parameters"

    def _parameters(self, operators: Sequence[OperatorDecision]) -> Iterator[TensorDecision]:
        names = dict.fromkeys(name for operator in operators for name in operator.inputs)
        return (t for name in names if (t := self.tensors.get(name)) is not None and t.role == "parameter")

    @staticmethod
    def _short(tensor: TensorDecision, module: str) -> str:
        own = next(
            (n for n in (tensor.checkpoint, *tensor.aliases) if n.rpartition(".")[0] == module), tensor.checkpoint
        )
        return own.rpartition(".")[2]

    @staticmethod
    def _kept(tensor: TensorDecision) -> Layout:
        return checkpoint_layout(tensor.layout, tensor.perm)

    def _handed(self, name: str) -> Layout:
        """How a value travels: as it is served where a module makes it, else as it is kept."""
        tensor = self.tensors[name]
        maker = self.maker.get(name)
        return (tensor.served if maker is not None and maker.name in self.module_of else tensor.layout).forward

    def _entering(
        self, operators: Sequence[OperatorDecision], inside: set[str]
    ) -> Iterator[tuple[str, Layout, Layout]]:
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
                    handed = self._handed(name)
                    if handed != tensor.served.forward and len(self.readers[name]) > 1:
                        self.repeated.add(name)
                    yield name, handed, read.forward

    def _leaving(self, operators: Sequence[OperatorDecision], inside: set[str]) -> Iterator[tuple[str, Layout, Layout]]:
        """(value, as it is made, as it is handed on), for values that others read or that the model returns."""
        for operator in operators:
            for name, made in zip(operator.outputs, operator.makes, strict=True):
                tensor = self.tensors.get(name)
                outside = [reader for reader in self.readers.get(name, ()) if reader.name not in inside]
                if tensor is not None and made is not None and (outside or tensor.role == "output"):
                    yield name, made.forward, self._handed(name)

    def _placements(self, name: str, layout: Layout) -> dict[str, str]:
        """Axis -> the text of its placement."""
        mesh: Mesh = self.plan.mesh
        if any(placement.segments for placement in layout.placements):
            self.refused.append(f"'{name}' is cut by segments (a fused dim)")
        if layout.order != tuple(range(len(mesh))):
            self.refused.append(f"'{name}' is sharded by axes in another order than the mesh's")
        written = {"S": "Shard({})", "R": "Replicate()", "R/P": "Replicate()", "P": "Partial({})"}
        found = {}
        for axis, placement in zip(mesh.names, layout.placements, strict=True):
            reduction = "" if placement.reduction == "sum" else json.dumps(placement.reduction)
            found[axis] = written[placement.kind].format(placement.dim if placement.is_shard else reduction)
        return found


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


def _written(value: object, indent: int) -> str:
    """Dictionaries and tuples of Python text; the innermost on one line."""
    if isinstance(value, tuple):
        return "(" + ", ".join(_written(inner, indent) for inner in value) + ")"
    if not isinstance(value, dict):
        return str(value)
    if not any(isinstance(inner, dict) for inner in value.values()):
        return "{" + ", ".join(f"{json.dumps(key)}: {inner}" for key, inner in value.items()) + "}"
    pad = " " * (indent + 4)
    rows = "".join(f"{pad}{json.dumps(key)}: {_written(inner, indent + 4)},\n" for key, inner in value.items())
    return "{\n" + rows + " " * indent + "}"
