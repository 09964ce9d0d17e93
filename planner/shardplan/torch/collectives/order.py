"""The order of collectives: in the first steps, processes compare what they are about to send over the whole mesh.

Processes that run one program in different orders (for instance because it iterates over a `set` of strings) issue
collectives of one shape for different tensors, and each gets the other's numbers. So in the first pass of each kind
every process announces, before each move, which tensor it moves and how. If they disagree, all of them raise an error.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.layout.mesh import Mesh
from shardplan.torch.collectives.routes import TensorSteps
from shardplan.torch.process_groups import ProcessGroups

_TOLERANCE = 1e-5
"""Of contents of constants, which other processors round otherwise."""
_PATIENCE = 8
"""How many forward passes are compared of a program that takes gradients and never runs backward."""


class Label(NamedTuple):
    """The identity of a moved tensor, equal on all processes. `name`: for people; `digest`: of the operations that it
    is a result of; `content`: a sum over the constants in it (see `content_of`)."""

    name: str = ""
    digest: str = ""
    content: float = 0.0

    def of(self, direction: str) -> Label:
        """The label of another move of the same tensor, such as its gradient's."""
        return self._replace(name=f"{direction} {self.name}")


def digest_of(*parts: object) -> str:
    """A short digest of parts whose `repr` is alike on all processes."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=6).hexdigest()


def content_of(tensor: Tensor) -> float:
    """A number that distinguishes a constant from others of its shape: a mean of its elements with different
    weights."""
    if tensor.is_meta or not tensor.numel():
        return 0.0
    real = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()
    flat = torch.nan_to_num(real.reshape(-1).to(torch.float64))
    factors = torch.linspace(1, 2, flat.numel(), dtype=torch.float64, device=flat.device)
    return float((flat.sign() * flat.abs().log1p() * factors).mean())


@dataclass
class _Kind:
    """A kind of forward pass. `passes`: how many have begun; `backward`: moves of gradients that had been compared when
    the first of them began."""

    passes: int
    backward: int


class OrderCheck:
    """Compares moves over the mesh of `groups` while `is_active`: in the first forward pass of each kind, and in what
    follows until the next one begins."""

    def __init__(self, groups: ProcessGroups) -> None:
        self.groups, self.is_active = groups, False
        self._kinds: dict[Hashable, _Kind] = {}
        self._backward = 0
        self._contents: dict[int, tuple[Tensor, int, float]] = {}

    def begin(self, kind: Hashable, *, has_backward: bool) -> None:
        """A forward pass of `kind` begins: passes of one kind issue the same moves."""
        known = self._kinds.setdefault(kind, _Kind(0, self._backward))
        known.passes += 1
        waits = has_backward and known.backward == self._backward and known.passes <= _PATIENCE
        self.is_active = self.groups.mesh.size > 1 and (known.passes == 1 or waits)
        self._contents.clear()

    def content(self, tensor: Tensor) -> float:
        """`content_of` a constant, computed once a pass; each time in inference mode, which notes no changes."""
        if tensor.is_inference():
            return content_of(tensor)
        found = self._contents.get(id(tensor))
        if found is None or found[1] != tensor._version:  # noqa: SLF001 - as autograd does
            found = self._contents[id(tensor)] = tensor, tensor._version, content_of(tensor)  # noqa: SLF001
        return found[2]

    def compare(self, label: Label, moves: Sequence[TensorSteps], *, is_backward: bool = False) -> None:
        """Raises `ShardplanError` (`another-order`), on all processes, where one is about to make another move."""
        sent = [_text(move, self.groups.mesh) for move in moves] if self.is_active else []
        if not any(sent):
            return
        self._backward += is_backward
        text = f"{label.name or 'a value'}: {'; '.join(sent)}"
        number = int(digest_of(text, label.digest), 16)  # of 48 bits: exact in a double
        ends = torch.tensor([number, -number, label.content, -label.content], dtype=torch.float64)
        ends = ends.to(self.groups.device)
        with self.groups.sending("check"):
            for group in self._chain():
                dist.all_reduce(ends, dist.ReduceOp.MAX, group)
            last, first, most, least = ends.tolist()
            if last == -first and math.isclose(most, -least, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE):
                return
            texts = self._gathered((text, label.digest, label.content))
        raise ShardplanError(_apart(texts))

    def _chain(self) -> list[ProcessGroup]:
        """Existing groups that together connect every process of the mesh with every other: the job's, or those along
        each axis."""
        mesh = self.groups.mesh
        if mesh.size == dist.get_world_size():
            return [dist.group.WORLD]
        return [self.groups.along((axis,))[0] for axis in mesh.real_axes]

    def _gathered(self, mine: tuple[str, str, float]) -> dict[int, tuple[str, str, float]]:
        """The announcements of all processes of the mesh, by rank."""
        found = {self.groups.rank: mine}
        for group in self._chain():
            parts: list[Any] = [None] * dist.get_world_size(group)
            dist.all_gather_object(parts, found, group)
            found = {rank: text for part in parts for rank, text in part.items()}
        return dict(sorted(found.items()))


def _text(move: TensorSteps, mesh: Mesh) -> str:
    """The move in words; empty for nothing."""
    found = [
        f"{step.collective.kind} along {' and '.join(mesh.names[axis] for axis in step.collective.axes)}"
        for step in move.steps
        if not step.collective.is_free and mesh.ways(step.collective.axes) > 1
    ]
    return f"{', '.join(found)} of {list(move.shape)}" if found else ""


def _apart(texts: dict[int, tuple[str, str, float]]) -> Diagnostic:
    by_text: dict[tuple[str, str, float], list[int]] = {}
    for rank, text in texts.items():
        by_text.setdefault((text[0], text[1], round(text[2], 4)), []).append(rank)
    lines = [f"rank {', '.join(map(str, ranks))}: {text}" for (text, _, _), ranks in by_text.items()]
    if len({text for text, _, _ in by_text}) == 1:
        lines = [f"{line}, of operands that differ" for line in lines]
    summary = "processes run the model in different orders: they are about to send different tensors to each other"
    hint = (
        "does the model iterate over a set, or draw numbers that differ? iterate over sorted(...), "
        "start all processes with the same PYTHONHASHSEED, or seed them alike"
    )
    return error("another-order", summary, detail="\n".join(lines), hint=hint)
