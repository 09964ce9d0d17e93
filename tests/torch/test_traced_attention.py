"""The table of `shardplan.extras.calibration.traced_attention` against the operators of torch."""

import pytest
import torch

from shardplan.extras.calibration.traced_attention import OPERATORS


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_positions_of_arguments(name):
    arguments = [each.name for each in getattr(torch.ops.aten, name.removeprefix("aten::")).default._schema.arguments]
    assert arguments[OPERATORS[name].causal] in ("is_causal", "custom_mask_type")
    first = 1 if OPERATORS[name].is_backward else 0
    assert arguments[first : first + 3] == ["query", "key", "value"]
