"""Elementwise operators: every option, carried out on 2 and 3 devices, gives what the whole gives."""

from __future__ import annotations

import numpy as np
from rule_cases import Case, b, f, index, positive
from rule_execution import laws

CASES = {
    "Add": (Case("Add", (f(4, 6, 8), f(6, 1))), "x0 x1 x2"),
    "Sub": (Case("Sub", (f(4, 6), f(6))), "x0 x1"),
    "Mul": (Case("Mul", (f(4, 6), f(4, 1))), "x0 x1"),
    "Div": (Case("Div", (f(4, 6), positive(6))), "x0 x1"),
    "Sum": (Case("Sum", (f(4, 6), f(6), f(4, 1))), "x0 x1"),
    "Mean": (Case("Mean", (f(4, 6), f(6), f(4, 6))), "x0 x1"),
    "Max": (Case("Max", (f(4, 6), f(6))), "x0 x1"),
    "Where": (Case("Where", (b(4, 1), f(4, 6), f(6))), "x0 x1"),
    "Neg": (Case("Neg", (f(4, 6),)), "x0 x1"),
    "Gelu": (Case("Gelu", (f(4, 6),)), "x0 x1"),
    "Cast": (Case("Cast", (f(4, 6),), {"to": 11}), "x0 x1"),
    "Clip": (Case("Clip", (f(4, 6), np.float32(-0.5), np.float32(0.5))), "x0 x1"),
    "Pow": (Case("Pow", (positive(4, 6), np.float32(3.0)), constants=(1,)), "x0 x1"),
    "PRelu": (Case("PRelu", (f(2, 4, 6), f(4, 1))), "x0 x1 x2"),
    "Equal": (Case("Equal", (index(3, 4, 6), index(3, 6))), "x0 x1"),
    "Dropout": (Case("Dropout", (f(4, 6),)), "x0 x1"),
}
test_options, test_placements, test_splitting_on, test_results, test_partial_sums = laws(CASES)
