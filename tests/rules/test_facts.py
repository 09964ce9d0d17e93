"""Numbers and facts of rules: work, matrix sizes, what is saved, bytes inside, limits."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from rule_cases import Case, b, f, i, index, positive
from rule_execution import prove

from shardplan.layout.placement import RP, P, R, S
from shardplan.rules.attention import _Band
from shardplan.rules.types import Gemm, InnerCollective


def inner(case: Case, factor: str) -> list[tuple[str, int, str]]:
    return [(c.kind, c.payload_bytes, c.phase) for c in case.options()[factor].inner]


def test_a_matrix_product():
    rule = Case("MatMul", (f(2, 6, 4), f(4, 12))).rule()
    assert rule.flops == 2 * 2 * 6 * 4 * 12
    assert rule.backward_flops == 2 * rule.flops
    assert rule.gemm == Gemm(m=("b", "m"), n=("n",), k=("k",))
    assert rule.sizes == {"b": 2, "m": 6, "k": 4, "n": 12}
    assert (rule.saved_operands, rule.saved_results) == ((0, 1), ())
    assert rule.linear == ((0,), (1,))
    options = {o.factor: (o.operands, o.results) for o in rule.options}
    assert options == {
        "b": ((S(0), RP), (S(0),)),
        "m": ((S(1), RP), (S(1),)),
        "k": ((S(2), S(0)), (P(),)),
        "n": ((RP, S(1)), (S(2),)),
    }


def test_batched_products_share_their_batch():
    assert Case("MatMul", (f(2, 6, 4), f(2, 4, 12))).rule().gemm == Gemm(("m",), ("n",), ("k",), ("b",))


def test_the_addend_of_a_partial_sum_is_added_once():
    options = Case("Gemm", (f(6, 4), f(4, 12), f(12))).options()
    assert options["k"].operands == (S(1), S(0), P())
    assert options["m"].operands == (S(0), RP, RP)
    assert options["n"].operands == (RP, S(1), S(0))


def test_einsum_with_experts():
    rule = Case("Einsum", (f(4, 2, 6, 8), f(4, 8, 6)), {"equation": "egch,ehi->egci"}).rule()
    assert rule.flops == 2 * 4 * 2 * 6 * 8 * 6
    assert rule.gemm == Gemm(m=("g", "c"), n=("i",), k=("h",), batch=("e",))


@pytest.mark.parametrize(
    ("equation", "shapes", "cost"),
    [
        ("bskh,bsk->bsh", ((2, 4, 3, 8), (2, 4, 3)), "memory"),  # a weighted sum of what experts make
        ("bsk,bskh->bsh", ((2, 4, 3), (2, 4, 3, 8)), "memory"),
        ("...j,...j->...", ((2, 4, 8), (2, 4, 8)), "memory"),
        ("...ij,j->...i", ((2, 4, 8), (8,)), "memory"),
        ("...ij,jk->...ik", ((2, 4, 8), (8, 6)), "gemm"),
        ("ij,jk", ((2, 4), (4, 6)), "gemm"),
    ],
)
def test_a_contraction_that_uses_every_number_once_is_no_matrix_product(equation, shapes, cost):
    assert Case("Einsum", tuple(f(*shape) for shape in shapes), {"equation": equation}).rule().cost == cost


def test_a_table_split_by_rows_is_looked_up_with_a_mask():
    option = Case("Gather", (f(12, 6), index(12, 2, 4))).options()["v"]
    assert (option.operands, option.results) == ((S(0), RP), (P(),))
    assert option.ordered


def test_a_mean_is_averaged_and_a_maximum_combined():
    mean = Case("ReduceMean", (f(4, 6), i(1)), {"keepdims": 0}, (1,)).options()["k"]
    top = Case("ReduceMax", (f(4, 6), i(1)), {"keepdims": 0}, (1,)).options()["k"]
    assert (mean.results, mean.averaged) == ((P(),), True)
    assert (top.results, top.averaged) == ((P("max"),), False)


@pytest.mark.parametrize(
    ("case", "operands", "results"),
    [
        (Case("Add", (f(4, 6), f(6))), (), ()),
        (Case("Mul", (f(4, 6), f(4, 6))), (0, 1), ()),
        (Case("Mul", (f(4, 6), np.float32(0.5)), constants=(1,)), (1,), ()),
        (Case("Div", (f(4, 6), np.float32(2)), constants=(1,)), (1,), ()),
        (Case("Pow", (positive(4, 6), np.float32(3)), constants=(1,)), (0,), ()),
        (Case("Gelu", (f(4, 6),)), (0,), ()),
        (Case("Tanh", (f(4, 6),)), (), (0,)),
        (Case("Relu", (f(4, 6),)), (), (0,)),
        (Case("Softmax", (f(4, 6),)), (), (0,)),
        (Case("LayerNormalization", (f(4, 6), f(6), f(6))), (0, 1), ()),
        (Case("Attention", (f(2, 4, 6, 8), f(2, 4, 6, 8), f(2, 4, 6, 8))), (0, 1, 2), (0,)),
        (Case("Gather", (f(12, 6), index(12, 4))), (1,), ()),
        (Case("Where", (b(4, 6), f(4, 6), f(4, 6))), (0,), ()),
        (Case("Transpose", (f(4, 6),)), (), ()),
        (Case("Less", (f(4, 6), f(6))), (), ()),
        (Case("Cast", (f(4, 6),), {"to": 7}), (), ()),
    ],
    ids=lambda value: value.kind if isinstance(value, Case) else "",
)
def test_what_backward_reads(case, operands, results):
    rule = case.rule()
    assert (rule.saved_operands, rule.saved_results) == (operands, results)


def test_an_operand_is_saved_only_for_the_gradients_of_others():
    rule = Case("Mul", (f(4, 6), f(4, 6))).rule()
    assert rule.saved_when([True, True]) == (0, 1)
    assert rule.saved_when([True, False]) == (1,)
    assert Case("Gelu", (f(4, 6),)).rule().saved_when([True]) == (0,)


def test_statistics_of_a_split_row():
    rows = 4 * 6
    assert inner(Case("Softmax", (f(4, 6, 8),)), "k2") == [
        ("all_reduce", 2 * rows * 4, "forward"),
        ("all_reduce", rows * 4, "backward"),
    ]
    assert inner(Case("RMSNormalization", (f(4, 6, 8), f(8))), "k") == [
        ("all_reduce", rows * 4, "forward"),
        ("all_reduce", rows * 4, "backward"),
    ]
    groups = Case("GroupNormalization", (f(2, 12, 4), f(12), f(12)), {"num_groups": 6}, opset=21)
    assert inner(groups, "y")[0] == ("all_reduce", 2 * 2 * 6 * 4, "forward")


def test_attention_counts_pairs():
    shape = (2, 4, 6, 8)
    whole = Case("Attention", (f(*shape), f(*shape), f(*shape))).rule()
    assert whole.flops == 4 * 2 * 4 * 6 * 6 * 8
    assert whole.backward_flops == 2.5 * whole.flops
    assert whole.triangular == ()
    causal = Case("Attention", (f(*shape), f(*shape), f(*shape)), {"is_causal": 1}).rule()
    assert causal.flops == 4 * 2 * 4 * (1 + 2 + 3 + 4 + 5 + 6) * 8
    assert causal.triangular == ("s", "t")
    band = {"is_causal": 1, "left_window_size": 1}
    banded = Case("Attention", (f(*shape), f(*shape), f(*shape)), band).rule()
    assert banded.flops == 4 * 2 * 4 * (1 + 2 + 2 + 2 + 2 + 2) * 8
    assert banded.triangular == ()
    past = (f(2, 4, 1, 8),) * 3 + (None, f(2, 4, 9, 8), f(2, 4, 9, 8))
    decoded = Case("Attention", past, {"is_causal": 1}, outputs=3).rule()
    assert decoded.flops == 4 * 2 * 4 * 10 * 8
    packed = Case("Attention", (f(2, 6, 32), f(2, 6, 32), f(2, 6, 32)), {"q_num_heads": 4, "kv_num_heads": 4}).rule()
    assert packed.flops == whole.flops


@pytest.mark.parametrize("window", [*itertools.product([-1, 0, 1, 3, 9], repeat=2)], ids=str)
def test_windows_of_attention_count_the_pairs_that_enumeration_finds(window):
    """With queries beside fewer and more keys, and keys of earlier tokens."""
    left, right = window
    asked = {"left_window_size": left, "right_window_size": right}
    for queries, keys, past in itertools.product((1, 4, 7), (1, 4, 7), (0, 3)):
        given = (f(1, 1, queries, 8), f(1, 1, keys, 8), f(1, 1, keys, 8))
        rows = (None, f(1, 1, past, 8), f(1, 1, past, 8)) if past else ()
        seen = sum(
            (left < 0 or key >= query - left) and (right < 0 or key <= query + right)
            for query in range(past, past + queries)
            for key in range(keys + past)
        )
        rule = Case("Attention", (*given, *rows), asked, outputs=3 if past else 1).rule()
        assert rule.flops == 4 * seen * 8


def test_pairs_of_a_billion_tokens_are_counted_at_once():
    band = _Band(queries=10**9, keys=10**9, past=0, left=None, right=0)
    assert band.pairs == 10**9 * (10**9 + 1) // 2


def test_keys_split_by_online_softmax():
    case = Case("Attention", (f(2, 4, 6, 8), f(2, 4, 12, 8), f(2, 4, 12, 8), b(2, 1, 6, 12)))
    option = case.options()["t"]
    assert option.operands == (RP, S(2), S(2), S(3))
    assert option.results == (R,)
    assert option.inner == (InnerCollective("all_reduce", 2 * 4 * 6 * 8 * 4 + 2 * 2 * 4 * 6 * 4),)


def test_heads_split_as_many_ways_as_there_are_key_heads():
    grouped = Case("Attention", (f(2, 12, 4, 8), f(2, 6, 4, 8), f(2, 6, 4, 8)))
    option = grouped.options()["h"]
    assert (option.size, option.operands, option.results) == (6, (S(1), S(1), S(1)), (S(1),))


def test_convolution_work_and_halo():
    case = Case("Conv", (f(2, 4, 8, 12), f(6, 4, 3, 3), f(6)), {"pads": [1, 1, 1, 1]})
    rule = case.rule()
    assert rule.flops == 2 * (2 * 6 * 8 * 12) * (4 * 3 * 3)
    assert inner(case, "y0") == [
        ("permute", 2 * 4 * 2 * 12 * 4, "forward"),
        ("permute", 2 * 4 * 2 * 12 * 4, "backward"),
    ]
    assert rule.gemm == Gemm(("n", "y0", "y1"), ("o",), ("c", "w0", "w1"))


def test_a_shard_of_space_is_no_shorter_than_its_halo():
    wide = {"pads": [3, 3], "strides": [1]}
    assert Case("Conv", (f(1, 1, 12), f(1, 1, 7)), wide).options()["y"].size == 4  # 3 rows from either neighbour
    assert Case("Conv", (f(1, 1, 12), f(1, 1, 1)), {}).options()["y"].size == 12
    assert "y" not in Case("Conv", (f(2, 2, 12), f(2, 2, 3))).options()  # 12 rows in, 10 out


def test_recurrent_steps_gather_their_state():
    steps, batch, hidden = 5, 4, 6
    case = Case("LSTM", (f(steps, batch, 8), f(1, 24, 8), f(1, 24, 6), f(1, 48)), {"hidden_size": hidden}, outputs=3)
    option = case.options()["h"]
    assert option.operands == (RP, S(1, (6,) * 4), S(1, (6,) * 4), S(1, (6,) * 8))
    assert option.results == (S(3), S(2), S(2))
    assert option.inner[0] == InnerCollective("all_gather", batch * hidden * 4, "forward", count=steps)
    assert case.rule().flops == 2 * steps * batch * 4 * hidden * (8 + hidden)


HIDET = {
    "matmul": (Case("MatMul", (f(32, 64), f(64, 32))), 5),
    "conv2d": (Case("Conv", (f(32, 64, 8, 8), f(64, 64, 3, 3))), 5),
    "transpose": (Case("Transpose", (f(4, 8, 12, 16),), {"perm": [0, 3, 2, 1]}), 5),
    "pad": (Case("Pad", (f(4, 4, 4), i(1, 1, 0, 0, 0, 0)), constants=(1,)), 2),
    "softmax": (Case("Softmax", (f(8, 16, 32),)), 3),
    "sum": (Case("ReduceSum", (f(8, 16, 32), i(-1)), {"keepdims": 0}, (1,)), 5),
    "reshape (4,8,4)->(32,4)": (Case("Reshape", (f(4, 8, 4), i(32, 4)), constants=(1,)), 3),
    "reshape (4,8,4)->(4,32)": (Case("Reshape", (f(4, 8, 4), i(4, 32)), constants=(1,)), 3),
}
"""Numbers of rules that Hidet finds for 4 shards; of a reshape it finds 2, the merged leading dim is ours."""


@pytest.mark.parametrize("name", HIDET)
def test_as_many_ways_as_hidet(name):
    """Replicated, or one factor split; a partial result is all-reduced or reduce-scattered."""
    case, count = HIDET[name]
    plain = [option for option in case.rule().options if not option.inner and option.size % 4 == 0]
    assert 1 + sum(2 if any(p.kind == "P" for p in option.results) else 1 for option in plain) == count


WRONG = (AssertionError, LookupError, RuntimeError, TypeError, ValueError)
EVERY = {
    "MatMul": Case("MatMul", (f(2, 6, 4), f(4, 12))),
    "Gemm": Case("Gemm", (f(6, 4), f(4, 12), f(12))),
    "Conv": Case("Conv", (f(2, 4, 8), f(6, 4, 3), f(6)), {"pads": [1, 1]}),
    "ConvTranspose": Case("ConvTranspose", (f(2, 4, 8), f(4, 6, 2)), {"strides": [2]}),
    "Attention": Case("Attention", (f(2, 4, 6, 8), f(2, 4, 12, 8), f(2, 4, 12, 8))),
    "Softmax": Case("Softmax", (f(4, 6),)),
    "GatherND": Case("GatherND", (f(4, 6, 8), index(4, 2, 6, 1))),
    "Split": Case("Split", (f(4, 12),), {"axis": 1, "num_outputs": 2}, outputs=2),
    "LayerNormalization": Case("LayerNormalization", (f(2, 4, 6), f(6), f(6))),
}


@pytest.mark.parametrize("name", EVERY)
def test_factors_of_the_matrix_product_have_sizes(name):
    rule = EVERY[name].rule()
    roles = () if rule.gemm is None else (*rule.gemm.m, *rule.gemm.n, *rule.gemm.k, *rule.gemm.batch)
    assert set(roles) <= set(rule.sizes)


@pytest.mark.parametrize("name", EVERY)
def test_a_wrong_placement_is_caught(name):
    """The proof by execution is worth something: whatever shard or sum of an option is changed, it fails."""
    for option in EVERY[name].options().values():
        for position, placement in enumerate(option.operands):
            if placement.is_shard:
                wrong = tuple(RP if i == position else p for i, p in enumerate(option.operands))
                with pytest.raises(WRONG):
                    prove(EVERY[name], replace(option, operands=wrong))
        for position, placement in enumerate(option.results):
            changed = R if placement.kind == "P" else P()
            wrong = tuple(changed if i == position else p for i, p in enumerate(option.results))
            with pytest.raises(WRONG):
                prove(EVERY[name], replace(option, results=wrong))


def test_a_delta_rule_also_reads_what_its_state_holds_of_a_key():
    operands = (f(2, 3, 48), f(2, 3, 24), f(2, 3, 24), None, f(2, 3, 6))
    heads = {"q_num_heads": 12, "kv_num_heads": 6}
    gated = Case("LinearAttention", operands, {**heads, "update_rule": "gated"}, opset=27).rule()
    delta = Case("LinearAttention", (*operands, f(2, 3, 6)), {**heads, "update_rule": "gated_delta"}, opset=27).rule()
    assert (gated.flops, delta.flops) == (2 * 2 * 6 * 48 * 4, 2 * 3 * 6 * 48 * 4)
