"""Files of a split checkpoint: which there are, and where every tensor lies in them, known before anything is read.

Ranks that hold exactly the same (replicas of data parallelism) share one file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from shardplan.loading.assign import Assignment, Part
from shardplan.plan.orientation import dim_axes, dim_segments

FORMAT_VERSION = "1.0"


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
    """All files. `fingerprint`: of everything that decides their bytes but the values of the weights."""

    files: tuple[RankFile, ...]
    fingerprint: str

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def file_of(self, rank: int) -> RankFile:
        return next(file for file in self.files if rank in file.ranks)


def lay_out(assignment: Assignment) -> SplitLayout:
    """Files of a checkpoint split by a plan. Raises `ShardplanError` (`cut-group`)."""
    ranks_of: dict[tuple[object, ...], list[int]] = {}
    parts_of: dict[tuple[object, ...], tuple[Part, ...]] = {}
    total = assignment.plan.mesh.size
    for rank in range(total):
        parts = assignment.parts(rank)
        key = tuple((part.runs, part.groups) for part in parts)
        ranks_of.setdefault(key, []).append(rank)
        parts_of[key] = parts
    fingerprint = _fingerprint(assignment, {tuple(ranks): key for key, ranks in ranks_of.items()})
    files = [
        _rank_file(parts_of[key], tuple(ranks), total, fingerprint, assignment.checkpoint.metadata)
        for key, ranks in ranks_of.items()
    ]
    return SplitLayout(tuple(files), fingerprint)


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
        "files": [layout.file_of(rank).name for rank in range(mesh.size)],
        "tensors": tensors,
    }
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in document.items() if key != "tensors"]
    rows = ",\n".join(f"    {json.dumps(name)}: {json.dumps(row)}" for name, row in tensors.items())
    return "{\n" + ",\n".join(lines) + ',\n  "tensors": {\n' + rows + "\n  }\n}\n"


def file_name(rank: int, total: int) -> str:
    """`rank-00003-of-00016.safetensors`: named after the first rank that reads it."""
    return f"rank-{rank:05d}-of-{total:05d}.safetensors"


def _rank_file(
    parts: tuple[Part, ...], ranks: tuple[int, ...], total: int, fingerprint: str, metadata: Mapping[str, str]
) -> RankFile:
    """Offsets and header. Wide types come first, so that every tensor is aligned to its own size."""
    said = {**metadata, "shardplan.ranks": str(total), "shardplan.fingerprint": fingerprint}
    table: dict[str, object] = {"__metadata__": dict(sorted(said.items()))}
    starts: dict[str, int] = {}
    end = 0
    for part in sorted(parts, key=lambda part: -part.entry.itemsize):
        name = part.entry.name
        starts[name] = end
        end += part.size_bytes
        table[name] = {"dtype": part.entry.dtype, "shape": part.shape, "data_offsets": [starts[name], end]}
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    offsets = {name: len(header) + start for name, start in starts.items()}
    by_name = {part.entry.name: part for part in parts}
    return RankFile(file_name(ranks[0], total), ranks, by_name, offsets, header, len(header) + end)


def _fingerprint(assignment: Assignment, shards: Mapping[tuple[int, ...], object]) -> str:
    """Of what is stored, and of who gets what."""
    tensors = [[entry.name, entry.dtype, entry.shape] for entry in assignment.checkpoint]
    content = [FORMAT_VERSION, tensors, sorted(shards.items())]
    return "sha256:" + hashlib.sha256(json.dumps(content, default=list).encode()).hexdigest()
