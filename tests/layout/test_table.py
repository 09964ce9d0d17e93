"""The table of all transitions against the plain enumeration, its size, its speed and its caching."""

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import shardplan
from shardplan.layout.layout import Layout
from shardplan.layout.lower import by_bytes, lower
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import RP, P, R, S
from shardplan.layout.table import transition_table
from shardplan.layout.transitions import transitions

GRID = Mesh.of(a=2, b=3)


def test_states_are_all_layouts_once():
    table = transition_table(GRID, (S(0), S(1), P()))
    by_hand = {Layout.of(x, y) for x in (S(0), S(1), R, P()) for y in (S(0), S(1), R, P())}
    by_hand |= {Layout.of(S(d), S(d), order=(1, 0)) for d in (0, 1)}
    assert set(table.states) == by_hand
    assert len(table.states) == len(by_hand) == 18
    assert table.states[0] == Layout.of(R, R)
    assert all(table.index[layout] == number for number, layout in enumerate(table.states))
    assert len(transition_table(GRID, (S(0), S(1))).states) == 11


def test_rows_are_the_transitions_of_each_state():
    alphabet = (S(0), S(1, (6, 12)), P())
    table = transition_table(GRID, alphabet)
    rows = [
        (table.states[s], table.states[t], table.collectives[k])
        for s, t, k in zip(table.source.tolist(), table.target.tolist(), table.kind_index.tolist(), strict=True)
    ]
    assert rows == [(s, t, c) for s in table.states for t, c in transitions(GRID, s, alphabet)]
    assert max(Counter(rows).values()) == 1
    assert len(set(table.collectives)) == len(table.collectives)


def test_transitions_of_one_layout():
    found = [
        (str(t.placements[0]) + str(t.placements[1]), c.kind) for t, c in transitions(GRID, Layout.of(S(0), R), ())
    ]
    assert found == [("S(0)S(0)", "slice"), ("RR", "all_gather")]


def test_table_does_not_depend_on_what_was_lowered_before():
    mesh = Mesh.of(p=2, q=5)
    lower(mesh, Layout.of(S(0), P()), Layout.of(P(), S(0)), by_bytes(mesh))
    first = transition_table(mesh, (S(0), P())).collectives
    other = Mesh.of(p=2, q=7)
    assert [(c.kind, c.axes) for c in first] == [
        (c.kind, c.axes) for c in transition_table(other, (S(0), P())).collectives
    ]


def test_arrays_are_shared_and_read_only():
    one, two = (transition_table(GRID, (S(d), P())) for d in (0, 1))
    assert one.source is two.source
    assert one is transition_table(Mesh.of(x=2, y=3), (S(0), P())), "axis names do not matter"
    assert one.source.dtype == np.int32
    with pytest.raises(ValueError, match="read-only"):
        one.source[0] = 1


def test_alphabet_is_plain():
    with pytest.raises(ValueError, match="R/P is a pair"):
        transition_table(GRID, (RP,))
    with pytest.raises(ValueError, match=r"cannot hold both P and P\(max\)"):
        transition_table(GRID, (P(), P("max")))
    with_r = transition_table(GRID, (R, S(0)))
    assert with_r.states == transition_table(GRID, (S(0),)).states


def test_no_masks_for_maxima():
    def kinds(p):
        table = transition_table(GRID, (S(0), p))
        return {collective.kind for collective in table.collectives}

    assert kinds(P()) - kinds(P("max")) == {"mask"}


def test_only_the_table_needs_numpy():
    code = (
        "import sys, shardplan.layout.lower, shardplan.layout.text, shardplan.layout.legal; "
        "sys.exit('numpy' in sys.modules or 'shardplan.model' in sys.modules)"
    )
    environment = {"PYTHONPATH": str(Path(shardplan.__file__).parents[1])}
    assert subprocess.run([sys.executable, "-c", code], check=False, env=environment).returncode == 0


def test_size_and_speed_of_three_axes_and_four_dims():
    mesh = Mesh.of(a=4, b=2, c=5)
    begun = time.process_time()
    table = transition_table(mesh, (S(0), S(1), S(2), S(3), P()))
    assert time.process_time() - begun < 0.3
    assert len(table.states) == 296
