"""Recipes as rows of a comparison: which axes split the work of operators by the batch."""

import numpy as np
import pytest

from shardplan.graph.options import PlanOptions
from shardplan.layout.placement import S
from shardplan.planning.instance import CostGraphs, instance_of
from shardplan.planning.recipes import as_written_by_hand, recipes_for
from shardplan.request import Request
from shardplan.rules.batch import batch_dims_of
from shardplan.study.instance import read


def built_of(mesh, batch):
    model = f"transformer:layers=1,hidden=32,heads=2,vocab=64,seq=8,batch={batch}"
    asked = read(Request(model=model, mesh=mesh))
    built, _ = CostGraphs(instance_of(asked.model, asked.cluster, asked.options, pytest.fail)).asked()
    return built


def pieces_of_batches(built, allowed, axes):
    """For every operand that has a batch, the numbers of its pieces over `axes` that are allowed."""
    batch = batch_dims_of(built.model, built.rules)
    for operator, space in zip(built.model.operators, built.operators, strict=True):
        mask = allowed.get(("operator", operator.name), np.ones(len(space), dtype=np.bool_))
        for position, (name, tensor) in enumerate(zip(operator.inputs, space.strategies.operands, strict=True)):
            code = tensor.code(S(batch[name])) if tensor is not None and name in batch else None
            if code is not None:
                codes = space.strategies.layout_codes("operands", position)[mask][:, axes]
                yield set(np.where(codes == code, space.strategies.axis_sizes[axes], 1).prod(axis=1).tolist())


@pytest.mark.parametrize(
    ("name", "mesh", "batch", "axes", "pieces"),
    [
        ("data parallel", "2x4", 8, [0, 1], 8),
        ("data parallel", "2x4", 4, [0, 1], 4),
        ("ZeRO-3", "2x4", 16, [0, 1], 8),
        ("Megatron", "2x4", 8, [0], 2),
        ("Megatron + sequence", "4x2", 8, [0], 4),
    ],
)
def test_operators_split_the_batch_in_as_many_pieces_as_the_inputs(name, mesh, batch, axes, pieces):
    built = built_of(mesh, batch)
    allowed = as_written_by_hand(PlanOptions())[name](built)
    found = list(pieces_of_batches(built, allowed, axes))
    assert len(found) > 20
    assert all(one == {pieces} for one in found), found


def test_they_allow_less_than_the_recipes_of_the_search():
    built = built_of("2x4", 8)
    for name, recipe in recipes_for(PlanOptions()).items():
        wider, stricter = recipe(built), as_written_by_hand(PlanOptions())[name](built)
        assert wider.keys() <= stricter.keys()
        assert all((stricter[node] <= mask).all() for node, mask in wider.items())
        assert all(mask.any() for mask in stricter.values())
