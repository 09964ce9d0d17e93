"""Quantised weights: a shard of every member dequantises to the shard of the weight, for 2, 4 and 8 devices, with
nothing quantised again; what would cut a group is refused with what would help."""

import math

import numpy as np
import pytest

from shardplan.errors import ShardplanError
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import R, S
from shardplan.runtime.arrays import assemble, cut
from shardplan.runtime.shards import Shard, runs_of
from shardplan.runtime.units import Steps, find_unit, unit_shards

OUT, IN, GROUP = 96, 512, 32
RNG = np.random.default_rng(1)


def pack(values, axis, bits=4, word=np.uint32):
    """Consecutive values along `axis`, the first in the lowest bits."""
    per = np.dtype(word).itemsize * 8 // bits
    moved = np.moveaxis(values, axis, -1).astype(np.uint64)
    grouped = moved.reshape(*moved.shape[:-1], -1, per)
    packed = (grouped << (np.arange(per, dtype=np.uint64) * np.uint64(bits))).sum(-1, dtype=np.uint64).astype(word)
    return np.moveaxis(packed, -1, axis)


def unpack(packed, axis, bits=4):
    per = packed.dtype.itemsize * 8 // bits
    moved = np.moveaxis(packed, axis, -1).astype(np.uint64)
    values = (moved[..., None] >> (np.arange(per, dtype=np.uint64) * np.uint64(bits))) & np.uint64(2**bits - 1)
    return np.moveaxis(values.reshape(*moved.shape[:-1], -1), -1, axis)


AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def awq_pack(values):
    shuffled = values.reshape(*values.shape[:-1], -1, 8)[..., AWQ_ORDER].reshape(values.shape)
    return pack(shuffled, -1)


def awq_unpack(packed):
    values = unpack(packed, -1)
    return values.reshape(*values.shape[:-1], -1, 8)[..., np.argsort(AWQ_ORDER)].reshape(values.shape)


