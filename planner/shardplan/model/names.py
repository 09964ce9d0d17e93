"""From a weight in an ONNX file to its name in the checkpoint.

Exporters rename: torch folds `Transpose(W)` into a new initializer `val_41` in [in, out] order, and its older exporter
calls it `onnx::MatMul_591`. In order of trust the name is taken from
- the export metadata of the folded value (`folded_from = ['model.layers.0.self_attn.q_proj.weight']`),
- the initializer's own name unless it is made up,
- the module that reads it (metadata scopes or path-like node names): `<module>.weight`.

The metadata does not say *which* operation was folded. It is a transposition of the last two dims whenever a MatMul
reads the result: torch's `Linear` stores [out, in] and `MatMul` wants [in, out]. (A weight whose `Transpose` is still
in the graph was folded for another reason; `build` then takes the dims order from that node alone.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardplan.model.draft import Draft, Node
from shardplan.model.weights import SLOTS, checkpoint_sources, is_made_up

Use = tuple[Node, int]


@dataclass(frozen=True, slots=True)
class Identity:
    """Name and dims order of a weight in the checkpoint: initializer = checkpoint tensor transposed by `perm`."""

    name: str
    perm: tuple[int, ...] = ()


def identity_of(draft: Draft, name: str, rank: int, uses: Sequence[Use]) -> Identity:
    """The checkpoint name and dims order of initializer `name`; `uses` are the slots that read it."""
    sources = checkpoint_sources(draft.folded_from.get(name, ()))
    if len(sources) == 1:
        return Identity(sources[0], _folded_perm(name, rank, uses))
    if not is_made_up(name):
        return Identity(name)
    for node, slot in uses:
        recovered = _module_name(node, slot)
        if recovered and node.op_type not in ("LSTM", "GRU", "RNN"):
            return Identity(recovered, _folded_perm(name, rank, uses))
    return Identity(name)


def other_names(name: str, uses: Sequence[Use]) -> tuple[str, ...]:
    """Names under which further modules own the same weight: tied embeddings, weights merged because they were equal.

    A reader inside a module that contains the weight by name (`attn` reads `attn.q.weight`) is no owner.
    """
    found = []
    for node, slot in uses:
        candidate = _module_name(node, slot, owner_only=True)
        if candidate and candidate != name and not name.startswith(node.module + "."):
            found.append(candidate)
    return tuple(dict.fromkeys(found))


def slot_of(node: Node, slot: int, *, owner_only: bool = False) -> str:
    """The attribute of a module for the weight that a slot of its node reads (`weight`, `bias`); `""` if unknown."""
    kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    slots = SLOTS.get(kind, {})
    if node.op_type == "Gather" and slot == 0:
        slots = {0: "weight"}
    if node.op_type == "Transpose" or (kind == "Einsum" and owner_only):
        slots = {}
    return slots.get(slot, "" if owner_only else _ELEMENTWISE.get(kind, ""))


def _module_name(node: Node, slot: int, *, owner_only: bool = False) -> str:
    attribute = slot_of(node, slot, owner_only=owner_only)
    return f"{node.module}.{attribute}" if attribute and node.module else ""


_ELEMENTWISE = {"Add": "bias", "Mul": "weight"}


def _folded_perm(name: str, rank: int, uses: Sequence[Use]) -> tuple[int, ...]:
    if rank < 2 or not any(node.op_type == "MatMul" for node, _ in uses):
        return ()
    if rank > 2 and not name.startswith(("transpose", "val_", "onnx::")):
        return ()
    return (*range(rank - 2), rank - 1, rank - 2)
