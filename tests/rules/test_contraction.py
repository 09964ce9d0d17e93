"""Matrix products and Einsum: every option, carried out on 2 and 3 devices, gives what the whole gives."""

from __future__ import annotations

from rule_cases import Case, f
from rule_execution import laws

CASES = {
    "MatMul": (Case("MatMul", (f(2, 6, 4), f(4, 12))), "b m k n"),
    "MatMul batched": (Case("MatMul", (f(2, 6, 4), f(4, 2, 4, 12))), "b0 b1 m k n"),
    "MatMul broadcast": (Case("MatMul", (f(1, 6, 4), f(2, 4, 12))), "b m k n"),
    "MatMul matrix vector": (Case("MatMul", (f(2, 6, 4), f(4))), "b m k"),
    "MatMul vector matrix": (Case("MatMul", (f(4), f(2, 4, 6))), "b k n"),
    "MatMul vectors": (Case("MatMul", (f(6), f(6))), "k"),
    "Gemm": (Case("Gemm", (f(6, 4), f(4, 12), f(12))), "m k n"),
    "Gemm transposed": (
        Case("Gemm", (f(4, 6), f(12, 4), f(6, 1)), {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
        "m k n",
    ),
    "Gemm without C": (Case("Gemm", (f(6, 4), f(4, 12))), "m k n"),
    "Gemm full C": (Case("Gemm", (f(6, 4), f(4, 12), f(6, 12))), "m k n"),
    "Einsum dispatch": (Case("Einsum", (f(2, 6, 4, 2), f(2, 6, 8)), {"equation": "gsec,gsh->egch"}), "g s e c h"),
    "Einsum experts": (Case("Einsum", (f(4, 2, 6, 8), f(4, 8, 6)), {"equation": "egch,ehi->egci"}), "e g c h i"),
    "Einsum ellipsis": (Case("Einsum", (f(2, 4, 6), f(6, 8)), {"equation": "...ij,jk->...ik"}), "batch i j k"),
    "Einsum implicit": (Case("Einsum", (f(4, 6), f(6, 8)), {"equation": "ij,jk"}), "i j k"),
    "Einsum diagonal": (Case("Einsum", (f(4, 6, 6),), {"equation": "bii->bi"}), "b"),
    "Einsum sum": (Case("Einsum", (f(4, 6),), {"equation": "ij->i"}), "i j"),
}
test_options, test_placements, test_splitting_on, test_results, test_partial_sums = laws(CASES)
