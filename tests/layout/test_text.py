"""The text forms of a layout: what they print, what they parse, and what they say to a mistake."""

import pytest
from layout_schemes import from_scheme, to_scheme

from shardplan.errors import ShardplanError
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import RP, P, R, S
from shardplan.layout.text import (
    from_text,
    to_text,
)

MESH = Mesh.of(machine=4, gpu=4)
LINE = Mesh.of(gpu=8)


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        (Layout.of(S(0), RP), "S(0)@machine, R/P@gpu"),
        (Layout.of(R, R), "R"),
        (Layout.of(R, S(1)), "S(1)@gpu"),
        (Layout.of(S(0), S(0)), "S(0)@machine,gpu"),
        (Layout.of(S(0), S(0), order=(1, 0)), "S(0)@gpu,machine"),
        (Layout.of(S(1, (768, 768, 768)), P("max")), "S(1;3x768)@machine, P(max)@gpu"),
        (Layout.of(P(), P()), "P@machine,gpu"),
        (Layout.of(S(1, (512, 256, 256)), S(0)), "S(1;512,2x256)@machine, S(0)@gpu"),
    ],
)
def test_named(layout, text):
    assert to_text(layout, MESH) == text
    assert from_text(text, MESH) == layout


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (" S(0) @ machine,gpu ", "S(0)@machine,gpu"),
        ("S(0)@gpu, S(0)@machine", "S(0)@gpu,machine"),
        ("R@machine, P(sum)@gpu", "P@gpu"),
        ("S(1;768,768,768)@gpu", "S(1;3x768)@gpu"),
    ],
)
def test_named_accepts_other_spellings(text, same):
    assert to_text(from_text(text, MESH), MESH) == same


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "S(0)@gup",
            (
                "error[layout-text]: layout 'S(0)@gup': the mesh has no axis 'gup'\n"
                "  the mesh axes are machine, gpu\nhint: did you mean 'gpu'?"
            ),
        ),
        (
            "S(0)",
            (
                "error[layout-text]: layout 'S(0)': 'S(0)' names no mesh axis\n"
                "  the mesh axes are machine, gpu\nhint: write for example S(0)@machine"
            ),
        ),
        (
            "S(0)@gpu, R/P@gpu",
            (
                "error[layout-text]: layout 'S(0)@gpu, R/P@gpu': mesh axis 'gpu' is used twice\n"
                "  the mesh axes are machine, gpu"
            ),
        ),
        (
            "",
            (
                "error[layout-text]: layout '': there is nothing in it\n"
                "  the mesh axes are machine, gpu\nhint: write for example S(0)@machine"
            ),
        ),
        (
            "Q@gpu",
            (
                "error[layout-text]: layout 'Q@gpu': 'Q' is not a placement\n"
                "hint: placements are S(0), S(1;3x768), R, R/P, P and P(max)"
            ),
        ),
        (
            "P(mx)@gpu",
            "error[layout-text]: layout 'P(mx)@gpu': 'mx' is not a reduction\nhint: did you mean 'max'?",
        ),
        (
            "P(xor)@gpu",
            (
                "error[layout-text]: layout 'P(xor)@gpu': 'xor' is not a reduction\n"
                "hint: reductions are sum, max, min, prod"
            ),
        ),
        (
            "S(0;3x)@gpu",
            (
                "error[layout-text]: layout 'S(0;3x)@gpu': '3x' is not a segment size\n"
                "hint: write S(1;512,256) or S(1;3x768)"
            ),
        ),
    ],
)
def test_named_mistakes(text, said):
    with pytest.raises(ShardplanError) as caught:
        from_text(text, MESH)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("mesh", "layout", "rank", "alpa", "ort"),
    [
        (LINE, Layout.of(S(1)), 2, "RS", "RS[0]"),
        (LINE, Layout.of(R), 3, "RRR", "RRR"),
        (MESH, Layout.of(S(0), R), 2, "S0R", "S[0]R"),
        (MESH, Layout.of(S(0), S(0)), 2, "S01R", "S[0,1]R"),
        (MESH, Layout.of(S(1), S(1), order=(1, 0)), 2, "RS10", "RS[1,0]"),
        (MESH, Layout.of(R, S(1)), 2, "RS1", "RS[1]"),
    ],
)
def test_scheme(mesh, layout, rank, alpa, ort):
    assert to_scheme(layout, mesh, rank) == alpa
    assert to_scheme(layout, mesh, rank, style="ort") == ort
    assert from_scheme(alpa, mesh) == from_scheme(ort, mesh) == layout


def test_scheme_mistakes():
    with pytest.raises(ShardplanError) as caught:
        from_scheme("SR", MESH)
    assert str(caught.value) == (
        "error[layout-text]: layout 'SR': 'S' does not say which of the 2 mesh axes\n"
        "  the mesh axes are machine, gpu\nhint: write S0 or S[0] for the first axis"
    )
    with pytest.raises(ShardplanError) as caught:
        from_scheme("S2R", MESH)
    assert str(caught.value) == (
        "error[layout-text]: layout 'S2R': mesh axis 2 does not exist\n"
        "  the mesh axes are machine, gpu\nhint: axes are numbered from 0 to 1"
    )
    with pytest.raises(ShardplanError, match="'XR' does not begin with R, S, S0 or"):
        from_scheme("XR", MESH)
    with pytest.raises(ShardplanError, match="a mesh axis is used twice"):
        from_scheme("S0S0", MESH)
    with pytest.raises(ValueError, match="writes S and R only"):
        to_scheme(Layout.of(P(), R), MESH, 1)


@pytest.mark.parametrize(
    "text",
    [
        "Layout.of(S(0), RP)",
        "Layout.of(S(0), S(0), order=(1, 0))",
        "Layout.of(S(1, (768, 768)), P(), P('max'), R)",
        "Layout.of()",
    ],
)
def test_shown_as_what_makes_it(text):
    layout = eval(text, {"Layout": Layout, "S": S, "R": R, "RP": RP, "P": P})
    assert repr(layout) == text
