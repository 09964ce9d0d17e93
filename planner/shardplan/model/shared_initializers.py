"""Separates equal vectors that an exporter stored once into the weights that they are.

A model that has not been trained has many equal vectors: scales of norms are ones, biases zeros. `torch.onnx.export`
keeps one initializer for those of one shape, under the name of the first. Modules that read it as its owner does have a
vector of their own: so names, gradients and layouts are those of the module, as in the model with trained weights.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from shardplan.model.draft import Draft, Node
from shardplan.model.names import slot_of


def part_merged(draft: Draft) -> None:
    """Gives every module that reads another's vector its own copy: an initializer `<module>.<attribute>`, whose stored
    original is in `draft.merged`. A module that contains the owner, or is inside of it, reads the owner's."""
    taken = {*draft.inputs, *draft.initializers, *(name for node in draft.nodes for name in node.outputs)}
    captured = {name for node in draft.nodes for name in node.captured}
    for stored, uses in _read_by_modules(draft, captured).items():
        owner, _, attribute = stored.rpartition(".")
        own = {slot_of(node, slot) for node, slot in uses if node.module == owner}
        for node, slot in uses:
            said = slot_of(node, slot)
            if not own or not said or _is_related(node.module, owner):
                continue
            name = f"{node.module}.{attribute if said in own else said}"
            if name in taken and draft.merged.get(name) != stored:
                continue
            taken.add(name)
            draft.merged[name] = stored
            draft.initializers[name] = draft.initializers[stored]
            _read(node, slot, name)


def _read(node: Node, slot: int, name: str) -> None:
    """Changes the value that a slot of a node reads."""
    proto = onnx.NodeProto()
    proto.CopyFrom(node.proto)
    proto.input[slot] = node.inputs[slot] = name
    node.proto = proto


def _read_by_modules(draft: Draft, captured: set[str]) -> dict[str, list[tuple[Node, int]]]:
    """The slots that read each vector with a dotted name, where several modules do."""
    found: dict[str, list[tuple[Node, int]]] = {}
    for node, slot, name in _reads(draft):
        tensor = draft.initializers.get(name)
        if tensor is not None and "." in name and sum(size > 1 for size in tensor.dims) == 1 and name not in captured:
            found.setdefault(name, []).append((node, slot))
    return {name: uses for name, uses in found.items() if len({node.module for node, _ in uses}) > 1}


def _reads(draft: Draft) -> Iterator[tuple[Node, int, str]]:
    for node in draft.nodes:
        for slot, name in enumerate(node.inputs):
            yield node, slot, name


def _is_related(module: str, owner: str) -> bool:
    """Whether one of two dotted paths is the other, or contains it."""
    return not module or f"{module}.".startswith(f"{owner}.") or f"{owner}.".startswith(f"{module}.")
