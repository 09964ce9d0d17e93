"""Attention and rotary embedding: every option, carried out on 2 and 3 devices, gives what the whole gives."""

from __future__ import annotations

from rule_cases import Case, b, f, index
from rule_execution import laws

CASES = {
    "Attention": (Case("Attention", (f(2, 6, 4, 8), f(2, 6, 12, 8), f(2, 6, 12, 6))), "b h s t e"),
    "Attention masked": (
        Case("Attention", (f(2, 6, 4, 8), f(2, 6, 12, 8), f(2, 6, 12, 6), b(2, 1, 4, 12))),
        "b h s t e",
    ),
    "Attention grouped": (Case("Attention", (f(2, 12, 4, 8), f(2, 6, 12, 8), f(2, 6, 12, 6))), "b h g s t e"),
    "Attention causal": (
        Case("Attention", (f(2, 6, 4, 8), f(2, 6, 4, 8), f(2, 6, 4, 6)), {"is_causal": 1}),
        "b h s t e",
    ),
    "Attention causal and masked": (
        Case("Attention", (f(2, 6, 4, 8), f(2, 6, 12, 8), f(2, 6, 12, 6), f(2, 1, 4, 12)), {"is_causal": 1}),
        "b h s t e",
    ),
    "Attention with windows": (
        Case(
            "Attention",
            (f(2, 6, 12, 8), f(2, 6, 12, 8), f(2, 6, 12, 6), b(12, 12)),
            {"left_window_size": 4, "right_window_size": 2},
        ),
        "b h s t e",
    ),
    "Attention causal and cached": (
        Case(
            "Attention",
            (f(2, 6, 4, 8), f(2, 6, 4, 8), f(2, 6, 4, 6), None, f(2, 6, 2, 8), f(2, 6, 2, 6)),
            {"is_causal": 1},
            outputs=3,
        ),
        "b h s e",
    ),
    "Attention of padded keys": (
        Case("Attention", (f(2, 6, 4, 8), f(2, 6, 12, 8), f(2, 6, 12, 6), b(4, 8))),
        "b h s e",
    ),
    "Attention packed": (
        Case("Attention", (f(2, 4, 48), f(2, 6, 24), f(2, 6, 36)), {"q_num_heads": 12, "kv_num_heads": 6}),
        "b h g s t e",
    ),
    "Attention cached": (
        Case("Attention", (f(2, 6, 4, 8), f(2, 6, 4, 8), f(2, 6, 4, 6), None, f(2, 6, 2, 8), f(2, 6, 2, 6)), outputs=3),
        "b h s e",
    ),
    "RotaryEmbedding": (Case("RotaryEmbedding", (f(2, 6, 4, 8), f(2, 4, 4), f(2, 4, 4))), "b h s"),
    "RotaryEmbedding packed": (
        Case("RotaryEmbedding", (f(2, 4, 48), f(8, 4), f(8, 4), index(8, 2, 4)), {"num_heads": 6}),
        "b h s",
    ),
}
test_options, test_placements, test_splitting_on, test_results, test_partial_sums = laws(CASES)