def random_weight(out=OUT, inn=IN, group=GROUP):
    """Values, scales and zero points of a weight [out, in]."""
    return (
        RNG.integers(0, 16, (out, inn)),
        RNG.standard_normal((out, inn // group)).astype(np.float16),
        RNG.integers(0, 16, (out, inn // group)),
    )


def gptq(values, scales, zeros):
    groups = (np.arange(values.shape[1]) // (values.shape[1] // scales.shape[1])).astype(np.int32)
    return {
        "m.qweight": pack(values.T, 0),
        "m.scales": scales.T.copy(),
        "m.qzeros": pack(zeros.T, 1),
        "m.g_idx": groups,
    }


def from_gptq(stored):
    groups = stored["m.g_idx"]
    zeros = unpack(stored["m.qzeros"], 1)[groups].astype(np.float32)
    values = unpack(stored["m.qweight"], 0).astype(np.float32)
    return ((values - zeros) * stored["m.scales"][groups].astype(np.float32)).T


def awq(values, scales, zeros):
    return {"m.qweight": awq_pack(values.T), "m.scales": scales.T.copy(), "m.qzeros": awq_pack(zeros.T)}


def from_awq(stored):
    each = stored["m.qweight"].shape[0] // stored["m.scales"].shape[0]
    zeros = np.repeat(awq_unpack(stored["m.qzeros"]).astype(np.float32), each, 0)
    scales = np.repeat(stored["m.scales"].astype(np.float32), each, 0)
    return ((awq_unpack(stored["m.qweight"]).astype(np.float32) - zeros) * scales).T


def mlc(values, scales, _zeros):
    return {"m.q_weight": pack(values, 1), "m.q_scale": scales}


def from_mlc(stored):
    values = unpack(stored["m.q_weight"], 1).astype(np.float32) - 7
    return values * np.repeat(
        stored["m.q_scale"].astype(np.float32), values.shape[1] // stored["m.q_scale"].shape[1], 1
    )


def matmulnbits(values, scales, zeros):
    blocks = values.reshape(*scales.shape, -1)
    return {
        "m.weight_Q4": pack(blocks, -1, word=np.uint8),
        "m.weight_scales": scales.reshape(-1),
        "m.weight_zp": pack(zeros, -1, word=np.uint8).reshape(-1),
    }


def from_matmulnbits(stored):
    values = unpack(stored["m.weight_Q4"], -1).astype(np.float32)
    scales = stored["m.weight_scales"].reshape(values.shape[:2]).astype(np.float32)
    zeros = unpack(stored["m.weight_zp"].reshape(len(values), -1), -1).astype(np.float32)
    return ((values - zeros[..., None]) * scales[..., None]).reshape(len(values), -1)


FORMATS = {
    "gptq": (gptq, from_gptq),
    "awq": (awq, from_awq),
    "mlc": (mlc, from_mlc),
    "matmulnbits": (matmulnbits, from_matmulnbits),
}


def local_unit(stored, layout, mesh, place, shape=(OUT, IN)):
    """What the device at `place` holds of every stored tensor."""
    unit = find_unit("m.weight", shape, {name: array.shape for name, array in stored.items()})
    shard = Shard("m.weight", 0, shape, "", runs_of(layout, mesh, shape, place))
    found = {}
    for member in unit_shards(unit, shard):
        whole = stored[member.member.name]
        local = cut(whole.reshape(member.member.view), member.shard).reshape(member.local_shape)
        found[member.member.name] = local - local.min() if member.groups else local
    assert set(found) == set(stored)
    return found, shard


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("ways", [2, 4, 8])
@pytest.mark.parametrize("dim", [0, 1])
def test_shards_dequantise_to_shards(form, ways, dim):
    if form == "matmulnbits" and dim == 1 and (IN // GROUP // ways) % 2:
        pytest.skip("zero points of two blocks share a byte")
    make, back = FORMATS[form]
    stored = make(*random_weight(128))
    whole, mesh, shape = back(stored), Mesh.of(tp=ways), (128, IN)
    locals_, shards = [], []
    for place in mesh.coordinates():
        local, shard = local_unit(stored, Layout.of(S(dim)), mesh, place, shape)
        locals_.append(back(local))
        shards.append(shard)
        assert locals_[-1].tobytes() == cut(whole, shard).tobytes()
    assert assemble(locals_, shards).tobytes() == whole.tobytes()


@pytest.mark.parametrize("form", FORMATS)
def test_fused_and_two_dimensional_shards(form):
    """q, k, v of grouped queries beside each other, cut by segment over one axis and by input over the other."""
    make, back = FORMATS[form]
    stored = make(*random_weight())
    mesh, layout = Mesh.of(a=2, b=2), Layout.of(S(1), S(0, (64, 16, 16)))
    for place in mesh.coordinates():
        local, shard = local_unit(stored, layout, mesh, place)
        assert back(local).tobytes() == cut(back(stored), shard).tobytes()


def multiples_of(unit):
    """Per dim of the weight, what the bounds of every shard must be a multiple of."""
    steps = [each for member in unit.members for each in member.steps if each.dim is not None]
    return tuple(math.lcm(*(each.elements for each in steps if each.dim == dim)) for dim in range(2))


def test_the_formats_are_told_apart_by_names_and_shapes():
    for form, (make, _) in FORMATS.items():
        shapes = {name: array.shape for name, array in make(*random_weight()).items()}
        unit = find_unit("m.weight", (OUT, IN), shapes)
        assert unit.form == form
        assert {member.name for member in unit.members} == set(shapes)
        expected = {"gptq": (8, 32), "awq": (8, 32), "mlc": (1, 32), "matmulnbits": (1, 64)}
        assert multiples_of(unit) == expected[form]
    assert find_unit("m.weight", (OUT, IN), {"m.weight": (OUT, IN)}) is None
    assert find_unit("m.weight", (OUT,), {"m.qweight": (OUT, IN)}) is None
    assert find_unit("m.weight", (OUT, IN), {"m.qweight": (64, OUT)}) is None  # no scales


def test_three_bits_and_one_scale_for_all():
    shapes = {"m.qweight": (48, 96), "m.scales": (1, 96), "m.qzeros": (1, 9)}
    unit = find_unit("m.weight", (96, 512), shapes)
    assert [member.steps for member in unit.members] == [
        (Steps(1, 32, 3), Steps(0, 1, 1)),
        (Steps(None), Steps(0, 1, 1)),
        (Steps(1, 512, 1), Steps(0, 32, 3)),
    ]
    assert multiples_of(unit) == (32, 512)
    columns = Shard("m.weight", 0, (96, 512), "", (((32, 64),), ((0, 512),)))
    assert [member.shard.runs for member in unit_shards(unit, columns)] == [
        (((0, 48),), ((32, 64),)),
        (((0, 1),), ((32, 64),)),
        (((0, 1),), ((3, 6),)),
    ]


def refusal(stored, layout, ways, shape):
    with pytest.raises(ShardplanError) as caught:
        local_unit(stored, layout, Mesh.of(tp=ways), (1,), shape)
    return str(caught.value)


def test_groups_are_not_cut():
    stored = {"m.q_weight": np.zeros((64, 1376), np.uint32), "m.q_scale": np.zeros((64, 86), np.float16)}
    assert refusal(stored, Layout.of(S(1)), 4, (64, 11008)) == (
        "error[cut-group]: 'm.weight': 2752 of 11008 along its input dim per device would cut a group of 128 quantised "
        "values\n"
        "  m.q_scale [64, 86] holds 128 in 1\n"
        "hint: shard it over fewer devices (2 or a divisor of the 86 groups), or quantise with groups of 64 or fewer"
    )
    assert local_unit(stored, Layout.of(S(1)), Mesh.of(tp=2), (1,), (64, 11008))


@pytest.mark.parametrize("ways", [2, 4, 8])
@pytest.mark.parametrize("dim", [0, 1])
def test_a_linear_of_llama_in_groups_of_32(dim, ways):
    """4096 x 11008: 344 groups, which 8 divides."""
    stored = {"m.q_weight": np.empty((4096, 1376), np.uint32), "m.q_scale": np.empty((4096, 344), np.float16)}
    local, shard = local_unit(stored, Layout.of(S(dim)), Mesh.of(tp=ways), (1,), (4096, 11008))
    cuts = [ways, 1] if dim == 0 else [1, ways]
    assert shard.local_shape == (4096 // cuts[0], 11008 // cuts[1])
    assert local["m.q_weight"].shape == (4096 // cuts[0], 1376 // cuts[1])
    assert local["m.q_scale"].shape == (4096 // cuts[0], 344 // cuts[1])


def test_packed_words_are_not_cut():
    stored = gptq(*random_weight(96))
    assert refusal(stored, Layout.of(S(0)), 8, (96, IN)) == (
        "error[cut-group]: 'm.weight': 12 of 96 along its output dim per device would cut a packed word of 8 quantised "
        "values\n"
        "  m.qzeros [16, 12] holds 8 in 1\n"
        "hint: shard it over fewer devices (6 or a divisor of the 12 packed words)"
    )


def test_a_last_group_that_is_not_full_is_taken_whole():
    """100 = 3 groups of 32 and a rest: sizes alone must not be read as 4 groups of 25."""
    stored = {"m.q_weight": np.zeros((8, 16), np.uint32), "m.q_scale": np.zeros((8, 4), np.float16)}
    assert refusal(stored, Layout.of(S(1)), 4, (8, 100)) == (
        "error[cut-group]: 'm.weight': its input dim of 100 is not made of whole groups, so it cannot be cut\n"
        "  m.q_weight [8, 16] holds 100 in 16\n"
        "hint: keep this dim of the weight whole (--pin)"
    )
    assert local_unit(stored, Layout.of(S(0)), Mesh.of(tp=4), (1,), (8, 100))
    assert local_unit(stored, Layout.of(R), Mesh.of(tp=4), (1,), (8, 100))
