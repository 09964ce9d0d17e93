"""Retracing: the collectives that `lower` emits lead back through the layouts it went."""

import itertools

import pytest

from shardplan.layout.layout import Layout
from shardplan.layout.legal import is_legal
from shardplan.layout.lower import by_bytes, lower
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import P, R, S
from shardplan.program.retrace import retrace

MESH = Mesh.of(a=2, b=2)
SHAPE = (8, 12)
PACKED = S(1, (4, 4, 4))


def layouts():
    for placements in itertools.product((R, S(0), S(1), PACKED, P()), repeat=2):
        layout = Layout.of(*placements)
        if is_legal(layout, MESH, SHAPE):
            yield layout


def legal(layout):
    return is_legal(layout, MESH, SHAPE)


@pytest.mark.parametrize("source", list(layouts()), ids=str)
def test_every_move_is_retraced(source):
    for target in layouts():
        steps = lower(MESH, source, target, by_bytes(MESH), shards=(S(0), S(1), PACKED), legal=legal)
        collectives = [step.collective for step in steps]
        found = retrace(MESH, SHAPE, source, target, collectives, (S(0), S(1), PACKED))
        assert found is not None
        assert [step.collective for step in found] == collectives
        assert all(is_legal(step.target, MESH, SHAPE) for step in found)
        assert not found or found[-1].target == target


def test_collectives_that_lead_elsewhere_lead_nowhere():
    source, target = Layout.of(S(0), R), Layout.of(S(1), R)
    steps = lower(MESH, source, target, by_bytes(MESH), legal=legal)
    collectives = [step.collective for step in steps]
    assert retrace(MESH, SHAPE, source, target, collectives) == steps
    assert retrace(MESH, SHAPE, source, target, []) is None
    assert retrace(MESH, SHAPE, source, target, collectives * 2) is None
    assert retrace(MESH, SHAPE, source, Layout.of(R, S(1)), collectives) is None


def test_layouts_on_the_way_are_legal():
    source, target = Layout.of(S(0), R), Layout.of(S(1), R)
    steps = lower(MESH, source, target, by_bytes(MESH))
    assert retrace(MESH, (8, 12), source, target, [step.collective for step in steps]) is not None
