"""HLO text as values, the collectives in it, and which all-reduces are cut at once."""

from __future__ import annotations

import pytest

from shardplan.extras.xla.emitted import emitted_collectives, wire_bytes
from shardplan.extras.xla.hlo import Shape, parse_module
from shardplan.layout.mesh import Mesh

MESH = Mesh.of(machine=2, gpu=4)
LOOP = """HloModule jit_f, is_scheduled=true, entry_computation_layout={(f32[8,16]{1,0})->f32[8,16]{1,0}}, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%body (state: (s32[], /*index=1*/f32[8,16])) -> (s32[], f32[8,16]) {
  %state = (s32[], f32[8,16]{1,0}) parameter(0)
  %turn = s32[] get-tuple-element(%state), index=0
  %x = f32[8,16]{1,0} get-tuple-element(%state), index=1
  %sums = (f32[8,16]{1,0}, bf16[4]{0}) all-reduce(%x, /*index=1*/%half), channel_id=1, replica_groups=[2,4]<=[8], to_apply=%add, metadata={op_name="jit(f)/(jvp()/dot:transpose(jvp())/dot)"}
  %half = bf16[4]{0} constant({1, 2, 3, 4})
  %next = f32[8,16]{1,0} get-tuple-element(%sums), index=0
  ROOT %out = (s32[], f32[8,16]{1,0}) tuple(%turn, %next)
}

%condition (state.1: (s32[], f32[8,16])) -> pred[] {
  %state.1 = (s32[], f32[8,16]{1,0}) parameter(0)
  ROOT %more = pred[] constant(true)
}

ENTRY %main (p: f32[8,16]) -> f32[8,16] {
  %p = f32[8,16]{1,0} parameter(0)
  %zero = s32[] constant(0)
  %start = (s32[], f32[8,16]{1,0}) tuple(%zero, %p)
  %while.1 = (s32[], f32[8,16]{1,0}) while(%start), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %last = f32[8,16]{1,0} get-tuple-element(%while.1), index=1
  %gather-start = (f32[8,16]{1,0}, f32[16,16]{1,0}) all-gather-start(%last), channel_id=2, replica_groups=mesh['a'=2,'b'=4] {'a'}, dimensions={0}
  %gather = f32[16,16]{1,0} all-gather-done(%gather-start)
  %parts = (f32[2,16]{1,0}, f32[2,16]{1,0}) all-to-all(%q, %q), channel_id=3, replica_groups={{0,4},{1,5},{2,6},{3,7}}
  %q = f32[2,16]{1,0} slice(%last), slice={[0:2], [0:16]}
  %moved = f32[8,16]{1,0} collective-permute(%last), channel_id=4, source_target_pairs={{0,1},{1,0},{2,3},{3,2}}
  %scattered = f32[2,16]{1,0} reduce-scatter(%last), channel_id=5, replica_groups=[2,4]<=[8], dimensions={0}, to_apply=%add
  %alone = f32[8,16]{1,0} all-reduce(%last), replica_groups=[8,1]<=[8], to_apply=%add
  ROOT %r = f32[8,16]{1,0} copy(%last)
}
"""  # noqa: E501


def test_instructions_are_read():
    module = parse_module(LOOP)
    assert module.entry == "main"
    assert list(module.computations) == ["add", "body", "condition", "main"]
    sums = module.computations["body"].instructions["sums"]
    assert sums.shapes == (Shape("f32", (8, 16)), Shape("bf16", (4,)))
    assert sums.operands == ("x", "half")
    assert [shape.size_bytes for shape in sums.shapes] == [512, 8]
    assert module.computations["main"].instructions["while.1"].calls == ("condition", "body")
    assert module.runs == {"add": 5, "body": 3, "condition": 3, "main": 1}


def test_names_without_percent_signs_are_read_alike():
    bare = parse_module(LOOP.replace("%", ""))
    assert emitted_collectives(bare, MESH) == emitted_collectives(parse_module(LOOP), MESH)


def test_what_every_device_sends():
    rows = [
        (row.phase, row.kind, row.axes, row.ways, row.count, row.payload_bytes)
        for row in emitted_collectives(parse_module(LOOP), MESH)
    ]
    assert rows == [
        ("forward", "all_reduce", ("gpu",), 4, 3, 512),
        ("backward", "all_reduce", ("gpu",), 4, 3, 8),
        ("forward", "all_gather", ("machine",), 2, 1, 1024),
        ("forward", "all_to_all", ("machine",), 2, 1, 256),
        ("forward", "permute", ("gpu",), 2, 1, 512),
        ("forward", "reduce_scatter", ("gpu",), 4, 1, 512),
    ]


def test_floats_that_were_widened_count_half():
    """XLA on CPU sends bfloat16 as float32; what is 16 bits wide in the text stays so."""
    rows = emitted_collectives(parse_module(LOOP), MESH, widened=True)
    assert [row.payload_bytes for row in rows] == [256, 8, 512, 128, 256, 256]


