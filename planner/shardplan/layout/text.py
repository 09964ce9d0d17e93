"""Layouts as text, printed and parsed in the named form; printed as schemes of matrices.

| form     | example                      | says                                                                     |
|----------|------------------------------|--------------------------------------------------------------------------|
| named    | `S(0)@machine, R/P@gpu`      | everything; axes of one placement major first: `S(0)@gpu,machine`          |
| scheme   | `RS`, `S01R`                 | one letter per dim, as Slapo and Alpa; of matrices                        |

Parsers raise one `ShardplanError` that says what is wrong and which axes there are.
"""

from __future__ import annotations

import re
from typing import NoReturn

from shardplan.errors import ShardplanError, did_you_mean, error
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import RP, P, Placement, R, S

REDUCTIONS = ("sum", "max", "min", "prod")
_PLACEMENT = re.compile(r"S\((\d{1,9})(?:;([\dx,\s]*))?\)|(R/P)|(R)|P(?:\((\w+)\))?")
_SEGMENT = re.compile(r"(?:(\d{1,5})x)?(\d{1,15})")


def to_text(layout: Layout, mesh: Mesh) -> str:
    """`S(0)@machine, R/P@gpu`: placements with their axes, major first; `R` axes are left out, all of them are `R`."""
    items = []
    for placement in dict.fromkeys(layout.placements):
        if placement != R:
            names = ",".join(mesh.names[axis] for axis in layout.axes_of(placement))
            items.append(f"{placement}@{names}")
    return ", ".join(items) or "R"


def from_text(text: str, mesh: Mesh) -> Layout:
    """The layout that `text` writes in the named form; axes not named are `R`."""
    placements: dict[int, Placement] = {}
    current: Placement | None = None
    if text.strip() == "R":
        return Layout.replicated(len(mesh))
    for chunk in _split(text):
        head, at, name = (part.strip() for part in chunk.rpartition("@"))
        if at:
            current = _placement(head, text)
        if current is None:
            hint = f"write for example S(0)@{mesh.names[0]}" if len(mesh) else ""
            _fail(
                text, f"'{chunk.strip()}' names no mesh axis" if text.strip() else "there is nothing in it", mesh, hint
            )
        axis = _axis(name, text, mesh)
        if axis in placements:
            _fail(text, f"mesh axis '{name}' is used twice", mesh)
        placements[axis] = current
    order = (*placements, *(axis for axis in range(len(mesh)) if axis not in placements))
    return Layout.of(*(placements.get(axis, R) for axis in range(len(mesh))), order=order)


_PLACEMENT_HINT = "placements are S(0), S(1;3x768), R, R/P, P and P(max)"


def matrix_scheme(layout: Layout | None, mesh: Mesh, rank: int) -> str:
    """`SR`: which of the last two dims are sharded (of all dims, where a leading one is); `-`: there is no layout.

    On several mesh axes of more than one device the letters are numbered, `S01R`; partial sums end in `P`.
    """
    if layout is None:
        return "-"
    real = mesh.real_axes
    letters = ["R"] * rank
    for (dim, _), axes in layout.dims().items():
        sharding = [axis for axis in axes if axis in real]
        if sharding:
            letters[dim] = "S" if len(real) == 1 else "S" + "".join(map(str, sharding))
    partial = any(layout.placements[axis].kind == "P" for axis in real)
    leading = any(letter != "R" for letter in letters[:-2])
    return "".join(letters if leading else letters[-2:]) + "P" * partial


def _placement(text: str, whole: str) -> Placement:
    """The placement that all of `text` writes."""
    match = _PLACEMENT.fullmatch(text)
    if match is None:
        _fail(whole, f"'{text}' is not a placement", None, _PLACEMENT_HINT)
    dim, segments, pair, replicated, reduction = match.groups()
    if dim is not None:
        return S(int(dim), read_segments(segments, whole) if segments is not None else ())
    if pair or replicated:
        return RP if pair else R
    if reduction is not None and reduction not in REDUCTIONS:
        near = did_you_mean(reduction, REDUCTIONS)
        _fail(whole, f"'{reduction}' is not a reduction", None, near or f"reductions are {', '.join(REDUCTIONS)}")
    return P(reduction or "sum")


def read_segments(text: str, whole: str) -> tuple[int, ...]:
    """`3x768` or `512,256,256` as sizes; `whole`: the text that it is part of. Raises `ShardplanError`."""
    sizes: list[int] = []
    for part in text.split(","):
        match = _SEGMENT.fullmatch(part.strip())
        if match is None or not int(match[2]) or match[1] == "0":
            _fail(whole, f"'{part.strip()}' is not a segment size", None, "write S(1;512,256) or S(1;3x768)")
        sizes += [int(match[2])] * int(match[1] or 1)
    return tuple(sizes)


def _split(text: str) -> list[str]:
    """Pieces between the commas outside parentheses."""
    return re.split(r",(?![^()]*\))", text)


def _axis(name: str, text: str, mesh: Mesh) -> int:
    if name not in mesh.names:
        _fail(text, f"the mesh has no axis '{name}'", mesh, did_you_mean(name, mesh.names))
    return mesh.index(name)


def _fail(text: str, what: str, mesh: Mesh | None, hint: str = "") -> NoReturn:
    detail = "" if mesh is None else f"the mesh axes are {', '.join(mesh.names)}"
    raise ShardplanError(error("layout-text", f"layout '{text}': {what}", detail=detail, hint=hint))
