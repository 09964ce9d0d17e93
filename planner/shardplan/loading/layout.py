"""File layout of a split checkpoint: its files and the offset of every tensor, computed before anything is read."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shardplan.loading.assign import Assignment, Part
from shardplan.plan.orientation import dim_axes, dim_segments

FORMAT_VERSION = "1.0"
MANIFEST = "split.json"
OURS = ("rank-", "shard-")
"""How names of our files begin."""


@dataclass(frozen=True)
class RankFile:
    """One file. `ranks`: who reads it; `parts` in the order of the checkpoint; `offsets`: byte of the file at which
    each begins; `header`: the first bytes of the file."""

    name: str
    ranks: tuple[int, ...]
    parts: Mapping[str, Part]
    offsets: Mapping[str, int]
    header: bytes
    size_bytes: int


@dataclass(frozen=True)
class SplitLayout:
    """All files. `fingerprint`: of everything that determines their bytes except the values of the weights."""

    files: tuple[RankFile, ...]
    fingerprint: str

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def by_rank(self) -> tuple[tuple[str, ...], ...]:
        """Names of the files that each rank reads."""
        found: dict[int, list[str]] = {}
        for file in self.files:
            for rank in file.ranks:
                found.setdefault(rank, []).append(file.name)
        return tuple(tuple(found[rank]) for rank in sorted(found))


def lay_out(assignment: Assignment, *, once: bool = False) -> SplitLayout:
    """Files of a checkpoint split by a plan: one for each rank; ranks with exactly the same content share one.

    `once`: every shard is in one file only, so that all files together are as large as the checkpoint; tensors that the
    same axes shard are in the same files, and a rank reads one file of each kind.

    Raises `ShardplanError` (`cut-group`).
    """
    ranks = [assignment.parts(rank) for rank in range(assignment.plan.mesh.size)]
    tensors = range(len(ranks[0]))
    groups: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for tensor in tensors if once else ():
        groups.setdefault(_alike(ranks, [tensor]), []).append(tensor)
    if not groups:
        groups[_alike(ranks, tensors)] = list(tensors)
    fingerprint = _fingerprint(assignment, groups, ranks)
    files = []
    for (classes, members), kind in zip(groups.items(), _kinds(assignment, list(groups)), strict=True):
        for number, readers in enumerate(classes):
            parts = tuple(ranks[readers[0]][tensor] for tensor in members)
            name = _file_name(kind, number, len(classes)) if once else file_name(readers[0], len(ranks))
            files.append(_rank_file(name, parts, readers, len(ranks), fingerprint, assignment.checkpoint.metadata))
    return SplitLayout(tuple(files), fingerprint)


def _alike(ranks: Sequence[Sequence[Part]], tensors: Iterable[int]) -> tuple[tuple[int, ...], ...]:
    """Ranks that hold the same parts of `tensors`, by the first of them."""
    wanted = list(tensors)
    found: dict[tuple[object, ...], list[int]] = {}
    for rank, parts in enumerate(ranks):
        found.setdefault(tuple((parts[t].runs, parts[t].groups) for t in wanted), []).append(rank)
    return tuple(tuple(alike) for alike in found.values())


def _kinds(assignment: Assignment, groups: Sequence[tuple[tuple[int, ...], ...]]) -> list[str]:
    """For every group, the names of the axes over which its ranks differ; `whole` if all hold the same."""
    mesh = assignment.plan.mesh
    places = list(mesh.coordinates())
    kinds = []
    for classes in groups:
        same = classes[0]
        axes = [a for a in range(len(mesh)) if len({places[rank][a] for rank in same}) < mesh.axes[a].size]
        kinds.append(re.sub(r"[^\w.-]", "_", ".".join(mesh.names[axis] for axis in axes)) or "whole")
    return kinds


def manifest(assignment: Assignment, layout: SplitLayout) -> str:
    """What a reader of the files needs to know, as JSON text."""
    mesh, plan = assignment.plan.mesh, assignment.plan
    tensors = {}
    for entry in assignment.checkpoint:
        kept = assignment.layouts[entry.name]
        unit = assignment.units.get(entry.name)
        row: dict[str, object] = {"dtype": entry.dtype, "shape": entry.shape}
        if unit is not None:
            row |= {"unit": unit.name, "form": unit.form}
        rank = len(unit.shape) if unit else len(entry.shape)
        row["dims"] = dim_axes(kept, rank, mesh.names)
        segments = dim_segments(kept)
        tensors[entry.name] = row | ({"segments": segments} if segments else {})
    document = {
        "format_version": FORMAT_VERSION,
        "fingerprint": layout.fingerprint,
        "model": plan.model.get("name", ""),
        "digest": plan.model.get("digest", ""),
        "mesh": [{"name": axis.name, "size": axis.size} for axis in mesh.axes],
        "ranks": mesh.size,
        "files": layout.by_rank,
        "tensors": tensors,
    }
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in document.items() if key != "tensors"]
    rows = ",\n".join(f"    {json.dumps(name)}: {json.dumps(row)}" for name, row in tensors.items())
    return "{\n" + ",\n".join(lines) + ',\n  "tensors": {\n' + rows + "\n  }\n}\n"


def file_name(rank: int, total: int) -> str:
    """`rank-00003-of-00016.safetensors`: named after the first rank that reads it."""
    return f"rank-{rank:05d}-of-{total:05d}.safetensors"


def _file_name(kind: str, number: int, total: int) -> str:
    """`shard-gpu-00003-of-00008.safetensors`: what several ranks hold, by the axes that cut it."""
    return f"shard-{kind}-{number:05d}-of-{total:05d}.safetensors"


def _rank_file(
    name: str,
    parts: tuple[Part, ...],
    ranks: tuple[int, ...],
    total: int,
    fingerprint: str,
    metadata: Mapping[str, str],
) -> RankFile:
    """Offsets and header. Wide types come first, so that every tensor is aligned to its own size."""
    said = {**metadata, "shardplan.ranks": str(total), "shardplan.fingerprint": fingerprint}
    table: dict[str, object] = {"__metadata__": dict(sorted(said.items()))}
    starts: dict[str, int] = {}
    end = 0
    for part in sorted(parts, key=lambda part: -part.entry.itemsize):
        starts[part.entry.name] = end
        end += part.size_bytes
        offsets = [end - part.size_bytes, end]
        table[part.entry.name] = {"dtype": part.entry.dtype, "shape": part.shape, "data_offsets": offsets}
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    places = {tensor: len(header) + start for tensor, start in starts.items()}
    by_name = {part.entry.name: part for part in parts}
    return RankFile(name, ranks, by_name, places, header, len(header) + end)


def _fingerprint(
    assignment: Assignment,
    groups: Mapping[tuple[tuple[int, ...], ...], Sequence[int]],
    ranks: Sequence[Sequence[Part]],
) -> str:
    """The fingerprint of the stored tensors and of their assignment to files."""
    tensors = [[entry.name, entry.dtype, entry.shape] for entry in assignment.checkpoint]
    shards = [
        [
            members,
            [[alike, [[ranks[alike[0]][t].runs, ranks[alike[0]][t].groups] for t in members]] for alike in classes],
        ]
        for classes, members in groups.items()
    ]
    content = json.dumps([FORMAT_VERSION, tensors, shards])
    return "sha256:" + hashlib.sha256(content.encode()).hexdigest()