def test_groups_of_no_axes_have_none():
    text = LOOP.replace("replica_groups=[2,4]<=[8], to_apply=%add, metadata", "replica_groups={{0,1,2,7},{3,4,5,6}}, m")
    assert emitted_collectives(parse_module(text), MESH)[0].axes == ()


@pytest.mark.parametrize(
    ("kind", "sent"), [("all_reduce", 1536), ("all_gather", 768), ("reduce_scatter", 768), ("permute", 1024)]
)
def test_bytes_on_the_wire(kind, sent):
    assert wire_bytes(kind, 4, 1024) == sent


def test_other_text_is_refused():
    with pytest.raises(ValueError, match=r"^this is not the text of an HLO module: it has no entry computation$"):
        parse_module("module @jit_f {\n}\n")


SLICED = """HloModule jit_g, num_partitions=8

%fused (p0: f32[8,16], p1: s32[], p2: f32[2,16]) -> f32[2,16] {
  %p0 = f32[8,16]{1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %p2 = f32[2,16]{1,0} parameter(2)
  %zero = s32[] constant(0)
  %twice = f32[8,16]{1,0} add(%p0, %p0)
  %mine = f32[2,16]{1,0} dynamic-slice(%twice, %p1, %zero), dynamic_slice_sizes={2,16}
  ROOT %sum = f32[2,16]{1,0} add(%mine, %p2)
}

ENTRY %main (x: f32[8,16], r: f32[2,16]) -> f32[2,16] {
  %x = f32[8,16]{1,0} parameter(0)
  %r = f32[2,16]{1,0} parameter(1)
  %id = u32[] partition-id()
  %offset = s32[] convert(%id)
  %all-reduce = f32[8,16]{1,0} all-reduce(%x), channel_id=1, replica_groups=[2,4]<=[8], to_apply=%add
  %view = f32[8,16]{1,0} bitcast(%all-reduce)
  %out = f32[2,16]{1,0} fusion(%view, %offset, %r), kind=kLoop, calls=%fused
  ROOT %done = f32[2,16]{1,0} copy(%out)
}
"""


def sliced(text: str) -> bool:
    (row,) = emitted_collectives(parse_module(text), MESH)
    return row.sliced


def test_an_all_reduce_that_is_cut_at_once_is_recognised():
    assert sliced(SLICED)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("s32[] convert(%id)", "s32[] constant(2)"),  # every device cuts the same
        ("%mine = f32[2,16]{1,0} dynamic-slice", "%mine = f32[4,16]{1,0} dynamic-slice"),  # more than its part
        ("ROOT %done = f32[2,16]{1,0} copy(%out)", "ROOT %done = f32[8,16]{1,0} copy(%all-reduce)"),  # read whole too
        ("add(%p0, %p0)", "dot(%p0, %p0)"),  # not element by element
        ("fusion(%view, %offset, %r)", "fusion(%x, %offset, %r)"),  # nobody reads it
    ],
)
def test_any_other_all_reduce_is_not(old, new):
    assert old in SLICED
    assert not sliced(SLICED.replace(old, new))


IN_A_LOOP = """HloModule jit_h, num_partitions=8

%body (state: (f32[8,16], s32[], s32[])) -> (f32[8,16], s32[], s32[]) {
  %state = (f32[8,16]{1,0}, s32[], s32[]) parameter(0)
  %x = f32[8,16]{1,0} get-tuple-element(%state), index=0
  %mine = s32[] get-tuple-element(%state), index=1
  %same = s32[] get-tuple-element(%state), index=2
  %all-reduce = f32[8,16]{1,0} all-reduce(%x), channel_id=1, replica_groups=[2,4]<=[8], to_apply=%add
  %part = f32[2,16]{1,0} dynamic-slice(%all-reduce, %mine, %same), dynamic_slice_sizes={2,16}
  %padded = f32[8,16]{1,0} pad(%part, %same), padding=0_6x0_0
  ROOT %next = (f32[8,16]{1,0}, s32[], s32[]) tuple(%padded, %mine, %same)
}

ENTRY %main (x.1: f32[8,16]) -> f32[8,16] {
  %x.1 = f32[8,16]{1,0} parameter(0)
  %id = u32[] partition-id()
  %offset = s32[] convert(%id)
  %zero = s32[] constant(0)
  %start = (f32[8,16]{1,0}, s32[], s32[]) tuple(%x.1, %offset, %zero)
  %loop = (f32[8,16]{1,0}, s32[], s32[]) while(%start), condition=%condition, body=%body
  ROOT %out = f32[8,16]{1,0} get-tuple-element(%loop), index=0
}
"""


def test_the_place_of_a_slice_may_come_from_before_the_loop():
    assert sliced(IN_A_LOOP)
    assert not sliced(IN_A_LOOP.replace("dynamic-slice(%all-reduce, %mine,", "dynamic-slice(%all-reduce, %same,"))


