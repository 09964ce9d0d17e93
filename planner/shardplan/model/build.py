"""From an inferred draft to a `Model`: constants are folded, and weights absorb operators that rename or
reorder them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import onnx

from shardplan.errors import Diagnostic, ShardplanError, warning
from shardplan.model.attributes import attributes_of
from shardplan.model.blocks import find_blocks
from shardplan.model.dims import Binding
from shardplan.model.draft import CAPTURED, Draft, Node
from shardplan.model.infer import Inferred
from shardplan.model.limits import UNREADABLE, unplannable
from shardplan.model.names import Use, identity_of, other_names
from shardplan.model.node_types import is_optional_output
from shardplan.model.types import CONTROL, AttributeValue, Border, Model, Operator, Parameter, Role, Tensor
from shardplan.model.unresolved import dtype_of, unresolved_values
from shardplan.model.weights import Weights


def build_model(name: str, draft: Draft, binding: Binding, weights: Weights, inferred: Inferred) -> Model:
    """The model called `name`. Raises `ShardplanError` with every value whose shape or type cannot be planned."""
    builder = _Builder(draft, weights, inferred)
    builder.simplify()
    return builder.model(name, binding)


def needed_nodes(nodes: list[Node], outputs: list[str]) -> list[Node]:
    """Nodes that some graph output depends on, also through carried values of loops."""
    wanted, carried = set(outputs), set[object]()
    while True:
        kept, entered = [], len(carried)
        for node in reversed(nodes):
            carry = _carry(node)
            if not wanted.isdisjoint(node.outputs) or (carry in carried and node.op_type == Border.LEAVE):
                kept.append(node)
                wanted.update(node.reads)
                carried |= {carry} - {None}
        if len(carried) == entered:
            return kept[::-1]


def _carry(node: Node) -> object:
    """The number of the carried value of an `Enter` or `Leave`; None for other nodes."""
    if node.domain != CONTROL or node.op_type not in {Border.ENTER, Border.LEAVE}:
        return None
    return node.loops, next(int(entry.i) for entry in node.proto.attribute if entry.name == "carry")


@dataclass(slots=True)
class _Root:
    """A weight before it is a `Parameter`: initializer, graph value, and the order of dims between the two."""

    onnx: str
    tensor: str
    perm: tuple[int, ...] = ()
    same: list[str] = field(default_factory=list)


class _Builder:
    """Turns an inferred draft into a model: constants are folded into the nodes, weights absorb operators that only
    reorder them."""

    def __init__(self, draft: Draft, weights: Weights, inferred: Inferred) -> None:
        self.draft = draft
        self.weights = weights
        self.inferred = inferred
        self.nodes = draft.nodes
        self.roots: dict[str, _Root] = {name: _Root(name, name) for name in weights.trained}
        self.uses: dict[str, list[Use]] = {}

    def simplify(self) -> None:
        """Drops computed nodes, resolves `Identity` of stored values, folds `Transpose` of weights, drops dead
        nodes."""
        known, made_by = self.inferred.known, self.weights.made_by
        self.nodes = [
            node
            for node in self.nodes
            if node.name not in made_by and not all(name in known for name in node.outputs if name)
        ]
        self._resolve_identities()
        self._fold_transposes()
        self.nodes = needed_nodes(self.nodes, self.draft.outputs)
        self._collect_uses()
        self._drop_unread_outputs()

    def _drop_unread_outputs(self) -> None:
        """Drops optional results that no operator reads (the mask of Dropout, the indices of MaxPool)."""
        for node in self.nodes:
            for place, name in enumerate(node.outputs):
                is_unread = place and name and name not in self.uses and name not in self.draft.outputs
                if is_unread and is_optional_output(node.proto, self.draft.opsets[node.domain], place):
                    node.outputs[place] = ""
            while node.outputs and not node.outputs[-1]:
                node.outputs.pop()

    def _resolve_identities(self) -> None:
        stored = {*self.draft.initializers, *self.roots}
        same: dict[str, str] = {}
        kept = []
        for node in self.nodes:
            node.inputs = [same.get(name, name) for name in node.inputs]
            node.captured = [same.get(name, name) for name in node.captured]
            is_copy = node.op_type == "Identity" and not node.domain and node.inputs[0] in stored
            if is_copy and node.outputs[0] not in self.draft.outputs:
                same[node.outputs[0]] = node.inputs[0]
                if node.inputs[0] in self.roots:
                    self.roots[node.inputs[0]].same.append(node.outputs[0])
            else:
                kept.append(node)
        self.nodes = kept

    def _collect_uses(self) -> None:
        self.uses = {}
        for node in self.nodes:
            for slot, name in enumerate(node.inputs):
                self.uses.setdefault(name, []).append((node, slot))
            for name in node.captured:
                self.uses.setdefault(name, []).append((node, -1))

    def _fold_transposes(self) -> None:
        """A weight read by equal transpositions only is planned as its transposed value."""
        self._collect_uses()
        gone: set[str] = set()
        renamed: dict[str, str] = {}
        for root in self.roots.values():
            readers = [node for node, _ in self.uses.get(root.tensor, [])]
            perms = {self._perm(node, len(self._shape(root.tensor))) for node in readers}
            fixed = {root.tensor, *(node.outputs[0] for node in readers)} & set(self.draft.outputs)
            if len(perms) != 1 or None in perms or fixed:
                continue
            root.tensor, root.perm = readers[0].outputs[0], perms.pop() or ()
            gone.update(node.name for node in readers)
            renamed.update({node.outputs[0]: root.tensor for node in readers})
        self.nodes = [node for node in self.nodes if node.name not in gone]
        for node in self.nodes:
            node.inputs = [renamed.get(name, name) for name in node.inputs]
            node.captured = [renamed.get(name, name) for name in node.captured]

    def _perm(self, node: Node, rank: int) -> tuple[int, ...] | None:
        if node.op_type != "Transpose" or node.domain or node.captured:
            return None
        perm = _attributes(node).get("perm")
        return perm if isinstance(perm, tuple) and perm else tuple(range(rank))[::-1]  # type: ignore[return-value]

    def _shape(self, name: str) -> tuple[int, ...]:
        return tuple(size or 0 for size in self.inferred.typed[name].shape or ())

    def model(self, name: str, binding: Binding) -> Model:
        """The finished model. Raises `ShardplanError` with every value whose shape or type cannot be planned."""
        values = list(
            dict.fromkeys(
                [
                    *self.draft.inputs,
                    *(value for node in self.nodes for value in (*node.reads, *node.outputs) if value),
                    *self.draft.outputs,
                ]
            )
        )
        problems = unresolved_values(self.draft, self.inferred, self.nodes, values)
        if problems:
            raise ShardplanError(*problems)
        parameters = self._parameters(values)
        roles = self._roles(parameters)
        tensors = {value: self._tensor(value, roles[value]) for value in values}
        operators = tuple([self._operator(node) for node in self.nodes])
        constants = {value: self.inferred.known[value] for value in values if value in self.inferred.known}
        return Model(
            name=name,
            operators=operators,
            tensors=tensors,
            parameters=parameters,
            inputs=tuple(self.draft.inputs),
            outputs=tuple(self.draft.outputs),
            constants=constants,
            blocks=find_blocks(operators, tensors, constants),
            dims=dict(sorted(binding.sizes.items())),
            opset=self.draft.opsets.get("", 0),
            producer=self.draft.producer,
            warnings=(*self.inferred.warnings, *self._control_flow_warnings(), *_newer_than_onnx(self.draft)),
            trips={name: self.draft.trips[name] for name in sorted({n for node in self.nodes for n in node.loops})},
        )

    def _roles(self, parameters: tuple[Parameter, ...]) -> dict[str, Role]:
        roles: dict[str, Role] = dict.fromkeys(self.inferred.typed, "activation")
        roles.update(dict.fromkeys(self.draft.initializers, "constant"))
        roles.update(dict.fromkeys(self.inferred.known, "constant"))
        roles.update(dict.fromkeys(self.draft.inputs, "input"))
        roles.update({parameter.tensor: "parameter" for parameter in parameters})
        return roles

    def _tensor(self, name: str, role: Role) -> Tensor:
        return Tensor(name, self._shape(name), dtype_of(self.inferred.typed[name].elem_type), role)

    def _operator(self, node: Node) -> Operator:
        attributes: dict[str, AttributeValue] = _attributes(node)
        if node.captured:
            attributes[CAPTURED] = len(node.captured)
        return Operator(
            name=node.name,
            op_type=node.op_type,
            inputs=(*node.inputs, *node.captured),
            outputs=tuple(node.outputs),
            attributes=attributes,
            domain=node.domain,
            version=self.draft.opsets[node.domain],
            module=node.module,
            loops=node.loops,
        )

    def _parameters(self, values: list[str]) -> tuple[Parameter, ...]:
        """Weights in the order in which the graph reads them, each under a name of its own."""
        by_tensor = {root.tensor: root for root in self.roots.values()}
        roots = [by_tensor[value] for value in values if value in by_tensor]
        taken = {root.onnx for root in roots}
        parameters = []
        for root in roots:
            uses = self.uses.get(root.tensor, [])
            identity = identity_of(self.draft, root.onnx, len(self._shape(root.tensor)), uses)
            if identity.name != root.onnx and identity.name in taken:
                identity = replace(identity, name=root.onnx, perm=())
            taken.add(identity.name)
            others = [*root.same, *other_names(identity.name, uses)]
            parameters.append(
                Parameter(
                    name=identity.name,
                    tensor=root.tensor,
                    onnx=self.draft.merged.get(root.onnx, root.onnx),
                    perm=root.perm or identity.perm,
                    aliases=tuple(dict.fromkeys(entry for entry in others if entry not in taken)),
                    trainable=self.weights.trained[root.onnx],
                    onnx_perm=root.perm,
                )
            )
        return tuple(parameters)

    def _control_flow_warnings(self) -> list[Diagnostic]:
        names = [node.name for node in self.nodes if any(entry.type == _GRAPH for entry in node.proto.attribute)]
        if not names:
            return []
        text = f"{len(names)} control-flow node{'s are' if len(names) > 1 else ' is'} planned as one piece, not split"
        return [warning("control-flow", text, detail=", ".join(names[:8]))]


_GRAPH = onnx.AttributeProto.GRAPH


def _newer_than_onnx(draft: Draft) -> list[Diagnostic]:
    """A warning of a model that is newer than the installed onnx: its operators may mean something else by then."""
    versions = (
        ("operator set", draft.opsets.get("", 0), onnx.defs.onnx_opset_version()),
        ("IR", draft.ir_version, onnx.IR_VERSION),
    )
    said = [f"version {found} of the {what} (up to {known})" for what, found, known in versions if found > known]
    if not said:
        return []
    text = f"the model has {' and '.join(said)}, which onnx {onnx.__version__}, installed here, does not know"
    return [warning("newer-than-onnx", text, hint="update onnx, or export for a version that it knows")]


def _attributes(node: Node) -> dict[str, AttributeValue]:
    """Attributes as values. Raises `ShardplanError` for a stored tensor that has other data than its dims say."""
    try:
        return attributes_of(node.proto)
    except UNREADABLE as problem:
        raise ShardplanError(unplannable(node.label, problem)) from problem
