"""Who sends what to whom between two stages, whatever layouts and meshes they have."""

import pytest

pytest.importorskip("torch")

import numpy as np
from hypothesis import assume, example, given
from hypothesis import strategies as st

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.layout.layout import Layout
from shardplan.layout.legal import is_legal
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import R, S
from shardplan.pipeline.p2p import Transfers
from shardplan.pipeline.submeshes import part
from shardplan.torch.pipelines.p2p import Endpoint, messages, wire_endpoint

SHAPE = (48, 48)
PLACEMENTS = (R, S(0), S(1), S(1, (12, 12, 24)), S(0, (24, 24)))
CLUSTER = make_cluster(load_profile("h100-dgx"), "2x8")


@st.composite
def ends(draw, first):
    """A layout on two, four ... processes from `first` on."""
    mesh = Mesh.of(machine=draw(st.sampled_from([1, 2])), gpu=draw(st.sampled_from([1, 2, 4])))
    layout = Layout.of(*(draw(st.sampled_from(PLACEMENTS)) for _ in range(2)), order=draw(st.permutations(range(2))))
    assume(is_legal(layout, mesh, SHAPE))
    return Endpoint(layout, mesh, first)


def local(end, whole):
    """What every process holds of `whole`."""
    return {
        rank: whole[np.ix_(*(np.concatenate([np.arange(*run) for run in runs]) for runs in held))]
        for held, ranks in end.parts(whole.shape).items()
        for rank in ranks
    }


@given(ends(0), ends(8))
def test_everyone_gets_each_element_it_wants_once(source, target):
    whole = np.arange(48 * 48).reshape(SHAPE)
    held, wanted = local(source, whole), local(target, whole)
    got = {rank: np.zeros_like(part) for rank, part in wanted.items()}
    for message in messages(source, target, SHAPE):
        sent = np.concatenate([held[message.sender][box].ravel() for _, box in message.boxes])
        room = np.zeros_like(sent)
        room[message.start : message.stop] = sent[message.start : message.stop] + 1
        for box, _ in message.boxes:
            size = got[message.receiver][box].size
            got[message.receiver][box] += room[:size].reshape(got[message.receiver][box].shape)
            room = room[size:]
    for rank, value in got.items():
        assert (value == wanted[rank] + 1).all()


UNEVEN = Endpoint(Layout.of(R, S(1, (12, 12, 24))), Mesh.of(machine=2, gpu=2), 0)
"""What each of its processes holds, four that hold quarters want unequal parts of."""


@given(ends(0), ends(8), st.sampled_from([1, 1 << 20]))
@example(UNEVEN, Endpoint(Layout.of(R, S(1)), Mesh.of(machine=1, gpu=4), 8), 1)
def test_nobody_sends_or_gets_more_than_was_priced(source, target, element_bytes):
    """Small values are sent, large ones sent in pieces and gathered."""
    parts = (part(CLUSTER, end.mesh.shape) for end in (source, target))
    send, *rest = Transfers(CLUSTER).send_receive(*parts, target.layout, 48 * 48 * element_bytes).steps
    wire, gather = wire_endpoint(target, (send, *rest), SHAPE)
    assert (gather is None) == (not rest)
    loads = {}
    for message in messages(source, wire, SHAPE):
        for key in (("out", message.sender), ("in", message.receiver)):
            loads[key] = loads.get(key, 0) + message.stop - message.start
    assert max(loads.values()) * element_bytes == send.payload_bytes
    assert {rank for _, rank in loads} == {*range(source.mesh.size), *range(8, 8 + target.mesh.size)}


def test_values_are_transferred_whatever_the_layouts(four):
    """To other processes, to other parts of the same ones, gathered there or not."""
    cases = [
        (Endpoint(source, mesh, first), Endpoint(target, other, start), gathered)
        for (mesh, first), (other, start) in [(HALF, REST), (FIRST, LAST), (LAST, FIRST), (ALL, ALL), (ALL, FIRST)]
        for source in layouts(mesh)
        for target in layouts(other)
        for gathered in (False, True)
    ]
    some = cases[::11]
    assert set(four.run("torch_pipelines", "transferred", some, SHAPE)) == {len(some)}


HALF, REST = (Mesh.of(machine=2, gpu=1), 0), (Mesh.of(machine=1, gpu=2), 2)
FIRST, LAST = (Mesh.of(machine=1, gpu=1), 0), (Mesh.of(machine=1, gpu=3), 1)
ALL = (Mesh.of(machine=2, gpu=2), 0)


def layouts(mesh):
    every = [Layout.of(one, other) for one in PLACEMENTS for other in (R, S(0), S(1))]
    return [layout for layout in every if is_legal(layout, mesh, SHAPE)]
