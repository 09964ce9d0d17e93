"""ONNX Runtime's transformer operators: every option, carried out on 2 and 3 devices, gives what the whole gives."""

from __future__ import annotations

from microsoft_cases import CASES, MS, skip_norm
from rule_cases import Case, f, positive
from rule_execution import laws

from shardplan.layout.placement import RP, P, S
from shardplan.rules import FAMILIES

test_options, test_placements, test_splitting_on, test_results, test_partial_sums = laws(CASES)


def test_packed_operands_are_cut_inside_q_k_and_v():
    case, _ = CASES["GroupQueryAttention packed"]
    option = case.options()["h"]
    assert option.operands[0] == S(2, (48, 24, 24))
    assert option.operands[3:5] == (S(1), S(1))
    assert option.size == 6
    weight = CASES["Attention"][0].options()["h"].operands[1:3]
    assert weight == (S(1, (24,) * 3), S(0, (24,) * 3))


def test_a_quantised_unit_splits_together():
    option = CASES["MatMulNBits packed zero points"][0].options()["q"]
    assert option.operands == (S(1), S(1), S(1), S(1))
    assert (option.size, option.results) == (2, (P(),)), "zero points of two blocks share a byte"
    assert CASES["MatMulNBits"][0].options()["q"].operands[5] == P()


def test_experts_are_parallel():
    option = CASES["MoE"][0].options()["e"]
    assert option.operands == (RP, RP, S(0), S(0), S(0), S(0))
    assert (option.results, option.ordered) == ((P(),), True)
    assert CASES["MoE"][0].rule().flops == 2 * 2 * 4 * (2 * 6 * 8)


def test_the_residual_sum_is_saved_instead_of_its_terms():
    case = Case(
        MS + "SkipLayerNormalization", (f(2, 4, 6), f(2, 4, 6), positive(6), f(6), f(6)), outputs=4, oracle=skip_norm
    )
    options = case.options()
    assert options["k"].results == (S(2), options["k"].results[1], options["k"].results[1], S(2))
    assert [c.payload_bytes for c in options["k"].inner] == [2 * 8 * 4, 2 * 8 * 4]
    assert case.rule().saved_operands == (2,)
    assert case.rule().saved_results[0] == 3


def test_every_named_operator_is_in_the_family():
    named = "Attention MultiHeadAttention GroupQueryAttention SkipLayerNormalization SkipSimplifiedLayerNormalization "
    named += "RotaryEmbedding FastGelu BiasGelu MatMulNBits MoE QMoE"
    assert {MS + name for name in named.split()} <= set(FAMILIES["microsoft"])
