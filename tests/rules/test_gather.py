"""Lookups, scatters, selections, scans: every option, carried out on 2 and 3 devices, gives what the whole gives."""

from __future__ import annotations

import numpy as np
from rule_cases import Case, f, i, index
from rule_execution import laws

CASES = {
    "Gather vocabulary": (Case("Gather", (f(12, 6), index(12, 2, 4))), "v d1 i0 i1"),
    "Gather axis": (Case("Gather", (f(2, 6, 8), np.array([-1, 0, 2, 5])), {"axis": 1}), "d0 v d2 i"),
    "GatherElements": (Case("GatherElements", (f(4, 6), index(6, 4, 2)), {"axis": 1}), "d0 v i"),
    "GatherND": (Case("GatherND", (f(4, 6, 8), index(4, 2, 6, 1)), {}), "i0 i1 d0 d1"),
    "GatherND batched": (Case("GatherND", (f(4, 6, 8), index(6, 4, 2, 1)), {"batch_dims": 1}), "b i d"),
    "OneHot": (Case("OneHot", (index(6, 4, 2), np.int64(6), f(2)), {"axis": 1}), "i0 i1 v"),
    "ScatterElements": (
        Case("ScatterElements", (f(4, 6), index(6, 4, 2), f(4, 2)), {"axis": 1, "reduction": "add"}, opset=18),
        "d0",
    ),
    "ScatterND": (Case("ScatterND", (f(6, 4, 2), i(1, 3).reshape(2, 1), f(2, 4, 2)), opset=18), "d0 d1"),
    "TopK": (Case("TopK", (f(4, 6, 8), i(3)), {"axis": 1}, outputs=2), "x0 x2"),
    "CumSum": (Case("CumSum", (f(4, 6), np.int64(1)), constants=(1,)), "x0"),
    "ReverseSequence": (Case("ReverseSequence", (f(6, 4, 2), i(1, 2, 3, 6)), {}), "x1 x2"),
}
test_options, test_placements, test_splitting_on, test_results, test_partial_sums = laws(CASES)
