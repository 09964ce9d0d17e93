"""Replica groups of an HLO collective, in each of the syntaxes that HLO has.

| syntax | example | groups |
|---|---|---|
| list | `{{0,1},{2,3}}` | as written; `{}` is one group of all |
| iota | `[2,4]<=[8]` | 0 ... 7 in order, as 2 groups of 4 |
| iota, transposed | `[4,2]<=[2,4]T(1,0)` | 0 ... 7 as a 2 x 4 table, transposed, as 4 groups of 2 |
| mesh axes | `mesh['x'=2,'y'=4] {'x'}` | devices that differ only in `x` |
| mesh axes, other order | `mesh['x'=2,'y'=4], device_ids=([4,2]T(1,0)) {'x'}` | the same numbers in another order |
| parts of axes | `mesh['x'=8] {'x':(2)4}` | `x` is 2 x 4, and the 4 talk |

Source: `CollectiveDeviceList`, `IotaReplicaGroupList` and `MeshAxesReplicaGroupList` of openxla/xla,
xla/hlo/ir/replica_group.h and mesh_and_axis.h.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Groups = tuple[tuple[int, ...], ...]

_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(
    r"@?mesh(?:\[(?P<square>[^\]]*)\]|<(?P<angle>[^>]*)>)"
    r"(?:,?\s*device_ids=\((?P<ids>(?:\[[^\]]*\](?:T\([\d,]+\))?)|[\d,\s]*)\))?,?\s*\{(?P<axes>[^}]*)\}"
)
_TABLE = re.compile(r"\[([\d,]+)\](?:T\(([\d,]+)\))?")
_AXIS = re.compile(r"'?([\w.\-]+)'?=(\d+)")
_PART = re.compile(r"'?([\w.\-]+)'?(?::\((\d+)\)(\d+))?")


def replica_groups(attributes: str, devices: int) -> Groups:
    """The groups that `attributes` (the text after the operands) names, over `devices` devices.

    `ValueError` for a syntax that is none of those above.
    """
    _, found, text = attributes.partition("replica_groups=")
    if not found:
        return (tuple(range(devices)),)
    if match := _IOTA.match(text):
        table = _iota(_numbers(match[2]), _numbers(match[3] or ""))
        return _rows(table.reshape(_numbers(match[1])))
    if match := _MESH.match(text):
        return _of_mesh(match)
    if text.startswith("{{"):
        listed = text[1 : text.index("}}") + 1]
        return tuple(_numbers(group) for group in re.findall(r"\{([\d,\s]*)\}", listed))
    if text.startswith("{}"):
        return (tuple(range(devices)),)
    raise ValueError(f"replica groups in a syntax that is not known: {text[:80]}")


def source_target_pairs(attributes: str) -> tuple[tuple[int, int], ...]:
    """(from, to) of a collective-permute."""
    _, _, text = attributes.partition("source_target_pairs=")
    pairs = re.findall(r"\{(\d+),\s*(\d+)\}", text[: text.find("}}") + 2])
    return tuple((int(source), int(target)) for source, target in pairs)


def _of_mesh(match: re.Match[str]) -> Groups:
    axes = _AXIS.findall(match["square"] if match["square"] is not None else match["angle"])
    names, sizes = [name for name, _ in axes], [int(size) for _, size in axes]
    table = _device_table(match["ids"] or "", sizes)
    shape: list[int] = []
    chosen: dict[tuple[str, int], int] = {}
    parts = [(name, int(before or 1), int(size or 0)) for name, before, size in _PART.findall(match["axes"])]
    for name, size in zip(names, sizes, strict=True):
        for before, after in _pieces(size, sorted((b, s or size) for part, b, s in parts if part == name)):
            chosen[name, before] = len(shape)
            shape.append(after)
    talking = [chosen[name, before] for name, before, _ in parts]
    silent = [place for place in range(len(shape)) if place not in talking]
    ways = int(np.prod([shape[place] for place in talking], dtype=np.int64))
    return _rows(table.reshape(shape).transpose(*silent, *talking).reshape(-1, ways))


def _pieces(size: int, parts: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """An axis as factors, major first: (product of the factors before it, its size) for each."""
    found, done = [], 1
    for before, part in parts:
        if before > done:
            found.append((done, before // done))
        found.append((before, part))
        done = before * part
    if done < size or not found:
        found.append((done, size // done))
    return found


def _device_table(ids: str, sizes: Sequence[int]) -> NDArray[np.int64]:
    """Device numbers in the order of the mesh: 0 ... n-1 unless `ids` says otherwise."""
    count = int(np.prod(sizes, dtype=np.int64))
    if match := _TABLE.match(ids):
        return _iota(_numbers(match[1]), _numbers(match[2] or "")).reshape(-1)
    return np.array(_numbers(ids), dtype=np.int64) if ids.strip() else np.arange(count, dtype=np.int64)


def _iota(dims: Sequence[int], order: Sequence[int]) -> NDArray[np.int64]:
    table = np.arange(np.prod(dims, dtype=np.int64), dtype=np.int64).reshape(dims)
    return table.transpose(order) if order else table


def _rows(table: NDArray[np.int64]) -> Groups:
    return tuple(tuple(int(device) for device in row) for row in table.tolist())


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number.strip())
