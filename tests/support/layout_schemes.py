"""Layouts as one letter per dim, as Alpa and ONNX Runtime write them: `RS`, `S0R`, `S01R`, `RS[1]`."""

import re
from typing import Literal

from shardplan.errors import ShardplanError, error
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import R, S
from shardplan.plan.orientation import dim_axes

_SCHEME = re.compile(r"(R)|S(?:(\d+)|\[(\d{1,3}(?:,\d{1,3})*)\])?")


def to_scheme(layout: Layout, mesh: Mesh, rank: int, style: Literal["alpa", "ort"] = "alpa") -> str:
    """One letter per dim: `RS` on a 1-D mesh, `S0R` and `S01R` on others; style `ort` brackets the axes: `RS[1]`.

    `ValueError` if the layout has anything but plain shards and `R`, or (style `alpa`) an axis number above 9.
    """
    if any(p.kind not in "SR" for p in layout.placements):
        raise ValueError("a per-dim scheme writes S and R only")
    letters = []
    for names in dim_axes(layout, rank, mesh.names):
        numbers = [str(mesh.index(name)) for name in names]
        if style == "alpa" and any(len(number) > 1 for number in numbers):
            raise ValueError("the scheme has one digit per mesh axis, so it cannot name axis 10 and above")
        if not names:
            letters.append("R")
        elif style == "ort":
            letters.append(f"S[{','.join(numbers)}]")
        else:
            letters.append("S" if len(mesh) == 1 else "S" + "".join(numbers))
    return "".join(letters)


def from_scheme(text: str, mesh: Mesh) -> Layout:
    """The layout that `text` writes as a per-dim scheme in any of its styles; a plain `S` needs a 1-D mesh."""
    lists: list[list[str]] = []
    rest = text.strip()
    while rest:
        match = _SCHEME.match(rest)
        if match is None:
            _fail(text, f"'{rest}' does not begin with R, S, S0 or S[0]", mesh)
        lists.append([] if match[1] else _numbered(match, text, mesh))
        rest = rest[match.end() :].lstrip()
    order = [mesh.index(name) for names in lists for name in names]
    if len(set(order)) < len(order):
        _fail(text, "a mesh axis is used twice", mesh)
    placed = {mesh.index(name): S(dim) for dim, names in enumerate(lists) for name in names}
    rest_of = [axis for axis in range(len(mesh)) if axis not in placed]
    return Layout.of(*(placed.get(axis, R) for axis in range(len(mesh))), order=(*order, *rest_of))


def _numbered(match: re.Match[str], text: str, mesh: Mesh) -> list[str]:
    """Names of the axes that one `S` of a scheme is on."""
    numbers = list(match[2] or "") if match[3] is None else match[3].split(",")
    if not numbers and len(mesh) == 1:
        numbers = ["0"]
    if not numbers:
        _fail(text, f"'S' does not say which of the {len(mesh)} mesh axes", mesh, "write S0 or S[0] for the first axis")
    for number in numbers:
        if int(number) >= len(mesh):
            _fail(text, f"mesh axis {number} does not exist", mesh, f"axes are numbered from 0 to {len(mesh) - 1}")
    return [mesh.names[int(number)] for number in numbers]


def _fail(text: str, what: str, mesh: Mesh, hint: str = "") -> None:
    detail = f"the mesh axes are {', '.join(mesh.names)}"
    raise ShardplanError(error("layout-text", f"layout '{text}': {what}", detail=detail, hint=hint))
