"""Reductions: every option, carried out on 2 and 3 devices, gives what the whole gives."""

from __future__ import annotations

from rule_cases import Case, f, i, positive
from rule_execution import laws

CASES = {
    "ReduceSum": (Case("ReduceSum", (f(4, 6, 8), i(1)), {"keepdims": 0}, (1,)), "x0 x1 k"),
    "ReduceSum all": (Case("ReduceSum", (f(4, 6),), {"keepdims": 0}), "k0 k1"),
    "ReduceMean": (Case("ReduceMean", (f(4, 6, 8), i(-1, 0)), {"keepdims": 1}, (1,)), "x k0 k1"),
    "ReduceMax": (Case("ReduceMax", (f(4, 6), i(1)), {"keepdims": 1}, (1,)), "x k"),
    "ReduceMin": (Case("ReduceMin", (f(4, 6), i(1)), {"keepdims": 0}, (1,)), "x k"),
    "ReduceProd": (Case("ReduceProd", (f(4, 6), i(1)), {"keepdims": 0}, (1,)), "x k"),
    "ReduceL1": (Case("ReduceL1", (f(4, 6), i(1)), {"keepdims": 0}, (1,)), "x k"),
    "ReduceL2": (Case("ReduceL2", (f(4, 6), i(1)), {"keepdims": 0}, (1,)), "x k"),
    "ReduceLogSum": (Case("ReduceLogSum", (positive(4, 6), i(1)), {"keepdims": 0}, (1,)), "x k"),
    "ReduceLogSumExp": (Case("ReduceLogSumExp", (f(4, 6), i(1)), {"keepdims": 1}, (1,)), "x k"),
    "ReduceSumSquare": (Case("ReduceSumSquare", (f(4, 6), i(1)), {"keepdims": 1}, (1,)), "x k"),
    "ReduceSum opset 11": (Case("ReduceSum", (f(4, 6),), {"axes": [1]}, opset=11), "x k"),
    "ArgMax": (Case("ArgMax", (f(4, 6, 2),), {"axis": 1, "keepdims": 0}), "x0 x1 k"),
    "ArgMin": (Case("ArgMin", (f(4, 6),), {"axis": 0}), "x k"),
    "GlobalAveragePool": (Case("GlobalAveragePool", (f(2, 4, 6, 8),)), "n c k0 k1"),
    "GlobalMaxPool": (Case("GlobalMaxPool", (f(2, 4, 6, 8),)), "n c k0 k1"),
}
test_options, test_placements, test_splitting_on, test_results, test_partial_sums = laws(CASES)