def test_a_combined_all_reduce_is_judged_tensor_by_tensor():
    text = (
        SLICED.replace(
            "%all-reduce = f32[8,16]{1,0} all-reduce(%x)",
            "%both = (f32[8,16]{1,0}, f32[2,16]{1,0}) all-reduce(%x, %r)",
        )
        .replace(
            "%view = f32[8,16]{1,0} bitcast(%all-reduce)",
            "%first = f32[8,16]{1,0} get-tuple-element(%both), index=0\n"
            "  %second = f32[2,16]{1,0} get-tuple-element(%both), index=1\n"
            "  %view = f32[8,16]{1,0} bitcast(%first)",
        )
        .replace("ROOT %done = f32[2,16]{1,0} copy(%out)", "ROOT %done = f32[2,16]{1,0} add(%out, %second)")
    )
    assert [row.sliced for row in emitted_collectives(parse_module(text), MESH)] == [True, False]


SUMMED_TWICE = """HloModule jit_g, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%add.1 (c: f32[], d: f32[]) -> f32[] {
  %c = f32[] parameter(0)
  %d = f32[] parameter(1)
  ROOT %sum.1 = f32[] add(%c, %d)
}

ENTRY %main (x: f32[16], y: f32[16]) -> f32[16] {
  %x = f32[16]{0} parameter(0)
  %y = f32[16]{0} parameter(1)
  %both = (f32[16]{0}, f32[16]{0}) all-reduce(%x, %y), channel_id=1, replica_groups=[2,4]<=[8], to_apply=%add
  %first = f32[16]{0} get-tuple-element(%both), index=0
  %second = f32[16]{0} get-tuple-element(%both), index=1
  %view = f32[16]{0} bitcast(%second)
  %other = f32[16]{0} negate(%first)
  %again = (f32[16]{0}, f32[16]{0}) all-reduce(%other, %view), channel_id=2, replica_groups={{0,4},{1,5},{2,6},{3,7}}, to_apply=%add.1
  ROOT %out = f32[16]{0} get-tuple-element(%again), index=1
}
"""  # noqa: E501


def fed(text: str) -> list[tuple[str, int] | None]:
    return [row.then for row in emitted_collectives(parse_module(text), MESH)]


def test_an_all_reduce_that_is_summed_further_is_recognised():
    assert fed(SUMMED_TWICE) == [None, ("again", 1), None, None]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("negate(%first)", "add(%first, %second)"),  # another reader
        ("bitcast(%second)", "negate(%second)"),  # other numbers
        ("ROOT %sum.1 = f32[] add", "ROOT %sum.1 = f32[] maximum"),  # another reduction
        ("all-reduce(%other, %view)", "all-reduce(%view, %view)"),
        ("%second = f32", "ROOT %second = f32"),  # is a result itself
    ],
)
def test_any_other_pair_is_not(old, new):
    assert old in SUMMED_TWICE
    assert fed(SUMMED_TWICE.replace(old, new))[:2] == [None, None]


FOR_GPU = """HloModule jit_h, is_scheduled=true, num_partitions=8

%joined (p0: f32[32], p1: f32[16]) -> f32[48] {
  %p0 = f32[32]{0} parameter(0)
  %p1 = f32[16]{0} parameter(1)
  ROOT %row = f32[48]{0} concatenate(%p0, %p1), dimensions={0}
}

ENTRY %main (x: f32[32], y: f32[16]) -> f32[48] {
  %x = f32[32]{0} parameter(0), metadata={op_name="x"}
  %y = f32[16]{0} parameter(1), metadata={op_name="y"}
  %product = f32[32]{0} custom-call(%x), metadata={op_name="jit(f)/jvp()/dot_general" scheduling_name="product"}
  %grad = f32[16]{0} custom-call(%y), metadata={op_name="jit(f)/transpose(jvp())/reduce_sum"}
  %view = f32[32]{0} bitcast(%product)
  %wrapped = f32[48]{0} fusion(%view, %grad), kind=kLoop, calls=%joined, metadata={scheduling_name="wrapped"}
  %start = f32[48]{0} all-reduce-start(%wrapped), channel_id=1, replica_groups=[2,4]<=[8], to_apply=%add, metadata={scheduling_name="start"}
  %done = f32[48]{0} all-reduce-done(%start), metadata={scheduling_name="done"}
  %part-start = ((f32[16]{0}), f32[4]{0}) reduce-scatter-start(%grad), channel_id=2, replica_groups=[2,4]<=[8], dimensions={0}, to_apply=%add
  %part = f32[4]{0} reduce-scatter-done(%part-start)
  ROOT %out = f32[48]{0} copy(%done)
}
"""  # noqa: E501


def test_collectives_that_were_rewritten_for_a_gpu_belong_where_their_operands_do():
    """XLA for GPU leaves new collectives without a name, and sends several tensors in a row as one."""
    rows = emitted_collectives(parse_module(FOR_GPU), MESH)
    assert [(row.phase, row.kind, row.payload_bytes) for row in rows] == [
        ("forward", "all_reduce", 128),
        ("backward", "all_reduce", 64),
        ("backward", "reduce_scatter", 64),
    ]
