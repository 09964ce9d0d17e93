"""Operators that rearrange: every option, carried out on 2 and 3 devices, gives what the whole gives."""

from __future__ import annotations

import numpy as np
from rule_cases import Case, f, i
from rule_execution import laws

CASES = {
    "Reshape merge": (Case("Reshape", (f(4, 6, 8), i(-1, 8)), constants=(1,)), "a b c"),
    "Reshape heads": (Case("Reshape", (f(2, 4, 24), i(2, 4, 6, 4)), constants=(1,)), "a b c d"),
    "Reshape unmatched": (Case("Reshape", (f(6, 4), i(4, 6)), constants=(1,)), "a"),
    "Reshape groups": (Case("Reshape", (f(2, 4, 6, 2, 4), i(2, 24, 2, 4)), constants=(1,)), "a b c d e"),
    "Flatten": (Case("Flatten", (f(4, 6, 2),), {"axis": 1}), "a b c"),
    "Unsqueeze": (Case("Unsqueeze", (f(4, 6), i(1)), constants=(1,)), "a b"),
    "Squeeze": (Case("Squeeze", (f(4, 1, 6), i(1)), constants=(1,)), "a b"),
    "Transpose": (Case("Transpose", (f(2, 4, 6),), {"perm": [2, 0, 1]}), "x0 x1 x2"),
    "Transpose reversed": (Case("Transpose", (f(2, 4, 6),)), "x0 x1 x2"),
    "Expand": (Case("Expand", (f(4, 1, 6), i(2, 4, 2, 1)), constants=(1,)), "x0 x1 x2 x3"),
    "Tile": (Case("Tile", (f(4, 6), i(1, 2)), constants=(1,)), "x0 copies1 x1"),
    "Split": (Case("Split", (f(4, 18),), {"axis": 1, "num_outputs": 3}, outputs=3), "x0 part0|part1|part2;3x6"),
    "Split sizes": (
        Case("Split", (f(18, 4), i(12, 6)), {"axis": 0}, (1,), outputs=2),
        "x1 part0|part1;12,6",
    ),
    "Concat": (Case("Concat", (f(4, 6), f(4, 12)), {"axis": -1}), "x0 part0|part1;6,12"),
    "Slice": (
        Case("Slice", (f(4, 18, 6), i(6), i(12), i(1), i(1)), constants=(1, 2, 3, 4)),
        "x0 beforex1|x1|afterx1;3x6 x2",
    ),
    "Slice all of it": (Case("Slice", (f(4, 6), i(0), i(2**62), i(1)), constants=(1, 2, 3)), "x0 x1"),
    "Slice with a step": (Case("Slice", (f(4, 12), i(1), i(2**62), i(1), i(2)), constants=(1, 2, 3, 4)), "x0 x1"),
    "Slice backwards": (Case("Slice", (f(4, 12), i(-1), i(-(2**62)), i(1), i(-1)), constants=(1, 2, 3, 4)), "x0"),
    "Pad": (Case("Pad", (f(4, 6), i(0, 1, 0, 2)), constants=(1,)), "x0"),
    "DepthToSpace DCR": (Case("DepthToSpace", (f(2, 24, 4, 6),), {"blocksize": 2}), "n c y x"),
    "DepthToSpace CRD": (Case("DepthToSpace", (f(2, 24, 4, 6),), {"blocksize": 2, "mode": "CRD"}), "n c y x"),
    "SpaceToDepth": (Case("SpaceToDepth", (f(2, 6, 4, 12),), {"blocksize": 2}), "n c y x"),
    "Trilu": (Case("Trilu", (f(2, 4, 6, 12), np.int64(1))), "b0 b1 y x"),
}
test_options, test_placements, test_splitting_on, test_results, test_partial_sums = laws(CASES)


def test_a_factor_that_would_need_too_many_segments_is_not_split():
    """A flattened image: columns of 600 x 4 rows. They are in the result, so splitting them leaves no partial sums."""
    rule = Case("Reshape", (f(2, 600, 4, 4), i(2, 9600)), constants=(1,)).rule()
    assert rule.equation.startswith("a b c d")
    assert [option.factor for option in (*rule.options, *rule.latent)] == ["a", "b"]
    assert all(placement.is_shard for option in rule.options for placement in option.results)
